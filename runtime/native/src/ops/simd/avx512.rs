//! AVX-512 vectors: the F, BW, VL and DQ subsets, and F16C for single conversions.
#![allow(unsafe_code)]

use super::{Simd, SimdOp};
use crate::Isa;
use core::arch::x86_64::*;

/// Proof that the processor has the features of [`Isa::Avx512`].
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        Isa::Avx512.is_available().then_some(Avx512(()))
    }
}

/// # Safety
/// The processor has the named features.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn enter<O: SimdOp>(s: Avx512, op: O) -> O::Output {
    op.run(s)
}

const EVEN: [i32; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
const ODD: [i32; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31];
const ZIP_LOW: [i32; 16] = [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23];
const ZIP_HIGH: [i32; 16] = [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];

#[inline(always)]
fn index(lanes: &[i32; 16]) -> __m512i {
    // SAFETY: callers hold an `Avx512`; the array is 64 bytes.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

/// A mask of the lowest `n` lanes, for `n` up to 16.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

// In all of this file: SAFETY of the intrinsics rests on `self`, which exists only where
// `Isa::Avx512` is available; that of loads and stores on the slice taken just before.
impl Simd for Avx512 {
    type F = __m512;
    const LANES: usize = 16;
    const TILE: usize = 4;

    #[inline(always)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        // SAFETY: `self` proves the features.
        unsafe { enter(self, op) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> __m512 {
        let x = &x[..16];
        // SAFETY: `self` proves the features; 16 elements are readable.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m512, y: &mut [f32]) {
        let y = &mut y[..16];
        // SAFETY: `self` proves the features; 16 elements are writable.
        unsafe { _mm512_storeu_ps(y.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8]) -> __m512 {
        let x = &x[..32];
        // SAFETY: `self` proves the features; 32 bytes are readable.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m512, y: &mut [u8]) {
        let y = &mut y[..32];
        // SAFETY: `self` proves the features; 32 bytes are writable.
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(y.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[u8]) -> __m512 {
        let x = &x[..16];
        // SAFETY: `self` proves the features; 16 bytes are readable.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8]) -> (__m512, __m512) {
        let x = &x[..16];
        // SAFETY: `self` proves the features; 16 bytes are readable.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
            let high = _mm512_srli_epi32::<4>(bytes);
            (_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn store_low_bytes(self, v: __m512, y: &mut [u8]) {
        let y = &mut y[..16];
        // SAFETY: `self` proves the features; 16 bytes are writable.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v));
            _mm_storeu_si128(y.as_mut_ptr().cast(), bytes);
        }
    }

    lanewise! { __m512:
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
        max(a, b) = _mm512_max_ps(a, b);
        min(a, b) = _mm512_min_ps(a, b);
        abs(v) = _mm512_abs_ps(v);
        round_small(v) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        trunc(v) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(v);
        scale_pow2(v, n) = _mm512_scalef_ps(v, n);
        select_le(a, b, v, other) = _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b), v);
    }

    #[inline(always)]
    fn copysign(self, magnitude: __m512, sign: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe {
            let bit = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign))
        }
    }

    #[inline(always)]
    fn eq_bits(self, a: __m512, b: __m512) -> u32 {
        // SAFETY: `self` proves the features.
        u32::from(unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b) })
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_reduce_add_ps(v) }
    }

    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features; the array takes four elements.
        unsafe {
            // Within each 128-bit part: lanes of a and b alternate, then of all four.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
            let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
            let low = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
            let high = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
            self.fold4(_mm512_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn deinterleave(self, a: __m512, b: __m512) -> (__m512, __m512) {
        // SAFETY: `self` proves the features.
        unsafe {
            let even = _mm512_permutex2var_ps(a, index(&EVEN), b);
            (even, _mm512_permutex2var_ps(a, index(&ODD), b))
        }
    }

    #[inline(always)]
    fn interleave(self, even: __m512, odd: __m512) -> (__m512, __m512) {
        // SAFETY: `self` proves the features.
        unsafe {
            let low = _mm512_permutex2var_ps(even, index(&ZIP_LOW), odd);
            (low, _mm512_permutex2var_ps(even, index(&ZIP_HIGH), odd))
        }
    }

    #[inline(always)]
    fn splat4(self, x: [f32; 4]) -> __m512 {
        // SAFETY: `self` proves the features; four elements are readable.
        unsafe { _mm512_broadcast_f32x4(_mm_loadu_ps(x.as_ptr())) }
    }

    #[inline(always)]
    fn fold4(self, v: __m512) -> [f32; 4] {
        let mut y = [0.0; 4];
        // SAFETY: `self` proves the features; four elements are writable.
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            _mm_storeu_ps(y.as_mut_ptr(), four);
        }
        y
    }

    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> __m512 {
        // SAFETY: `self` proves the features; masked-off lanes are not accessed.
        unsafe { _mm512_maskz_loadu_ps(first(x.len().min(16)), x.as_ptr()) }
    }

    #[inline(always)]
    fn store_partial(self, v: __m512, y: &mut [f32]) {
        // SAFETY: `self` proves the features; masked-off lanes are not accessed.
        unsafe { _mm512_mask_storeu_ps(y.as_mut_ptr(), first(y.len().min(16)), v) }
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
