//! Products of Q4_K where sums of 16 bits are multiplied by numbers of 16 bits as they are widened. A unit's scales are
//! integers, those of weights of 6 bits, and those of activations as well: these are multiples of a power of two
//! that a chunk has in common. So a block's sums are multiplied by the products of both, its *factors*, and added up as
//! integers, which become floats once a unit.
//!
//! Words of activations and of weights hold two elements of a block and two of the next, so that each of the two sums of
//! a lane is that of a block, and both are multiplied by their factors and added up in one step. In tiles that takes an
//! eleventh less instructions than products of one block after the other, which become floats each.
//!
//! Nothing overflows. A block's sum is within 16 bits: 32 products of a weight less 8 and an activation within 127.
//! Eight of them, times 63 for either scale, are within 2^31.
#![allow(unsafe_code)]

use super::int::{block_sums, elsewhere, in_memory, int_block_bytes, panel_starts, put, sums};
use super::packed::{
    MAX_PARTS, elements, fetch_part, fetch_unit, half, half_sums, in_pairs, parts, scales, two,
};
use super::{ActBlock, ActTile, Simd, act_block_words, pair, unroll};
use crate::gemm::ActChunk;
use crate::gemm::act::ROUNDER;
use crate::gemm::out::Columns;
use crate::gemm::packed::{LINE, Layout, PANEL};
use crate::prefetch::Ahead;
use crate::quant::tag;

/// Pairs of blocks of a unit.
pub(super) const BLOCK_PAIRS: usize = 4;

/// Parts of a panel with the instructions that have [`Simd::SCALED`].
const PARTS: usize = 2;

/// Vectors of weights, and words of activations, of two blocks.
pub(in crate::gemm) const GROUPS: usize = 16;

/// Those and what [`lay`] and [`unpack_panel`] write behind them.
const WORDS: usize = GROUPS + 2;

const Q4_K: u8 = tag::Q4_K;

/// Writes a chunk of one row, whose scales are multiples of `step`, as row `i` of the `cols` of a tile's chunk, two
/// blocks at a time: the words, the sum of the second block's activations and the step, both as f32; then of each row the
/// factors, what its sums start at, and the sum of the first block's activations.
#[inline(always)]
pub(in crate::gemm) fn lay(chunk: &ActChunk, step: f32, i: usize, cols: usize, out: &mut [u32]) {
    let pairs = bytemuck::cast_slice::<i8, u16>(&chunk.q).as_chunks::<{ 2 * GROUPS }>().0;
    // Scales are integers times the step: these, in the low bits of the sum.
    let factors = chunk.scale.map(|scale| (scale * (1.0 / step) + ROUNDER).to_bits() as i16);
    let starts = chunk.block_total.map(|total| (total << 3).wrapping_neg());
    for (b, (block, q)) in out.chunks_exact_mut(act_block_words(WORDS, cols)).zip(pairs).enumerate()
    {
        let (words, rest) = block.split_at_mut(cols * WORDS);
        let words = &mut words[i * WORDS..][..WORDS];
        // All are read before any is written: only so compilers make vectors of it.
        let of_pair: [u32; GROUPS] =
            std::array::from_fn(|at| u32::from(q[at]) | u32::from(q[GROUPS + at]) << 16);
        words[..GROUPS].copy_from_slice(&of_pair);
        let sums = [chunk.block_sum[2 * b], chunk.block_sum[2 * b + 1]];
        words[GROUPS..].copy_from_slice(&[sums[1].to_bits(), step.to_bits()]);
        rest[i] = pair(factors[4 * b], factors[4 * b + 2]);
        rest[cols + i] = pair(starts[2 * b], starts[2 * b + 1]);
        rest[2 * cols + i] = sums[0].to_bits();
    }
}

/// [`unpack_panel`](super::packed::unpack_panel) for [`tile`], two blocks at a time: vectors of weights, both offsets,
/// factors, and the scale of these.
#[inline(always)]
pub(super) unsafe fn unpack_panel<S: Simd>(panel: &[u8], to: &mut [u8]) {
    let layout = const { Layout::of_tag(Q4_K) };
    let (vector, bytes) = (4 * S::LANES, int_block_bytes(S::LANES, WORDS));
    let units = panel.len() / layout.unit_bytes();
    let panel_bytes = units * BLOCK_PAIRS * bytes;
    assert!(to.len() >= parts::<S>() * panel_bytes, "no room for a panel");
    let (panel, to) = (panel.as_ptr(), to.as_mut_ptr());
    // SAFETY: the module's contract; the sizes were just checked.
    unsafe {
        for u in 0..units {
            let unit = panel.add(u * layout.unit_bytes());
            fetch_unit::<S>(unit, layout);
            for (b, part) in (0..BLOCK_PAIRS).flat_map(|b| (0..parts::<S>()).map(move |p| (b, p))) {
                let lane = part * S::LANES;
                let to = to.add(part * panel_bytes + (u * BLOCK_PAIRS + b) * bytes);
                let data = elements::<Q4_K>(unit, 2 * b, lane);
                unroll!(step in [0 1 2 3 4 5 6 7]; step < GROUPS / 2 => {
                    let [even, odd] = two::<S, Q4_K>(data, step);
                    S::store_bytes(to.add(2 * step * vector), even);
                    S::store_bytes(to.add((2 * step + 1) * vector), odd);
                });
                for (i, offset) in offsets::<S>(unit, b, lane).into_iter().enumerate() {
                    S::store(to.add((GROUPS + i) * vector).cast(), offset);
                }
                S::store_bytes(to.add(WORDS * vector), factors::<S>(unit, b, lane));
                let scale = half::<S>(unit.add(2 * lane), 0);
                S::store(to.add((WORDS + 1) * vector).cast(), scale);
            }
        }
    }
}

/// The scales of pair `b` of blocks of a packed unit as factors of both sums of a lane.
#[inline(always)]
unsafe fn factors<S: Simd>(unit: *const u8, b: usize, lane: usize) -> S::B {
    // SAFETY: the module's contract; the bytes are in the header.
    unsafe {
        let first = unit.add(LINE + 2 * PANEL * b + lane);
        S::factors(first, first.add(PANEL))
    }
}

/// The offsets of pair `b` of blocks of a packed unit.
#[inline(always)]
unsafe fn offsets<S: Simd>(unit: *const u8, b: usize, lane: usize) -> [S::F; 2] {
    // SAFETY: the module's contract.
    unsafe {
        let (_, first) = scales::<S, Q4_K>(unit, 2 * b, lane);
        let (_, second) = scales::<S, Q4_K>(unit, 2 * b + 1, lane);
        [first, second]
    }
}

/// [`tile_int`](super::int::tile_int) of what [`lay`] and [`unpack_panel`] write.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd, const P: usize, const C: usize>(
    panels: &[u8],
    blocks: usize,
    act: ActTile<'_>,
    col: usize,
    y: &mut Columns<'_>,
) {
    let vector = 4 * S::LANES;
    let bytes = int_block_bytes(S::LANES, WORDS);
    let mut at = panel_starts::<P>(panels, blocks * bytes);
    let mut act_block = ActBlock::<C>::first(act, blocks, WORDS);
    // SAFETY: the module's contract; the panels and the tile have so many blocks.
    unsafe {
        let mut acc = [[S::zero(); C]; P];
        y.fetch(act.first, C, col, P * S::LANES);
        for _ in 0..blocks / BLOCK_PAIRS {
            let mut whole = [[S::start(0); C]; P];
            let (unit, unit_act) = (at, act_block);
            for _ in 0..BLOCK_PAIRS {
                let sums = block_sums::<S, GROUPS, { sums::PAIRS }, P, C>(at, act_block);
                let whole = if const { in_memory::<S>(P * C, P * C) } {
                    elsewhere(&mut whole)
                } else {
                    &mut whole
                };
                let mut factors = [S::splat_int(0); P];
                unroll!(p < P, 2 { factors[p] = S::load_bytes(at[p].add(WORDS * vector)); });
                add_scaled::<S, P, C>(whole, sums, factors, act_block);
                unroll!(p < P, 2 { at[p] = at[p].add(bytes); });
                act_block = act_block.next();
            }
            // Of a copy compilers know that it can be in registers.
            let mut sums = acc;
            let mut of_block = unit_act;
            for b in 0..BLOCK_PAIRS {
                let mut offsets = [[S::zero(); P]; 2];
                unroll!(p < P, 2 {
                    let at = unit[p].add(b * bytes + GROUPS * vector);
                    offsets[0][p] = S::load(at.cast());
                    offsets[1][p] = S::load(at.add(vector).cast());
                });
                less_offsets::<S, P, C>(&mut sums, of_block, offsets);
                of_block = of_block.next();
            }
            let mut scales = [S::zero(); P];
            unroll!(p < P, 2 { scales[p] = S::load(unit[p].add((WORDS + 1) * vector).cast()); });
            unroll!(i < C, 16 {
                add_whole::<S, P, C>(&mut sums, i, &whole, scales, unit_act.more(i, GROUPS + 1));
            });
            acc = sums;
        }
        for (p, acc) in acc.iter().enumerate() {
            put::<S>(acc, act.first, col + p * S::LANES, y);
        }
    }
}

/// Adds to `acc` the products of a packed unit and of the activations, to the same bits as [`tile`], and gives the block
/// of activations behind these.
#[inline(always)]
pub(super) unsafe fn add_unit<S: Simd, const C: usize>(
    acc: &mut [[S::F; C]; MAX_PARTS],
    unit: *const u8,
    mut act: ActBlock<C>,
    ahead: Ahead,
) -> ActBlock<C> {
    assert!(const { parts::<S>() == PARTS }, "panels of other parts");
    let (layout, unit_act) = (const { Layout::of_tag(Q4_K) }, act);
    // SAFETY: the module's contract.
    unsafe {
        let mut whole = [[S::start(0); C]; PARTS];
        for b in 0..BLOCK_PAIRS {
            fetch_part::<S>(unit, layout, b, BLOCK_PAIRS, ahead);
            if const { in_pairs::<S>(C) } {
                add_blocks::<S, C, PARTS>(&mut whole, 0, unit, b, act.read_anew());
            } else {
                add_blocks::<S, C, 1>(&mut whole, 0, unit, b, act.read_anew());
                add_blocks::<S, C, 1>(&mut whole, 1, unit, b, act.read_anew());
            }
            act = act.next();
        }
        if const { in_pairs::<S>(C) } {
            less_and_whole::<S, C, PARTS>(acc, 0, &whole, unit, unit_act);
        } else {
            less_and_whole::<S, C, 1>(acc, 0, &whole, unit, unit_act);
            less_and_whole::<S, C, 1>(acc, 1, &whole, unit, unit_act);
        }
    }
    act
}

/// Subtracts from `acc` the offsets of a unit, of `N` parts from `first` on, and adds what `whole` has.
#[inline(always)]
unsafe fn less_and_whole<S: Simd, const C: usize, const N: usize>(
    acc: &mut [[S::F; C]; MAX_PARTS],
    first: usize,
    whole: &[[S::Sum; C]; PARTS],
    unit: *const u8,
    act: ActBlock<C>,
) {
    // SAFETY: the module's contract.
    unsafe {
        let mut of_block = act;
        let (mut sums, mut of_parts) = ([[S::zero(); C]; N], [[S::start(0); C]; N]);
        let mut scale = [S::zero(); N];
        unroll!(p < N, 2 {
            (sums[p], of_parts[p]) = (acc[first + p], whole[first + p]);
            scale[p] = half::<S>(unit.add(2 * S::LANES * (first + p)), 0);
        });
        for b in 0..BLOCK_PAIRS {
            let mut of_blocks = [[S::zero(); N]; 2];
            unroll!(p < N, 2 {
                [of_blocks[0][p], of_blocks[1][p]] = offsets::<S>(unit, b, S::LANES * (first + p));
            });
            less_offsets::<S, N, C>(&mut sums, of_block, of_blocks);
            of_block = of_block.next();
        }
        unroll!(i < C, 8 {
            add_whole::<S, N, C>(&mut sums, i, &of_parts, scale, act.more(i, GROUPS + 1));
        });
        unroll!(p < N, 2 { acc[first + p] = sums[p]; });
    }
}

/// Adds to `whole` the products of pair `b` of blocks of a packed unit, of `N` parts from `first` on, and of the
/// activations.
#[inline(always)]
unsafe fn add_blocks<S: Simd, const C: usize, const N: usize>(
    whole: &mut [[S::Sum; C]; PARTS],
    first: usize,
    unit: *const u8,
    b: usize,
    act: ActBlock<C>,
) {
    // SAFETY: the module's contract.
    unsafe {
        let (mut data, mut of_weights) = ([unit; N], [S::splat_int(0); N]);
        unroll!(p < N, 2 {
            data[p] = elements::<Q4_K>(unit, 2 * b, (first + p) * S::LANES);
            of_weights[p] = factors::<S>(unit, b, (first + p) * S::LANES);
        });
        let sums = half_sums::<S, Q4_K, C, N>(data, 0, act, sums::PAIRS);
        let whole = if const { in_memory::<S>(parts::<S>() * C, N * C) } {
            elsewhere(whole)
        } else {
            whole
        };
        let mut of_parts = [[S::start(0); C]; N];
        unroll!(p < N, 2 { of_parts[p] = whole[first + p]; });
        add_scaled::<S, N, C>(&mut of_parts, sums, of_weights, act);
        unroll!(p < N, 2 { whole[first + p] = of_parts[p]; });
    }
}

/// Adds to `whole` the sums of two blocks times the factors of their weights and of their activations.
#[inline(always)]
unsafe fn add_scaled<S: Simd, const P: usize, const C: usize>(
    whole: &mut [[S::Sum; C]; P],
    sums: [[S::Sum; C]; P],
    factors: [S::B; P],
    act: ActBlock<C>,
) {
    // SAFETY: the module's contract.
    unsafe {
        unroll!(i < C, 16 {
            let factor = S::splat_int(act.factors(i));
            unroll!(p < P, 2 {
                whole[p][i] = S::add_scaled(whole[p][i], sums[p][i], factors[p], factor);
            });
        });
    }
}

/// Subtracts from the sums the offsets of two blocks times the sums of their activations.
#[inline(always)]
unsafe fn less_offsets<S: Simd, const P: usize, const C: usize>(
    sums: &mut [[S::F; C]; P],
    act: ActBlock<C>,
    offsets: [[S::F; P]; 2],
) {
    // SAFETY: the module's contract.
    unsafe {
        unroll!(second in [0 1]; second < 2 => {
            unroll!(i < C, 16 {
                let sum = S::splat(if second == 0 { act.sum(i) } else { act.more(i, GROUPS) });
                unroll!(p < P, 2 { sums[p][i] = S::fnma(offsets[second][p], sum, sums[p][i]); });
            });
        });
    }
}

/// Adds to the sums of row `i` those of a unit's blocks times the scale of their factors.
#[inline(always)]
unsafe fn add_whole<S: Simd, const P: usize, const C: usize>(
    sums: &mut [[S::F; C]; P],
    i: usize,
    whole: &[[S::Sum; C]; P],
    scales: [S::F; P],
    step: f32,
) {
    // SAFETY: the module's contract.
    unsafe {
        let step = S::splat(step);
        unroll!(p < P, 2 {
            let whole = S::total(sums::WIDE, whole[p][i]);
            sums[p][i] = S::fma(whole, S::mul(scales[p], step), sums[p][i]);
        });
    }
}
