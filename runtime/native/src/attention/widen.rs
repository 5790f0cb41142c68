//! Stored keys or values of one head, widened to f32.

use super::plan::KEYS;
use super::{KvLayout, KvRows};
use crate::ops::simd::{MAX_LANES, Simd};
use crate::ops::{BLOCK, unpack_q4, unpack_q8};
use ruvllm_abi::DType;
use std::ops::Range;

/// The keys or the values of one head in a segment whose size has been checked.
pub(super) struct Side<'a> {
    dtype: DType,
    layout: KvLayout,
    data: &'a [u8],
    /// Bytes of a row: of all heads of a token, or of all tokens of a channel.
    row: usize,
    /// The head's elements among those of all heads.
    elements: Range<usize>,
}

impl<'a> Side<'a> {
    #[inline(always)]
    pub(super) fn new(rows: KvRows<'a>, heads: usize, head: usize, dim: usize) -> Side<'a> {
        let KvRows { dtype, layout, data, .. } = rows;
        let row = match layout {
            KvLayout::Tokens => bytes(dtype, heads * dim),
            KvLayout::Channels => data.len() / (heads * dim),
        };
        Side { dtype, layout, data, row, elements: head * dim..(head + 1) * dim }
    }

    /// Widens `tokens` into rows of `stride` elements: the head's, then zeros.
    #[inline(always)]
    pub(super) fn rows<S: Simd>(
        &self,
        s: S,
        tokens: Range<usize>,
        tile: &mut [f32],
        stride: usize,
    ) {
        if self.layout == KvLayout::Channels {
            return self.transposed(s, tokens, tile, stride);
        }
        // A loop for each type, so that the rows of short segments do not ask for it.
        match self.dtype {
            DType::F16 => self.token_rows(s, DType::F16, tokens, tile, stride),
            DType::Q8_0 => self.token_rows(s, DType::Q8_0, tokens, tile, stride),
            DType::Q4_0 => self.token_rows(s, DType::Q4_0, tokens, tile, stride),
            _ => self.token_rows(s, DType::F32, tokens, tile, stride),
        }
    }

    /// [`rows`](Side::rows) of tokens of the type `dtype`.
    #[inline(always)]
    fn token_rows<S: Simd>(
        &self,
        s: S,
        dtype: DType,
        tokens: Range<usize>,
        tile: &mut [f32],
        stride: usize,
    ) {
        let dim = self.elements.len();
        let (start, end) = (bytes(dtype, self.elements.start), bytes(dtype, self.elements.end));
        let mut rows = &self.data[tokens.start * self.row..];
        for to in tile.chunks_mut(stride) {
            let (to, padding) = to.split_at_mut(dim);
            widen(s, dtype, &rows[start..end], to);
            if dim != stride {
                padding.fill(0.0);
            }
            rows = &rows[self.row..];
        }
    }

    /// Widens `tokens` of each of the head's channels, which lie by channels, into a row of `tile` from
    /// column `at` on.
    #[inline(always)]
    pub(super) fn channels<S: Simd>(
        &self,
        s: S,
        tokens: Range<usize>,
        tile: &mut [[f32; KEYS]],
        at: usize,
    ) {
        let block = self.dtype.layout().elems;
        let tile = &mut tile[..self.elements.len()];
        let mut rows = &self.data[self.elements.start * self.row..];
        // Either is a power of two.
        if (tokens.start | tokens.end) & (block - 1) == 0 {
            let (start, end) = (bytes(self.dtype, tokens.start), bytes(self.dtype, tokens.end));
            for to in tile {
                widen(s, self.dtype, &rows[start..end], &mut to[at..][..tokens.len()]);
                rows = &rows[self.row..];
            }
            return;
        }
        for to in tile {
            let (mut start, mut at) = (tokens.start, at);
            while start < tokens.end {
                let len = (tokens.end - start).min(BLOCK - start % BLOCK);
                run(s, self.dtype, rows, start, &mut to[at..][..len]);
                (start, at) = (start + len, at + len);
            }
            rows = &rows[self.row..];
        }
    }

    /// [`rows`](Side::rows) of channels: as many of them as a vector has lanes, times a block of
    /// tokens at a time.
    #[inline(always)]
    fn transposed<S: Simd>(&self, s: S, tokens: Range<usize>, tile: &mut [f32], stride: usize) {
        let channels = self.data[self.elements.start * self.row..].chunks_exact(self.row);
        let mut channels = channels.take(self.elements.len());
        let mut block = [[0.0; BLOCK]; MAX_LANES];
        for column in (0..stride).step_by(S::LANES) {
            let at = channels.clone();
            for _ in 0..S::LANES {
                channels.next();
            }
            let mut start = tokens.start;
            while start < tokens.end {
                let len = (tokens.end - start).min(BLOCK - start % BLOCK);
                let mut from = at.clone();
                for to in &mut block[..S::LANES] {
                    match from.next() {
                        Some(from) => run(s, self.dtype, from, start, &mut to[..len]),
                        None => to.fill(0.0),
                    }
                }
                let rows = &mut tile[(start - tokens.start) * stride..][..len * stride];
                for (i, rows) in rows.chunks_mut(S::LANES * stride).enumerate() {
                    let mut square = [s.splat(0.0); MAX_LANES];
                    for (v, from) in square.iter_mut().zip(&block[..S::LANES]) {
                        *v = s.load(&from[i * S::LANES..]);
                    }
                    transpose(s, &mut square);
                    for (v, row) in square.iter().zip(rows.chunks_exact_mut(stride)) {
                        s.store(*v, &mut row[column..]);
                    }
                }
                start += len;
            }
        }
    }
}

/// Bytes of `elems` elements that are whole blocks: `KvSegment::check` refused all else.
#[inline(always)]
fn bytes(dtype: DType, elems: usize) -> usize {
    let layout = dtype.layout();
    // A division by a constant: this is asked for every few rows.
    if layout.elems == BLOCK { elems / BLOCK * layout.bytes } else { elems * layout.bytes }
}

/// Widens whole blocks.
#[inline(always)]
fn widen<S: Simd>(s: S, dtype: DType, from: &[u8], to: &mut [f32]) {
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

/// Widens the elements of a row from number `start` on, all of one block.
#[inline(always)]
fn run<S: Simd>(s: S, dtype: DType, row: &[u8], start: usize, to: &mut [f32]) {
    let layout = dtype.layout();
    let from = &row[bytes(dtype, start)..];
    if to.len().is_multiple_of(layout.elems) {
        return widen(s, dtype, &from[..bytes(dtype, to.len())], to);
    }
    let from = &from[..layout.bytes];
    let mut block = [0.0; BLOCK];
    widen(s, dtype, from, &mut block);
    to.copy_from_slice(&block[start % BLOCK..][..to.len()]);
}

/// Exchanges rows and columns of a square of `LANES` vectors: interleaving the two halves of the
/// vectors turns the bits of an element's place by one, and as many turns as lanes have bits exchange
/// the bits of the row and of the lane.
#[inline(always)]
fn transpose<S: Simd>(s: S, square: &mut [S::F; MAX_LANES]) {
    let half = S::LANES / 2;
    for _ in 0..S::LANES.ilog2() {
        let before = *square;
        for i in 0..half {
            (square[2 * i], square[2 * i + 1]) = s.interleave(before[i], before[i + half]);
        }
    }
}
