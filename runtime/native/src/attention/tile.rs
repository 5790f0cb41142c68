//! A tile of keys and values of one KV head, widened to f32.

use super::plan::{KEYS, Piece};
use super::widen::Side;
use super::{Call, KvSegment};
use crate::ops::simd::Simd;

/// Up to [`KEYS`] rows of keys and of values, `stride` elements apart; elements from `head_dim` on are
/// zero, rows from `len` on hold anything.
#[derive(Debug, Default)]
pub(super) struct Tile {
    pub(super) k: Vec<f32>,
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

    /// Notes the positions of the rows to come.
    pub(super) fn place(&mut self, kv: &[KvSegment<'_>], pieces: &[Piece]) {
        self.positions.clear();
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
            let (k, v) = (&mut self.k[rows.clone()], &mut self.v[rows]);
            Side::keys(segment, heads, head, dim).rows(s, tokens.clone(), k, self.stride);
            Side::values(segment, heads, head, dim).rows(s, tokens, v, self.stride);
            at += piece.len;
        }
    }
}
