//! AVX2, FMA and F16C, with and without the 8-bit dot products of AVX-VNNI.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::kernels::int::{self, Dpbusd};
use super::kernels::{self, ActBlock, ActTile, Entries, Input, Rows, Simd, entries, entry};
use super::out::{Columns, Out};
use super::{ActChunk, Job, Plan, act, tiled, x86};
use crate::quant::x86::{Chunk256, spill_256, unpack_256};
use crate::quant::{Unpacked, tag};
use crate::{Isa, ThreadPool};

/// The instruction set, with 8-bit dot products as `DOT` says.
struct Avx2<const DOT: u8>;

/// Two steps of AVX2, the first of which saturates at 16 bits.
const PLAIN: u8 = 0;
/// The instruction of AVX-VNNI.
const VNNI: u8 = 1;
/// What the instruction computes, without it: how tests reach that path on any machine.
#[cfg(test)]
const MODEL: u8 = 2;

/// Whether the processor multiplies and adds four bytes of a 256-bit vector at once.
pub(crate) fn has_vnni() -> bool {
    is_x86_feature_detected!("avxvnni")
}

/// Computes a product; `Isa::Avx2` is available.
pub(super) fn run(pool: &ThreadPool, plan: Plan, job: &Job<'_>, out: Out<'_>) {
    assert!(Isa::Avx2.is_available(), "dispatched to instructions that are missing");
    if has_vnni() {
        // SAFETY: just checked.
        unsafe { tiled::run::<Avx2<VNNI>>(pool, plan, job, out) }
    } else {
        // SAFETY: just checked.
        unsafe { tiled::run::<Avx2<PLAIN>>(pool, plan, job, out) }
    }
}

/// [`act::quantize_row`] with these instructions.
pub(super) fn quantize(x: &[f32], row: &mut [ActChunk]) {
    #[target_feature(enable = "avx2")]
    fn go(x: &[f32], row: &mut [ActChunk]) {
        act::quantize_row(x, row, act::quantize_chunk);
    }
    assert!(Isa::Avx2.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { go(x, row) }
}

entries!(Avx2<PLAIN>, "avx2,fma,f16c");
entries!(Avx2<VNNI>, "avx2,fma,f16c,avxvnni");
#[cfg(test)]
entries!(Avx2<MODEL>, "avx2,fma,f16c");

/// [`run`] as a processor with AVX-VNNI would.
#[cfg(test)]
pub(super) fn run_model(pool: &ThreadPool, plan: Plan, job: &Job<'_>, out: Out<'_>) {
    assert!(Isa::Avx2.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { tiled::run::<Avx2<MODEL>>(pool, plan, job, out) }
}

/// [`run`] as a processor without AVX-VNNI would.
#[cfg(test)]
pub(super) fn run_plain(pool: &ThreadPool, plan: Plan, job: &Job<'_>, out: Out<'_>) {
    assert!(Isa::Avx2.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { tiled::run::<Avx2<PLAIN>>(pool, plan, job, out) }
}

impl<const DOT: u8> Avx2<DOT> {
    /// Sums of four products of an unsigned and a signed byte. Without VNNI bytes of `w` are
    /// below 129, so that pairs fit 16 bits.
    #[inline(always)]
    unsafe fn dot_unsigned(w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe {
            if DOT != PLAIN {
                Self::dpbusd(_mm256_setzero_si256(), w, a)
            } else {
                _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1))
            }
        }
    }
}

// SAFETY: every method does what its documentation says with the named instructions, and loads and
// stores no more than that.
unsafe impl<const DOT: u8> Simd for Avx2<DOT> {
    const LANES: usize = 8;
    const INT_PANELS: usize = if DOT == PLAIN { 1 } else { 2 };
    const INT_COLS: usize = 4;
    const FLOAT_COLS: usize = 6;
    const BIASED: bool = DOT != PLAIN;
    type Chunk = Chunk256;
    type F = __m256;
    type B = __m256i;

    #[inline(always)]
    unsafe fn unpack<const T: u8>(p: *const u8) -> Chunk256 {
        // SAFETY: the trait's contract.
        unsafe { unpack_256::<T>(p) }
    }

    #[inline(always)]
    unsafe fn spill(chunk: &Chunk256, out: &mut Unpacked) {
        // SAFETY: the trait's contract.
        unsafe { spill_256(chunk, out) }
    }

    #[inline(always)]
    unsafe fn dot<const T: u8>(chunk: &Chunk256, act: *const ActChunk, acc: &mut [__m256; 2]) {
        // SAFETY: the trait's contract; `act` is one chunk.
        unsafe {
            let scales = (&raw const (*act).scale).cast::<f32>();
            let sums = (&raw const (*act).sum).cast::<f32>();
            let mut scale = chunk.scale;
            for (i, scale) in scale.iter_mut().enumerate() {
                *scale = _mm256_mul_ps(*scale, _mm256_loadu_ps(scales.add(8 * i)));
                if T != tag::Q8_0 {
                    let sum = _mm256_loadu_ps(sums.add(8 * i));
                    acc[i] = _mm256_fnmadd_ps(chunk.offset[i], sum, acc[i]);
                } else if DOT != PLAIN {
                    // Signed weights are taken as unsigned ones that are 128 more.
                    let offset = _mm256_mul_ps(chunk.scale[i], _mm256_set1_ps(128.0));
                    let sum = _mm256_loadu_ps(sums.add(8 * i));
                    acc[i] = _mm256_fnmadd_ps(offset, sum, acc[i]);
                }
            }
            let q = (&raw const (*act).q).cast::<u8>();
            for (i, w) in chunk.q.iter().enumerate() {
                let a = _mm256_loadu_si256(q.add(32 * i).cast());
                let dot = match (T, DOT) {
                    // Signs move to the activations, for which -128 does not occur.
                    (tag::Q8_0, PLAIN) => {
                        Self::dot_unsigned(_mm256_abs_epi8(*w), _mm256_sign_epi8(a, *w))
                    }
                    (tag::Q8_0, _) => {
                        Self::dot_unsigned(_mm256_xor_si256(*w, _mm256_set1_epi8(-128)), a)
                    }
                    _ => Self::dot_unsigned(*w, a),
                };
                let at = 2 * (i % 4) as i32;
                let index = _mm256_setr_epi32(at, at, at, at, at + 1, at + 1, at + 1, at + 1);
                let scale = _mm256_permutevar8x32_ps(scale[i / 4], index);
                acc[i % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[i % 2]);
            }
        }
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m256) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_ps(p, x) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sum(x: __m256) -> f32 {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }

    #[inline(always)]
    unsafe fn convert<const T: u8>(p: *const u8) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe {
            match T {
                tag::F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                tag::BF16 => {
                    let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32(x, 16))
                }
                _ => _mm256_loadu_ps(p.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn from_bytes(p: *const i8) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
        // SAFETY: the trait's contract.
        unsafe {
            // Rows i and i + 4 share a register, so that what is left is 4 x 4 in each half.
            let pair = |i: usize, at: usize| {
                let low = _mm_loadu_ps(src.add(i * src_stride + at));
                let high = _mm_loadu_ps(src.add((i + 4) * src_stride + at));
                _mm256_set_m128(high, low)
            };
            for at in [0, 4] {
                let x: [__m256; 4] = std::array::from_fn(|i| pair(i, at));
                let (a, b) = (_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
                let (c, d) = (_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
                let rows = [
                    _mm256_shuffle_ps(a, c, 0x44),
                    _mm256_shuffle_ps(a, c, 0xee),
                    _mm256_shuffle_ps(b, d, 0x44),
                    _mm256_shuffle_ps(b, d, 0xee),
                ];
                for (i, row) in rows.into_iter().enumerate() {
                    _mm256_storeu_ps(dst.add((at + i) * dst_stride), row);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }

    #[inline(always)]
    unsafe fn block_dot<const G: usize, const FOLD: usize>(
        w: &[__m256i; G],
        a: *const i8,
    ) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe {
            let a = a.cast::<i32>();
            let mut sum = _mm256_setzero_si256();
            for (i, w) in w.chunks(FOLD).enumerate() {
                let mut pairs = _mm256_setzero_si256();
                for (j, w) in w.iter().enumerate() {
                    let a = _mm256_set1_epi32(a.add(FOLD * i + j).read_unaligned());
                    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(*w, a));
                }
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            _mm256_cvtepi32_ps(sum)
        }
    }

    #[inline(always)]
    unsafe fn block_dots<
        const G: usize,
        const FOLD: usize,
        const BIAS: u32,
        const P: usize,
        const C: usize,
    >(
        blocks: [*const u8; P],
        act: ActBlock<G, C>,
    ) -> [[__m256; C]; P] {
        // SAFETY: the trait's contract.
        unsafe {
            if DOT == PLAIN {
                int::dots_apart::<Self, G, FOLD, P, C>(blocks, act)
            } else {
                int::dots_biased::<Self, G, BIAS, P, C>(blocks, act)
            }
        }
    }

    #[inline(always)]
    fn fetch_ahead(p: *const u8) {
        x86::fetch_ahead(p);
    }
}

// SAFETY: as for `Simd`.
unsafe impl<const DOT: u8> Dpbusd for Avx2<DOT> {
    #[inline(always)]
    unsafe fn dpbusd(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the trait's contract; those that `DOT` stands for are among the instructions.
        unsafe {
            if DOT == VNNI {
                return _mm256_dpbusd_avx_epi32(sum, w, a);
            }
            let even = _mm256_madd_epi16(
                _mm256_and_si256(w, _mm256_set1_epi16(255)),
                _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(a, 8));
            _mm256_add_epi32(sum, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn splat_int(x: i32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn from_ints(x: __m256i) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtepi32_ps(x) }
    }
}
