//! The attention block: what is each sequence's own in a step.
//!
//! Queries, keys and values are projected for the rows of all chunks at once; positions, cache and
//! attention belong to each chunk.

use std::iter;

use ruvllm_host::Team;
use ruvllm_native::ThreadPool;
use ruvllm_native::attention::AttnSequence;
use ruvllm_native::ops::hadamard;

use super::adapters::LayerAdapters;
use super::chunk::{Chunk, Layer, Queries, queries};
use super::rows::{apply_norm, project, row_sink};
use super::state::{Decoder, Lists, Run};
use crate::config::{LayerSpec, ModelConfig, RopeLayout};
use crate::error::EngineError;
use crate::kernels::RopeRows;
use crate::kv::{AttendedPositions, Half, KvKernels};
use crate::memory::room;
use crate::tensors::Projection;

impl Decoder {
    /// Leaves what the attention block adds to the hidden states, and gives the number of rows that
    /// they have then: after the last layer's keys and values only wanted tokens matter, whose rows
    /// become the first.
    pub(super) fn attention_block(
        &mut self,
        team: Team<'_>,
        config: &ModelConfig,
        layer: Layer<'_>,
        chunks: &mut [Chunk<'_>],
    ) -> Result<usize, EngineError> {
        let Layer { last, weights, .. } = layer;
        self.project_heads(team, config, layer, LayerAdapters::inputs(chunks, layer))?;
        if self.kv.rotates() {
            // The heads of queries, keys and values alike, so that scores stay what they are.
            let row = config.q_dim() + 2 * config.kv_dim();
            let rows = &mut self.buffers.qkv[..self.positions.len() * row];
            hadamard_heads(team, rows, config.head_dim)?;
        }
        self.store(team.pool, config, layer, chunks)?;

        let (dim, q_dim) = (config.dim, config.q_dim());
        let is_decoded = |queries: &Queries<'_, '_>| queries.chunk.tokens.len() == 1;
        let decoded = queries(chunks, last).filter(is_decoded).count();
        let mut m = 0;
        for queries in queries(chunks, last) {
            m = queries.to + queries.rows.len();
            // Several sequences that are decoded share the threads; others take all in turn.
            if decoded < 2 || !is_decoded(&queries) {
                self.attend(team, config, layer, iter::once(queries))?;
            }
        }
        if m == 0 {
            return Ok(0);
        }
        if decoded > 1 {
            self.attend(team, config, layer, queries(chunks, last).filter(is_decoded))?;
        }
        let b = &mut self.buffers;
        for Queries { rows, to, .. } in queries(chunks, last).filter(|q| q.to < q.rows.start) {
            b.x.copy_within(rows.start * dim..rows.end * dim, to * dim);
        }
        if self.kv.rotates() {
            // The transform is its own inverse.
            hadamard_heads(team, &mut b.attn_out[..m * q_dim], config.head_dim)?;
        }
        let attn_out = &b.attn_out[..m * q_dim];
        let forms = self.kernels.reads(team.isa, &b.activations, m, &[&weights.o]);
        b.activations.prepare(team.pool, team.isa, attn_out, m, q_dim, forms)?;
        let delta = room(&mut b.delta, m * dim);
        project(&mut self.kernels, team, &b.activations, &mut [(&weights.o, &mut *delta)])?;
        let adapters = LayerAdapters::outputs(chunks, layer);
        adapters.add(team, &mut self.kernels, attn_out, [(Projection::Output, delta)])?;
        Ok(m)
    }

    /// Queries, keys and values of all rows, as attention and the caches take them; adds to the hidden
    /// states what is left of the layer before, if there is one.
    fn project_heads(
        &mut self,
        team: Team<'_>,
        config: &ModelConfig,
        Layer { index, weights, .. }: Layer<'_>,
        adapters: LayerAdapters<'_, '_>,
    ) -> Result<(), EngineError> {
        let Team { pool, .. } = team;
        let (dim, q_dim, kv_dim) = (config.dim, config.q_dim(), config.kv_dim());
        let m = self.positions.len();
        let b = &mut self.buffers;

        let read_by = [&weights.q, &weights.k, &weights.v];
        let plain = adapters.any().then_some(&mut b.plain);
        let kernels = &mut self.kernels;
        let normed = row_sink(kernels, team, &mut b.activations, plain, [m, dim], &read_by)?;
        let (x, delta) = (&mut b.x[..m * dim], (index > 0).then(|| &b.delta[..m * dim]));
        let scopes = &self.scopes.all;
        apply_norm(kernels, pool, scopes, x, delta, &weights.attn_norm, normed)?;
        let (raw_q, raw_k) = room(&mut b.raw, m * (q_dim + kv_dim)).split_at_mut(m * q_dim);
        let (qk, v) = room(&mut b.qkv, m * (q_dim + 2 * kv_dim)).split_at_mut(m * (q_dim + kv_dim));
        let mut outputs =
            [(&weights.q, &mut *raw_q), (&weights.k, &mut *raw_k), (&weights.v, &mut *v)];
        project(kernels, team, &b.activations, &mut outputs)?;
        let heads = [(Projection::Query, raw_q), (Projection::Key, raw_k), (Projection::Value, v)];
        adapters.add(team, kernels, &b.plain, heads)?;

        let shape = rope_rows(config, config.heads);
        let (raw, positions) = (&b.raw[..m * (q_dim + kv_dim)], &self.positions);
        let tables = &self.rope_tables;
        if m == 1 {
            // One token's queries and keys lie next to each other: more heads of one row.
            let shape = RopeRows { heads: config.heads + config.kv_heads, ..shape };
            return self.kernels.rope(pool, scopes, raw, positions, &shape, tables, qk);
        }
        let (q, k) = qk.split_at_mut(m * q_dim);
        self.kernels.rope(pool, scopes, &raw[..m * q_dim], positions, &shape, tables, q)?;
        let shape = RopeRows { heads: config.kv_heads, ..shape };
        self.kernels.rope(pool, scopes, &raw[m * q_dim..], positions, &shape, tables, k)
    }

    /// Stores the keys and values of all rows in the blocks of their sequences.
    fn store(
        &mut self,
        pool: &ThreadPool,
        config: &ModelConfig,
        layer: Layer<'_>,
        chunks: &mut [Chunk<'_>],
    ) -> Result<(), EngineError> {
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let m = self.positions.len();
        let kv = &self.buffers.qkv[m * q_dim..m * (q_dim + 2 * kv_dim)];
        let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool };
        let mut first = 0;
        for chunk in chunks {
            let rows = chunk.tokens.len();
            for (half, first) in [(Half::Keys, first), (Half::Values, m + first)] {
                let rows = &kv[first * kv_dim..(first + rows) * kv_dim];
                self.kv.write(chunk.table, layer.index, half, rows, &mut kv_kernels)?;
            }
            first += rows;
        }
        Ok(())
    }

    /// Attention of queries over the blocks of their chunks, all at once.
    fn attend<'q, 'c: 'q>(
        &mut self,
        team: Team<'_>,
        config: &ModelConfig,
        layer: Layer<'_>,
        queries: impl Iterator<Item = Queries<'q, 'c>>,
    ) -> Result<(), EngineError> {
        let q_dim = config.q_dim();
        let Layer { index, spec: LayerSpec { attention: spec, .. }, .. } = layer;
        let Lists { segments, runs, sequences, .. } = &mut self.lists;
        let (mut segments, mut runs) = (std::mem::take(segments), std::mem::take(runs));
        let mut sequences = std::mem::take(sequences);
        for Queries { chunk, rows, to } in queries {
            let mut at = rows.start;
            while at < rows.end {
                let position = self.positions[at];
                let len = chunk.table.run(position).min(rows.end - at);
                let first = spec.window.map_or(0, |w| (position + 1).saturating_sub(w));
                let seen = AttendedPositions { first, from: position, end: position + len };
                self.kv.segments(chunk.table, index, seen, &mut segments)?;
                let to = to + at - rows.start;
                runs.push(Run { rows: at..at + len, to, segments: segments.len() });
                at += len;
            }
        }
        let b = &mut self.buffers;
        let end = runs.last().map_or(0, |run| run.to + run.rows.len());
        let mut rest = room(&mut b.attn_out, end * q_dim);
        let (mut written, mut start) = (0, 0);
        for Run { rows, to, segments: end } in &runs {
            let (y, after) = rest[(to - written) * q_dim..].split_at_mut(rows.len() * q_dim);
            (rest, written) = (after, to + rows.len());
            let q = &b.qkv[rows.start * q_dim..rows.end * q_dim];
            let (q_pos, kv) = (self.positions[rows.start], &segments[start..*end]);
            sequences.push(AttnSequence { q, q_pos, kv, y });
            start = *end;
        }
        let shape = config.attention_shape(spec, b.activations.is_deterministic());
        self.kernels.attention(team, &shape, &mut sequences)?;
        runs.clear();
        self.lists.sequences = emptied(sequences);
        self.lists.segments = emptied(segments);
        self.lists.runs = runs;
        Ok(())
    }
}

/// What the rotation of `heads` heads a row is called with.
pub(super) fn rope_rows(config: &ModelConfig, heads: usize) -> RopeRows {
    RopeRows {
        heads,
        dim: config.head_dim,
        dim_half: config.rope.dims / 2,
        theta: config.rope.theta as f32,
        interleaved: config.rope.layout == RopeLayout::Interleaved,
    }
}

/// Transforms heads of `head_dim` elements, on all threads where that pays. Heads of a size that is
/// no power of two are transformed in the largest groups that are one.
pub(super) fn hadamard_heads(
    team: Team<'_>,
    x: &mut [f32],
    head_dim: usize,
) -> Result<(), EngineError> {
    const HEADS: usize = 256;
    const WIDEST: usize = 256;
    let group = (1 << head_dim.trailing_zeros()).min(WIDEST);
    if x.len() <= 2 * HEADS * head_dim {
        return Ok(hadamard(team.isa, x, group)?);
    }
    team.pool.for_chunks(x, HEADS * head_dim, &|_, x| {
        // Whole heads, of a size that the policy's check let through.
        let _ = hadamard(team.isa, x, group);
    });
    Ok(())
}

/// The memory of a list, for elements that borrow from elsewhere: collecting what a list gave up by
/// value into one of the same layout keeps its memory.
fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map_while(|_| None).collect()
}
