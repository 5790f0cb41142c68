//! The chunks that a step computes, and their rows in a layer.

use std::ops::Range;

use crate::config::LayerSpec;
use crate::kv::KvTable;
use crate::weights::LayerWeights;

/// One sequence's share of a step: the tokens that follow those that are computed.
pub(crate) struct Chunk<'a> {
    pub(crate) table: &'a mut KvTable,
    /// Where the logits of the last token go, if they are wanted.
    pub(crate) last: &'a mut Vec<f32>,
    pub(crate) tokens: &'a [u32],
    /// Logits are wanted of this and all later tokens of the chunk; at most their number.
    pub(crate) from: usize,
    /// Tokens before these that the caller asked for and that need not be computed.
    pub(crate) skipped: usize,
    /// Where the normed hidden states `[dim]` of all tokens are added up, in place of logits.
    pub(crate) hidden: Option<&'a mut [f32]>,
}

impl Chunk<'_> {
    /// Leaves out the first `count` tokens, which are computed already.
    pub(super) fn skip(&mut self, count: usize) {
        self.tokens = &self.tokens[count..];
        self.from -= count;
        self.skipped += count;
    }

    /// The tokens of which logits or hidden states are wanted.
    pub(super) fn wanted(&self) -> Range<usize> {
        self.from..self.tokens.len()
    }
}

/// The queries of a chunk that a layer needs.
pub(super) struct Queries<'a, 'c> {
    pub(super) chunk: &'a Chunk<'c>,
    /// Their rows in the step; at least one.
    pub(super) rows: Range<usize>,
    /// The first of their rows among those that the layer needs.
    pub(super) to: usize,
}

/// The queries that a layer needs: all, but in the last layer those whose logits are wanted.
pub(super) fn queries<'a, 'c>(
    chunks: &'a [Chunk<'c>],
    last: bool,
) -> impl Iterator<Item = Queries<'a, 'c>> {
    let (mut end, mut needed) = (0, 0);
    let queries = chunks.iter().map(move |chunk| {
        let from = if last { chunk.from } else { 0 };
        let (rows, to) = (end + from..end + chunk.tokens.len(), needed);
        (end, needed) = (rows.end, needed + rows.len());
        Queries { chunk, rows, to }
    });
    queries.filter(|queries| !queries.rows.is_empty())
}

/// A layer of the model: what it computes, and with which weights.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) index: usize,
    /// Whether only the wanted rows matter once keys and values are stored.
    pub(super) last: bool,
    pub(super) spec: &'a LayerSpec,
    pub(super) weights: &'a LayerWeights,
}
