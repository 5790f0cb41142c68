//! The decoder: a pre-norm transformer that computes what the model's [`LayerSpec`](crate::config::LayerSpec)s say.
//!
//! Per layer: norm, query/key/value projections, RoPE, KV store, attention, output projection and
//! residual; norm, gate and up projections, activation, down projection and residual. These are
//! operations of the registry ([`crate::kernels`]); residuals, biases and the Hadamard rotation of
//! heads are computed natively. Buffers grow to the largest step seen and are kept, so that a decoded
//! token allocates nothing, unless the sample that the host checks draws it: the buffers of a check
//! grow with the cache.
//!
//! A step computes chunks of one or more sequences. Its rows are the tokens of all chunks, one
//! after another; everything but the cache and what reads it ([`attention`]) treats them alike,
//! so that the weights are read once for all sequences, and the updates of their adapters
//! ([`adapters`]), which each adds to its own rows. A step begins in [`Decoder::forward`]; getting
//! the sequences' blocks to where they can be read is in [`prepare`].

mod adapters;
mod attention;
mod chunk;
mod prepare;

use adapters::LayerAdapters;
pub(crate) use chunk::Chunk;
use chunk::Layer;
use ruvllm_host::Team;
use ruvllm_native::attention::{AttnSequence, KvSegment};
use ruvllm_native::gemm::Activations;
use ruvllm_native::{ThreadPool, ops};
use std::ops::Range;

use crate::config::{Activation, ModelConfig, NormKind};
use crate::error::EngineError;
use crate::kernels::{Kernels, RowScopes, RowSink};
use crate::kv::KvStore;
use crate::memory::{Reservation, room};
use crate::model::Model;
use crate::rope::RopeTables;
use crate::tensors::Projection;
use crate::weights::{Linear, NormWeights};

/// Rows of logits that are computed at a time; bounds memory for large vocabularies.
pub(crate) const LOGIT_ROWS: usize = 32;

/// Working memory of a decoder and the kernels it calls.
pub(crate) struct Decoder {
    pub(crate) kernels: Kernels,
    /// The blocks of all sequences.
    pub(crate) kv: KvStore,
    rope_tables: RopeTables,
    /// The position in its sequence of each row of the step.
    positions: Vec<usize>,
    scopes: StepScopes,
    buffers: Buffers,
    lists: Lists,
    /// What the buffers count for in the memory pool.
    scratch: Reservation,
}

/// Whose the rows of a step are.
#[derive(Default)]
struct StepScopes {
    /// Of all rows.
    all: RowScopes,
    /// Of the rows that matter after the last layer's keys and values.
    wanted: RowScopes,
    /// Of the rows whose logits are wanted.
    logits: RowScopes,
}

impl StepScopes {
    fn set(&mut self, chunks: &[Chunk<'_>]) {
        let Self { all, wanted, logits } = self;
        [&mut *all, &mut *wanted, &mut *logits].into_iter().for_each(RowScopes::clear);
        for chunk in chunks {
            let (scope, rows) = (chunk.table.isolation, chunk.wanted().len());
            all.push(chunk.tokens.len(), scope);
            wanted.push(rows, scope);
            logits.push(if chunk.hidden.is_none() { rows } else { 0 }, scope);
        }
    }
}

/// Lists of one layer, empty in between: kept so that a decoded token allocates nothing.
#[derive(Default)]
struct Lists {
    segments: Vec<KvSegment<'static>>,
    runs: Vec<Run>,
    sequences: Vec<AttnSequence<'static>>,
    tokens: Vec<u32>,
}

/// Queries of a chunk that read the same versions of all blocks.
struct Run {
    /// Their rows in the step.
    rows: Range<usize>,
    /// The first of their rows among those that the layer needs.
    to: usize,
    /// Where their segments end in the list.
    segments: usize,
}

/// Activations, each `[rows, ..]` of the widest step so far.
#[derive(Default)]
struct Buffers {
    /// Hidden states `[m, dim]`.
    x: Vec<f32>,
    /// Queries `[m, q_dim]`, then keys `[m, kv_dim]`, before rotation.
    raw: Vec<f32>,
    /// Queries, keys, then values `[m, kv_dim]`, as attention and the cache take them.
    qkv: Vec<f32>,
    /// Attention output `[m, q_dim]`.
    attn_out: Vec<f32>,
    /// What a block adds to the hidden states `[m, dim]`, which the next norm does on its way.
    delta: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// A norm, or a gated unit, where adapters read it or it is asked for `[m, dim]` or `[m, ffn]`.
    plain: Vec<f32>,
    logits: Vec<f32>,
    activations: Activations,
}

/// Receives the index of a chunk, the index of a token in it, and the token's logits `[vocab]`.
pub(crate) type EachLogits<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

impl Decoder {
    /// `activations` has the settings of products, and `scratch` counts the working memory.
    pub(crate) fn new(
        kernels: Kernels,
        kv: KvStore,
        rope_tables: RopeTables,
        activations: Activations,
        scratch: Reservation,
    ) -> Decoder {
        Decoder {
            kernels,
            kv,
            rope_tables,
            positions: Vec::new(),
            scopes: StepScopes::default(),
            buffers: Buffers { activations, ..Buffers::default() },
            lists: Lists::default(),
            scratch,
        }
    }

    /// Bytes of working memory for steps of up to `rows` rows, of which at most [`LOGIT_ROWS`] have
    /// their logits computed at a time: the buffers, and activations of 8 bits with their scales.
    pub(crate) fn scratch_bytes(config: &ModelConfig, vocab: usize, rows: usize) -> usize {
        let ModelConfig { dim, ffn_dim, .. } = config;
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let heads = (q_dim + kv_dim) + (q_dim + 2 * kv_dim) + q_dim;
        let widest = ffn_dim.max(dim);
        let row = size_of::<f32>() * (2 * dim + heads + 2 * ffn_dim + widest) + 2 * widest;
        rows * row + LOGIT_ROWS.min(rows) * vocab * size_of::<f32>()
    }

    /// Computes a step: logits or hidden states of the chunks' wanted tokens, and the keys and values of
    /// all. First comes whatever the sequences lack, `batch` tokens at once of what is computed again.
    ///
    /// # Errors
    /// What the memory or a kernel refuses, and [`EngineError::NonFiniteLogits`]. Every sequence is then
    /// as it was.
    pub(crate) fn forward(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        batch: usize,
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        self.load_blocks(team, model, chunks, batch)?;
        let ready = self.attach_prefixes(team, model, chunks);
        let computed = ready.and_then(|()| self.step(team, model, chunks, each));
        for chunk in chunks {
            if computed.is_err() {
                let len = chunk.table.len() - chunk.skipped;
                chunk.table.truncate(len);
            } else {
                self.settle(team, chunk.table, chunk.tokens.len());
            }
        }
        computed
    }

    /// Computes chunks whose sequences lack nothing; on an error no table holds blocks of them.
    fn step(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        let computed = self.layers(team, model, chunks, each);
        for chunk in chunks {
            match computed {
                Ok(()) => chunk.table.commit(chunk.tokens),
                Err(_) => chunk.table.uncompute(chunk.table.computed),
            }
        }
        computed
    }

    /// Computes all layers and the wanted logits.
    fn layers(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        self.allocate(team, model, chunks)?;
        if self.positions.is_empty() {
            return Ok(());
        }
        self.embed(team, model, chunks)?;
        let (config, weights) = (model.config(), model.weights());
        let layers = config.layers.iter().zip(&weights.layers).enumerate();
        for (index, (spec, weights)) in layers {
            let layer = Layer { index, last: index + 1 == config.layers.len(), spec, weights };
            let rows = self.attention_block(team, config, layer, chunks)?;
            let adapters = LayerAdapters::outputs(chunks, layer);
            self.feed_forward_block(team, config, layer, adapters, rows)?;
        }
        let done = self.logits(team, model, chunks, each);
        if matches!(done, Err(EngineError::NonFiniteLogits)) {
            self.kernels.suspect();
        }
        done
    }

    fn embed(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &[Chunk<'_>],
    ) -> Result<(), EngineError> {
        let (dim, table) = (model.config().dim, &model.weights().embedding);
        let tokens = &mut self.lists.tokens;
        tokens.clear();
        tokens.extend(chunks.iter().flat_map(|chunk| chunk.tokens));
        let vocab = table.rows();
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(EngineError::TokenOutOfRange { token, vocab });
        }
        let x = room(&mut self.buffers.x, tokens.len() * dim);
        self.kernels.embed(team, table, tokens, x)
    }

    /// Adds what is left of the attention block to the first `m` rows of the hidden states, and leaves
    /// what the feed-forward block adds to them.
    fn feed_forward_block(
        &mut self,
        team: Team<'_>,
        config: &ModelConfig,
        Layer { spec, weights, .. }: Layer<'_>,
        adapters: LayerAdapters<'_, '_>,
        m: usize,
    ) -> Result<(), EngineError> {
        if m == 0 {
            return Ok(());
        }
        let Team { pool, .. } = team;
        let (dim, ffn) = (config.dim, config.ffn_dim);
        let b = &mut self.buffers;
        let scopes = if adapters.of_wanted() { &self.scopes.wanted } else { &self.scopes.all };
        let kernels = &mut self.kernels;
        let read_by = [&weights.gate, &weights.up];
        let keep = adapters.any().then_some(&mut b.plain);
        let normed = row_sink(kernels, team, &mut b.activations, keep, [m, dim], &read_by)?;
        let (x, delta) = (&mut b.x[..m * dim], room(&mut b.delta, m * dim));
        apply_norm(kernels, pool, scopes, x, Some(delta), &weights.ffn_norm, normed)?;
        let gate = room(&mut b.gate, m * ffn);
        let up = room(&mut b.up, m * ffn);
        project(kernels, team, &weights.gate, &b.activations, gate)?;
        project(kernels, team, &weights.up, &b.activations, up)?;
        let both = [(Projection::Gate, &mut *gate), (Projection::Up, &mut *up)];
        adapters.add(team, kernels, &b.plain, both)?;
        let keep = adapters.any().then_some(&mut b.plain);
        let inner = row_sink(kernels, team, &mut b.activations, keep, [m, ffn], &[&weights.down])?;
        match spec.activation {
            Activation::SwiGlu => kernels.swiglu(pool, scopes, gate, up, inner)?,
        }
        project(kernels, team, &weights.down, &b.activations, delta)?;
        adapters.add(team, kernels, &b.plain, [(Projection::Down, delta)])
    }

    /// Adds up the normed hidden states of the chunks that want them, and closes the gaps that their
    /// rows leave among the wanted ones.
    fn sum_hidden(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
    ) -> Result<(), EngineError> {
        let (dim, norm) = (model.config().dim, &model.weights().output_norm);
        let b = &mut self.buffers;
        let (mut at, mut kept) = (0, 0);
        for chunk in chunks {
            let rows = at * dim..(at + chunk.wanted().len()) * dim;
            at += chunk.wanted().len();
            let n = rows.len() / dim;
            let Some(sum) = &mut chunk.hidden else {
                b.x.copy_within(rows.clone(), kept * dim);
                b.delta.copy_within(rows, kept * dim);
                kept += n;
                continue;
            };
            let kernels = &mut self.kernels;
            let plain = Some(&mut b.plain);
            let normed = row_sink(kernels, team, &mut b.activations, plain, [n, dim], &[])?;
            let (x, delta) = (&mut b.x[rows.clone()], &b.delta[rows]);
            let scopes = RowScopes::of_one(n, chunk.table.isolation);
            apply_norm(kernels, team.pool, &scopes, x, Some(delta), norm, normed)?;
            for row in b.plain[..n * dim].chunks_exact(dim) {
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            if !is_finite(sum) {
                return Err(EngineError::NonFiniteLogits);
            }
        }
        Ok(())
    }

    /// Logits of the wanted tokens, whose rows are the first of the hidden states.
    fn logits(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        if chunks.iter().any(|chunk| chunk.hidden.is_some()) {
            self.sum_hidden(team, model, chunks)?;
        }
        let (config, weights) = (model.config(), model.weights());
        let (output, norm) = (weights.output(), &weights.output_norm);
        let b = &mut self.buffers;
        let owning = |chunk: &Chunk<'_>| chunk.hidden.is_none();
        let m: usize = chunks.iter().filter(|c| owning(c)).map(|c| c.wanted().len()).sum();
        let owners = chunks.iter_mut().enumerate().filter(|(_, chunk)| owning(chunk));
        let mut owners = owners.flat_map(|(index, chunk)| {
            let (wanted, end) = (chunk.wanted(), chunk.tokens.len());
            let (skipped, mut last) = (chunk.skipped, Some(&mut *chunk.last));
            wanted.map(move |token| (index, skipped + token, last.take_if(|_| token + 1 == end)))
        });
        let chunk = LOGIT_ROWS * config.dim;
        let (x, delta) = (&mut b.x[..m * config.dim], &b.delta[..m * config.dim]);
        let mut first = 0;
        for (x, delta) in x.chunks_mut(chunk).zip(delta.chunks(chunk)) {
            let n = x.len() / config.dim;
            let scopes = self.scopes.logits.slice(first..first + n);
            first += n;
            let (kernels, shape) = (&mut self.kernels, [n, config.dim]);
            let normed = row_sink(kernels, team, &mut b.activations, None, shape, &[output])?;
            apply_norm(kernels, team.pool, &scopes, x, Some(delta), norm, normed)?;
            let logits = room(&mut b.logits, n * output.rows());
            project(kernels, team, output, &b.activations, logits)?;
            for (row, (index, token, last)) in logits.chunks_exact(output.rows()).zip(&mut owners) {
                if !is_finite(row) {
                    return Err(EngineError::NonFiniteLogits);
                }
                each(index, token, row);
                if let Some(last) = last {
                    row.clone_into(last);
                }
            }
        }
        Ok(())
    }
}

/// Whether all numbers are. Looked at in runs, since a test of each would keep it from using vectors.
fn is_finite(row: &[f32]) -> bool {
    row.chunks(256).all(|run| run.iter().fold(true, |all, x| all & x.is_finite()))
}

/// Room for `[rows, cols]` that products with these matrices read, in `plain` too if there is one.
fn row_sink<'a>(
    kernels: &Kernels,
    team: Team<'_>,
    activations: &'a mut Activations,
    plain: Option<&'a mut Vec<f32>>,
    [rows, cols]: [usize; 2],
    read_by: &[&Linear],
) -> Result<RowSink<'a>, EngineError> {
    let plain = plain.map(|plain| room(plain, rows * cols));
    let forms = kernels.reads(team.isa, activations, rows, read_by);
    Ok(RowSink { products: activations.rows_mut(team.isa, rows, cols, forms)?, plain })
}

/// `x += delta`, then `y = norm(x)`, over rows `[m, dim]`; without `delta` `x` is the sum already.
fn apply_norm(
    kernels: &mut Kernels,
    pool: &ThreadPool,
    scopes: &RowScopes,
    x: &mut [f32],
    delta: Option<&[f32]>,
    NormWeights { norm, weight }: &NormWeights,
    y: RowSink<'_>,
) -> Result<(), EngineError> {
    match norm.kind {
        NormKind::Rms => kernels.rmsnorm(pool, scopes, x, delta, weight, norm.eps, y),
    }
}

/// `y = x W^T + bias` for the prepared `x`.
fn project(
    kernels: &mut Kernels,
    team: Team<'_>,
    linear: &Linear,
    x: &Activations,
    y: &mut [f32],
) -> Result<(), EngineError> {
    kernels.matmul(team, linear, x, y)?;
    if let Some(bias) = &linear.bias {
        for row in y.chunks_exact_mut(linear.rows()) {
            ops::add(team.isa, row, bias)?;
        }
    }
    Ok(())
}
