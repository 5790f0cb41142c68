//! Advanced SIMD vectors of AArch64.
#![allow(unsafe_code)]

use super::{Simd, SimdOp};
use crate::Isa;
use core::arch::aarch64::*;
use core::arch::asm;

/// Proof that the processor has Advanced SIMD.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

impl Neon {
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        Isa::Neon.is_available().then_some(Neon(()))
    }
}

/// # Safety
/// The processor has Advanced SIMD.
#[target_feature(enable = "neon")]
unsafe fn enter<O: SimdOp>(s: Neon, op: O) -> O::Output {
    op.run(s)
}

/// `2^n` for each lane, `n` from -126 to 127.
///
/// # Safety
/// The processor has Advanced SIMD.
#[inline(always)]
unsafe fn pow2(n: int32x4_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
}

/// Four bytes in the low lanes.
#[inline(always)]
fn four_bytes(x: &[u8]) -> uint8x8_t {
    let bytes = u32::from_le_bytes([x[0], x[1], x[2], x[3]]);
    // SAFETY: callers hold a `Neon`.
    unsafe { vcreate_u8(u64::from(bytes)) }
}

// In all of this file: SAFETY of the intrinsics rests on `self`, which exists only where
// `Isa::Neon` is available; that of loads and stores on the slice taken just before.
impl Simd for Neon {
    type F = float32x4_t;
    const LANES: usize = 4;
    const TILE: usize = 4;

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        // SAFETY: `self` proves the features.
        unsafe { enter(self, op) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: `self` proves the features.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> float32x4_t {
        let x = &x[..4];
        // SAFETY: `self` proves the features; 4 elements are readable.
        unsafe { vld1q_f32(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: float32x4_t, y: &mut [f32]) {
        let y = &mut y[..4];
        // SAFETY: `self` proves the features; 4 elements are writable.
        unsafe { vst1q_f32(y.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8]) -> float32x4_t {
        let x = &x[..8];
        // SAFETY: `self` proves the features; 8 bytes are readable. FCVTL is part of the base
        // instruction set, reads one register and writes another.
        unsafe {
            let half = vld1_u8(x.as_ptr());
            let wide: float32x4_t;
            asm!("fcvtl {wide:v}.4s, {half:v}.4h", wide = out(vreg) wide, half = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags));
            wide
        }
    }

    #[inline(always)]
    fn store_f16(self, v: float32x4_t, y: &mut [u8]) {
        let y = &mut y[..8];
        // SAFETY: `self` proves the features; 8 bytes are writable. FCVTN is part of the base
        // instruction set and rounds as FPCR says, to nearest even by default.
        unsafe {
            let half: uint8x8_t;
            asm!("fcvtn {half:v}.4h, {wide:v}.4s", half = out(vreg) half, wide = in(vreg) v,
                options(pure, nomem, nostack, preserves_flags));
            vst1_u8(y.as_mut_ptr(), half);
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[u8]) -> float32x4_t {
        let bytes = four_bytes(x);
        // SAFETY: `self` proves the features.
        unsafe {
            let words = vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes)));
            vcvtq_f32_s32(vmovl_s16(words))
        }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8]) -> (float32x4_t, float32x4_t) {
        let bytes = four_bytes(x);
        // SAFETY: `self` proves the features.
        unsafe {
            let words = vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
            let low = vandq_u32(words, vdupq_n_u32(15));
            (vcvtq_f32_u32(low), vcvtq_f32_u32(vshrq_n_u32::<4>(words)))
        }
    }

    #[inline(always)]
    fn store_low_bytes(self, v: float32x4_t, y: &mut [u8]) {
        // SAFETY: `self` proves the features.
        let bytes = unsafe {
            let words = vreinterpretq_u32_s32(vcvtq_s32_f32(v));
            let halves = vmovn_u32(words);
            let bytes = vmovn_u16(vcombine_u16(halves, halves));
            vget_lane_u32::<0>(vreinterpret_u32_u8(bytes))
        };
        y[..4].copy_from_slice(&bytes.to_le_bytes());
    }

    lanewise! { float32x4_t:
        add(a, b) = vaddq_f32(a, b);
        sub(a, b) = vsubq_f32(a, b);
        mul(a, b) = vmulq_f32(a, b);
        div(a, b) = vdivq_f32(a, b);
        fma(a, b, c) = vfmaq_f32(c, a, b);
        min(a, b) = vbslq_f32(vcltq_f32(a, b), a, b);
        abs(v) = vabsq_f32(v);
        copysign(magnitude, sign) = vbslq_f32(vdupq_n_u32(0x8000_0000), sign, magnitude);
        round_small(v) = vrndnq_f32(v);
        trunc(v) = vrndq_f32(v);
    }

    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` proves the features. FMAX would keep a NaN of either side.
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }

    #[inline(always)]
    fn scale_pow2(self, v: float32x4_t, n: float32x4_t) -> float32x4_t {
        // SAFETY: `self` proves the features.
        unsafe {
            // In two steps, each of which stays inside the exponents of normal numbers.
            let n = vcvtq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            vmulq_f32(vmulq_f32(v, pow2(half)), pow2(vsubq_s32(n, half)))
        }
    }

    #[inline(always)]
    fn select_le(
        self,
        a: float32x4_t,
        b: float32x4_t,
        v: float32x4_t,
        other: float32x4_t,
    ) -> float32x4_t {
        // SAFETY: `self` proves the features.
        unsafe { vbslq_f32(vcleq_f32(a, b), v, other) }
    }

    #[inline(always)]
    fn eq_bits(self, a: float32x4_t, b: float32x4_t) -> u32 {
        const BITS: [u32; 4] = [1, 2, 4, 8];
        // SAFETY: `self` proves the features; four words are readable.
        unsafe { vaddvq_u32(vandq_u32(vceqq_f32(a, b), vld1q_u32(BITS.as_ptr()))) }
    }

    #[inline(always)]
    fn sum(self, v: float32x4_t) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { vaddvq_f32(v) }
    }

    #[inline(always)]
    fn max_lane(self, v: float32x4_t) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { vmaxvq_f32(v) }
    }

    #[inline(always)]
    fn sum4(self, v: [float32x4_t; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features.
        unsafe { self.fold4(vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]))) }
    }

    #[inline(always)]
    fn deinterleave(self, a: float32x4_t, b: float32x4_t) -> (float32x4_t, float32x4_t) {
        // SAFETY: `self` proves the features.
        unsafe { (vuzp1q_f32(a, b), vuzp2q_f32(a, b)) }
    }

    #[inline(always)]
    fn interleave(self, even: float32x4_t, odd: float32x4_t) -> (float32x4_t, float32x4_t) {
        // SAFETY: `self` proves the features.
        unsafe { (vzip1q_f32(even, odd), vzip2q_f32(even, odd)) }
    }

    #[inline(always)]
    fn splat4(self, x: [f32; 4]) -> float32x4_t {
        self.load(&x)
    }

    #[inline(always)]
    fn fold4(self, v: float32x4_t) -> [f32; 4] {
        let mut y = [0.0; 4];
        self.store(v, &mut y);
        y
    }
}
