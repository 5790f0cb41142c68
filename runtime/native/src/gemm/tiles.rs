//! Quantised activations of a few rows side by side, as the kernels read them that multiply several
//! rows with each weight: all that these need of a block lies together, at distances that they know.
//! Rows that lie apart cost an address register each, and three cache lines a block; reading those is
//! what would bound the products, by a quarter on some processors.

use std::cell::Cell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::act::scale_step;
use super::kernels::int::{Form, sums};
use super::kernels::{ActTile, Entries, act_block_words, pair, scaled, strassen};
use super::packed::{BLOCK, UNIT};
use super::{ActChunk, Activations};
use crate::ThreadPool;
use crate::quant::{CHUNK, GROUP};

/// Bytes that all threads but one lay out again at most, so that each has what it reads to itself: to get what another
/// thread has written, and to write what another has read, takes longer than to compute it. Measured with two threads.
const LAID_AGAIN: usize = 256 * 1024;

/// A cache line of scratch memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

thread_local! {
    /// The tiles that products of this thread read, kept from product to product.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    /// Which those are: several matrices meet the same activations.
    static LAID: Cell<Option<(u64, TileShape)>> = const { Cell::new(None) };
}

/// Takes the buffer out of `cell` for `f`, with at least `bytes` in it.
pub(super) fn with_lines(cell: &Cell<Vec<Line>>, bytes: usize, f: impl FnOnce(&mut [Line])) {
    let mut lines = cell.take();
    let wanted = bytes.div_ceil(size_of::<Line>());
    if lines.len() < wanted {
        lines.resize(wanted, Line::zeroed());
    }
    f(&mut lines);
    cell.set(lines);
}

/// How activations are laid out for some weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TileShape {
    /// Rows of a tile, the widest first. The last tile is not full where fewer are left than the narrowest has.
    pub(super) widths: &'static [usize],
    /// What products with the weights need.
    pub(super) form: Form,
}

impl TileShape {
    /// The widest tile for so many rows, or the narrowest.
    fn width(&self, left: usize) -> usize {
        let fits = self.widths.iter().find(|width| **width <= left).or(self.widths.last());
        fits.copied().unwrap_or(1)
    }

    /// Each tile: how many rows it has room for, and which it has.
    fn tiles(self, m: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut first = 0;
        std::iter::from_fn(move || {
            if first >= m {
                return None;
            }
            let width = self.width(m - first);
            let rows = first..m.min(first + width);
            first = rows.end;
            Some((width, rows))
        })
    }

    /// Blocks of a row of activations, each of [`block_elems`]. Panels end so, and what a chunk has beyond that nobody
    /// multiplies.
    fn blocks(self, act: &Activations) -> usize {
        act.cols().next_multiple_of(UNIT * BLOCK) / block_elems(self.form)
    }

    /// Words from a tile to the next, and of all.
    fn words(self, act: &Activations) -> (usize, usize) {
        let widest = self.width(act.rows());
        let stride = (self.blocks(act) * act_block_words(self.form.row_words(), widest)).max(1);
        (stride, self.tiles(act.rows()).count() * stride)
    }

    /// Whether each of the threads lays out all that it reads. Else they share that out, and wait for each other.
    pub(super) fn laid_by_each(self, act: &Activations, threads: usize) -> bool {
        let (stride, words) = self.words(act);
        words == stride || (threads - 1) * words * size_of::<u32>() <= LAID_AGAIN
    }

    /// The rows of tile `number`, which there is.
    fn rows_of(self, m: usize, number: usize) -> Range<usize> {
        // All but the last few tiles are as wide as the first.
        let widest = self.width(m);
        let alike = number.min(m / widest);
        let rest =
            self.tiles(m - alike * widest).nth(number - alike).map_or(0..0, |(_, rows)| rows);
        rest.start + alike * widest..rest.end + alike * widest
    }
}

/// An input's activations in tiles.
pub(super) struct Tiles<'a> {
    words: &'a [u32],
    shape: TileShape,
    m: usize,
    /// Blocks of a row, each of [`block_elems`].
    blocks: usize,
    /// Words from a tile to the next.
    stride: usize,
}

/// Elements of each row that an [`ActBlock`](super::kernels::ActBlock) holds.
fn block_elems(form: Form) -> usize {
    match (form.sums, form.groups) {
        (sums::SCALED, _) => 2 * BLOCK,
        (_, 4) => GROUP,
        _ => BLOCK,
    }
}

/// Lays out activations, on all threads of a pool if there is one, and calls `f` with them. What the last product of
/// this thread had laid out is not laid out again.
pub(super) fn with_tiles<S: Entries>(
    simd: S,
    pool: Option<&ThreadPool>,
    act: &Activations,
    shape: TileShape,
    f: impl FnOnce(&Tiles<'_>),
) {
    let (m, chunks) = (act.rows(), act.chunk_stride());
    let (form, blocks) = (shape.form, shape.blocks(act));
    let (stride, words) = shape.words(act);
    SCRATCH.with(|cell| {
        with_lines(cell, size_of::<u32>() * words, |lines| {
            let words = &mut bytemuck::cast_slice_mut::<_, u32>(lines)[..words];
            let lay = |number: usize, out: &mut [u32]| {
                let rows = shape.rows_of(m, number);
                let cols = shape.width(m - rows.start);
                let block_words = act_block_words(form.row_words(), cols);
                let out = &mut out[..blocks * block_words];
                for (c, out) in out.chunks_mut(CHUNK / block_elems(form) * block_words).enumerate()
                {
                    for (i, row) in rows.clone().enumerate() {
                        let chunk = &act.chunks()[row * chunks + c];
                        simd.lay(chunk, i, cols, form, out);
                    }
                }
            };
            let wanted = Some((act.version(), shape));
            if LAID.take() == wanted {
                // They are there.
            } else if let Some(pool) = pool {
                pool.for_chunks(words, stride, &lay);
            } else {
                words.chunks_mut(stride).enumerate().for_each(|(i, out)| lay(i, out));
            }
            f(&Tiles { words, shape, m, blocks, stride });
            LAID.set(wanted);
        });
    });
}

/// Blocks of a chunk.
const BLOCKS: usize = CHUNK / BLOCK;

/// Halves of its blocks.
const HALVES: usize = CHUNK / GROUP;

/// Writes a chunk of one row, or the blocks of it that there is room for, as row `i` of the `cols` of a tile's
/// chunk, as [`ActBlock`](super::kernels::ActBlock) reads it.
///
/// What differs from kind to kind is done in loops over the whole chunk, which compilers make vectors of; as closures they
/// would be compiled without the instructions.
#[inline(always)]
pub(super) fn lay(chunk: &ActChunk, i: usize, cols: usize, form: Form, out: &mut [u32]) {
    let words: [u32; CHUNK / 4] = bytemuck::cast(chunk.q);
    let mut scales = [0.0; BLOCKS];
    for (scale, [of_block, _]) in scales.iter_mut().zip(chunk.scale.as_chunks().0) {
        *scale = *of_block;
    }
    match (form.sums, form.groups) {
        (sums::SCALED, _) => scaled::lay(chunk, scale_step(&chunk.scale), i, cols, out),
        (sums::STRASSEN, _) => lay_strassen(chunk, &scales, i, cols, out),
        (_, 4) => {
            let starts = starts::<HALVES>(&words, &chunk.total, form);
            lay_words::<4, HALVES>(&words, [&chunk.scale, &chunk.sum], &starts, i, cols, out);
        }
        (_, groups) => {
            let (starts, behind) =
                (starts::<BLOCKS>(&words, &chunk.block_total, form), [&scales, &chunk.block_sum]);
            if groups == 8 {
                lay_words::<8, BLOCKS>(&words, behind, &starts, i, cols, out);
            } else {
                let wide = widened(chunk, if form.sums == sums::FLOATS { 128 } else { 0 });
                lay_words::<16, BLOCKS>(&wide, behind, &starts, i, cols, out);
            }
        }
    }
}

/// Writes `N` words of integers of each of `B` blocks or halves of blocks, and behind them the scale, what sums start at,
/// and the sum of the activations.
#[inline(always)]
fn lay_words<const N: usize, const B: usize>(
    words: &[u32],
    [scales, sums]: [&[f32; B]; 2],
    starts: &[u32; B],
    i: usize,
    cols: usize,
    out: &mut [u32],
) {
    let words = words.as_chunks::<N>().0.iter().zip(scales.iter().zip(starts).zip(sums));
    for (block, (of_block, ((scale, start), sum))) in
        out.chunks_exact_mut(act_block_words(N, cols)).zip(words)
    {
        let (words, rest) = block.split_at_mut(cols * N);
        words[i * N..][..N].copy_from_slice(of_block);
        rest[i] = scale.to_bits();
        rest[cols + i] = *start;
        rest[2 * cols + i] = sum.to_bits();
    }
}

/// What the sums of each of `B` blocks or halves of blocks start at, of whose activations these are the words and totals.
#[inline(always)]
fn starts<const B: usize>(words: &[u32; CHUNK / 4], totals: &[i16; B], form: Form) -> [u32; B] {
    let mut starts = [0; B];
    match (form.bias, form.sums) {
        (0, _) => {}
        (bias, sums::PAIRS) => {
            for ((start, total), words) in
                starts.iter_mut().zip(totals).zip(words.chunks_exact(CHUNK / 4 / B))
            {
                let mut low = 0;
                for word in words {
                    let word = word.cast_signed();
                    low += (word << 24 >> 24) + (word << 16 >> 24);
                }
                let high = i32::from(*total) - low;
                // Modulo 2^16, as the sums are.
                *start = pair(-(low << bias) as i16, -(high << bias) as i16);
            }
        }
        (bias, kind) => {
            let from = if kind == sums::FLOATS { sums::FLOATS_START } else { 0 };
            for (start, total) in starts.iter_mut().zip(totals) {
                *start = (from - (i32::from(*total) << bias)).cast_unsigned();
            }
        }
    }
    starts
}

/// The activations of a chunk, each so much more, as numbers of 16 bits: of four neighbours the first and the third in a word,
/// the others in the next.
#[inline(always)]
fn widened(chunk: &ActChunk, more: i16) -> [u32; CHUNK / 2] {
    let twos: [i16; CHUNK / 2] = bytemuck::cast(chunk.q);
    let (mut even, mut odd) = ([0; CHUNK / 2], [0; CHUNK / 2]);
    for ((even, odd), two) in even.iter_mut().zip(&mut odd).zip(twos) {
        (*even, *odd) = ((two << 8 >> 8) + more, (two >> 8) + more);
    }
    let (even, odd): ([u32; CHUNK / 4], [u32; CHUNK / 4]) =
        (bytemuck::cast(even), bytemuck::cast(odd));
    let mut words = [0; CHUNK / 2];
    for ((to, even), odd) in words.as_chunks_mut().0.iter_mut().zip(even).zip(odd) {
        *to = [even, odd];
    }
    words
}

/// [`lay`] for tiles by [`strassen`].
#[inline(always)]
fn lay_strassen(chunk: &ActChunk, scales: &[f32; BLOCKS], i: usize, cols: usize, out: &mut [u32]) {
    let q = bytemuck::cast_slice::<i8, [i8; 4]>(&chunk.q).as_chunks::<{ BLOCK / 4 }>().0;
    let blocks = out.chunks_exact_mut(act_block_words(strassen::GROUPS_EACH, cols));
    for (block, (q, scale)) in blocks.zip(q.iter().zip(scales)) {
        let (words, rest) = block.split_at_mut(cols * strassen::GROUPS_EACH);
        let of_pair = &mut words[(i & !1) * strassen::GROUPS_EACH..][..2 * strassen::GROUPS_EACH];
        strassen::lay(of_pair, q, i % 2 == 1);
        rest[i] = scale.to_bits();
    }
}

impl Tiles<'_> {
    /// Each tile, with the number of rows that it has room for.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, ActTile<'_>)> {
        let mut rest = self.words;
        self.shape.tiles(self.m).map(move |(width, rows)| {
            // Not in chunks: their number would be a division for each panel.
            let (blocks, others) = rest.split_at(self.stride);
            rest = others;
            (width, ActTile { blocks, first: rows.start })
        })
    }

    /// What products with the weights need.
    pub(super) fn form(&self) -> Form {
        self.shape.form
    }

    /// Blocks of a row, each of [`block_elems`].
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::gemm::{MatMut, Weights, matmul};
    use crate::judge::random_blocks;
    use crate::ops::testing::noise;
    use crate::random::Random;
    use ruvllm_abi::DType;

    #[test]
    fn tiles_cover_every_row_once_and_can_be_asked_for_by_number() {
        let widths: [&'static [usize]; 3] = [&[5, 4, 3, 2, 1], &[16, 8, 4, 2, 1], &[8, 4, 2]];
        for widths in widths {
            let form = Form { sums: sums::QUADS, groups: 8, bias: 0, offsets: false };
            let shape = TileShape { widths, form };
            for m in 1..100 {
                let mut next = 0;
                for (number, (width, rows)) in shape.tiles(m).enumerate() {
                    assert_eq!(shape.rows_of(m, number), rows, "{widths:?} {m} {number}");
                    assert_eq!(rows.start, next);
                    assert!(rows.len() == width || rows.len() == 1 && rows.end == m);
                    next = rows.end;
                }
                assert_eq!(next, m);
            }
        }
    }

    #[test]
    fn activations_that_threads_lay_out_together_or_each_for_itself_give_the_same_bits() {
        let (m, n, k) = (16, 83, 4096);
        let (x, mut act) = (noise(m * k, 3), Activations::new());
        let form = Form { sums: sums::QUADS, groups: 8, bias: 0, offsets: false };
        let shape = TileShape { widths: &[8, 4, 2, 1], form };
        let pools = [1, 2, 8].map(ThreadPool::new);
        for dtype in [DType::Q8_0, DType::Q4_K, DType::Q6_K] {
            let data = random_blocks(&mut Random::new(4), n * k, dtype).unwrap();
            let w = Weights::new(dtype, n, k, &data).unwrap();
            for &isa in Isa::available() {
                act.prepare(&pools[0], isa, &x, m, k, act.forms(isa, m, &[dtype])).unwrap();
                assert_eq!([1, 2, 8].map(|of| shape.laid_by_each(&act, of)), [true, true, false]);
                let [alone, rest @ ..] = pools.each_ref().map(|pool| {
                    let mut y = vec![0.0; m * n];
                    matmul(pool, isa, &w, &act, MatMut { data: &mut y, stride: n }).unwrap();
                    y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                assert!(rest.iter().all(|y| *y == alone), "{dtype} {isa}");
            }
        }
    }
}
