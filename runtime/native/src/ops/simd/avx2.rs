//! AVX2 vectors with FMA and F16C.
#![allow(unsafe_code)]

use super::{Simd, SimdOp};
use crate::Isa;
use core::arch::x86_64::*;

/// Proof that the processor has the features of [`Isa::Avx2`].
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        Isa::Avx2.is_available().then_some(Avx2(()))
    }
}

/// # Safety
/// The processor has the named features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter<O: SimdOp>(s: Avx2, op: O) -> O::Output {
    op.run(s)
}

/// `2^n` for each 32-bit lane, `n` from -126 to 127.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn pow2(n: __m256i) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
    }
}

// In all of this file: SAFETY of the intrinsics rests on `self`, which exists only where
// `Isa::Avx2` is available; that of loads and stores on the slice taken just before.
impl Simd for Avx2 {
    type F = __m256;
    const LANES: usize = 8;
    const TILE: usize = 2;

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        // SAFETY: `self` proves the features.
        unsafe { enter(self, op) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> __m256 {
        let x = &x[..8];
        // SAFETY: `self` proves the features; 8 elements are readable.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m256, y: &mut [f32]) {
        let y = &mut y[..8];
        // SAFETY: `self` proves the features; 8 elements are writable.
        unsafe { _mm256_storeu_ps(y.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8]) -> __m256 {
        let x = &x[..16];
        // SAFETY: `self` proves the features; 16 bytes are readable.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, y: &mut [u8]) {
        let y = &mut y[..16];
        // SAFETY: `self` proves the features; 16 bytes are writable.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(y.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[u8]) -> __m256 {
        let x = &x[..8];
        // SAFETY: `self` proves the features; 8 bytes are readable.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8]) -> (__m256, __m256) {
        let x = &x[..8];
        // SAFETY: `self` proves the features; 8 bytes are readable.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().cast()));
            let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
            let high = _mm256_srli_epi32::<4>(bytes);
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn store_low_bytes(self, v: __m256, y: &mut [u8]) {
        let y = &mut y[..8];
        // SAFETY: `self` proves the features; 8 bytes are writable.
        unsafe {
            let low = _mm256_and_si256(_mm256_cvttps_epi32(v), _mm256_set1_epi32(0xff));
            let words =
                _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256::<1>(low));
            _mm_storel_epi64(y.as_mut_ptr().cast(), _mm_packus_epi16(words, words));
        }
    }

    lanewise! { __m256:
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
        min(a, b) = _mm256_min_ps(a, b);
        abs(v) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
        round_small(v) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        trunc(v) = _mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(v);
        select_le(a, b, v, other) = _mm256_blendv_ps(other, v, _mm256_cmp_ps::<_CMP_LE_OQ>(a, b));
    }

    #[inline(always)]
    fn copysign(self, magnitude: __m256, sign: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe {
            let bit = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign))
        }
    }

    #[inline(always)]
    fn scale_pow2(self, v: __m256, n: __m256) -> __m256 {
        // SAFETY: `self` proves the features.
        unsafe {
            // In two steps, each of which stays inside the exponents of normal numbers.
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let v = _mm256_mul_ps(v, pow2(half));
            _mm256_mul_ps(v, pow2(_mm256_sub_epi32(n, half)))
        }
    }

    #[inline(always)]
    fn eq_bits(self, a: __m256, b: __m256) -> u32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(a, b)) as u32 }
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        let four = self.fold4(v);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    fn max_lane(self, v: __m256) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sum4(self, v: [__m256; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features.
        unsafe {
            let ab = _mm256_hadd_ps(v[0], v[1]);
            let cd = _mm256_hadd_ps(v[2], v[3]);
            self.fold4(_mm256_hadd_ps(ab, cd))
        }
    }

    #[inline(always)]
    fn deinterleave(self, a: __m256, b: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves the features.
        unsafe {
            // The shuffle works within 128-bit halves; the permutation puts quarters in order.
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xdd>(a, b));
            let even = _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(even));
            (even, _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(odd)))
        }
    }

    #[inline(always)]
    fn interleave(self, even: __m256, odd: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves the features.
        unsafe {
            let low = _mm256_unpacklo_ps(even, odd);
            let high = _mm256_unpackhi_ps(even, odd);
            let first = _mm256_permute2f128_ps::<0x20>(low, high);
            (first, _mm256_permute2f128_ps::<0x31>(low, high))
        }
    }

    #[inline(always)]
    fn splat4(self, x: [f32; 4]) -> __m256 {
        // SAFETY: `self` proves the features; four elements are readable.
        unsafe {
            let x = _mm_loadu_ps(x.as_ptr());
            _mm256_set_m128(x, x)
        }
    }

    #[inline(always)]
    fn fold4(self, v: __m256) -> [f32; 4] {
        let mut y = [0.0; 4];
        // SAFETY: `self` proves the features; four elements are writable.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            _mm_storeu_ps(y.as_mut_ptr(), four);
        }
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
