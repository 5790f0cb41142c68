//! A tile of keys and values of one KV head, widened to f32.

use super::plan::{KEYS, Piece};
use super::widen::Side;
use super::{Call, KvLayout};
use crate::ops::simd::Simd;

/// Up to [`KEYS`] rows of keys and of values, `stride` elements apart; elements from `head_dim` on are
/// zero, rows from `len` on hold anything.
#[derive(Debug, Default)]
pub(super) struct Tile {
    /// Where `by_channels` is set `[head_dim, KEYS]`, with anything from token `len` on.
    pub(super) k: Vec<f32>,
    /// Whether keys are not transposed because all lie by channels.
    pub(super) by_channels: bool,
    pub(super) v: Vec<f32>,
    pub(super) stride: usize,
    /// Rows in use.
    pub(super) len: usize,
    /// Position of each row, and the least and the largest of those in use.
    pub(super) positions: Vec<usize>,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Tile {
    /// Makes room for rows of `stride` elements.
    pub(super) fn resize(&mut self, stride: usize) {
        if self.stride != stride {
            self.stride = stride;
            self.k.clear();
            self.k.resize(KEYS * stride, 0.0);
            self.v.clear();
            self.v.resize(KEYS * stride, 0.0);
        }
    }

    /// Notes the positions of the rows to come, and how their keys lie.
    pub(super) fn place(&mut self, call: &Call<'_>, pieces: &[Piece]) {
        let kv = call.kv;
        // Which pieces share a tile depends on what is seen of them.
        self.by_channels = !call.shape.deterministic
            && pieces.iter().all(|piece| kv[piece.segment].keys.layout == KvLayout::Channels);
        self.positions.clear();
        self.positions.reserve(KEYS);
        (self.first, self.last) = (usize::MAX, 0);
        for piece in pieces {
            let start = kv[piece.segment].start + piece.row;
            self.positions.extend(start..start + piece.len);
            self.first = self.first.min(start);
            self.last = self.last.max(start + piece.len - 1);
        }
        self.len = self.positions.len();
    }

    /// Widens the rows of `pieces` of one head.
    #[inline(always)]
    pub(super) fn load<S: Simd>(&mut self, s: S, call: &Call<'_>, pieces: &[Piece], head: usize) {
        let (dim, heads) = (call.shape.head_dim, call.shape.kv_heads);
        let mut at = 0;
        for piece in pieces {
            let segment = &call.kv[piece.segment];
            let tokens = piece.row..piece.row + piece.len;
            let rows = at * self.stride..(at + piece.len) * self.stride;
            let keys = Side::new(segment.keys, heads, head, dim);
            if self.by_channels {
                keys.channels(s, tokens.clone(), self.k.as_chunks_mut().0, at);
            } else {
                keys.rows(s, tokens.clone(), &mut self.k[rows.clone()], self.stride);
            }
            let values = Side::new(segment.values, heads, head, dim);
            values.rows(s, tokens, &mut self.v[rows], self.stride);
            at += piece.len;
        }
    }
}
