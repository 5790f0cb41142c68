//! How a product is cut up: which columns a thread takes, which panels stay in cache, which
//! instance of a kernel runs.

use std::cell::Cell;
use std::ops::Range;

use ruvllm_abi::DType;

use super::kernels::int::{Form, int_block_bytes, sums};
use super::kernels::{Entries, FLOAT_VECTORS, Input, Rows, strassen};
use super::out::{Columns, Out};
use super::pack::pack_panel;
use super::packed::{BLOCK, Layout, PANEL, UNIT};
use super::streamed;
use super::tiles::{Line, TileShape, Tiles, with_lines, with_tiles};
#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{DOT_COLS, Job, Plan, Product};
use crate::ThreadPool;
use crate::quant::{CHUNK, chunk_bytes, tag};

/// Bytes of panels that stay in the second-level cache, with room beside for activations.
const CACHED: usize = 384 * 1024;

/// The most panels of floats that a thread takes at a time: large enough that each read of the
/// activations serves many rows, small enough that threads finish together.
const PANELS: usize = 4;

/// The same for panels of integers, which are smaller.
const INT_PANELS: usize = 8;

/// Elements of a row that a panel of floats holds at a time.
const FLOAT_DEPTH: usize = 4 * CHUNK;

/// Bytes of weights that a thread takes at a time: some microseconds' worth, much more than taking
/// them costs and much less than a turn of another process.
pub(super) const STREAMED: usize = 128 * 1024;

/// Weight rows of floats that stay in cache while groups of activation rows pass over them.
const DOT_ROWS: usize = 16;

thread_local! {
    /// The panels of this thread, kept from product to product.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    /// A packed panel on its way there.
    static PACKED: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Calls `$simd.$f::<type, $($const),*>` for the blocked type.
macro_rules! blocked {
    ($dtype:expr, $simd:ident.$f:ident<_ $(, $c:literal)*> $args:tt) => {
        match $dtype {
            DType::Q8_0 => $simd.$f::<{ tag::Q8_0 } $(, $c)*> $args,
            DType::Q4_0 => $simd.$f::<{ tag::Q4_0 } $(, $c)*> $args,
            DType::Q4_1 => $simd.$f::<{ tag::Q4_1 } $(, $c)*> $args,
            DType::Q5_0 => $simd.$f::<{ tag::Q5_0 } $(, $c)*> $args,
            DType::Q5_1 => $simd.$f::<{ tag::Q5_1 } $(, $c)*> $args,
            DType::Q4_K => $simd.$f::<{ tag::Q4_K } $(, $c)*> $args,
            DType::Q5_K => $simd.$f::<{ tag::Q5_K } $(, $c)*> $args,
            _ => $simd.$f::<{ tag::Q6_K } $(, $c)*> $args,
        }
    };
}

pub(super) use blocked;

/// Computes products of the same activations with weights in blocks.
pub(super) fn run_ints<S: Entries>(simd: S, pool: &ThreadPool, products: &mut [Product<'_>]) {
    if products.first().is_some_and(|product| product.job.act.rows() <= S::STREAMED_COLS) {
        streamed::run(simd, pool, products);
    } else {
        products.iter_mut().for_each(|product| deal_int_panels(simd, pool, product));
    }
}

/// Computes products of the same activations with weights in floats.
pub(super) fn run_floats<S: Entries>(
    simd: S,
    pool: &ThreadPool,
    plan: Plan,
    products: &mut [Product<'_>],
) {
    if plan == Plan::DotFloat {
        let row_bytes = products.iter().map(|product| product.job.w.row_bytes).max().unwrap_or(1);
        let rows = (STREAMED / row_bytes).max(1).next_multiple_of(DOT_ROWS);
        Out::share(products, pool, rows, 1, &|job, y| dot_float(simd, job, y));
    } else {
        for Product { job, out, .. } in products {
            out.deal(pool, PANELS * S::LANES, &|y| panel_float(simd, job, y));
        }
    }
}

/// Calls `f` with the panel that weight row `row` is the first of: one of those that the weights were
/// packed to, or one that is packed now.
pub(super) fn with_panel<S: Entries>(job: &Job<'_>, row: usize, f: impl FnOnce(&[u8])) {
    if let Some(packed) = job.w.packed {
        return f(packed.panel(row));
    }
    let bytes = job.panel_bytes();
    PACKED.with(|cell| {
        with_lines(cell, bytes, |panel| {
            let panel = &mut bytemuck::cast_slice_mut(panel)[..bytes];
            let sums = Form::of::<S>(job.w.dtype as u8).sums;
            pack_panel(&job.w, row, sums == sums::SCALED, panel);
            f(panel);
        });
    });
}

impl Job<'_> {
    /// Bytes of a panel of the weights.
    pub(super) fn panel_bytes(&self) -> usize {
        Layout::of(self.w.dtype).panel_bytes(self.w.cols)
    }

    /// The weight rows behind some columns of the output.
    pub(super) fn rows(&self, first: usize, count: usize) -> Rows<'_> {
        let w = self.w;
        debug_assert!(count > 0 && first + count <= w.rows);
        Rows {
            data: &w.data[first * w.row_bytes..][..count * w.row_bytes],
            bytes: w.row_bytes,
            chunk_bytes: chunk_bytes(w.dtype),
            k: w.cols,
        }
    }

    /// Activation rows from `first` on, from pair `from` on.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pairs(&self, first: usize, from: usize) -> Input<'_, u32> {
        let stride = self.act.pair_stride();
        Input { data: &self.act.pairs()[first * stride + from..], stride, first }
    }

    fn floats(&self, first: usize, from: usize) -> Input<'_, f32> {
        let stride = self.act.float_stride();
        Input { data: &self.act.floats()[first * stride + from..], stride, first }
    }
}

/// Calls `$f` for blocks of rows and, of each, groups of activation rows.
fn by_groups(
    job: &Job<'_>,
    y: &mut Columns<'_>,
    mut f: impl FnMut(&Rows<'_>, &mut Columns<'_>, usize, usize),
) {
    let (range, m) = (y.range(), job.act.rows());
    let block = if m <= DOT_COLS { range.len() } else { DOT_ROWS };
    for start in range.clone().step_by(block) {
        let rows = job.rows(start, block.min(range.end - start));
        let mut part = y.part(start..start + rows.count());
        let mut first = 0;
        while first < m {
            let cols = DOT_COLS.min(m - first);
            f(&rows, &mut part, first, cols);
            first += cols;
        }
    }
}

fn dot_float<S: Entries>(simd: S, job: &Job<'_>, y: &mut Columns<'_>) {
    macro_rules! by_type {
        ($m:literal, $args:tt) => {
            match job.w.dtype {
                DType::F16 => simd.dot_float::<{ tag::F16 }, $m> $args,
                DType::BF16 => simd.dot_float::<{ tag::BF16 }, $m> $args,
                _ => simd.dot_float::<{ tag::F32 }, $m> $args,
            }
        };
    }
    by_groups(job, y, |rows, y, first, cols| {
        let act = job.floats(first, 0);
        match cols {
            1 => by_type!(1, (rows, y, act)),
            2 => by_type!(2, (rows, y, act)),
            3 => by_type!(3, (rows, y, act)),
            _ => by_type!(4, (rows, y, act)),
        }
    });
}

/// Runs `f` on so many bytes of this thread's scratch memory.
fn with_scratch(bytes: usize, f: impl FnOnce(&mut [u8])) {
    SCRATCH.with(|cell| {
        with_lines(cell, bytes, |lines| f(&mut bytemuck::cast_slice_mut(lines)[..bytes]));
    });
}

/// The widest tile for at most `most` activation rows that does not exceed `left`.
fn tile_width(widths: &[usize], most: usize, left: usize) -> usize {
    widths.iter().copied().find(|width| *width <= most.min(left)).unwrap_or(1)
}

/// Computes a product in panels of bytes, so many at a time as stay in cache.
fn deal_int_panels<S: Entries>(simd: S, pool: &ThreadPool, product: &mut Product<'_>) {
    let Product { job, out, .. } = product;
    // Rows that are rearranged for this product would be so for each depth again.
    let longest = if job.w.packed.is_some() { strassen::LONGEST } else { STRASSEN_DEPTH * BLOCK };
    let form = Form::of_tiles::<S>(job.w.dtype as u8, job.w.cols <= longest);
    let widths: &[usize] = match (S::INT_PANELS, S::INT_COLS) {
        _ if form.sums == sums::STRASSEN => &[8, 4, 2],
        (1, 16..) => &[16, 8, 4, 2, 1],
        (1, 8..) => &[8, 4, 2, 1],
        (1, _) => &[4, 2, 1],
        (_, 6..) => &[6, 5, 4, 3, 2, 1],
        _ => &[4, 3, 2, 1],
    };
    let shape = TileShape { widths, form };
    with_tiles(simd, Some(pool), job.act, shape, |tiles| {
        let (together, depth) = match form.sums {
            sums::STRASSEN => (strassen::PAIRS, strassen_depth(tiles.blocks())),
            _ => ((S::INT_PANELS * S::LANES).div_ceil(PANEL), tiles.blocks()),
        };
        let panels = CACHED / (depth * int_block_bytes(PANEL, form.row_words()));
        let panels = panels.clamp(1, INT_PANELS * S::LANES / PANEL);
        let most = panels.div_ceil(together);
        let parts = job.w.rows.div_ceil(together * PANEL);
        let unit = together * dealt(parts, pool.threads(), most) * PANEL;
        out.deal(pool, unit, &|y| match form.sums {
            sums::STRASSEN => panel_strassen(simd, job, tiles, depth, y),
            _ => panel_int(simd, job, tiles, y),
        });
    });
}

/// The most blocks that are multiplied by Strassen's algorithm before the next: as many as stay in cache, since their
/// panels take almost twice as much as others.
const STRASSEN_DEPTH: usize =
    CACHED / (strassen::PAIRS * int_block_bytes(PANEL, strassen::GROUPS_EACH));

/// Of so many blocks, how many are multiplied by Strassen's algorithm before the next.
fn strassen_depth(blocks: usize) -> usize {
    blocks.div_ceil(blocks.div_ceil(STRASSEN_DEPTH).max(1)).next_multiple_of(UNIT)
}

/// How many of so many parts a thread takes at a time, at most `most`: of the numbers with which the last is done
/// soonest, the largest.
fn dealt(parts: usize, threads: usize, most: usize) -> usize {
    let longest = |unit: usize| parts.div_ceil(unit).div_ceil(threads) * unit;
    (1..=most).rev().min_by_key(|unit| longest(*unit)).unwrap_or(1)
}

/// How activations are laid out for weights of this type.
pub(super) fn tile_shape<S: Entries>(dtype: DType, widths: &'static [usize]) -> TileShape {
    TileShape { widths, form: Form::of::<S>(dtype as u8) }
}

fn panel_int<S: Entries>(simd: S, job: &Job<'_>, tiles: &Tiles<'_>, y: &mut Columns<'_>) {
    let (range, blocks, form) = (y.range(), tiles.blocks(), tiles.form());
    // Which these sums are as floats.
    #[cfg(target_arch = "x86_64")]
    let _subnormals = (form.sums == sums::FLOATS).then(x86::WithSubnormals::new);
    let (dtype, parts) = (job.w.dtype, PANEL / S::LANES);
    let bytes = blocks * int_block_bytes(S::LANES, form.row_words());
    let panels = range.clone().step_by(PANEL);
    let scratch = (panels.len() * parts).next_multiple_of(S::INT_PANELS) * bytes;
    with_scratch(scratch, |scratch| {
        for (start, to) in panels.zip(scratch.chunks_mut(parts * bytes)) {
            with_panel::<S>(job, start, |panel| {
                blocked!(dtype, simd.unpack_panel<_>(panel, to));
            });
        }
        macro_rules! tile {
            ($p:literal, $c:literal, $args:tt) => {
                match (form.groups, form.sums, form.offsets) {
                    (4, sums::QUADS, _) => simd.tile_int::<4, { sums::QUADS }, false, $p, $c> $args,
                    (4, _, _) => simd.tile_int::<4, { sums::PAIRS }, false, $p, $c> $args,
                    (16, sums::SCALED, _) => {
                        simd.tile_int::<16, { sums::SCALED }, true, $p, $c> $args
                    }
                    (16, sums::FLOATS, _) => {
                        simd.tile_int::<16, { sums::FLOATS }, false, $p, $c> $args
                    }
                    (16, _, _) => simd.tile_int::<16, { sums::WIDE }, false, $p, $c> $args,
                    (_, sums::QUADS, false) => {
                        simd.tile_int::<8, { sums::QUADS }, false, $p, $c> $args
                    }
                    (_, sums::QUADS, true) => {
                        simd.tile_int::<8, { sums::QUADS }, true, $p, $c> $args
                    }
                    (_, sums::PAIRS_FROM_ZERO, _) => {
                        simd.tile_int::<8, { sums::PAIRS_FROM_ZERO }, true, $p, $c> $args
                    }
                    (_, _, false) => simd.tile_int::<8, { sums::PAIRS }, false, $p, $c> $args,
                    (_, _, true) => simd.tile_int::<8, { sums::PAIRS }, true, $p, $c> $args,
                }
            };
        }
        for (width, act) in tiles.iter() {
            let starts = range.clone().step_by(S::INT_PANELS * S::LANES);
            // A second panel that was not unpacked is memory of the scratch, and nothing of it reaches
            // `y`.
            for (start, panels) in starts.zip(scratch.chunks(S::INT_PANELS * bytes)) {
                match (S::INT_PANELS, width) {
                    (1, 16) => tile!(1, 16, (panels, blocks, act, start, y)),
                    (1, 8) => tile!(1, 8, (panels, blocks, act, start, y)),
                    (1, 4) => tile!(1, 4, (panels, blocks, act, start, y)),
                    (1, 2) => tile!(1, 2, (panels, blocks, act, start, y)),
                    (1, _) => tile!(1, 1, (panels, blocks, act, start, y)),
                    (_, 6) => tile!(2, 6, (panels, blocks, act, start, y)),
                    (_, 5) => tile!(2, 5, (panels, blocks, act, start, y)),
                    (_, 4) => tile!(2, 4, (panels, blocks, act, start, y)),
                    (_, 3) => tile!(2, 3, (panels, blocks, act, start, y)),
                    (_, 2) => tile!(2, 2, (panels, blocks, act, start, y)),
                    (_, _) => tile!(2, 1, (panels, blocks, act, start, y)),
                }
            }
        }
    });
}

/// Computes the columns `y` by Strassen's algorithm, so many blocks at a time.
fn panel_strassen<S: Entries>(
    simd: S,
    job: &Job<'_>,
    tiles: &Tiles<'_>,
    depth: usize,
    y: &mut Columns<'_>,
) {
    let (range, blocks) = (y.range(), tiles.blocks());
    let (panels, unit_bytes) = (range.clone().step_by(PANEL), Layout::of(job.w.dtype).unit_bytes());
    let bytes = |blocks: usize| blocks * int_block_bytes(PANEL, strassen::GROUPS_EACH);
    with_scratch(panels.len().next_multiple_of(strassen::PAIRS) * bytes(depth), |scratch| {
        for from in (0..blocks).step_by(depth) {
            let (to, more) = (blocks.min(from + depth), from > 0);
            let (units, blocks) = (from / UNIT..to / UNIT, to - from);
            for (start, to) in panels.clone().zip(scratch.chunks_mut(bytes(blocks))) {
                with_panel::<S>(job, start, |panel| {
                    let units = &panel[units.start * unit_bytes..units.end * unit_bytes];
                    simd.unpack_pair(units, to);
                });
            }
            for (width, act) in tiles.iter() {
                let act = act.skip(from, strassen::GROUPS_EACH, width);
                let starts = range.clone().step_by(strassen::PAIRS * PANEL);
                // A pair that was not unpacked is memory of the scratch, and nothing of it reaches `y`.
                for (start, pairs) in starts.zip(scratch.chunks(strassen::PAIRS * bytes(blocks))) {
                    match width {
                        8 => simd.tile_strassen::<4, 8>(pairs, blocks, act, start, more, y),
                        4 => simd.tile_strassen::<2, 4>(pairs, blocks, act, start, more, y),
                        _ => simd.tile_strassen::<1, 2>(pairs, blocks, act, start, more, y),
                    }
                }
            }
        }
    });
}

/// Panels that hold some elements of each of their rows, or pairs of them, and what runs over them.
pub(super) struct Panels {
    /// Weight rows of a panel.
    pub(super) rows: usize,
    /// What a row has, in elements or pairs; so is the depth.
    pub(super) row: usize,
    /// What a panel holds of a row.
    pub(super) depth: usize,
    /// Bytes of a panel.
    pub(super) bytes: usize,
    /// The most activation rows of a tile.
    pub(super) cols: usize,
}

/// A tile: `cols` rows of activations from `first` on, in `depth`, and the panel that holds as much of
/// weight row `start` and those behind it.
pub(super) struct Tile<'a> {
    pub(super) panel: &'a [u8],
    pub(super) depth: Range<usize>,
    pub(super) start: usize,
    pub(super) first: usize,
    pub(super) cols: usize,
}

impl Panels {
    /// Computes the columns `y`: makes panels of all of them by `pack`, which gets rows, which part
    /// of these, and where to, then calls `tile` for each with all rows of activations, and goes on to
    /// the next depth.
    pub(super) fn run(
        &self,
        job: &Job<'_>,
        y: &mut Columns<'_>,
        pack: impl Fn(&Rows<'_>, Range<usize>, &mut [u8]),
        tile: impl Fn(Tile<'_>, &mut Columns<'_>),
    ) {
        let (range, m) = (y.range(), job.act.rows());
        let starts = range.clone().step_by(self.rows);
        with_scratch(starts.len() * self.bytes, |scratch| {
            for from in (0..self.row).step_by(self.depth) {
                let depth = from..self.row.min(from + self.depth);
                for (start, panel) in starts.clone().zip(scratch.chunks_mut(self.bytes)) {
                    let rows = job.rows(start, self.rows.min(range.end - start));
                    pack(&rows, depth.clone(), panel);
                }
                let mut first = 0;
                while first < m {
                    let cols = tile_width(&[12, 8, 6, 4, 2], self.cols, m - first);
                    for (start, panel) in starts.clone().zip(scratch.chunks(self.bytes)) {
                        tile(Tile { panel, depth: depth.clone(), start, first, cols }, y);
                    }
                    first += cols;
                }
            }
        });
    }
}

fn panel_float<S: Entries>(simd: S, job: &Job<'_>, y: &mut Columns<'_>) {
    let rows = FLOAT_VECTORS * S::LANES;
    let panels = Panels {
        rows,
        row: job.w.cols,
        depth: FLOAT_DEPTH,
        bytes: FLOAT_DEPTH * rows * size_of::<f32>(),
        cols: S::FLOAT_COLS,
    };
    let pack = |rows: &Rows<'_>, Range { start, end }, to: &mut [u8]| {
        let to = bytemuck::cast_slice_mut(to);
        match job.w.dtype {
            DType::F32 => simd.pack_float::<{ tag::F32 }>(rows, start, end, to),
            DType::F16 => simd.pack_float::<{ tag::F16 }>(rows, start, end, to),
            _ => simd.pack_float::<{ tag::BF16 }>(rows, start, end, to),
        }
    };
    let tile = |Tile { panel, depth, start, first, cols }: Tile<'_>, y: &mut Columns<'_>| {
        let (panel, act) = (bytemuck::cast_slice(panel), job.floats(first, depth.start));
        let (len, add) = (depth.len(), depth.start > 0);
        match cols {
            12 => simd.tile_float::<12>(panel, len, act, start, add, y),
            8 => simd.tile_float::<8>(panel, len, act, start, add, y),
            6 => simd.tile_float::<6>(panel, len, act, start, add, y),
            4 => simd.tile_float::<4>(panel, len, act, start, add, y),
            2 => simd.tile_float::<2>(panel, len, act, start, add, y),
            _ => simd.tile_float::<1>(panel, len, act, start, add, y),
        }
    };
    panels.run(job, y, pack, tile);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_dealt_parts_so_that_none_waits_long() {
        // 576 rows in 36 panels: nine times four would leave one of two threads waiting for a ninth of the time.
        assert_eq!(dealt(36, 2, 4), 3);
        assert_eq!(dealt(36, 2, 8), 6);
        assert_eq!(dealt(12, 2, 4), 3);
        // As many as possible where it makes no difference.
        assert_eq!(dealt(352, 2, 4), 4);
        assert_eq!(dealt(36, 1, 4), 4);
        for (parts, threads, most) in [(1, 1, 1), (1, 8, 8), (7, 3, 8), (1000, 5, 8)] {
            let unit = dealt(parts, threads, most);
            assert!((1..=most).contains(&unit), "{parts} {threads} {most}");
        }
    }
}
