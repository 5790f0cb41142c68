//! NEON, with and without the 8-bit dot products of Armv8.2 and the matrix products of Armv8.6.
#![allow(unsafe_code)]

use core::arch::aarch64::*;
use core::arch::asm;

use super::kernels::{self, ActTile, Entries, Input, Rows, Simd, entries, entry};
use super::out::{Columns, Out};
use super::{ActChunk, Job, Plan, act, neon_i8mm, tiled};
use crate::probe::prefetch;
use crate::quant::neon::{ChunkNeon, spill_neon, unpack_neon, widen};
use crate::quant::{Unpacked, tag};
use crate::{Isa, ThreadPool};

/// The instruction set, with 8-bit dot products as `DOT` says.
struct Neon<const DOT: u8>;

/// How far ahead of the loads weights are fetched, in bytes.
const AHEAD: usize = 6 * 1024;

/// Steps of NEON that widen.
const PLAIN: u8 = 0;
/// `sdot`.
const DOTPROD: u8 = 1;
/// `sdot`, and `smmla` in tiles.
const I8MM: u8 = 2;

/// Whether the processor adds four products of bytes at once.
pub(crate) fn has_dotprod() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

/// Whether it also multiplies two rows of eight bytes with two others.
pub(crate) fn has_i8mm() -> bool {
    has_dotprod() && std::arch::is_aarch64_feature_detected!("i8mm")
}

/// Computes a product; `Isa::Neon` is available.
pub(super) fn run(pool: &ThreadPool, plan: Plan, job: &Job<'_>, out: Out<'_>) {
    assert!(Isa::Neon.is_available(), "dispatched to instructions that are missing");
    if has_i8mm() {
        // SAFETY: just checked.
        unsafe { tiled::run::<Neon<I8MM>>(pool, plan, job, out) }
    } else if has_dotprod() {
        // SAFETY: just checked.
        unsafe { tiled::run::<Neon<DOTPROD>>(pool, plan, job, out) }
    } else {
        // SAFETY: just checked.
        unsafe { tiled::run::<Neon<PLAIN>>(pool, plan, job, out) }
    }
}

/// [`run`] as a processor with `sdot` only would.
#[cfg(test)]
pub(super) fn run_dotprod(pool: &ThreadPool, plan: Plan, job: &Job<'_>, out: Out<'_>) {
    assert!(has_dotprod(), "dispatched to instructions that are missing");
    // SAFETY: just checked; NEON comes with it.
    unsafe { tiled::run::<Neon<DOTPROD>>(pool, plan, job, out) }
}

/// [`run`] as a processor with neither would.
#[cfg(test)]
pub(super) fn run_plain(pool: &ThreadPool, plan: Plan, job: &Job<'_>, out: Out<'_>) {
    assert!(Isa::Neon.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { tiled::run::<Neon<PLAIN>>(pool, plan, job, out) }
}

entries!(Neon<PLAIN>, "neon");
entries!(Neon<DOTPROD>, "neon,dotprod");
entries!(Neon<I8MM>, "neon,dotprod,i8mm");

/// `sdot` of `$w` with the operand `$a`, a whole register or one of its four lanes. Assembly,
/// since the intrinsic is not stable; the directive admits it where the target does not.
macro_rules! sdot {
    ($sum:ident, $w:expr, $a:expr, $form:literal) => {
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

/// Adds to `sum` in each lane four products of signed bytes.
#[inline(always)]
unsafe fn dot_bytes<const DOT: u8>(sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: the caller has NEON, and `sdot` where `DOT` says so.
    unsafe {
        if DOT != PLAIN {
            let mut sum = sum;
            sdot!(sum, w, a, ".16b");
            sum
        } else {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(a)));
            let high = vpaddlq_s16(vmull_high_s8(w, a));
            vaddq_s32(sum, vpaddq_s32(low, high))
        }
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
    const INT_PANELS: usize = if DOT == I8MM { 2 } else { 1 };
    const INT_COLS: usize = if DOT == I8MM { 4 } else { 8 };
    const FLOAT_COLS: usize = 8;
    const BIASED: bool = false;
    const SIGNED: bool = true;
    type Chunk = ChunkNeon;
    type F = float32x4_t;
    type B = int8x16_t;

    #[inline(always)]
    unsafe fn unpack<const T: u8>(p: *const u8) -> ChunkNeon {
        // SAFETY: the trait's contract.
        unsafe { unpack_neon::<T>(p) }
    }

    #[inline(always)]
    unsafe fn spill(chunk: &ChunkNeon, out: &mut Unpacked) {
        spill_neon(chunk, out);
    }

    #[inline(always)]
    unsafe fn dot<const T: u8>(
        chunk: &ChunkNeon,
        act: *const ActChunk,
        acc: &mut [float32x4_t; 2],
    ) {
        // SAFETY: the trait's contract; `act` is one chunk.
        unsafe {
            let scales = (&raw const (*act).scale).cast::<f32>();
            let sums = (&raw const (*act).sum).cast::<f32>();
            let q = (&raw const (*act).q).cast::<i8>();
            for i in 0..4 {
                let scale = vmulq_f32(chunk.scale[i], vld1q_f32(scales.add(4 * i)));
                if T != tag::Q8_0 {
                    acc[1] = vfmsq_f32(acc[1], chunk.offset[i], vld1q_f32(sums.add(4 * i)));
                }
                let dot = |j: usize| {
                    let a = vld1q_s8(q.add(64 * i + 16 * j));
                    number(dot_bytes::<DOT>(no_sum(), chunk.q[4 * i + j], a))
                };
                acc[0] = vfmaq_laneq_f32::<0>(acc[0], dot(0), scale);
                acc[1] = vfmaq_laneq_f32::<1>(acc[1], dot(1), scale);
                acc[0] = vfmaq_laneq_f32::<2>(acc[0], dot(2), scale);
                acc[1] = vfmaq_laneq_f32::<3>(acc[1], dot(3), scale);
            }
        }
    }

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vld1q_f32(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: float32x4_t) {
        // SAFETY: the trait's contract.
        unsafe { vst1q_f32(p, x) }
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn fnma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vfmsq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn sum(x: float32x4_t) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { vaddvq_f32(x) }
    }

    #[inline(always)]
    unsafe fn convert<const T: u8>(p: *const u8) -> float32x4_t {
        // SAFETY: the trait's contract; the bytes are loaded as bytes, so of any alignment.
        unsafe {
            match T {
                tag::F16 => widen(vreinterpret_u16_u8(vld1_u8(p))),
                tag::BF16 => {
                    let x = vreinterpret_u16_u8(vld1_u8(p));
                    vreinterpretq_f32_u32(vshll_n_u16(x, 16))
                }
                _ => vreinterpretq_f32_u8(vld1q_u8(p)),
            }
        }
    }

    #[inline(always)]
    unsafe fn from_bytes(p: *const i8) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe {
            let x = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(x))))
        }
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        // SAFETY: the trait's contract.
        unsafe {
            let x: [float32x4_t; 4] = std::array::from_fn(|i| vld1q_f32(src.add(i * src_stride)));
            let (a, b) = (vzip1q_f32(x[0], x[2]), vzip2q_f32(x[0], x[2]));
            let (c, d) = (vzip1q_f32(x[1], x[3]), vzip2q_f32(x[1], x[3]));
            let rows = [vzip1q_f32(a, c), vzip2q_f32(a, c), vzip1q_f32(b, d), vzip2q_f32(b, d)];
            for (i, row) in rows.into_iter().enumerate() {
                vst1q_f32(dst.add(i * dst_stride), row);
            }
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> int8x16_t {
        // SAFETY: the trait's contract.
        unsafe { vld1q_s8(p.cast()) }
    }

    #[inline(always)]
    unsafe fn block_dot<const G: usize, const FOLD: usize>(
        w: &[int8x16_t; G],
        a: *const i8,
    ) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe {
            let mut sum = no_sum();
            for (i, w) in w.chunks_exact(4).enumerate() {
                let a = vld1q_s8(a.add(16 * i));
                if DOT != PLAIN {
                    sdot!(sum, w[0], a, ".4b[0]");
                    sdot!(sum, w[1], a, ".4b[1]");
                    sdot!(sum, w[2], a, ".4b[2]");
                    sdot!(sum, w[3], a, ".4b[3]");
                } else {
                    let a = vreinterpretq_s32_s8(a);
                    let four = [
                        vdupq_laneq_s32::<0>(a),
                        vdupq_laneq_s32::<1>(a),
                        vdupq_laneq_s32::<2>(a),
                        vdupq_laneq_s32::<3>(a),
                    ];
                    for (w, a) in w.iter().zip(four) {
                        sum = dot_bytes::<DOT>(sum, *w, vreinterpretq_s8_s32(a));
                    }
                }
            }
            number(sum)
        }
    }

    #[inline(always)]
    unsafe fn arrange<const G: usize>(block: *mut u8) {
        if DOT == I8MM {
            // SAFETY: the trait's contract.
            unsafe { neon_i8mm::arrange::<G>(block) }
        }
    }

    #[inline(always)]
    unsafe fn tile<
        const G: usize,
        const FOLD: usize,
        const BIAS: u32,
        const P: usize,
        const C: usize,
    >(
        panels: *const u8,
        chunks: usize,
        act: ActTile,
        col: usize,
        y: &mut Columns<'_>,
    ) {
        if const { C > Self::INT_COLS || P > Self::INT_PANELS } {
            return;
        }
        // SAFETY: the trait's contract.
        unsafe {
            match (DOT, C) {
                (I8MM, 1 | 2) => neon_i8mm::tile::<G, BIAS, P, C, 1>(panels, chunks, act, col, y),
                (I8MM, _) => neon_i8mm::tile::<G, BIAS, P, C, 2>(panels, chunks, act, col, y),
                _ => {
                    kernels::int::tile_int::<Self, G, FOLD, BIAS, P, C>(panels, chunks, act, col, y)
                }
            }
        }
    }

    #[inline(always)]
    fn fetch_ahead(p: *const u8) {
        prefetch(p.wrapping_add(AHEAD));
    }
}
