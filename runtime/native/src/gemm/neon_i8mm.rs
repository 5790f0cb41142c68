//! Tiles of integers with the 8-bit matrix products of Armv8.6: `smmla` multiplies two rows of
//! eight bytes with two others.
//!
//! A panel holds its four weight rows eight bytes at a time, rows 0 and 1 in one vector and 2 and 3
//! in the next. Rows of activations are brought together in twos when a tile reads them, which is
//! once for all of its panels. Sums stay two by two until the tile is done, and what they are
//! scaled with takes that shape too: vectors are `[row 0, row 1]` of the weights with the first row
//! of activations, then with the second.
#![allow(unsafe_code)]

use core::arch::aarch64::*;
use core::arch::asm;

use super::kernels::int::{int_block_bytes, panel_starts};
use super::kernels::{ActBlock, ActTile, unroll};
use super::neon::{no_sum, number};
use super::out::Columns;

/// Weight rows of a panel.
const LANES: usize = 4;

/// What two rows of activations give with the four rows of a panel: with rows 0 and 1, and with 2
/// and 3.
type Sums<V> = [V; 2];

/// `$sum += $a * $w` of two rows of eight signed bytes each. Assembly, since the intrinsic is not
/// stable; the directive admits it where the target does not.
macro_rules! smmla {
    ($sum:expr, $a:expr, $w:expr) => {
        asm!(
            ".arch_extension i8mm",
            "smmla {sum:v}.4s, {a:v}.16b, {w:v}.16b",
            sum = inlateout(vreg) $sum,
            a = in(vreg) $a,
            w = in(vreg) $w,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
}
pub(crate) use smmla;

/// Puts a block of four bytes of each row in a vector into the order of [`tile`].
#[inline(always)]
pub(super) unsafe fn arrange(block: *mut u8, groups: usize) {
    // SAFETY: the caller has NEON and a block of so many vectors.
    unsafe {
        for i in (0..groups).step_by(2) {
            let (low, high) = (block.add(16 * i), block.add(16 * i + 16));
            let a = vreinterpretq_u32_u8(vld1q_u8(low));
            let b = vreinterpretq_u32_u8(vld1q_u8(high));
            vst1q_u8(low, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
            vst1q_u8(high, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
        }
    }
}

/// [`tile_int`](super::kernels::int::tile_int) for `rows` rows of activations in `N` twos, where the last
/// may lack its second.
#[inline(always)]
pub(super) unsafe fn tile<
    const G: usize,
    const OFFSETS: bool,
    const P: usize,
    const C: usize,
    const N: usize,
>(
    panels: &[u8],
    blocks: usize,
    act: ActTile<'_>,
    col: usize,
    y: &mut Columns<'_>,
) {
    let block_bytes = int_block_bytes(LANES, G);
    let mut at = panel_starts::<P>(panels, blocks * block_bytes);
    let mut input = ActBlock::<C>::first(act, blocks, G);
    // SAFETY: the caller has the instructions; the panels and the tile have so many blocks.
    unsafe {
        let mut acc = [[[vdupq_n_f32(0.0); 2]; N]; P];
        for _ in 0..blocks {
            let sums = products::<G, P, C, N>(at, input);
            let mut scales = [vdupq_n_f32(0.0); N];
            unroll!(i < N, 4 {
                let [first, second] = pair::<C>(i).map(|row| vdup_n_f32(input.scale(row)));
                scales[i] = vcombine_f32(first, second);
            });
            unroll!(p < P, 2 {
                add_scaled(&mut acc[p], &sums[p], at[p].add(16 * G), &scales);
            });
            if OFFSETS {
                let mut totals = [vdupq_n_f32(0.0); N];
                unroll!(i < N, 4 {
                    let [first, second] = pair::<C>(i).map(|row| vdup_n_f32(input.sum(row)));
                    totals[i] = vcombine_f32(first, second);
                });
                unroll!(p < P, 2 {
                    take_offsets(&mut acc[p], at[p].add(16 * (G + 1)), &totals);
                });
            }
            unroll!(p < P, 2 { at[p] = at[p].add(block_bytes); });
            input = input.next();
        }
        for (p, acc) in acc.iter().enumerate() {
            let col = col + p * LANES;
            if !y.range().contains(&col) {
                break;
            }
            for (i, [low, high]) in acc.iter().enumerate() {
                let (low, high) = (vreinterpretq_f64_f32(*low), vreinterpretq_f64_f32(*high));
                let both = [vzip1q_f64(low, high), vzip2q_f64(low, high)];
                for (row, sums) in (2 * i..C).zip(both) {
                    let mut values = [0.0; LANES];
                    vst1q_f32(values.as_mut_ptr(), vreinterpretq_f32_f64(sums));
                    y.put(act.first + row, col, &values, false);
                }
            }
        }
    }
}

/// The integer products of a block of each panel, for [`number`].
#[inline(always)]
unsafe fn products<const G: usize, const P: usize, const C: usize, const N: usize>(
    blocks: [*const u8; P],
    act: ActBlock<C>,
) -> [[Sums<int32x4_t>; N]; P] {
    // SAFETY: the caller has the instructions, blocks of `G` vectors and `C` rows of as many.
    unsafe {
        let mut sums = [[[no_sum(); 2]; N]; P];
        // Sixteen bytes of each row at a time.
        for sixteen in 0..G / 4 {
            let mut a = [[vdupq_n_s64(0); 2]; N];
            unroll!(i < N, 4 {
                let [first, second] = pair::<C>(i).map(|row| {
                    vreinterpretq_s64_s32(vld1q_s32(act.words(row).add(4 * sixteen)))
                });
                a[i] = [vzip1q_s64(first, second), vzip2q_s64(first, second)];
            });
            unroll!(p < P, 2 {
                add_products(&mut sums[p], &a, blocks[p].add(64 * sixteen));
            });
        }
        sums
    }
}

/// Adds the products of sixteen bytes of each row, those of the panel at `w`.
#[inline(always)]
unsafe fn add_products<const N: usize>(
    sums: &mut [Sums<int32x4_t>; N],
    a: &[[int64x2_t; 2]; N],
    w: *const u8,
) {
    // SAFETY: the caller has the instructions and four vectors at `w`.
    unsafe {
        let (low, high) = (vld1q_u8(w), vld1q_u8(w.add(16)));
        unroll!(i < N, 4 {
            smmla!(sums[i][0], a[i][0], low);
            smmla!(sums[i][1], a[i][0], high);
        });
        let (low, high) = (vld1q_u8(w.add(32)), vld1q_u8(w.add(48)));
        unroll!(i < N, 4 {
            smmla!(sums[i][0], a[i][1], low);
            smmla!(sums[i][1], a[i][1], high);
        });
    }
}

/// Adds integer products, scaled by the weights' scales at `scales` and those of the activations.
#[inline(always)]
unsafe fn add_scaled<const N: usize>(
    acc: &mut [Sums<float32x4_t>; N],
    sums: &[Sums<int32x4_t>; N],
    scales: *const u8,
    a_scales: &[float32x4_t; N],
) {
    // SAFETY: the caller has NEON and four scales.
    unsafe {
        let [low, high] = halves_twice(scales);
        unroll!(i < N, 4 {
            let by = [vmulq_f32(low, a_scales[i]), vmulq_f32(high, a_scales[i])];
            acc[i][0] = vfmaq_f32(acc[i][0], number(sums[i][0]), by[0]);
            acc[i][1] = vfmaq_f32(acc[i][1], number(sums[i][1]), by[1]);
        });
    }
}

/// Takes off the products of the weights' offsets at `offsets` and the sums of the activations.
#[inline(always)]
unsafe fn take_offsets<const N: usize>(
    acc: &mut [Sums<float32x4_t>; N],
    offsets: *const u8,
    a_sums: &[float32x4_t; N],
) {
    // SAFETY: the caller has NEON and four offsets.
    unsafe {
        let [low, high] = halves_twice(offsets);
        unroll!(i < N, 4 {
            acc[i][0] = vfmsq_f32(acc[i][0], low, a_sums[i]);
            acc[i][1] = vfmsq_f32(acc[i][1], high, a_sums[i]);
        });
    }
}

/// Both rows of pair `i` of `C` rows; the last row twice where their number is odd.
#[inline(always)]
const fn pair<const C: usize>(i: usize) -> [usize; 2] {
    [2 * i, if 2 * i + 1 < C { 2 * i + 1 } else { C - 1 }]
}

/// `[x0, x1, x0, x1]` and `[x2, x3, x2, x3]` of the four numbers at `x`.
#[inline(always)]
unsafe fn halves_twice(x: *const u8) -> [float32x4_t; 2] {
    // SAFETY: the caller has NEON and the numbers.
    unsafe {
        let x = vreinterpretq_f64_f32(vld1q_f32(x.cast()));
        let (low, high) = (vzip1q_f64(x, x), vzip2q_f64(x, x));
        [vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high)]
    }
}
