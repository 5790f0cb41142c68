//! A tile of keys and values of one KV head, widened to f32.

use super::plan::{KEYS, Piece};
use super::{Call, KvSegment};
use crate::ops::simd::Simd;
use crate::ops::{unpack_q4, unpack_q8};
use ruvllm_abi::DType;

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
            let rows = at * self.stride..(at + piece.len) * self.stride;
            let (k, v) = (&mut self.k[rows.clone()], &mut self.v[rows]);
            widen(s, segment.k_dtype, segment.k, heads, head, piece.row, dim, k, self.stride);
            widen(s, segment.v_dtype, segment.v, heads, head, piece.row, dim, v, self.stride);
            at += piece.len;
        }
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined twice, right above")]
fn widen<S: Simd>(
    s: S,
    dtype: DType,
    data: &[u8],
    heads: usize,
    head: usize,
    row: usize,
    dim: usize,
    tile: &mut [f32],
    stride: usize,
) {
    // A whole number: `KvSegment::check` refused all else.
    let bytes = dim / dtype.layout().elems * dtype.layout().bytes;
    let from = data[row * heads * bytes..].chunks_exact(heads * bytes);
    for (to, from) in tile.chunks_exact_mut(stride).zip(from) {
        let (to, from) = (&mut to[..dim], &from[head * bytes..][..bytes]);
        match dtype {
            DType::F16 => {
                let mut to = to.chunks_exact_mut(S::LANES);
                let mut from = from.chunks_exact(2 * S::LANES);
                for (to, from) in (&mut to).zip(&mut from) {
                    s.store(s.load_f16(from), to);
                }
                let rest = from.remainder().as_chunks::<2>().0;
                for (to, from) in to.into_remainder().iter_mut().zip(rest) {
                    *to = s.widen(u16::from_le_bytes(*from));
                }
            }
            DType::Q8_0 => unpack_q8(s, from, to),
            DType::Q4_0 => unpack_q4(s, from, to),
            _ => {
                for (to, from) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                    *to = f32::from_le_bytes(*from);
                }
            }
        }
    }
}
