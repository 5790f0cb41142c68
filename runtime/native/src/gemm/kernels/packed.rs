//! What is read from panels of [`PackedWeights`](crate::gemm::PackedWeights). Their lines of sixteen rows
//! are as many vectors as `LANES` goes into them, so a panel is a few *parts* of `LANES` rows each.
#![allow(unsafe_code)]

use super::int::{Form, elsewhere, in_memory, int_block_bytes, put, sums, with_block};
use super::{ActBlock, ActTile, Simd, read_anew, scaled, unroll};
use crate::gemm::out::Columns;
use crate::gemm::packed::{LINE, Layout, PANEL};
use crate::prefetch::Ahead;
use crate::quant::tag;

/// The most parts that a panel has.
pub(super) const MAX_PARTS: usize = 4;

/// Parts of a panel.
pub(in crate::gemm) const fn parts<S: Simd>() -> usize {
    PANEL / S::LANES
}

/// The most panels that are read side by side.
pub(in crate::gemm) const MAX_STREAMS: usize = 4;

/// Panels of one size that are read side by side, each a stream of its own.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct Streams<'a> {
    /// From the first panel to the end of the last.
    pub(in crate::gemm) panels: &'a [u8],
    /// Bytes of each.
    pub(in crate::gemm) panel_bytes: usize,
    /// Panels that there are.
    pub(in crate::gemm) count: usize,
    /// How many panels each is behind the one before.
    pub(in crate::gemm) apart: usize,
    /// The column of the first row of the first.
    pub(in crate::gemm) col: usize,
    /// How far ahead of the loads each is fetched.
    pub(in crate::gemm) ahead: Ahead,
}

/// `y[act.first + i, col + r] = act[i] · panel[r]` for `C` rows of activations and the rows of the
/// panels, of which there are at most `P`.
#[inline(always)]
pub(in crate::gemm) unsafe fn dot_packed<S: Simd, const T: u8, const P: usize, const C: usize>(
    streams: &Streams<'_>,
    act: ActTile<'_>,
    y: &mut Columns<'_>,
) {
    if const { !is_width::<S>(C) } {
        unreachable!("no tile of these instructions has {C} rows");
    }
    let layout = const { Layout::of_tag(T) };
    let Streams { panel_bytes, count, apart, .. } = *streams;
    assert!((1..=P).contains(&count), "so many panels are not read side by side");
    let (panel, apart_bytes) = (streams.panels.as_ptr(), apart * panel_bytes);
    let cols = (streams.col..).step_by(apart * PANEL).take(count);
    let mut rest = streams.panels;
    for col in cols.clone() {
        assert!(rest.len() >= panel_bytes, "less panels than to multiply");
        rest = rest.get(apart_bytes..).unwrap_or_default();
        // Else what is written after the sums waits for their memory as well.
        y.fetch(act.first, C, col, PANEL);
    }
    let units = panel_bytes / layout.unit_bytes();
    let form = const { Form::of::<S>(T) };
    let blocks =
        if form.sums == sums::SCALED { scaled::BLOCK_PAIRS } else { layout.blocks * halves(T) };
    let mut act_block = ActBlock::<C>::first(act, units * blocks, form.row_words());
    // SAFETY: the module's contract; each panel holds so many units, as was just checked, and the tile blocks for as
    // many elements.
    unsafe {
        let mut acc = [[[S::zero(); C]; MAX_PARTS]; P];
        for unit in 0..units {
            let mut unit = panel.add(unit * layout.unit_bytes());
            let mut behind = act_block;
            if P == 1 {
                // Without a loop its sums can stay in registers.
                behind = add_unit::<S, T, C>(&mut acc[0], unit, act_block, streams.ahead);
            } else {
                for acc in acc.iter_mut().take(count) {
                    behind = add_unit::<S, T, C>(acc, unit, act_block, streams.ahead);
                    unit = unit.wrapping_add(apart_bytes);
                }
            }
            act_block = behind;
        }
        for (acc, col) in acc.iter().zip(cols) {
            for (part, acc) in acc[..parts::<S>()].iter().enumerate() {
                put::<S>(acc, act.first, col + part * S::LANES, y);
            }
        }
    }
}

/// Whether tiles have so many rows: for others nothing is compiled.
const fn is_width<S: Simd>(rows: usize) -> bool {
    let mut i = 0;
    while i < S::STREAMED_WIDTHS.len() {
        if S::STREAMED_WIDTHS[i] == rows {
            return true;
        }
        i += 1;
    }
    false
}

/// Adds to `acc` the products of a unit of a panel and of the activations, and gives the block behind these.
#[inline(always)]
unsafe fn add_unit<S: Simd, const T: u8, const C: usize>(
    acc: &mut [[S::F; C]; MAX_PARTS],
    unit: *const u8,
    mut act: ActBlock<C>,
    ahead: Ahead,
) -> ActBlock<C> {
    let layout = const { Layout::of_tag(T) };
    // SAFETY: the module's contract.
    unsafe {
        if const { Form::of::<S>(T).sums == sums::SCALED } {
            return scaled::add_unit::<S, C>(acc, unit, act, ahead);
        }
        let mut copy = [[S::zero(); C]; MAX_PARTS];
        unroll!(part in [0 1 2 3]; part < parts::<S>() => { copy[part] = acc[part]; });
        let sums = if const { sums_in_memory::<S>(C) } { &mut *acc } else { &mut copy };
        for b in 0..layout.blocks {
            fetch_part::<S>(unit, layout, b, layout.blocks, ahead);
            unroll!(part in [0 2]; part < parts::<S>() && in_pairs::<S>(C) => {
                add_block::<S, T, C, 2>(sums, part, unit, b, act.read_anew());
            });
            unroll!(part in [0 1 2 3]; part < parts::<S>() && !in_pairs::<S>(C) => {
                add_block::<S, T, C, 1>(sums, part, unit, b, act.read_anew());
            });
            act = act.next();
            if const { halves(T) == 2 } {
                act = act.next();
            }
        }
        if const { !sums_in_memory::<S>(C) } {
            unroll!(part in [0 1 2 3]; part < parts::<S>() => { acc[part] = copy[part]; });
        }
    }
    act
}

/// Parts of a block that have scales, and sums of activations, of their own.
const fn halves(t: u8) -> usize {
    if t == tag::Q6_K { 2 } else { 1 }
}

/// The most rows of activations of which registers hold the sums with two parts of a panel.
pub(in crate::gemm) const PAIRED: usize = 6;

/// Whether two parts of a panel are multiplied side by side with so many rows of activations, so that
/// what is read of these serves both: where registers hold the sums of both.
pub(super) const fn in_pairs<S: Simd>(rows: usize) -> bool {
    parts::<S>() >= 2 && rows <= PAIRED
}

/// Whether the sums of a panel with so many rows of activations stay in memory.
const fn sums_in_memory<S: Simd>(rows: usize) -> bool {
    in_memory::<S>(parts::<S>() * rows, if in_pairs::<S>(rows) { 2 * rows } else { rows })
}

/// Adds to `acc` the products of block `b` of a unit, of `N` parts from `first` on, and of the activations.
#[inline(always)]
unsafe fn add_block<S: Simd, const T: u8, const C: usize, const N: usize>(
    acc: &mut [[S::F; C]; MAX_PARTS],
    first: usize,
    unit: *const u8,
    b: usize,
    act: ActBlock<C>,
) {
    let form = const { Form::of::<S>(T) };
    // SAFETY: the module's contract.
    unsafe {
        let mut scale_and_offset = [([S::zero(); 2], S::zero()); N];
        let mut data = [unit; N];
        unroll!(p < N, 2 {
            scale_and_offset[p] = scales::<S, T>(unit, b, (first + p) * S::LANES);
            data[p] = elements::<T>(unit, b, (first + p) * S::LANES);
        });
        unroll!(half in [0 1]; half < halves(T) => {
            let act = if half == 0 { act } else { act.next() };
            let sums = half_sums::<S, T, C, N>(data, half, act, form.sums);
            let acc = if const { sums_in_memory::<S>(C) } { elsewhere(acc) } else { &mut *acc };
            unroll!(i < C, 8 {
                unroll!(p < N, 2 {
                    let dot = S::total(form.sums, sums[p][i]);
                    let (scales, offset) = scale_and_offset[p];
                    let scale = [scales[half], offset];
                    acc[first + p][i] =
                        with_block::<S, C>(acc[first + p][i], dot, scale, act, i, form.offsets);
                });
            });
        });
    }
}

/// The products of a part of a block that has a scale of its own, of `N` parts of a panel whose elements begin at
/// `data`, added up as `kind` says.
#[inline(always)]
pub(super) unsafe fn half_sums<S: Simd, const T: u8, const C: usize, const N: usize>(
    data: [*const u8; N],
    half: usize,
    act: ActBlock<C>,
    kind: u8,
) -> [[S::Sum; C]; N] {
    let form = const { Form::of::<S>(T) };
    // SAFETY: the module's contract.
    unsafe {
        let mut sums = [[S::start(0); C]; N];
        unroll!(i < C, 8 {
            let start = S::start(if form.bias == 0 { 0 } else { act.start(i) });
            unroll!(p < N, 2 { sums[p][i] = start; });
        });
        unroll!(step in [0 1 2 3 4 5 6 7]; step < steps::<S>(T) && N * C <= TOGETHER => {
            let mut w = [[S::splat_int(0); 2]; N];
            unroll!(p < N, 2 { w[p] = two::<S, T>(data[p], half * steps::<S>(T) + step); });
            unroll!(i < C, 8 {
                let words = act.words(i).add(2 * step);
                unroll!(p < N, 2 { sums[p][i] = S::add_two(kind, sums[p][i], w[p], words); });
            });
        });
        unroll!(group in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
            group < 2 * steps::<S>(T) && N * C > TOGETHER => {
            let mut w = [S::splat_int(0); N];
            unroll!(p < N, 2 {
                let step = half * steps::<S>(T) + group / 2;
                w[p] = two::<S, T>(read_anew(data[p]), step)[group % 2];
            });
            unroll!(i < C, 8 {
                let a = S::splat_int(*act.words(i).add(group));
                if kind == sums::WIDE {
                    S::add_row(kind, &mut sums, i, w, a);
                } else {
                    // What picks weights apart needs the registers that an order would take.
                    unroll!(p < N, 2 { sums[p][i] = S::add_products(kind, sums[p][i], w[p], a); });
                }
            });
        });
        sums
    }
}

/// The most sums that leave registers for two vectors of weights of each part. Beside more, one is read after the other.
const TOGETHER: usize = 8;

/// Where the elements of a block begin, those of row `lane`.
#[inline(always)]
pub(super) unsafe fn elements<const T: u8>(unit: *const u8, b: usize, lane: usize) -> *const u8 {
    let layout = const { Layout::of_tag(T) };
    // SAFETY: the module's contract.
    unsafe { unit.add(layout.header + b * layout.block_bytes() + 4 * lane) }
}

/// The scales of a block, of its two halves where they differ, and its offset.
#[inline(always)]
pub(super) unsafe fn scales<S: Simd, const T: u8>(
    unit: *const u8,
    b: usize,
    lane: usize,
) -> ([S::F; 2], S::F) {
    // SAFETY: the module's contract; every offset is in the header of a unit of this format.
    unsafe {
        let (halves, bytes) = (unit.add(2 * lane), unit.add(LINE + lane));
        let (scale, offset) = match T {
            tag::Q4_K | tag::Q5_K => {
                let (d, dmin) = (half::<S>(halves, 0), half::<S>(halves, 1));
                let scale = S::mul(d, S::from_unsigned(bytes.add(PANEL * b)));
                (scale, S::mul(dmin, S::from_unsigned(bytes.add(PANEL * (8 + b)))))
            }
            tag::Q6_K => {
                let (d, bytes) = (half::<S>(halves, 0), bytes.add(2 * PANEL * b).cast());
                let scale = S::mul(d, S::from_signed(bytes));
                return ([scale, S::mul(d, S::from_signed(bytes.add(PANEL)))], S::zero());
            }
            // The file has what is added.
            tag::Q4_1 | tag::Q5_1 => {
                (half::<S>(halves, b), S::mul(half::<S>(halves, 2 + b), S::splat(-1.0)))
            }
            _ => (half::<S>(halves, b), S::zero()),
        };
        let form = const { Form::of::<S>(T) };
        if form.offsets && form.bias != 0 {
            let bias = S::splat(const { (1 << Form::of::<S>(T).bias) as f32 });
            return ([scale; 2], S::fnma(scale, bias, offset));
        }
        ([scale; 2], offset)
    }
}

/// Line `i` of f16.
#[inline(always)]
pub(super) unsafe fn half<S: Simd>(halves: *const u8, i: usize) -> S::F {
    // SAFETY: the module's contract.
    unsafe { S::convert::<{ tag::F16 }>(halves.add(2 * PANEL * i)) }
}

/// Pairs of vectors that share a scale.
const fn steps<S: Simd>(t: u8) -> usize {
    Form::of::<S>(t).groups / 2
}

/// Vectors `2 * step` and the next of a block: what meets the same words of activations.
#[inline(always)]
pub(super) unsafe fn two<S: Simd, const T: u8>(data: *const u8, step: usize) -> [S::B; 2] {
    // SAFETY: the module's contract.
    unsafe {
        if const { T == tag::Q8_0 } {
            if const { sums::of::<S>(T) == sums::WIDE } {
                let x = line::<S>(data, step);
                return [S::and(x, S::splat_int(0x00ff_00ff)), S::shift(x, -8)];
            }
            let x = [line::<S>(data, 2 * step), line::<S>(data, 2 * step + 1)];
            if S::SIGNED {
                let bias = S::splat_int(i32::from_ne_bytes([0x80; 4]));
                return [S::sub_bytes(x[0], bias), S::sub_bytes(x[1], bias)];
            }
            return x;
        }
        if const { T == tag::Q6_K } {
            let (data, six) = (data.add(LINE * (step / 2 * 3)), S::splat_int(0x3f3f_3f3f));
            if step.is_multiple_of(2) {
                return [S::and(line::<S>(data, 0), six), S::and(line::<S>(data, 1), six)];
            }
            let mut last = S::and(S::shift(line::<S>(data, 2), -2), S::splat_int(0x3030_3030));
            last = S::or(last, S::and(S::shift(line::<S>(data, 1), -4), S::splat_int(0x0c0c_0c0c)));
            last = S::or(last, S::and(S::shift(line::<S>(data, 0), -6), S::splat_int(0x0303_0303)));
            return [S::and(line::<S>(data, 2), six), last];
        }
        let (x, nibble) = (line::<S>(data, step), S::splat_int(0x0f0f_0f0f));
        let (even, odd) = (S::and(x, nibble), S::and(S::shift(x, -4), nibble));
        [
            with_fifth_bits::<S, T>(even, data, 2 * step),
            with_fifth_bits::<S, T>(odd, data, 2 * step + 1),
        ]
    }
}

/// Line `i` of a block.
#[inline(always)]
unsafe fn line<S: Simd>(data: *const u8, i: usize) -> S::B {
    // SAFETY: the module's contract.
    unsafe { S::load_bytes(data.add(LINE * i)) }
}

/// Group `g` with its fifth bits, where there are some, from the line behind those of the nibbles.
#[inline(always)]
unsafe fn with_fifth_bits<S: Simd, const T: u8>(low: S::B, data: *const u8, g: usize) -> S::B {
    if const { Layout::of_tag(T).high == 0 } {
        return low;
    }
    // SAFETY: the module's contract.
    unsafe {
        let fifth = S::shift(line::<S>(data, 4), 4 - g as i32);
        S::or(low, S::and(fifth, S::splat_int(0x1010_1010)))
    }
}

/// Writes the parts of a panel, one after the other, as the panels of bytes that
/// [`tile_int`](super::int::tile_int) reads.
#[inline(always)]
pub(in crate::gemm) unsafe fn unpack_panel<S: Simd, const T: u8>(panel: &[u8], to: &mut [u8]) {
    if const { Form::of::<S>(T).sums == sums::SCALED } {
        // SAFETY: the module's contract.
        return unsafe { scaled::unpack_panel::<S>(panel, to) };
    }
    let (layout, form) = const { (Layout::of_tag(T), Form::of::<S>(T)) };
    let (vector, bytes) = (4 * S::LANES, int_block_bytes(S::LANES, form.groups));
    let units = panel.len() / layout.unit_bytes();
    let blocks = units * layout.blocks * halves(T);
    assert!(to.len() >= parts::<S>() * blocks * bytes, "no room for a panel");
    let (panel, to) = (panel.as_ptr(), to.as_mut_ptr());
    // SAFETY: the module's contract; the sizes were just checked.
    unsafe {
        for u in 0..units {
            let unit = panel.add(u * layout.unit_bytes());
            fetch_unit::<S>(unit, layout);
            for (b, part) in (0..layout.blocks).flat_map(|b| (0..parts::<S>()).map(move |p| (b, p)))
            {
                let lane = part * S::LANES;
                let (scales, offset) = scales::<S, T>(unit, b, lane);
                let data = elements::<T>(unit, b, lane);
                let at = part * blocks + (u * layout.blocks + b) * halves(T);
                let mut to = to.add(at * bytes);
                unroll!(half in [0 1]; half < halves(T) => {
                    unroll!(step in [0 1 2 3 4 5 6 7]; step < steps::<S>(T) => {
                        let w = two::<S, T>(data, half * steps::<S>(T) + step);
                        for (i, w) in w.into_iter().enumerate() {
                            let to = to.add((2 * step + i) * vector);
                            S::store_bytes(to, less_bias::<S, T>(w));
                        }
                    });
                    S::store(to.add(form.groups * vector).cast(), scales[half]);
                    S::store(to.add((form.groups + 1) * vector).cast(), offset);
                    S::arrange(to, form.groups);
                    to = to.add(bytes);
                });
            }
        }
    }
}

/// Fetches what comes behind part `i` of `count` of a unit: spread out, since few misses can be under way at a time.
#[inline(always)]
pub(super) fn fetch_part<S: Simd>(
    unit: *const u8,
    layout: Layout,
    i: usize,
    count: usize,
    ahead: Ahead,
) {
    if ahead == Ahead::NONE {
        return;
    }
    let lines = (layout.unit_bytes() / LINE).div_ceil(count);
    for line in i * lines..(i + 1) * lines {
        S::fetch_ahead(unit.wrapping_add(LINE * line), ahead);
    }
}

/// Fetches what comes behind a unit.
#[inline(always)]
pub(super) fn fetch_unit<S: Simd>(unit: *const u8, layout: Layout) {
    for line in 0..layout.unit_bytes() / LINE {
        S::fetch_ahead(unit.wrapping_add(LINE * line), Ahead::FAR);
    }
}

/// Elements as panels of bytes have them.
#[inline(always)]
unsafe fn less_bias<S: Simd, const T: u8>(w: S::B) -> S::B {
    let bias = const { Form::of::<S>(T).bias };
    if !S::SIGNED || bias == 0 || T == tag::Q8_0 {
        return w;
    }
    // SAFETY: the module's contract.
    unsafe { S::sub_bytes(w, S::splat_int(i32::from_ne_bytes([1 << bias; 4]))) }
}
