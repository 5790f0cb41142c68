//! All layers of a step, from the embedding of its tokens to the logits that are wanted.

use ruvllm_host::Team;

use super::adapters::LayerAdapters;
use super::chunk::{Chunk, Layer};
use super::rows::{apply_norm, project, row_sink};
use super::state::{Decoder, EachLogits, LOGIT_ROWS};
use crate::config::{Activation, ModelConfig};
use crate::error::EngineError;
use crate::kernels::RowScopes;
use crate::memory::room;
use crate::model::Model;
use crate::tensors::Projection;

impl Decoder {
    /// Computes chunks whose sequences lack nothing; on an error no table holds blocks of them.
    pub(super) fn step(
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
        let mut outputs = [(&weights.gate, &mut *gate), (&weights.up, &mut *up)];
        project(kernels, team, &b.activations, &mut outputs)?;
        let both = [(Projection::Gate, &mut *gate), (Projection::Up, &mut *up)];
        adapters.add(team, kernels, &b.plain, both)?;
        let keep = adapters.any().then_some(&mut b.plain);
        let inner = row_sink(kernels, team, &mut b.activations, keep, [m, ffn], &[&weights.down])?;
        match spec.activation {
            Activation::SwiGlu => kernels.swiglu(pool, scopes, gate, up, inner)?,
        }
        project(kernels, team, &b.activations, &mut [(&weights.down, &mut *delta)])?;
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
            project(kernels, team, &b.activations, &mut [(output, &mut *logits)])?;
            let mut rows = [const { None }; LOGIT_ROWS];
            let owned = logits.chunks_exact(output.rows()).zip(&mut owners);
            for (to, (row, (index, token, last))) in rows.iter_mut().zip(owned) {
                *to = Some(LogitRow { row, index, token, last, finite: false });
            }
            team.pool.for_chunks(&mut rows[..n], 1, &|_, rows| {
                rows.iter_mut().flatten().for_each(LogitRow::keep);
            });
            for LogitRow { row, index, token, finite, .. } in rows.into_iter().flatten() {
                if !finite {
                    return Err(EngineError::NonFiniteLogits);
                }
                each(index, token, row);
            }
        }
        Ok(())
    }
}

/// Logits of a token of a chunk.
struct LogitRow<'a> {
    row: &'a [f32],
    /// Of the chunk.
    index: usize,
    /// Within its sequence's step.
    token: usize,
    /// Where the chunk's last are kept.
    last: Option<&'a mut Vec<f32>>,
    finite: bool,
}

impl LogitRow<'_> {
    /// Keeps the last of a chunk, if they are finite.
    fn keep(&mut self) {
        self.finite = is_finite(self.row);
        if let Some(last) = self.last.as_deref_mut().filter(|_| self.finite) {
            self.row.clone_into(last);
        }
    }
}

/// Whether all numbers are. Looked at in runs, since a test of each would keep it from using vectors.
fn is_finite(row: &[f32]) -> bool {
    row.chunks(256).all(|run| run.iter().fold(true, |all, x| all & x.is_finite()))
}
