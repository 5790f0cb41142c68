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

/// Bytes below which one thread lays out all: entering a region takes as long as some kilobytes do.
const ALONE: usize = 16 * 1024;

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

    /// The rows of each tile.
    fn rows(self, m: usize) -> impl Iterator<Item = Range<usize>> {
        let mut first = 0;
        std::iter::from_fn(move || {
            if first >= m {
                return None;
            }
            let range = first..m.min(first + self.width(m - first));
            first = range.end;
            Some(range)
        })
    }

    /// The rows of tile `number`, which there is.
    fn rows_of(self, m: usize, number: usize) -> Range<usize> {
        // All but the last few tiles are as wide as the first.
        let widest = self.width(m);
        let alike = number.min(m / widest);
        let rest = self.rows(m - alike * widest).nth(number - alike).unwrap_or(0..0);
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

/// Lays out activations on all threads, and calls `f` with them. What the last product of this thread had
/// laid out is not laid out again.
pub(super) fn with_tiles<S: Entries>(
    simd: S,
    pool: &ThreadPool,
    act: &Activations,
    shape: TileShape,
    f: impl FnOnce(&Tiles<'_>),
) {
    let (m, chunks) = (act.rows(), act.chunk_stride());
    let (form, widest) = (shape.form, shape.width(m));
    // Panels end so, and what a chunk has beyond that nobody multiplies.
    let blocks = act.cols().next_multiple_of(UNIT * BLOCK) / block_elems(form);
    let stride = (blocks * act_block_words(form.row_words(), widest)).max(1);
    let words = shape.rows(m).count() * stride;
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
            } else if size_of_val(words) < ALONE {
                words.chunks_mut(stride).enumerate().for_each(|(i, out)| lay(i, out));
            } else {
                pool.for_chunks(words, stride, &lay);
            }
            f(&Tiles { words, shape, m, blocks, stride });
            LAID.set(wanted);
        });
    });
}

/// Writes a chunk of one row, or the blocks of it that there is room for, as row `i` of the `cols` of a tile's
/// chunk, as [`ActBlock`](super::kernels::ActBlock) reads it.
#[inline(always)]
pub(super) fn lay(chunk: &ActChunk, i: usize, cols: usize, form: Form, out: &mut [u32]) {
    match form.groups {
        _ if form.sums == sums::SCALED => {
            scaled::lay(chunk, scale_step(&chunk.scale), i, cols, out);
        }
        4 => lay_groups::<4>(chunk, i, cols, form, out),
        _ => lay_groups::<8>(chunk, i, cols, form, out),
    }
}

/// [`lay`] where a scale is that of `G` words of the chunk.
#[inline(always)]
fn lay_groups<const G: usize>(
    chunk: &ActChunk,
    i: usize,
    cols: usize,
    form: Form,
    out: &mut [u32],
) {
    let blocks = out.chunks_exact_mut(act_block_words(form.groups, cols));
    let q = bytemuck::cast_slice::<i8, [i8; 4]>(&chunk.q).as_chunks::<G>().0;
    for (b, (block, q)) in blocks.zip(q).enumerate() {
        let (total, sum) = if 4 * G == GROUP {
            (chunk.total[b], chunk.sum[b])
        } else {
            (chunk.block_total[b], chunk.block_sum[b])
        };
        let (words, rest) = block.split_at_mut(cols * form.groups);
        if form.sums == sums::STRASSEN {
            let of_pair = &mut words[(i & !1) * form.groups..][..2 * form.groups];
            strassen::lay(of_pair, q, i % 2 == 1);
            rest[i] = chunk.scale[4 * G * b / GROUP].to_bits();
            continue;
        }
        let words = &mut words[i * form.groups..][..form.groups];
        if matches!(form.sums, sums::WIDE | sums::FLOATS) {
            let more = if form.sums == sums::FLOATS { 128 } else { 0 };
            for (words, q) in words.as_chunks_mut::<2>().0.iter_mut().zip(q) {
                let [a, b, c, d] = q.map(|q| i16::from(q) + more);
                *words = [pair(a, c), pair(b, d)];
            }
        } else {
            words.copy_from_slice(bytemuck::cast_slice(q));
        }
        rest[i] = chunk.scale[4 * G * b / GROUP].to_bits();
        rest[cols + i] = match (form.bias, form.sums) {
            (0, _) => 0,
            (bias, sums::PAIRS) => {
                let low: i32 = q.iter().map(|q| i32::from(q[0]) + i32::from(q[1])).sum();
                // Modulo 2^16, as the sums are.
                let start = |total: i32| -(total << bias) as i16;
                pair(start(low), start(i32::from(total) - low))
            }
            (bias, sums::FLOATS) => (sums::FLOATS_START - (i32::from(total) << bias)) as u32,
            (bias, _) => -(i32::from(total) << bias) as u32,
        };
        rest[2 * cols + i] = sum.to_bits();
    }
}

impl Tiles<'_> {
    /// Each tile, with the number of rows that it has room for.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, ActTile<'_>)> {
        let tiles = self.words.chunks_exact(self.stride).zip(self.shape.rows(self.m));
        tiles.map(|(words, Range { start, .. })| {
            (self.shape.width(self.m - start), ActTile { blocks: words, first: start })
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

    #[test]
    fn tiles_cover_every_row_once_and_can_be_asked_for_by_number() {
        let widths: [&'static [usize]; 3] = [&[5, 4, 3, 2, 1], &[16, 8, 4, 2, 1], &[8, 4, 2]];
        for widths in widths {
            let form = Form { sums: sums::QUADS, groups: 8, bias: 0, offsets: false };
            let shape = TileShape { widths, form };
            for m in 1..100 {
                let mut next = 0;
                for (number, rows) in shape.rows(m).enumerate() {
                    assert_eq!(shape.rows_of(m, number), rows, "{widths:?} {m} {number}");
                    assert_eq!(rows.start, next);
                    assert!(
                        rows.len() == shape.width(m - next) || rows.len() == 1 && rows.end == m
                    );
                    next = rows.end;
                }
                assert_eq!(next, m);
            }
        }
    }
}
