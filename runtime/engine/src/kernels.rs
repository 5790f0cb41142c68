//! Calls of registry kernels over rows: which kernel serves each operation, and how rows are
//! shared out.
//!
//! A few rows run on the calling thread alone; many are split evenly over the threads, each with
//! its own [`Worker`], which cuts its share into tiles that stay in a core's cache. The registry
//! snapshot is pinned for a step, so that every layer of it sees the same kernels.

mod lora;
mod pinned;
mod products;
mod rows;
mod scopes;

use std::ops::Range;
use std::sync::Arc;

use ruvllm_abi::DType;
use ruvllm_host::{
    Host, MatrixProduct, OpCall, OpKey, OpSlot, Operand, Output, RegistrySnapshot, Resident,
    RopeDims, Scope, Team, TeamWorker, Worker,
};
use ruvllm_native::attention::{AttnSequence, AttnShape};
use ruvllm_native::gemm::{ActForms, Activations, MatMut, PackedWeights, ReadRates};
use ruvllm_native::{Isa, ThreadPool};
use smallvec::SmallVec;

use crate::error::EngineError;
use crate::kv_policy::KvPolicy;
use crate::rope::RopeTables;
use crate::weights::Linear;
pub(crate) use lora::{LoraList, LoraRows};
use pinned::TeamSlots;
pub(crate) use pinned::{Keys, Pinned, Shaping};
pub(crate) use products::Matrices;
use products::TeamCaller;
pub(crate) use rows::RowSink;
use rows::{Outputs, Rows, over_rows};
pub(crate) use scopes::RowScopes;

/// Bytes of rows to which a residual is added before their norm is computed: they and what comes of
/// them stay in a core's second-level cache.
const SUM_BYTES: usize = 64 * 1024;

/// Bytes of weights from which on it is measured how they are best read: more than caches hold.
const MEASURED_FROM: usize = 64 << 20;

/// The workers of all threads, and the snapshot of the current step.
pub(crate) struct Kernels {
    workers: Vec<Worker>,
    pinned: Arc<Pinned>,
    /// For each worker, memory for what updates add to some rows.
    deltas: Vec<Vec<f32>>,
    /// `None` where no steps are computed.
    team: Option<TeamCaller>,
}

/// Row operations that a model calls whose keys and values are stored by `kv`, an adapter's among them.
pub fn operations(kv: &KvPolicy) -> Vec<OpKey> {
    let Keys { rmsnorm, rope, swiglu, lora, kv, team: _ } = Keys::new(kv, None);
    let packed = kv.into_iter().flat_map(|(_, pack, unpack)| [pack, unpack]);
    [rmsnorm, rope, swiglu, lora].into_iter().chain(packed).collect()
}

/// Shape of a rotation: every row holds `heads * dim` elements.
#[derive(Clone, Copy)]
pub(crate) struct RopeRows {
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) dim_half: usize,
    pub(crate) theta: f32,
    pub(crate) interleaved: bool,
}

impl Kernels {
    /// The kernels that keys and values are stored with.
    #[cfg(test)]
    pub(crate) fn new(host: &Host, threads: usize, kv: &KvPolicy) -> Result<Kernels, EngineError> {
        let workers = (0..threads).map(|_| host.worker()).collect::<Result<_, _>>()?;
        let pinned = Arc::new(Pinned::new(host.snapshot(), Arc::new(Keys::new(kv, None)))?);
        let deltas = vec![Vec::new(); threads];
        Ok(Kernels { workers, pinned, deltas, team: None })
    }

    /// The kernels that steps of a model are computed with. Every matrix is taken up.
    pub(crate) fn of_model(
        matrices: Arc<Matrices>,
        each: &mut dyn FnMut(usize),
    ) -> Result<Kernels, EngineError> {
        let (host, pool) = (&matrices.host, &matrices.pool);
        let threads = pool.threads();
        let workers = (0..threads).map(|_| host.worker()).collect::<Result<_, _>>()?;
        let mut worker = host.team_worker();
        let pinned = Arc::new(matrices.pin(host.snapshot(), &mut worker, true, each)?);
        let team = Some(TeamCaller::new(matrices, worker));
        Ok(Kernels { workers, pinned, deltas: vec![Vec::new(); threads], team })
    }

    /// Has the next runs checked, see [`Worker::suspect`].
    #[cold]
    pub(crate) fn suspect(&mut self) {
        self.workers.iter_mut().for_each(Worker::suspect);
        self.team.iter_mut().for_each(|team| team.worker.suspect());
    }

    /// Pins the snapshot that the host has chosen for the next step, or the active one for a `steady`
    /// step.
    ///
    /// # Errors
    /// [`EngineError::OpUnavailable`]; the earlier snapshot then stays pinned.
    pub(crate) fn pin(&mut self, host: &Host, steady: bool) -> Result<(), EngineError> {
        let chosen = if steady { host.snapshot() } else { host.pin() };
        let generation = chosen.generation();
        let is_chosen = |pinned: &Pinned| pinned.snapshot.generation() == generation;
        if !is_chosen(&self.pinned) {
            let next = self.pin_new(chosen)?;
            let pinned = std::mem::replace(&mut self.pinned, next);
            match &self.team {
                Some(team) => team.matrices.keep_waiting(pinned),
                None => host.let_go(pinned),
            }
        }
        if let Some(team) = &mut self.team
            && team.misses_some()
        {
            if let Some(next) = team.replaced(&self.pinned) {
                host.let_go(std::mem::replace(&mut self.pinned, next));
            }
            team.replace_waiting();
        }
        Ok(())
    }

    fn pin_new(&mut self, chosen: Arc<RegistrySnapshot>) -> Result<Arc<Pinned>, EngineError> {
        let Some(TeamCaller { matrices, worker, .. }) = &mut self.team else {
            return Ok(Arc::new(Pinned::new(chosen, self.pinned.keys.clone())?));
        };
        match matrices.take_waiting(chosen.generation()) {
            Some(waiting) => Ok(waiting),
            None => Ok(Arc::new(matrices.pin(chosen, worker, false, &mut |_| ())?)),
        }
    }

    /// What is pinned, for another thread.
    pub(crate) fn pinned(&self) -> &Arc<Pinned> {
        &self.pinned
    }

    /// The kernels of another thread's step, on workers of this one, to pack and unpack blocks with. They
    /// stay pinned: there is no host to follow.
    pub(crate) fn of(pinned: Arc<Pinned>, workers: Vec<Worker>) -> Kernels {
        Kernels { workers, pinned, deltas: Vec::new(), team: None }
    }

    /// The workers, with nothing pinned.
    pub(crate) fn into_workers(self) -> Vec<Worker> {
        self.workers
    }

    /// Which kernels shape keys and values in this step.
    pub(crate) fn shaping(&self) -> Shaping {
        self.pinned.shaping
    }

    /// Whether this step can compute with adapters.
    ///
    /// # Errors
    /// [`EngineError::OpUnavailable`].
    pub(crate) fn require_lora(&self) -> Result<(), EngineError> {
        self.pinned.lora().map(drop)
    }

    /// `x += delta`, then `y = rmsnorm(x) * weight`, over rows `[m, dim]`; without `delta` `x` is the
    /// sum already.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn rmsnorm(
        &mut self,
        pool: &ThreadPool,
        scopes: &RowScopes,
        x: &mut [f32],
        delta: Option<&[f32]>,
        weight: &Resident,
        eps: f32,
        y: RowSink<'_>,
    ) -> Result<(), EngineError> {
        let dim = weight.len() / size_of::<f32>();
        let Pinned { snapshot, rmsnorm, .. } = &*self.pinned;
        let rows = (Outputs { data: x, dim }, y);
        // As many rows at a time as are still in cache when the kernel reads them.
        let run = (SUM_BYTES / size_of::<f32>() / dim).max(1);
        over_rows(pool, &mut self.workers, rows, &|worker, first, (x, y)| {
            for (i, x) in x.data.chunks_mut(run * dim).enumerate() {
                if let Some(delta) = delta {
                    let delta = &delta[(first + i * run) * dim..];
                    x.iter_mut().zip(delta).for_each(|(x, delta)| *x += delta);
                }
                let from = first + i * run;
                for (rows, scope) in scopes.runs(from..from + x.len() / dim) {
                    let x = &x[(rows.start - from) * dim..(rows.end - from) * dim];
                    let (x, n) = (Operand::f32(x), rows.len() as u32);
                    let call = OpCall::rmsnorm(x, weight.all(), n, dim as u32, eps).within(scope);
                    let rows = rows.start - first..rows.end - first;
                    call_into(y, rows, worker, snapshot, *rmsnorm, &call)?;
                }
            }
            Ok(())
        })
    }

    /// `y = silu(gate) * up` over rows `[m, dim]`.
    pub(crate) fn swiglu(
        &mut self,
        pool: &ThreadPool,
        scopes: &RowScopes,
        gate: &[f32],
        up: &[f32],
        y: RowSink<'_>,
    ) -> Result<(), EngineError> {
        let dim = y.cols();
        let Pinned { snapshot, swiglu, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, y, &|worker, first, y| {
            for (rows, scope) in scopes.runs(first..first + y.count()) {
                let range = rows.start * dim..rows.end * dim;
                let (gate, up) = (Operand::f32(&gate[range.clone()]), Operand::f32(&up[range]));
                let call = OpCall::swiglu(gate, up, rows.len() as u32, dim as u32).within(scope);
                let rows = rows.start - first..rows.end - first;
                call_into(y, rows, worker, snapshot, *swiglu, &call)?;
            }
            Ok(())
        })
    }

    /// Rotates rows `[m, heads, dim]` at the given positions. Tables up to the largest must be
    /// reserved.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn rope(
        &mut self,
        pool: &ThreadPool,
        scopes: &RowScopes,
        x: &[f32],
        positions: &[usize],
        shape: &RopeRows,
        tables: &RopeTables,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let row = shape.heads * shape.dim;
        let Pinned { snapshot, rope, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, Outputs { data: y, dim: row }, &|worker, first, y| {
            let mut y = &mut *y.data;
            let mut runs = scopes.runs(first..first + y.len() / row);
            let mut left_of_scope = runs.next();
            while let Some((run, scope)) = &mut left_of_scope {
                let done = run.start;
                let positions = &positions[run.clone()];
                let first = positions[0];
                let (table, start, left) = tables.at(first).ok_or_else(|| {
                    EngineError::OpUnavailable { op: format!("rope at position {first}") }
                })?;
                // Consecutive positions are consecutive rows of a table.
                let next = positions.iter().zip(first..first + left).take_while(|(p, q)| *p == q);
                let rows = next.count();
                let (now, rest) = y.split_at_mut(rows * row);
                let freqs = Operand::Resident(table, start..start + rows * tables.row_bytes());
                let dims = RopeDims {
                    batch: 1,
                    seq: rows as u32,
                    heads: shape.heads as u32,
                    dim: shape.dim as u32,
                    dim_half: shape.dim_half as u32,
                };
                let x = Operand::f32(&x[done * row..][..now.len()]);
                let call = OpCall::rope(x, freqs, dims, shape.theta, shape.interleaved);
                let call = call.within(*scope);
                worker.call(snapshot, *rope, &call, bytemuck::cast_slice_mut::<f32, u8>(now))?;
                y = rest;
                run.start += rows;
                if run.start == run.end {
                    left_of_scope = runs.next();
                }
            }
            Ok(())
        })
    }

    /// Rotates rows `[m, heads, dim]` of one scope all by the same angles, `[dim_half, 2]`.
    pub(crate) fn rope_alike(
        &mut self,
        pool: &ThreadPool,
        scope: Scope,
        x: &[f32],
        angles: &[f32],
        shape: &RopeRows,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let row = shape.heads * shape.dim;
        let Pinned { snapshot, rope, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, Outputs { data: y, dim: row }, &|worker, first, y| {
            let y = &mut *y.data;
            // To the kernel they are more heads of one position.
            let dims = RopeDims {
                batch: 1,
                seq: 1,
                heads: (y.len() / shape.dim) as u32,
                dim: shape.dim as u32,
                dim_half: shape.dim_half as u32,
            };
            let x = Operand::f32(&x[first * row..][..y.len()]);
            let freqs = Operand::f32(angles);
            let call = OpCall::rope(x, freqs, dims, shape.theta, shape.interleaved).within(scope);
            Ok(worker.call(snapshot, *rope, &call, bytemuck::cast_slice_mut::<f32, u8>(y))?)
        })
    }

    /// Packs rows `[n, dim]` of one scope into blocks of a type of the cache.
    pub(crate) fn kv_pack(
        &mut self,
        pool: &ThreadPool,
        scope: Scope,
        dtype: DType,
        x: &[f32],
        dim: usize,
        y: &mut [u8],
    ) -> Result<(), EngineError> {
        let pack = self.pinned.kv(dtype)?.pack;
        let row = row_bytes(dtype, dim)?;
        let snapshot = &self.pinned.snapshot;
        over_rows(pool, &mut self.workers, Outputs { data: y, dim: row }, &|worker, first, y| {
            let rows = y.count();
            let x = Operand::f32(&x[first * dim..(first + rows) * dim]);
            let call = OpCall::kv_pack(x, rows as u32, dim as u32).within(scope);
            Ok(worker.call(snapshot, pack, &call, &mut *y.data)?)
        })
    }

    /// Unpacks rows `[n, dim]` of one scope, blocks of a type of the cache.
    pub(crate) fn kv_unpack(
        &mut self,
        pool: &ThreadPool,
        scope: Scope,
        dtype: DType,
        x: &[u8],
        dim: usize,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let unpack = self.pinned.kv(dtype)?.unpack;
        let row = row_bytes(dtype, dim)?;
        let snapshot = &self.pinned.snapshot;
        over_rows(pool, &mut self.workers, Outputs { data: y, dim }, &|worker, first, y| {
            let rows = y.count();
            let x = Operand::Bytes(&x[first * row..(first + rows) * row]);
            let call = OpCall::kv_unpack(x, rows as u32, dim as u32).within(scope);
            Ok(worker.call(snapshot, unpack, &call, bytemuck::cast_slice_mut::<f32, u8>(y.data))?)
        })
    }
}

fn row_bytes(dtype: DType, dim: usize) -> Result<usize, EngineError> {
    dtype.bytes_for(dim).ok_or(EngineError::KvHeadDim { codec: dtype, head_dim: dim })
}

/// Calls an operation whose result is `rows` of what products read; they take it in where the kernel
/// left it.
fn call_into(
    y: &mut RowSink<'_>,
    rows: Range<usize>,
    worker: &mut Worker,
    snapshot: &RegistrySnapshot,
    slot: OpSlot,
    call: &OpCall<'_>,
) -> Result<(), EngineError> {
    let row = y.cols() * size_of::<f32>();
    let len = rows.len() * row;
    let mut taken = Ok(());
    let mut read = |at: usize, run: &[u8]| {
        if taken.is_ok() {
            taken = y.put(rows.start + at / row, bytemuck::cast_slice(run));
        }
    };
    worker.call(snapshot, slot, call, Output::Read { len, read: &mut read })?;
    Ok(taken?)
}

impl Kernels {
    fn team(&mut self) -> Result<(&mut TeamWorker, &Pinned, &TeamSlots), EngineError> {
        let absent = || EngineError::OpUnavailable { op: OpKey::attention().to_string() };
        let caller = self.team.as_mut().ok_or_else(absent)?;
        let slots = self.pinned.team.as_ref().ok_or_else(absent)?;
        Ok((&mut caller.worker, &self.pinned, slots))
    }

    /// The forms that products of `rows` rows with these matrices read.
    pub(crate) fn reads(&self, isa: Isa, x: &Activations, rows: usize, of: &[&Linear]) -> ActForms {
        let forms = of
            .iter()
            .filter_map(|linear| self.pinned.product(linear))
            .map(|product| product.reads(x, rows, isa));
        forms.fold(ActForms::NONE, ActForms::and)
    }

    /// How fast the pool's threads read the model's rearranged weights by each pattern; `None` where caches hold as much.
    pub(crate) fn read_rates(
        &mut self,
        matrices: &Matrices,
    ) -> Result<Option<ReadRates>, EngineError> {
        let Matrices { model, host, pool, isa, settings, .. } = matrices;
        let packed = |linear: &&Linear| PackedWeights::pays(linear.dtype(), *isa);
        let linears: Vec<&Linear> = model.weights().multiplied().filter(packed).collect();
        let sizes: Vec<usize> = linears.iter().map(|linear| linear.size()).collect();
        if !host.config().repack || sizes.iter().sum::<usize>() < MEASURED_FROM {
            return Ok(None);
        }
        let most = |of: fn(&Linear) -> usize| linears.iter().map(|linear| of(linear)).max();
        let x = vec![1.0; most(Linear::cols).unwrap_or(0)];
        let mut y = vec![0.0; most(Linear::rows).unwrap_or(0)];
        let mut act = settings.clone();
        let rates = ReadRates::measure(pool, &sizes, |i| {
            let linear = linears[i];
            let forms = self.reads(*isa, &act, 1, &[linear]);
            act.prepare(pool, *isa, &x[..linear.cols()], 1, linear.cols(), forms)?;
            self.matmul(matrices.team(), &act, &mut [(linear, &mut y[..linear.rows()])])
        });
        rates.map(Some)
    }

    /// `y[m, n] = x[m, k] w[n, k]^T` for each matrix and its `y`.
    pub(crate) fn matmul(
        &mut self,
        team: Team<'_>,
        x: &Activations,
        outputs: &mut [(&Linear, &mut [f32])],
    ) -> Result<(), EngineError> {
        let (worker, pinned, _) = self.team()?;
        let mut products: SmallVec<[MatrixProduct<'_>; 3]> = SmallVec::new();
        for (linear, y) in outputs {
            let providers = pinned.product(linear).ok_or_else(|| EngineError::OpUnavailable {
                op: OpKey::matmul(linear.dtype()).to_string(),
            })?;
            let y = MatMut { data: y, stride: linear.rows() };
            products.push(MatrixProduct { providers, weights: linear.matrix()?, y });
        }
        Ok(worker.matmul(&pinned.snapshot, &mut products, x, team)?)
    }

    /// The embeddings of tokens, which are in the vocabulary, `[tokens, dim]`.
    pub(crate) fn embed(
        &mut self,
        team: Team<'_>,
        table: &Linear,
        tokens: &[u32],
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let (worker, pinned, _) = self.team()?;
        let providers = pinned.table.as_ref().ok_or_else(|| EngineError::OpUnavailable {
            op: OpKey::embed(table.dtype()).to_string(),
        })?;
        Ok(worker.embed(&pinned.snapshot, providers, &table.matrix()?, tokens, y, team)?)
    }

    /// Attention of each sequence's queries over its own cache.
    pub(crate) fn attention(
        &mut self,
        team: Team<'_>,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
    ) -> Result<(), EngineError> {
        let (worker, pinned, slots) = self.team()?;
        Ok(worker.attention(&pinned.snapshot, slots.attention, shape, sequences, team)?)
    }
}
