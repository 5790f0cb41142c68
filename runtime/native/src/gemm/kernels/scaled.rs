//! Products of k-quants whose scales are integers, as those of the activations are in steps: the sums of a block are
//! multiplied by both as integers, and only the sum over a unit becomes a float. That saves a conversion and a product of
//! floats for each block.
#![allow(unsafe_code)]

use super::int::{block_bytes, block_sums, elsewhere, panel_starts, put};
use super::{ActBlock, ActTile, Simd, unroll};
use crate::gemm::out::Columns;
use crate::gemm::packed::BLOCK;
use crate::quant::CHUNK;

/// Blocks of a unit. Their products are within 32 bits: 256 of a weight within 16, an activation within 127, and two scales
/// within 63.
const TOGETHER: usize = CHUNK / BLOCK;

/// See [`tile_int`](super::int::tile_int).
#[inline(always)]
pub(super) unsafe fn tile<
    S: Simd,
    const G: usize,
    const SUMS: u8,
    const P: usize,
    const C: usize,
>(
    panels: &[u8],
    blocks: usize,
    act: ActTile<'_>,
    col: usize,
    y: &mut Columns<'_>,
) {
    let (vector, block_bytes) = const { (4 * S::LANES, block_bytes(S::LANES, G, SUMS)) };
    let mut at = panel_starts::<P>(panels, blocks * block_bytes);
    let mut act_block = ActBlock::<C>::first(act, blocks, G, SUMS);
    // SAFETY: the module's contract; the panels and the tile have so many blocks.
    unsafe {
        let mut acc = [[S::zero(); C]; P];
        for i in 0..C {
            y.fetch(act.first + i, col, P * S::LANES);
        }
        for _ in 0..blocks / TOGETHER {
            let (mut first, mut first_act) = (at, act_block);
            let mut totals = [[S::start(0); C]; P];
            for _ in 0..TOGETHER {
                let sums = block_sums::<S, G, SUMS, P, C>(at, act_block);
                let totals = elsewhere(&mut totals);
                unroll!(i < C, 8 {
                    let steps = S::splat_int(act_block.steps(i));
                    unroll!(p < P, 2 {
                        let scale = S::load_bytes(at[p].add(G * vector));
                        totals[p][i] = S::add_scaled(totals[p][i], sums[p][i], scale, steps);
                    });
                });
                unroll!(p < P, 2 { at[p] = at[p].add(block_bytes); });
                act_block = act_block.next();
            }
            let mut sums = acc;
            let act = first_act;
            let mut shared = [S::zero(); P];
            unroll!(p < P, 2 { shared[p] = S::load(first[p].add((G + 2) * vector).cast()); });
            for _ in 0..TOGETHER {
                let mut offsets = [S::zero(); P];
                unroll!(p < P, 2 { offsets[p] = S::load(first[p].add((G + 1) * vector).cast()); });
                unroll!(i < C, 8 {
                    let sum = S::splat(first_act.sum(i));
                    unroll!(p < P, 2 { sums[p][i] = S::fnma(offsets[p], sum, sums[p][i]); });
                });
                unroll!(p < P, 2 { first[p] = first[p].add(block_bytes); });
                first_act = first_act.next();
            }
            unroll!(i < C, 8 {
                unroll!(p < P, 2 {
                    sums[p][i] = with_totals::<S, C>(sums[p][i], totals[p][i], shared[p], act, i);
                });
            });
            acc = sums;
        }
        for (p, acc) in acc.iter().enumerate() {
            put::<S>(acc, act.first, col + p * S::LANES, y);
        }
    }
}

/// A sum of row `i` of activations with the totals of a unit, what its scales share, and the step that the activations'
/// share. All products from panels add up so, to the same bits.
#[inline(always)]
pub(super) unsafe fn with_totals<S: Simd, const C: usize>(
    sum: S::F,
    totals: S::Sum,
    shared: S::F,
    act: ActBlock<C>,
    i: usize,
) -> S::F {
    // SAFETY: the module's contract.
    unsafe { S::fma(S::from_totals(totals), S::mul(shared, S::splat(act.step(i))), sum) }
}
