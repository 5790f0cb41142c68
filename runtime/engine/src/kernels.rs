//! Calls of registry kernels over rows: which kernel serves each operation, and how rows are
//! shared out.
//!
//! A few rows run on the calling thread alone; many are split evenly over the threads, each with
//! its own [`Worker`], which cuts its share into tiles that stay in a core's cache. The registry
//! snapshot is pinned for a step, so that every layer of it sees the same kernels.

mod lora;

use std::sync::Arc;

use ruvllm_abi::DType;
use ruvllm_host::{
    Host, OpCall, OpKey, OpSlot, Operand, RegistrySnapshot, Resident, RopeDims, Worker,
};
use ruvllm_native::ThreadPool;

use crate::error::EngineError;
use crate::kv::KvPolicy;
use crate::rope::RopeTables;
pub(crate) use lora::{LoraList, LoraRows};

/// Elements below which waking the other threads costs more than it saves.
const SPLIT_ELEMS: usize = 16 * 1024;

/// The workers of all threads, and the snapshot of the current step.
pub(crate) struct Kernels {
    workers: Vec<Worker>,
    /// Element types of the KV cache that kernels pack.
    packed: Vec<DType>,
    pinned: Arc<Pinned>,
    /// For each worker, memory for what updates add to some rows.
    deltas: Vec<Vec<f32>>,
}

/// A snapshot with the slots of the decoder's operations in it.
pub(crate) struct Pinned {
    snapshot: Arc<RegistrySnapshot>,
    rmsnorm: OpSlot,
    rope: OpSlot,
    swiglu: OpSlot,
    /// Pack and unpack, for each type of the cache that needs it.
    kv: Vec<KvOps>,
    /// Only sessions with an adapter need it, so it may be absent.
    lora: Option<OpSlot>,
    shaping: Shaping,
}

/// Which kernels shape keys and values: fingerprints for sequences without and with an adapter.
pub(crate) type Shaping = [[u8; 32]; 2];

/// Who packs and unpacks a type of the cache.
struct KvOps {
    dtype: DType,
    pack: OpSlot,
    unpack: OpSlot,
}

impl Pinned {
    fn new(snapshot: Arc<RegistrySnapshot>, packed: &[DType]) -> Result<Pinned, EngineError> {
        let slot = |key: OpKey| {
            snapshot.slot(&key).ok_or_else(|| EngineError::OpUnavailable { op: key.to_string() })
        };
        let kv = packed.iter().map(|&dtype| {
            let (pack, unpack) = (slot(OpKey::kv_pack(dtype))?, slot(OpKey::kv_unpack(dtype))?);
            Ok(KvOps { dtype, pack, unpack })
        });
        let kv = kv.collect::<Result<_, EngineError>>()?;
        // Norms shape keys and values as much as the rotation does.
        let mut shaping = vec![OpKey::rmsnorm_f32(), OpKey::rope_f32(), OpKey::swiglu_f32()];
        shaping.extend(packed.iter().map(|&dtype| OpKey::kv_pack(dtype)));
        let plain = snapshot.fingerprint(&shaping);
        shaping.push(OpKey::lora_f32());
        let adapted = snapshot.fingerprint(&shaping);
        Ok(Pinned {
            rmsnorm: slot(OpKey::rmsnorm_f32())?,
            rope: slot(OpKey::rope_f32())?,
            swiglu: slot(OpKey::swiglu_f32())?,
            lora: snapshot.slot(&OpKey::lora_f32()),
            kv,
            shaping: [plain, adapted],
            snapshot,
        })
    }

    fn lora(&self) -> Result<OpSlot, EngineError> {
        self.lora.ok_or_else(|| EngineError::OpUnavailable { op: OpKey::lora_f32().to_string() })
    }

    fn kv(&self, dtype: DType) -> Result<&KvOps, EngineError> {
        let ops = self.kv.iter().find(|ops| ops.dtype == dtype);
        ops.ok_or_else(|| EngineError::OpUnavailable { op: OpKey::kv_pack(dtype).to_string() })
    }
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
    pub(crate) fn new(host: &Host, threads: usize, kv: &KvPolicy) -> Result<Kernels, EngineError> {
        let workers = (0..threads).map(|_| host.worker()).collect::<Result<_, _>>()?;
        let mut packed: Vec<_> = kv.packed().collect();
        packed.sort_unstable_by_key(|dtype| dtype.name());
        packed.dedup();
        let pinned = Arc::new(Pinned::new(host.snapshot(), &packed)?);
        let deltas = vec![Vec::new(); threads];
        Ok(Kernels { workers, packed, pinned, deltas })
    }

    /// Pins the host's current snapshot for the next step.
    ///
    /// # Errors
    /// [`EngineError::OpUnavailable`]; the earlier snapshot then stays pinned.
    pub(crate) fn pin(&mut self, host: &Host) -> Result<(), EngineError> {
        if host.generation() != self.pinned.snapshot.generation() {
            self.pinned = Arc::new(Pinned::new(host.snapshot(), &self.packed)?);
        }
        Ok(())
    }

    /// What is pinned, for another thread.
    pub(crate) fn pinned(&self) -> &Arc<Pinned> {
        &self.pinned
    }

    /// The kernels of another thread's step, on workers of this one, to pack and unpack blocks with. They
    /// stay pinned: there is no host to follow.
    pub(crate) fn of(pinned: Arc<Pinned>, workers: Vec<Worker>) -> Kernels {
        Kernels { workers, packed: Vec::new(), pinned, deltas: Vec::new() }
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

    /// `y = rmsnorm(x) * weight` over rows `[m, dim]`.
    pub(crate) fn rmsnorm(
        &mut self,
        pool: &ThreadPool,
        x: &[f32],
        weight: &Resident,
        eps: f32,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let dim = weight.len() / size_of::<f32>();
        let Pinned { snapshot, rmsnorm, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, y, dim, &|worker, first, y| {
            let x = &x[first * dim..][..y.len()];
            let rows = (y.len() / dim) as u32;
            let call = OpCall::rmsnorm(Operand::f32(x), weight.all(), rows, dim as u32, eps);
            Ok(worker.call(snapshot, *rmsnorm, &call, bytemuck::cast_slice_mut(y))?)
        })
    }

    /// `y = silu(gate) * up` over rows `[m, dim]`.
    pub(crate) fn swiglu(
        &mut self,
        pool: &ThreadPool,
        gate: &[f32],
        up: &[f32],
        dim: usize,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let Pinned { snapshot, swiglu, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, y, dim, &|worker, first, y| {
            let range = first * dim..first * dim + y.len();
            let (gate, up) = (Operand::f32(&gate[range.clone()]), Operand::f32(&up[range]));
            let call = OpCall::swiglu(gate, up, (y.len() / dim) as u32, dim as u32);
            Ok(worker.call(snapshot, *swiglu, &call, bytemuck::cast_slice_mut(y))?)
        })
    }

    /// Rotates rows `[m, heads, dim]` at the given positions. Tables up to the largest must be
    /// reserved.
    pub(crate) fn rope(
        &mut self,
        pool: &ThreadPool,
        x: &[f32],
        positions: &[usize],
        shape: &RopeRows,
        tables: &RopeTables,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let row = shape.heads * shape.dim;
        let Pinned { snapshot, rope, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, y, row, &|worker, first, mut y| {
            let mut done = first;
            while !y.is_empty() {
                let positions = &positions[done..done + y.len() / row];
                let first = positions[0];
                let (table, start, left) = tables.at(first).ok_or_else(|| {
                    EngineError::OpUnavailable { op: format!("rope at position {first}") }
                })?;
                // Consecutive positions are consecutive rows of a table.
                let run = positions.iter().zip(first..first + left).take_while(|(p, q)| *p == q);
                let rows = run.count();
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
                worker.call(snapshot, *rope, &call, bytemuck::cast_slice_mut(now))?;
                y = rest;
                done += rows;
            }
            Ok(())
        })
    }

    /// Rotates rows `[m, heads, dim]` all by the same angles, `[dim_half, 2]`.
    pub(crate) fn rope_alike(
        &mut self,
        pool: &ThreadPool,
        x: &[f32],
        angles: &[f32],
        shape: &RopeRows,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let row = shape.heads * shape.dim;
        let Pinned { snapshot, rope, .. } = &*self.pinned;
        over_rows(pool, &mut self.workers, y, row, &|worker, first, y| {
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
            let call = OpCall::rope(x, freqs, dims, shape.theta, shape.interleaved);
            Ok(worker.call(snapshot, *rope, &call, bytemuck::cast_slice_mut(y))?)
        })
    }

    /// Packs rows `[n, dim]` into blocks of a type of the cache.
    pub(crate) fn kv_pack(
        &mut self,
        pool: &ThreadPool,
        dtype: DType,
        x: &[f32],
        dim: usize,
        y: &mut [u8],
    ) -> Result<(), EngineError> {
        let pack = self.pinned.kv(dtype)?.pack;
        let row = row_bytes(dtype, dim)?;
        let snapshot = &self.pinned.snapshot;
        over_rows(pool, &mut self.workers, y, row, &|worker, first, y| {
            let rows = y.len() / row;
            let x = Operand::f32(&x[first * dim..(first + rows) * dim]);
            Ok(worker.call(snapshot, pack, &OpCall::kv_pack(x, rows as u32, dim as u32), y)?)
        })
    }

    /// Unpacks rows `[n, dim]` of blocks of a type of the cache.
    pub(crate) fn kv_unpack(
        &mut self,
        pool: &ThreadPool,
        dtype: DType,
        x: &[u8],
        dim: usize,
        y: &mut [f32],
    ) -> Result<(), EngineError> {
        let unpack = self.pinned.kv(dtype)?.unpack;
        let row = row_bytes(dtype, dim)?;
        let snapshot = &self.pinned.snapshot;
        over_rows(pool, &mut self.workers, y, dim, &|worker, first, y| {
            let rows = y.len() / dim;
            let x = Operand::Bytes(&x[first * row..(first + rows) * row]);
            let call = OpCall::kv_unpack(x, rows as u32, dim as u32);
            Ok(worker.call(snapshot, unpack, &call, bytemuck::cast_slice_mut(y))?)
        })
    }
}

fn row_bytes(dtype: DType, dim: usize) -> Result<usize, EngineError> {
    dtype.bytes_for(dim).ok_or(EngineError::KvHeadDim { codec: dtype, head_dim: dim })
}

/// One thread's share of an output, and how it went.
struct Share<'a, T> {
    worker: &'a mut Worker,
    first: usize,
    out: &'a mut [T],
    result: Result<(), EngineError>,
}

/// Work on some rows: the worker, the index of the first row, and the rows of the output.
type RowWork<'a, T> = dyn Fn(&mut Worker, usize, &mut [T]) -> Result<(), EngineError> + Sync + 'a;

/// Runs `work` over all rows of `out`, `row` elements each.
fn over_rows<T: Send>(
    pool: &ThreadPool,
    workers: &mut [Worker],
    out: &mut [T],
    row: usize,
    work: &RowWork<'_, T>,
) -> Result<(), EngineError> {
    let rows = out.len() / row;
    let threads = pool.threads().min(workers.len());
    if rows == 1 || threads == 1 || out.len() < SPLIT_ELEMS {
        return match workers.first_mut() {
            Some(worker) => work(worker, 0, out),
            None => Ok(()),
        };
    }
    let share = rows.div_ceil(threads);
    let mut rest = out;
    let mut shares = Vec::with_capacity(threads);
    for (i, worker) in workers.iter_mut().enumerate().take(threads) {
        let len = (share * row).min(rest.len());
        let (out, after) = rest.split_at_mut(len);
        rest = after;
        shares.push(Share { worker, first: i * share, out, result: Ok(()) });
    }
    pool.run_with(&mut shares, &|_, share: &mut Share<'_, T>| {
        share.result = work(share.worker, share.first, share.out);
    });
    shares.into_iter().try_for_each(|share| share.result)
}
