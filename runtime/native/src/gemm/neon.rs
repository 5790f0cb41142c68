//! NEON, with and without the 8-bit dot products of Armv8.2 and the matrix products of Armv8.6.
#![allow(unsafe_code)]

use core::arch::aarch64::*;
use core::arch::asm;

use super::kernels::int::{Form, sums};
use super::kernels::packed::Streams;
use super::kernels::{
    self, ActBlock, ActTile, Entries, Input, Rows, Simd, entries, entry, methods, unroll,
};
use super::out::Columns;
use super::{ActChunk, Plan, Product, act, neon_i8mm, tiled, tiles};
use crate::prefetch::{Ahead, prefetch};
use crate::quant::neon::widen;
use crate::quant::tag;
use crate::{Isa, ThreadPool};

/// The instruction set, with 8-bit dot products as `DOT` says. A value says that the processor has it.
#[derive(Clone, Copy)]
struct Neon<const DOT: u8>(());

/// Steps of NEON that widen.
const PLAIN: u8 = 0;
/// `sdot`.
const DOTPROD: u8 = 1;
/// `sdot`, and `smmla` in tiles.
const I8MM: u8 = 2;

/// Computes products, with the 8-bit dot or matrix products where `isa` has them.
pub(super) fn run(pool: &ThreadPool, isa: Isa, plan: Plan, products: &mut [Product<'_>]) {
    match (plan, isa) {
        (Plan::Ints, Isa::NeonI8mm) => tiled::run_ints(Neon::<I8MM>::new(), pool, products),
        (Plan::Ints, Isa::NeonDotprod) => tiled::run_ints(Neon::<DOTPROD>::new(), pool, products),
        (Plan::Ints, _) => tiled::run_ints(Neon::<PLAIN>::new(), pool, products),
        // Products of floats have no use for those of bytes.
        _ => tiled::run_floats(Neon::<PLAIN>::new(), pool, plan, products),
    }
}

entries!(Neon<PLAIN>, Isa::Neon, "neon");
entries!(Neon<DOTPROD>, Isa::NeonDotprod, "neon,dotprod");
entries!(Neon<I8MM>, Isa::NeonI8mm, "neon,dotprod,i8mm");

/// `sdot` of `$w` with the operand `$a`, a whole register or one of its four lanes. Assembly,
/// since the intrinsic is not stable; the directive admits it where the target does not.
macro_rules! sdot {
    ($sum:expr, $w:expr, $a:expr, $form:literal) => {
        asm!(
            ".arch_extension dotprod",
            concat!("sdot {sum:v}.4s, {w:v}.16b, {a:v}", $form),
            sum = inlateout(vreg) $sum,
            w = in(vreg) $w,
            a = in(vreg) $a,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
}
pub(crate) use sdot;

/// Sums without dot products: of the lower half of a vector of bytes, and of the upper. Of the kind
/// [`sums::PAIRS`] they are of 16 bits, one for each byte, else of 32, one for each two.
type Halves = [int32x4_t; 2];

/// Adds the products of `N` vectors of weights, at most two, and of as many words of activations.
#[inline(always)]
unsafe fn add_widened<const N: usize>(
    kind: u8,
    sum: Halves,
    w: [int8x16_t; N],
    a: [int8x16_t; N],
) -> Halves {
    // SAFETY: NEON is always there.
    unsafe {
        let pairs = kind == sums::PAIRS;
        let [mut low, mut high] =
            if pairs { sum.map(|sum| vreinterpretq_s16_s32(sum)) } else { [vdupq_n_s16(0); 2] };
        // Two products of eight bits are within sixteen.
        for (w, a) in w.into_iter().zip(a) {
            low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(a));
            high = vmlal_high_s8(high, w, a);
        }
        if pairs {
            return [vreinterpretq_s32_s16(low), vreinterpretq_s32_s16(high)];
        }
        [vpadalq_s16(sum[0], low), vpadalq_s16(sum[1], high)]
    }
}

/// Two words of activations, each in every lane.
#[inline(always)]
unsafe fn splat_two(words: int32x2_t) -> [int8x16_t; 2] {
    // SAFETY: NEON is always there.
    unsafe {
        [
            vreinterpretq_s8_s32(vdupq_lane_s32::<0>(words)),
            vreinterpretq_s8_s32(vdupq_lane_s32::<1>(words)),
        ]
    }
}

/// Where sums of integers start that [`number`] is to take.
#[inline(always)]
pub(super) unsafe fn no_sum() -> int32x4_t {
    // SAFETY: NEON is always there.
    unsafe { vreinterpretq_s32_f32(vdupq_n_f32(act::ROUNDER)) }
}

/// A sum within ±2²² as f32. Where sums start, their bits are those of a float that counts in ones:
/// a subtraction remains, which processors do faster than the conversion.
#[inline(always)]
pub(super) unsafe fn number(sum: int32x4_t) -> float32x4_t {
    // SAFETY: NEON is always there.
    unsafe { vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(act::ROUNDER)) }
}

// SAFETY: every method does what its documentation says with NEON, and `sdot` and `smmla` where
// `DOT` says so, and loads and stores no more than that.
unsafe impl<const DOT: u8> Simd for Neon<DOT> {
    const LANES: usize = 4;
    const REGISTERS: usize = usize::MAX;
    const INT_PANELS: usize = if DOT == I8MM { 2 } else { 1 };
    const INT_COLS: usize = if DOT == I8MM { 4 } else { 8 };
    const STREAMED_COLS: usize = 8;
    const FLOAT_COLS: usize = 8;
    const QUADS: bool = DOT != PLAIN;
    const SIGNED: bool = true;
    type F = float32x4_t;
    type B = int8x16_t;
    // Dot products need the first only.
    type Sum = Halves;

    methods! {
        fn zero() -> float32x4_t {
            vdupq_n_f32(0.0)
        }

        fn splat(x: f32) -> float32x4_t {
            vdupq_n_f32(x)
        }

        fn load(p: *const f32) -> float32x4_t {
            vld1q_f32(p)
        }

        fn store(p: *mut f32, x: float32x4_t) {
            vst1q_f32(p, x)
        }

        fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            vmulq_f32(a, b)
        }

        fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
            vfmaq_f32(c, a, b)
        }

        fn fnma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
            vfmsq_f32(c, a, b)
        }

        fn sum(x: float32x4_t) -> f32 {
            vaddvq_f32(x)
        }

        fn convert<const T: u8>(p: *const u8) -> float32x4_t {
            match T {
                tag::F16 => widen(vreinterpret_u16_u8(vld1_u8(p))),
                tag::BF16 => {
                    let x = vreinterpret_u16_u8(vld1_u8(p));
                    vreinterpretq_f32_u32(vshll_n_u16(x, 16))
                }
                _ => vreinterpretq_f32_u8(vld1q_u8(p)),
            }
        }

        fn from_signed(p: *const i8) -> float32x4_t {
            let x = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(x))))
        }

        fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            let x: [float32x4_t; 4] = std::array::from_fn(|i| vld1q_f32(src.add(i * src_stride)));
            let (a, b) = (vzip1q_f32(x[0], x[2]), vzip2q_f32(x[0], x[2]));
            let (c, d) = (vzip1q_f32(x[1], x[3]), vzip2q_f32(x[1], x[3]));
            let rows = [vzip1q_f32(a, c), vzip2q_f32(a, c), vzip1q_f32(b, d), vzip2q_f32(b, d)];
            for (i, row) in rows.into_iter().enumerate() {
                vst1q_f32(dst.add(i * dst_stride), row);
            }
        }

        fn from_unsigned(p: *const u8) -> float32x4_t {
            let x = vcreate_u8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(x))))
        }

        fn load_bytes(p: *const u8) -> int8x16_t {
            vld1q_s8(p.cast())
        }

        fn store_bytes(p: *mut u8, x: int8x16_t) {
            vst1q_s8(p.cast(), x);
        }

        fn splat_int(x: i32) -> int8x16_t {
            vreinterpretq_s8_s32(vdupq_n_s32(x))
        }

        fn and(a: int8x16_t, b: int8x16_t) -> int8x16_t {
            vandq_s8(a, b)
        }

        fn or(a: int8x16_t, b: int8x16_t) -> int8x16_t {
            vorrq_s8(a, b)
        }

        fn shift(x: int8x16_t, by: i32) -> int8x16_t {
            vreinterpretq_s8_u16(vshlq_u16(vreinterpretq_u16_s8(x), vdupq_n_s16(by as i16)))
        }

        fn sub_bytes(a: int8x16_t, b: int8x16_t) -> int8x16_t {
            vsubq_s8(a, b)
        }

        fn start(word: i32) -> Halves {
            if DOT != PLAIN {
                return [vaddq_s32(vdupq_n_s32(word), no_sum()); 2];
            }
            // Each half of the word is what two bytes' sums start at together: the first of them has it all,
            // and is within 16 bits in the end.
            let words = vreinterpret_u16_u32(vdup_n_u32(word.cast_unsigned()));
            [vreinterpretq_s32_u32(vmovl_u16(words)); 2]
        }

        fn add_products(kind: u8, sum: Halves, w: int8x16_t, a: int8x16_t) -> Halves {
            if DOT == PLAIN {
                return add_widened(kind, sum, [w], [a]);
            }
            let mut sum = sum;
            sdot!(sum[0], w, a, ".16b");
            sum
        }

        fn add_two(kind: u8, sum: Halves, w: [int8x16_t; 2], words: *const i32) -> Halves {
            let words = vld1_s32(words);
            if DOT == PLAIN {
                return add_widened(kind, sum, w, splat_two(words));
            }
            let mut sum = sum;
            sdot!(sum[0], w[0], words, ".4b[0]");
            sdot!(sum[0], w[1], words, ".4b[1]");
            sum
        }

        fn total(kind: u8, sum: Halves) -> float32x4_t {
            if DOT != PLAIN {
                return number(sum[0]);
            }
            let [low, high] = match kind {
                sums::PAIRS => sum.map(|sum| vpaddlq_s16(vreinterpretq_s16_s32(sum))),
                _ => sum,
            };
            vcvtq_f32_s32(vpaddq_s32(low, high))
        }
    }

    #[inline(always)]
    unsafe fn block_dots<const G: usize, const SUMS: u8, const P: usize, const C: usize>(
        blocks: [*const u8; P],
        act: ActBlock<C>,
    ) -> [[float32x4_t; C]; P] {
        // SAFETY: the trait's contract.
        unsafe {
            // `sdot` takes four words of activations from one register.
            let mut dots = [[vdupq_n_f32(0.0); C]; P];
            for (dots, block) in dots.iter_mut().zip(blocks) {
                let w: [int8x16_t; G] = std::array::from_fn(|g| vld1q_s8(block.add(16 * g).cast()));
                unroll!(i < C, 8 {
                    let mut sum = Self::start(0);
                    for (four, w) in w.as_chunks::<4>().0.iter().enumerate() {
                        let a = vld1q_s32(act.words(i).add(4 * four));
                        if DOT == PLAIN {
                            let a = [vget_low_s32(a), vget_high_s32(a)].map(|a| splat_two(a));
                            sum = add_widened(SUMS, sum, [w[0], w[1]], a[0]);
                            sum = add_widened(SUMS, sum, [w[2], w[3]], a[1]);
                            continue;
                        }
                        sdot!(sum[0], w[0], a, ".4b[0]");
                        sdot!(sum[0], w[1], a, ".4b[1]");
                        sdot!(sum[0], w[2], a, ".4b[2]");
                        sdot!(sum[0], w[3], a, ".4b[3]");
                    }
                    dots[i] = Self::total(SUMS, sum);
                });
            }
            dots
        }
    }

    #[inline(always)]
    unsafe fn arrange(block: *mut u8, groups: usize) {
        if DOT == I8MM {
            // SAFETY: the trait's contract.
            unsafe { neon_i8mm::arrange(block, groups) }
        }
    }

    #[inline(always)]
    unsafe fn tile<
        const G: usize,
        const SUMS: u8,
        const OFFSETS: bool,
        const P: usize,
        const C: usize,
    >(
        panels: &[u8],
        blocks: usize,
        act: ActTile<'_>,
        col: usize,
        y: &mut Columns<'_>,
    ) {
        if const { C > Self::INT_COLS || P > Self::INT_PANELS || !sums::any::<Self>(SUMS) } {
            return;
        }
        // SAFETY: the trait's contract.
        unsafe {
            match (DOT, C) {
                (I8MM, 1 | 2) => {
                    neon_i8mm::tile::<G, OFFSETS, P, C, 1>(panels, blocks, act, col, y)
                }
                (I8MM, _) => neon_i8mm::tile::<G, OFFSETS, P, C, 2>(panels, blocks, act, col, y),
                _ => kernels::int::tile_int::<Self, G, SUMS, OFFSETS, P, C>(
                    panels, blocks, act, col, y,
                ),
            }
        }
    }

    #[inline(always)]
    fn fetch_ahead(p: *const u8, ahead: Ahead) {
        // One fetch instead of two, from between them. Not measured: no such processor was at hand.
        prefetch(p.wrapping_add((ahead.second + ahead.first) / 2));
    }
}
