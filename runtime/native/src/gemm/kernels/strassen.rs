//! Products of 8-bit weights by Strassen's algorithm, in the form of S. Winograd (V. Strassen, "Gaussian elimination is
//! not optimal", 1969; D. Knuth, The Art of Computer Programming, volume 2, section 4.6.4): two panels, the two
//! halves of a block and two rows of activations are matrices of 2 x 2, whose product takes seven products instead of
//! eight. What these multiply are sums of up to four weights, or activations, which are within 16 bits. All
//! of it is integers, so the dot products of a block are those that other ways come to.
//!
//! `w01` is the second half of a block of the first panel, `x01` the first half of one of the second row:
//!
//! | number | sums of weights | sums of activations |
//! |---|---|---|
//! | 0 | `w00` | `x00` |
//! | 1 | `w01` | `x10` |
//! | 2 | `s = w10 + w11` | `x00 - x01` |
//! | 3 | `s - w00` | `x00 - x01 + x11` |
//! | 4 | `w01 + w00 - s` | `x11` |
//! | 5 | `w00 - w10` | `x11 - x01` |
//! | 6 | `-w11` | `x00 - x01 + x11 - x10` |
//!
//! and of the products `p`, the dot products are `p0 + p1`, `p0 + p3 - p2 + p4`, `p0 + p3 + p5 + p6` and
//! `p0 + p3 + p5 - p2`. All of these sums but two need no instruction, as products are added to what they start with.
#![allow(unsafe_code)]

use std::hint::black_box;

use super::int::{elsewhere, int_block_bytes, panel_starts, put, sums, take, with_block};
use super::packed::{elements, fetch_unit, parts, scales, two};
use super::{ActBlock, ActTile, Simd, unroll};
use crate::gemm::out::Columns;
use crate::gemm::packed::Layout;
use crate::quant::tag;

/// Products instead of eight.
const PRODUCTS: usize = 7;

/// Vectors of weights, and words of activations, of a product.
const GROUPS: usize = 8;

/// As many, of all products, to a panel and to a row of activations.
pub(in crate::gemm) const GROUPS_EACH: usize = PRODUCTS * GROUPS / 2;

/// Pairs of panels of a tile: what is read of the activations serves both.
pub(in crate::gemm) const PAIRS: usize = 2;

/// The most elements of a row for which this pays: it reads almost twice as much of the activations, too.
pub(in crate::gemm) const LONGEST: usize = 16 * 1024;

/// Panels of a pair.
const TWO: usize = 2;

/// Writes the two parts of a panel of Q8_0 as a pair of panels that [`tile`] reads: block by block the vectors of
/// each product, then both scales.
#[inline(always)]
pub(in crate::gemm) unsafe fn unpack_pair<S: Simd>(panel: &[u8], to: &mut [u8]) {
    const Q8_0: u8 = tag::Q8_0;
    if const { !S::STRASSEN } {
        return;
    }
    const { assert!(!S::STRASSEN || parts::<S>() == TWO) };
    let layout = const { Layout::of_tag(Q8_0) };
    let (vector, bytes) = (4 * S::LANES, TWO * int_block_bytes(S::LANES, GROUPS_EACH));
    let units = panel.len() / layout.unit_bytes();
    assert!(to.len() >= units * layout.blocks * bytes, "no room for a panel");
    let (panel, mut to) = (panel.as_ptr(), to.as_mut_ptr());
    // SAFETY: the module's contract; the sizes were just checked.
    unsafe {
        // What weights are too large by.
        let bias = S::splat_int(0x0080_0080);
        for unit in (0..units).map(|u| panel.add(u * layout.unit_bytes())) {
            fetch_unit::<S>(unit, layout);
            for b in 0..layout.blocks {
                let first = elements::<Q8_0>(unit, b, 0);
                let second = elements::<Q8_0>(unit, b, S::LANES);
                unroll!(step in [0 1 2 3]; step < GROUPS / 2 => {
                    let behind = GROUPS / 2 + step;
                    let w00 = two::<S, Q8_0>(first, step);
                    let w01 = two::<S, Q8_0>(first, behind);
                    let w10 = two::<S, Q8_0>(second, step);
                    let w11 = two::<S, Q8_0>(second, behind);
                    unroll!(i < TWO, 2 {
                        let w00 = S::sub_halves(w00[i], bias);
                        let w01 = S::sub_halves(w01[i], bias);
                        let w10 = S::sub_halves(w10[i], bias);
                        let less_w11 = S::sub_halves(bias, w11[i]);
                        let s = S::sub_halves(w10, less_w11);
                        let s_less_w00 = S::sub_halves(s, w00);
                        let sums = [
                            w00,
                            w01,
                            s,
                            s_less_w00,
                            S::sub_halves(w01, s_less_w00),
                            S::sub_halves(w00, w10),
                            less_w11,
                        ];
                        for (product, sum) in sums.into_iter().enumerate() {
                            S::store_bytes(to.add((product * GROUPS + 2 * step + i) * vector), sum);
                        }
                    });
                });
                unroll!(p < TWO, 2 {
                    let ([scale, _], _) = scales::<S, Q8_0>(unit, b, p * S::LANES);
                    S::store(to.add((PRODUCTS * GROUPS + p) * vector).cast(), scale);
                });
                to = to.add(bytes);
            }
        }
    }
}

/// Writes the activations of a block of one row as the first or the second of the two rows whose sums `words` are. The
/// first comes first, and alone if there is no second.
#[inline(always)]
pub(in crate::gemm) fn lay(words: &mut [u32], q: &[[i8; 4]], second: bool) {
    /// Activations of half a block.
    const HALF: usize = 2 * GROUPS;
    let (sums, q) = (bytemuck::cast_slice_mut::<_, i16>(words), q.as_chunks::<{ HALF / 4 }>().0);
    let ([x00, x10, a, b, x11, c, d], [q0, q1]) = (sums.as_chunks_mut::<HALF>().0, q) else {
        return;
    };
    // Without a closure, which would be compiled without the instructions.
    let mut halves = [[0; HALF]; 2];
    for (half, q) in halves.iter_mut().zip([q0, q1]) {
        for (to, [a, b, c, d]) in half.as_chunks_mut::<4>().0.iter_mut().zip(q) {
            *to = [i16::from(*a), i16::from(*c), i16::from(*b), i16::from(*d)];
        }
    }
    let [q0, q1] = &halves;
    if !second {
        (*x00, *x10, *a, *b, *x11, *c) = (*q0, *q1, *q0, *q0, [0; HALF], [0; HALF]);
        for ((d, q0), q1) in d.iter_mut().zip(q0).zip(q1) {
            *d = q0 - q1;
        }
        return;
    }
    *x11 = *q1;
    for i in 0..HALF {
        let difference = q1[i] - q0[i];
        a[i] -= q0[i];
        b[i] += difference;
        c[i] = difference;
        d[i] += difference;
    }
}

/// `y[act.first + i, col + r] = act[i] · panels[r]` for `C` rows of activations, which are `N` pairs, and the rows of
/// [`PAIRS`] pairs of panels, one after the other; with `more`, these are blocks behind those whose products `y` holds.
#[inline(always)]
pub(in crate::gemm) unsafe fn tile<S: Simd, const N: usize, const C: usize>(
    panels: &[u8],
    blocks: usize,
    act: ActTile<'_>,
    col: usize,
    more: bool,
    y: &mut Columns<'_>,
) {
    if const { !S::STRASSEN } {
        return;
    }
    const { assert!(C == 2 * N) };
    let block_bytes = TWO * int_block_bytes(S::LANES, GROUPS_EACH);
    let mut at = panel_starts::<PAIRS>(panels, blocks * block_bytes);
    let mut act_block = ActBlock::<C>::first(act, blocks, GROUPS_EACH);
    // The last pair of rows may have no second.
    let rows = C.min(y.rows().saturating_sub(act.first));
    // SAFETY: the module's contract; the panels and the tile have so many blocks.
    unsafe {
        // Not known to be zero, or else a function of the library clears so much memory, in wider vectors.
        let mut acc = [[[S::splat(black_box(0.0)); C]; TWO]; PAIRS];
        if more {
            for (p, acc) in acc.as_flattened_mut().iter_mut().enumerate() {
                take::<S>(&mut acc[..rows], act.first, col + p * S::LANES, y);
            }
        } else {
            y.fetch(act.first, rows, col, PAIRS * TWO * S::LANES);
        }
        for _ in 0..blocks {
            add_block::<S, N, C>(elsewhere(&mut acc), at, act_block);
            at = at.map(|at| at.add(block_bytes));
            act_block = act_block.next();
        }
        for (p, acc) in acc.as_flattened().iter().enumerate() {
            put::<S>(&acc[..rows], act.first, col + p * S::LANES, y);
        }
    }
}

/// Sums of a block's products, of pairs of panels and pairs of rows of activations.
type Sums<S, const N: usize> = [[<S as Simd>::Sum; N]; PAIRS];

/// Adds to `acc` the products of a block.
#[inline(always)]
unsafe fn add_block<S: Simd, const N: usize, const C: usize>(
    acc: &mut [[[S::F; C]; TWO]; PAIRS],
    at: [*const u8; PAIRS],
    act: ActBlock<C>,
) {
    // SAFETY: the module's contract.
    unsafe {
        let zero: Sums<S, N> = [[S::start(0); N]; PAIRS];
        let p0 = plus_product::<S, 0, N, C>(zero, at, act);
        let p0_p1 = plus_product::<S, 1, N, C>(p0, at, act);
        add_dots::<S, 0, 0, N, C>(acc, p0_p1, at, act);
        let p2 = plus_product::<S, 2, N, C>(zero, at, act);
        let p0_p3 = plus_product::<S, 3, N, C>(p0, at, act);
        let with_p4 = plus_product::<S, 4, N, C>(less::<S, N>(p0_p3, p2), at, act);
        add_dots::<S, 0, 1, N, C>(acc, with_p4, at, act);
        let p0_p3_p5 = plus_product::<S, 5, N, C>(p0_p3, at, act);
        add_dots::<S, 1, 1, N, C>(acc, less::<S, N>(p0_p3_p5, p2), at, act);
        let with_p6 = plus_product::<S, 6, N, C>(p0_p3_p5, at, act);
        add_dots::<S, 1, 0, N, C>(acc, with_p6, at, act);
    }
}

/// `sums` and the products of that number.
#[inline(always)]
unsafe fn plus_product<S: Simd, const NUMBER: usize, const N: usize, const C: usize>(
    mut sums: Sums<S, N>,
    at: [*const u8; PAIRS],
    act: ActBlock<C>,
) -> Sums<S, N> {
    // SAFETY: the module's contract.
    unsafe {
        unroll!(g in [0 1 2 3 4 5 6 7]; g < GROUPS => {
            let group = NUMBER * GROUPS + g;
            let mut w = [S::splat_int(0); PAIRS];
            unroll!(p < PAIRS, 2 { w[p] = S::load_bytes(at[p].add(4 * S::LANES * group)); });
            unroll!(i < N, 4 {
                let a = S::splat_int(*act.words(2 * i).add(group));
                // In the order of `add_row` this would take 3 % more instructions.
                unroll!(p < PAIRS, 2 {
                    sums[p][i] = S::add_products(sums::WIDE, sums[p][i], w[p], a);
                });
            });
        });
    }
    sums
}

/// `a - b`.
#[inline(always)]
unsafe fn less<S: Simd, const N: usize>(mut a: Sums<S, N>, b: Sums<S, N>) -> Sums<S, N> {
    // SAFETY: the module's contract.
    unsafe {
        unroll!(i < N, 4 {
            unroll!(p < PAIRS, 2 { a[p][i] = S::sub_sums(a[p][i], b[p][i]); });
        });
    }
    a
}

/// Adds to `acc` the dot products of a block of one panel of each pair and one row of activations of each pair.
#[inline(always)]
unsafe fn add_dots<
    S: Simd,
    const PANEL: usize,
    const ROW: usize,
    const N: usize,
    const C: usize,
>(
    acc: &mut [[[S::F; C]; TWO]; PAIRS],
    dots: Sums<S, N>,
    at: [*const u8; PAIRS],
    act: ActBlock<C>,
) {
    // SAFETY: the module's contract.
    unsafe {
        unroll!(p < PAIRS, 2 {
            let scale = S::load(at[p].add(4 * S::LANES * (PRODUCTS * GROUPS + PANEL)).cast());
            unroll!(i < N, 4 {
                let (dot, row) = (S::total(sums::WIDE, dots[p][i]), 2 * i + ROW);
                let sum = &mut acc[p][PANEL][row];
                *sum = with_block::<S, C>(*sum, dot, [scale, S::zero()], act, row, false);
            });
        });
    }
}
