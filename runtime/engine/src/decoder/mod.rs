//! The decoder: one pre-norm transformer for every family, driven by its configuration.
//!
//! Per layer: RMSNorm, query/key/value projections, RoPE, KV store, attention, output projection
//! and residual; RMSNorm, gate and up projections, SwiGLU, down projection and residual. RMSNorm,
//! RoPE, SwiGLU and KV packing run as registry kernels ([`crate::kernels`]), products and attention
//! natively. Buffers grow to the largest step seen and are kept, so that a decoded token
//! allocates nothing.
//!
//! A step computes chunks of one or more sequences. Its rows are the tokens of all chunks, one
//! after another; everything but the cache and what reads it ([`attention`]) treats them alike,
//! so that the weights are read once for all sequences.

mod attention;

use ruvllm_native::attention::AttnScratch;
use ruvllm_native::gemm::{Activations, MatMut, matmul};
use ruvllm_native::quant::dequantize_row;
use ruvllm_native::{Isa, ThreadPool, ops};

use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::kv::KvCache;
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
    /// The position in its sequence of each row of the step.
    positions: Vec<usize>,
    buffers: Buffers,
}

/// Activations, each `[rows, ..]` of the widest step so far.
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

/// One sequence's share of a step: the tokens that follow those of its cache.
pub(crate) struct Chunk<'a> {
    pub(crate) cache: &'a mut KvCache,
    /// Where the logits of the last token go, if they are wanted.
    pub(crate) last: &'a mut Vec<f32>,
    pub(crate) tokens: &'a [u32],
    /// Logits are wanted of this and all later tokens of the chunk; at most their number.
    pub(crate) from: usize,
}

impl Chunk<'_> {
    /// The tokens of which logits are wanted.
    fn wanted(&self) -> std::ops::Range<usize> {
        self.from..self.tokens.len()
    }
}

/// Receives the index of a chunk, the index of a token in it, and the token's logits `[vocab]`.
pub(crate) type EachLogits<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

impl Decoder {
    /// `bf16` allows products of 16-bit float weights as bf16.
    pub(crate) fn new(kernels: Kernels, config: &ModelConfig, bf16: bool) -> Decoder {
        let mut buffers = Buffers::default();
        buffers.activations.allow_bf16(bf16);
        let rope_tables = RopeTables::new(&config.rope);
        Decoder { kernels, rope_tables, positions: Vec::new(), buffers }
    }

    /// Computes a step and stores its keys and values; on an error every cache stays as it was.
    pub(crate) fn step(
        &mut self,
        machine: Machine<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        self.positions.clear();
        for chunk in chunks.iter_mut() {
            chunk.cache.reserve(chunk.tokens.len())?;
            let end = chunk.cache.len() + chunk.tokens.len();
            self.rope_tables.reserve(end);
            self.positions.extend(chunk.cache.len()..end);
        }
        self.embed(model, chunks)?;
        let (config, weights) = (model.config(), model.weights());
        for (index, layer) in weights.layers.iter().enumerate() {
            let rows = self.attention_block(machine, config, layer, index, chunks)?;
            self.feed_forward_block(machine, config, layer, rows)?;
        }
        self.logits(machine, model, chunks, each)?;
        for chunk in chunks {
            chunk.cache.commit(chunk.tokens.len());
        }
        Ok(())
    }

    fn embed(&mut self, model: &Model, chunks: &[Chunk<'_>]) -> Result<(), EngineError> {
        let dim = model.config().dim;
        let table = model.weights().embedding.matrix()?;
        let x = room(&mut self.buffers.x, self.positions.len() * dim);
        let tokens = chunks.iter().flat_map(|chunk| chunk.tokens);
        for (&token, x) in tokens.zip(x.chunks_exact_mut(dim)) {
            if token as usize >= table.rows() {
                return Err(EngineError::TokenOutOfRange { token, vocab: table.rows() });
            }
            dequantize_row(table.dtype(), table.row(token as usize), x)?;
        }
        Ok(())
    }

    /// Adds the feed-forward block's output to the first `m` rows of the hidden states.
    fn feed_forward_block(
        &mut self,
        machine: Machine<'_>,
        config: &ModelConfig,
        layer: &Layer,
        m: usize,
    ) -> Result<(), EngineError> {
        if m == 0 {
            return Ok(());
        }
        let Machine { pool, isa } = machine;
        let (dim, ffn) = (config.dim, config.ffn_dim);
        let b = &mut self.buffers;
        let x = &mut b.x[..m * dim];
        let normed = room(&mut b.normed, m * dim);
        self.kernels.rmsnorm(pool, x, &layer.ffn_norm, config.norm_eps, normed)?;
        let dtypes = [layer.gate.dtype(), layer.up.dtype()];
        b.activations.prepare(pool, isa, normed, m, dim, &dtypes)?;
        let gate = room(&mut b.gate, m * ffn);
        let up = room(&mut b.up, m * ffn);
        project(machine, &layer.gate, &b.activations, gate)?;
        project(machine, &layer.up, &b.activations, up)?;
        let inner = room(&mut b.inner, m * ffn);
        self.kernels.swiglu(pool, gate, up, ffn, inner)?;
        b.activations.prepare(pool, isa, inner, m, ffn, &[layer.down.dtype()])?;
        let delta = room(&mut b.delta, m * dim);
        project(machine, &layer.down, &b.activations, delta)?;
        add(machine, x, delta)
    }

    /// Logits of the wanted tokens, whose rows are the first of the hidden states.
    fn logits(
        &mut self,
        machine: Machine<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        let (config, weights) = (model.config(), model.weights());
        let (output, norm) = (weights.output(), &weights.output_norm);
        let Machine { pool, isa } = machine;
        let b = &mut self.buffers;
        let m: usize = chunks.iter().map(|chunk| chunk.wanted().len()).sum();
        let mut owners = chunks.iter_mut().enumerate().flat_map(|(index, chunk)| {
            let (wanted, end) = (chunk.wanted(), chunk.tokens.len());
            let mut last = Some(&mut *chunk.last);
            wanted.map(move |token| (index, token, last.take_if(|_| token + 1 == end)))
        });
        for x in b.x[..m * config.dim].chunks(LOGIT_ROWS * config.dim) {
            let n = x.len() / config.dim;
            let normed = room(&mut b.normed, x.len());
            self.kernels.rmsnorm(pool, x, norm, config.norm_eps, normed)?;
            b.activations.prepare(pool, isa, normed, n, config.dim, &[output.dtype()])?;
            let logits = room(&mut b.logits, n * output.rows());
            project(machine, output, &b.activations, logits)?;
            for (row, (index, token, last)) in logits.chunks_exact(output.rows()).zip(&mut owners) {
                each(index, token, row);
                if let Some(last) = last {
                    row.clone_into(last);
                }
            }
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
