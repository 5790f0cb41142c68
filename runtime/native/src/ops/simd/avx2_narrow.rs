//! Vectors of 128 bits with the instructions of AVX2, FMA and F16C: as wide as those of WebAssembly,
//! for comparisons.
#![allow(unsafe_code)]

use super::{Simd, SimdOp};
use crate::Isa;
use core::arch::x86_64::*;

/// Proof that the processor has the features of [`Isa::Avx2Narrow`].
#[derive(Clone, Copy)]
pub(super) struct Avx2Narrow(());

impl Avx2Narrow {
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        Isa::Avx2Narrow.is_available().then_some(Avx2Narrow(()))
    }
}

/// # Safety
/// The processor has the named features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter<O: SimdOp>(s: Avx2Narrow, op: O) -> O::Output {
    op.run(s)
}

/// `2^n` for each 32-bit lane, `n` from -126 to 127.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn pow2(n: __m128i) -> __m128 {
    // SAFETY: the caller's.
    unsafe { _mm_castsi128_ps(_mm_slli_epi32::<23>(_mm_add_epi32(n, _mm_set1_epi32(127)))) }
}

// In all of this file: SAFETY of the intrinsics rests on `self`, which exists only where
// `Isa::Avx2Narrow` is available; that of loads and stores on the slice taken just before.
impl Simd for Avx2Narrow {
    type F = __m128;
    const LANES: usize = 4;
    const TILE: usize = 2;

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        // SAFETY: `self` proves the features.
        unsafe { enter(self, op) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m128 {
        // SAFETY: `self` proves the features.
        unsafe { _mm_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> __m128 {
        let x = &x[..4];
        // SAFETY: `self` proves the features; 4 elements are readable.
        unsafe { _mm_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m128, y: &mut [f32]) {
        let y = &mut y[..4];
        // SAFETY: `self` proves the features; 4 elements are writable.
        unsafe { _mm_storeu_ps(y.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8]) -> __m128 {
        let x = &x[..8];
        // SAFETY: `self` proves the features; 8 bytes are readable.
        unsafe { _mm_cvtph_ps(_mm_loadl_epi64(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m128, y: &mut [u8]) {
        let y = &mut y[..8];
        // SAFETY: `self` proves the features; 8 bytes are writable.
        unsafe {
            let half = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storel_epi64(y.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[u8]) -> __m128 {
        let x = x.first_chunk::<4>().unwrap_or(&[0; 4]);
        // SAFETY: `self` proves the features.
        unsafe {
            let bytes = _mm_cvtsi32_si128(i32::from_le_bytes(*x));
            _mm_cvtepi32_ps(_mm_cvtepi8_epi32(bytes))
        }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8]) -> (__m128, __m128) {
        let x = x.first_chunk::<4>().unwrap_or(&[0; 4]);
        // SAFETY: `self` proves the features.
        unsafe {
            let bytes = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(*x)));
            let low = _mm_and_si128(bytes, _mm_set1_epi32(15));
            let high = _mm_srli_epi32::<4>(bytes);
            (_mm_cvtepi32_ps(low), _mm_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn store_low_bytes(self, v: __m128, y: &mut [u8]) {
        let y = &mut y[..4];
        // SAFETY: `self` proves the features.
        let bytes = unsafe {
            let low = _mm_and_si128(_mm_cvttps_epi32(v), _mm_set1_epi32(0xff));
            let words = _mm_packus_epi32(low, low);
            _mm_cvtsi128_si32(_mm_packus_epi16(words, words))
        };
        y.copy_from_slice(&bytes.to_le_bytes());
    }

    lanewise! { __m128:
        add(a, b) = _mm_add_ps(a, b);
        sub(a, b) = _mm_sub_ps(a, b);
        mul(a, b) = _mm_mul_ps(a, b);
        div(a, b) = _mm_div_ps(a, b);
        fma(a, b, c) = _mm_fmadd_ps(a, b, c);
        max(a, b) = _mm_max_ps(a, b);
        min(a, b) = _mm_min_ps(a, b);
        abs(v) = _mm_andnot_ps(_mm_set1_ps(-0.0), v);
        round_small(v) = _mm_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        trunc(v) = _mm_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(v);
        select_le(a, b, v, other) = _mm_blendv_ps(other, v, _mm_cmp_ps::<_CMP_LE_OQ>(a, b));
    }

    #[inline(always)]
    fn copysign(self, magnitude: __m128, sign: __m128) -> __m128 {
        // SAFETY: `self` proves the features.
        unsafe {
            let bit = _mm_set1_ps(-0.0);
            _mm_or_ps(_mm_andnot_ps(bit, magnitude), _mm_and_ps(bit, sign))
        }
    }

    #[inline(always)]
    fn scale_pow2(self, v: __m128, n: __m128) -> __m128 {
        // SAFETY: `self` proves the features.
        unsafe {
            // In two steps, each of which stays inside the exponents of normal numbers.
            let n = _mm_cvtps_epi32(n);
            let half = _mm_srai_epi32::<1>(n);
            let v = _mm_mul_ps(v, pow2(half));
            _mm_mul_ps(v, pow2(_mm_sub_epi32(n, half)))
        }
    }

    #[inline(always)]
    fn eq_bits(self, a: __m128, b: __m128) -> u32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm_movemask_ps(_mm_cmp_ps::<_CMP_EQ_OQ>(a, b)) as u32 }
    }

    #[inline(always)]
    fn sum(self, v: __m128) -> f32 {
        let four = self.fold4(v);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    fn max_lane(self, v: __m128) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let two = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sum4(self, v: [__m128; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features.
        unsafe {
            let ab = _mm_hadd_ps(v[0], v[1]);
            let cd = _mm_hadd_ps(v[2], v[3]);
            self.fold4(_mm_hadd_ps(ab, cd))
        }
    }

    #[inline(always)]
    fn deinterleave(self, a: __m128, b: __m128) -> (__m128, __m128) {
        // SAFETY: `self` proves the features.
        unsafe { (_mm_shuffle_ps::<0x88>(a, b), _mm_shuffle_ps::<0xdd>(a, b)) }
    }

    #[inline(always)]
    fn interleave(self, even: __m128, odd: __m128) -> (__m128, __m128) {
        // SAFETY: `self` proves the features.
        unsafe { (_mm_unpacklo_ps(even, odd), _mm_unpackhi_ps(even, odd)) }
    }

    #[inline(always)]
    fn splat4(self, x: [f32; 4]) -> __m128 {
        self.load(&x)
    }

    #[inline(always)]
    fn fold4(self, v: __m128) -> [f32; 4] {
        let mut y = [0.0; 4];
        self.store(v, &mut y);
        y
    }

    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    #[inline(always)]
    fn narrow(self, x: f32) -> u16 {
        // SAFETY: `self` proves the features.
        unsafe {
            let half = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(x));
            _mm_cvtsi128_si32(half) as u16
        }
    }
}
