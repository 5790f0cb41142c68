//! The decoder: one pre-norm transformer for every family, driven by its configuration.
//!
//! Per layer: RMSNorm, query/key/value projections, RoPE, KV store, attention, output projection
//! and residual; RMSNorm, gate and up projections, SwiGLU, down projection and residual. RMSNorm,
//! RoPE, SwiGLU and KV packing run as registry kernels ([`crate::kernels`]), products and attention
//! natively. Buffers grow to the largest step seen and are kept, so that a decoded token
//! allocates nothing.

use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnScratch, AttnShape, KvSegment, attention};
use ruvllm_native::gemm::{Activations, MatMut, matmul};
use ruvllm_native::quant::dequantize_row;
use ruvllm_native::{Isa, ThreadPool, ops};

use crate::config::{ModelConfig, RopeLayout};
use crate::error::EngineError;
use crate::kernels::{Kernels, RopeRows};
use crate::kv::{Half, KvCache};
use crate::model::Model;
use crate::rope::RopeTables;
use crate::storage::AlignedBytes;
use crate::weights::{Layer, Linear};

/// Rows of logits that are computed at a time; bounds memory for large vocabularies.
pub(crate) const LOGIT_ROWS: usize = 32;

/// What a step computes with.
#[derive(Clone, Copy)]
pub(crate) struct Machine<'a> {
    pub(crate) pool: &'a ThreadPool,
    pub(crate) isa: Isa,
}

/// Working memory of a decoder and the kernels it calls.
pub(crate) struct Decoder {
    pub(crate) kernels: Kernels,
    rope_tables: RopeTables,
    buffers: Buffers,
}

/// Activations, each `[tokens, ..]` of the widest step so far.
#[derive(Default)]
struct Buffers {
    /// Hidden states `[m, dim]`.
    x: Vec<f32>,
    /// Their norm `[m, dim]`.
    normed: Vec<f32>,
    /// Queries `[m, q_dim]`, then keys `[m, kv_dim]`, before rotation.
    raw: Vec<f32>,
    /// Queries, keys, then values `[m, kv_dim]`, as attention and the cache take them.
    qkv: Vec<f32>,
    /// Attention output `[m, q_dim]`.
    attended: Vec<f32>,
    /// What a block adds to the hidden states `[m, dim]`.
    delta: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    inner: Vec<f32>,
    logits: Vec<f32>,
    /// Keys, then values, in the cache's codec.
    packed: AlignedBytes,
    /// A layer's unpacked keys and values `[n, kv_dim]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    activations: Activations,
    attention: AttnScratch,
}

/// The first `len` elements, grown when needed.
fn room(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// One step: the tokens that follow the cache's, and from which of them on logits are wanted.
pub(crate) struct Step<'a> {
    pub(crate) tokens: &'a [u32],
    /// Logits are wanted of this and all later tokens of the step.
    pub(crate) from: usize,
}

/// Receives rows of logits: the index of the first row's token in the step, and `[n, vocab]`.
pub(crate) type Rows<'a> = dyn FnMut(usize, &[f32]) -> Result<(), EngineError> + 'a;

impl Decoder {
    pub(crate) fn new(kernels: Kernels, config: &ModelConfig) -> Decoder {
        Decoder { kernels, rope_tables: RopeTables::new(&config.rope), buffers: Buffers::default() }
    }

    /// Computes a step and stores its keys and values; on an error the cache stays as it was.
    pub(crate) fn step(
        &mut self,
        machine: Machine<'_>,
        model: &Model,
        cache: &mut KvCache,
        step: &Step<'_>,
        rows: &mut Rows<'_>,
    ) -> Result<(), EngineError> {
        let (config, weights) = (model.config(), model.weights());
        let m = step.tokens.len();
        cache.reserve(m)?;
        self.rope_tables.reserve(cache.len() + m);
        self.embed(model, step.tokens)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            // After the last layer's keys and values, only wanted tokens matter.
            let last = index + 1 == weights.layers.len();
            let from = if last { step.from } else { 0 };
            self.attention_block(machine, config, layer, index, cache, m, from)?;
            if from < m {
                self.feed_forward_block(machine, config, layer, m, from)?;
            }
        }
        cache.commit(m);
        self.logits(machine, model, m, step.from, rows)
    }

    fn embed(&mut self, model: &Model, tokens: &[u32]) -> Result<(), EngineError> {
        let dim = model.config().dim;
        let table = model.weights().embedding.matrix()?;
        let x = room(&mut self.buffers.x, tokens.len() * dim);
        for (&token, x) in tokens.iter().zip(x.chunks_exact_mut(dim)) {
            if token as usize >= table.rows() {
                return Err(EngineError::TokenOutOfRange { token, vocab: table.rows() });
            }
            dequantize_row(table.dtype(), table.row(token as usize), x)?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // The state of a step, each part borrowed differently.
    fn attention_block(
        &mut self,
        machine: Machine<'_>,
        config: &ModelConfig,
        layer: &Layer,
        index: usize,
        cache: &mut KvCache,
        m: usize,
        from: usize,
    ) -> Result<(), EngineError> {
        let Machine { pool, isa } = machine;
        let (dim, q_dim, kv_dim) = (config.dim, config.q_dim(), config.kv_dim());
        let position = cache.len();
        let b = &mut self.buffers;

        let normed = room(&mut b.normed, m * dim);
        self.kernels.rmsnorm(pool, &b.x[..m * dim], &layer.attn_norm, config.norm_eps, normed)?;
        let dtypes = [layer.q.dtype(), layer.k.dtype(), layer.v.dtype()];
        b.activations.prepare(pool, isa, normed, m, dim, &dtypes)?;
        let (raw_q, raw_k) = room(&mut b.raw, m * (q_dim + kv_dim)).split_at_mut(m * q_dim);
        let (qk, v) = room(&mut b.qkv, m * (q_dim + 2 * kv_dim)).split_at_mut(m * (q_dim + kv_dim));
        project(machine, &layer.q, &b.activations, raw_q)?;
        project(machine, &layer.k, &b.activations, raw_k)?;
        project(machine, &layer.v, &b.activations, v)?;

        let shape = RopeRows {
            heads: config.heads,
            dim: config.head_dim,
            dim_half: config.rope.dims / 2,
            theta: config.rope.theta as f32,
            interleaved: config.rope.layout == RopeLayout::Interleaved,
        };
        let (raw, tables) = (&b.raw[..m * (q_dim + kv_dim)], &self.rope_tables);
        if m == 1 {
            // One token's queries and keys lie next to each other: more heads of one row.
            let shape = RopeRows { heads: config.heads + config.kv_heads, ..shape };
            self.kernels.rope(pool, raw, position, &shape, tables, qk)?;
        } else {
            let (q, k) = qk.split_at_mut(m * q_dim);
            self.kernels.rope(pool, &raw[..m * q_dim], position, &shape, tables, q)?;
            let shape = RopeRows { heads: config.kv_heads, ..shape };
            self.kernels.rope(pool, &raw[m * q_dim..], position, &shape, tables, k)?;
        }

        let (q, kv) = b.qkv[..m * (q_dim + 2 * kv_dim)].split_at(m * q_dim);
        let (k, v) = kv.split_at(m * kv_dim);
        if cache.kind().is_quantized() {
            let bytes = m * cache.row_bytes();
            if b.packed.len() < 2 * bytes {
                b.packed.resize(2 * bytes);
            }
            let packed = &mut b.packed.as_mut_slice()[..2 * bytes];
            // Keys and values in one call: they are rows of one buffer.
            self.kernels.kv_pack(pool, kv, kv_dim, packed)?;
            cache.store_bytes(index, Half::Keys, &packed[..bytes]);
            cache.store_bytes(index, Half::Values, &packed[bytes..]);
        } else {
            cache.store(index, Half::Keys, k);
            cache.store(index, Half::Values, v);
        }
        if from == m {
            return Ok(());
        }

        let window = config.windows[index];
        let first = window.map_or(0, |w| (position + from + 1).saturating_sub(w));
        let visible = position + m - first;
        let segment = if cache.kind().is_quantized() && m > 1 {
            let keys = room(&mut b.keys, visible * kv_dim);
            let stored = cache.rows(index, Half::Keys, first, visible);
            self.kernels.kv_unpack(pool, stored, kv_dim, keys)?;
            let values = room(&mut b.values, visible * kv_dim);
            let stored = cache.rows(index, Half::Values, first, visible);
            self.kernels.kv_unpack(pool, stored, kv_dim, values)?;
            KvSegment {
                start: first,
                len: visible,
                k_dtype: DType::F32,
                v_dtype: DType::F32,
                k: bytemuck::cast_slice(keys),
                v: bytemuck::cast_slice(values),
            }
        } else {
            cache.segment(index, first, visible)
        };
        let shape = AttnShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
            window,
        };
        let wanted = m - from;
        let attended = room(&mut b.attended, wanted * q_dim);
        attention(
            pool,
            isa,
            &shape,
            &q[from * q_dim..],
            q_dim,
            position + from,
            &[segment],
            attended,
            &mut b.attention,
        )?;

        b.activations.prepare(pool, isa, attended, wanted, q_dim, &[layer.o.dtype()])?;
        let delta = room(&mut b.delta, wanted * dim);
        project(machine, &layer.o, &b.activations, delta)?;
        add(machine, &mut b.x[from * dim..m * dim], delta)
    }

    fn feed_forward_block(
        &mut self,
        machine: Machine<'_>,
        config: &ModelConfig,
        layer: &Layer,
        m: usize,
        from: usize,
    ) -> Result<(), EngineError> {
        let Machine { pool, isa } = machine;
        let (dim, ffn, wanted) = (config.dim, config.ffn_dim, m - from);
        let b = &mut self.buffers;
        let x = &mut b.x[from * dim..m * dim];
        let normed = room(&mut b.normed, wanted * dim);
        self.kernels.rmsnorm(pool, x, &layer.ffn_norm, config.norm_eps, normed)?;
        let dtypes = [layer.gate.dtype(), layer.up.dtype()];
        b.activations.prepare(pool, isa, normed, wanted, dim, &dtypes)?;
        let gate = room(&mut b.gate, wanted * ffn);
        let up = room(&mut b.up, wanted * ffn);
        project(machine, &layer.gate, &b.activations, gate)?;
        project(machine, &layer.up, &b.activations, up)?;
        let inner = room(&mut b.inner, wanted * ffn);
        self.kernels.swiglu(pool, gate, up, ffn, inner)?;
        b.activations.prepare(pool, isa, inner, wanted, ffn, &[layer.down.dtype()])?;
        let delta = room(&mut b.delta, wanted * dim);
        project(machine, &layer.down, &b.activations, delta)?;
        add(machine, x, delta)
    }

    fn logits(
        &mut self,
        machine: Machine<'_>,
        model: &Model,
        m: usize,
        from: usize,
        rows: &mut Rows<'_>,
    ) -> Result<(), EngineError> {
        let (config, weights) = (model.config(), model.weights());
        let output = weights.output();
        let b = &mut self.buffers;
        for first in (from..m).step_by(LOGIT_ROWS) {
            let n = (m - first).min(LOGIT_ROWS);
            let x = &b.x[first * config.dim..][..n * config.dim];
            let normed = room(&mut b.normed, x.len());
            let norm = &weights.output_norm;
            self.kernels.rmsnorm(machine.pool, x, norm, config.norm_eps, normed)?;
            let dtypes = [output.dtype()];
            b.activations.prepare(machine.pool, machine.isa, normed, n, config.dim, &dtypes)?;
            let logits = room(&mut b.logits, n * output.rows());
            project(machine, output, &b.activations, logits)?;
            rows(first, logits)?;
        }
        Ok(())
    }
}

/// `y = x W^T + bias` for the prepared `x`.
fn project(
    machine: Machine<'_>,
    linear: &Linear,
    x: &Activations,
    y: &mut [f32],
) -> Result<(), EngineError> {
    let stride = linear.rows();
    matmul(machine.pool, machine.isa, &linear.matrix()?, x, MatMut { data: &mut *y, stride })?;
    if let Some(bias) = &linear.bias {
        for row in y.chunks_exact_mut(stride) {
            ops::add(machine.isa, row, bias)?;
        }
    }
    Ok(())
}

/// `x += y`, on all threads where that pays.
fn add(machine: Machine<'_>, x: &mut [f32], y: &[f32]) -> Result<(), EngineError> {
    const CHUNK: usize = 16 * 1024;
    if x.len() <= 2 * CHUNK {
        return Ok(ops::add(machine.isa, x, y)?);
    }
    machine.pool.for_chunks(x, CHUNK, &|i, x| {
        let y = &y[i * CHUNK..][..x.len()];
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    });
    Ok(())
}
