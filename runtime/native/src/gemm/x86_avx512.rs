//! AVX-512 F, BW, VL and DQ, with and without the 8-bit dot products of VNNI.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;

use super::kernels::int::{Form, sums};
use super::kernels::packed::Streams;
use super::kernels::{self, ActTile, Entries, Input, Rows, Simd, entries, entry, methods};
use super::out::Columns;
use super::{ActChunk, Plan, Product, act, tiled, tiles, x86};
use crate::prefetch::Ahead;
use crate::quant::{CHUNK, tag};
use crate::{Isa, ThreadPool};

/// The instruction set, with 8-bit dot products as `DOT` says. A value says that the processor has it.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const DOT: u8>(());

/// Two steps of AVX-512 BW, the first of which saturates at 16 bits.
pub(super) const PLAIN: u8 = 0;
/// The instruction of VNNI.
const VNNI: u8 = 1;
/// What the instruction computes, without it: how tests reach that path on any machine.
#[cfg(test)]
pub(super) const MODEL: u8 = 2;

/// Computes products, with the 8-bit dot products where `isa` has them.
pub(super) fn run(pool: &ThreadPool, isa: Isa, plan: Plan, products: &mut [Product<'_>]) {
    match (plan, isa) {
        (Plan::Ints, Isa::Avx512Vnni) => tiled::run_ints(Avx512::<VNNI>::new(), pool, products),
        (Plan::Ints, _) => tiled::run_ints(Avx512::<PLAIN>::new(), pool, products),
        // Products of floats are those without VNNI.
        _ => tiled::run_floats(Avx512::<PLAIN>::new(), pool, plan, products),
    }
}

/// [`act::quantize_row`] with these instructions.
pub(super) fn quantize(x: &[f32], row: &mut [ActChunk]) {
    assert!(Isa::Avx512.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    act::quantize_row(x, row, |x, chunk| unsafe { quantize_chunk(x, chunk) });
}

/// [`act::quantize_chunk`], operation by operation.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn quantize_chunk(x: &[f32; CHUNK], chunk: &mut ActChunk) {
    // As `if b > a { b } else { a }`, NaN included.
    let larger = |a, b| _mm512_max_ps(b, a);
    let load = |i: usize| {
        // SAFETY: sixteen numbers are there for each `i` below 16.
        unsafe { _mm512_loadu_ps(x.as_ptr().add(16 * i)) }
    };
    let mut amax = [0.0f32; 8];
    for (b, amax) in amax.iter_mut().enumerate() {
        let x = larger(_mm512_abs_ps(load(2 * b)), _mm512_abs_ps(load(2 * b + 1)));
        let x = larger(x, _mm512_shuffle_f32x4(x, x, 0b00_00_11_10));
        let x = larger(x, _mm512_shuffle_f32x4(x, x, 0b00_00_00_01));
        let x = larger(x, _mm512_permute_ps(x, 0b00_00_11_10));
        let x = larger(x, _mm512_permute_ps(x, 0b00_00_00_01));
        *amax = _mm512_cvtss_f32(larger(_mm512_setzero_ps(), x));
    }
    // SAFETY: eight numbers are there.
    let amax = unsafe { _mm256_loadu_ps(amax.as_ptr()) };
    let scale = _mm256_div_ps(amax, _mm256_set1_ps(127.0));
    let largest = _mm512_reduce_max_ps(_mm512_zextps256_ps512(scale));
    let step = act::step_below(largest * act::WIDER);
    let steps = _mm256_ceil_ps(_mm256_mul_ps(scale, _mm256_set1_ps(1.0 / step)));
    let scale = _mm256_mul_ps(steps, _mm256_set1_ps(step));
    let some = _mm256_cmp_ps_mask(scale, _mm256_setzero_ps(), _CMP_GT_OQ);
    let inverse = _mm256_maskz_div_ps(some, _mm256_set1_ps(1.0), scale);
    let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    let scales = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(scale));

    let mut fours = [_mm512_setzero_si512(); 4];
    for (i, fours) in fours.iter_mut().enumerate() {
        for j in 0..4 {
            let block = _mm512_set1_epi32(2 * i as i32 + j / 2);
            let inverse = _mm512_permutexvar_ps(block, _mm512_castps256_ps512(inverse));
            let at = 4 * i + j as usize;
            let sum = _mm512_add_ps(_mm512_mul_ps(load(at), inverse), _mm512_set1_ps(act::ROUNDER));
            let bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(sum));
            // SAFETY: sixteen bytes are there for each `at` below 16.
            unsafe { _mm_storeu_si128(chunk.q.as_mut_ptr().add(16 * at).cast(), bytes) };
        }
        // SAFETY: 64 bytes are there for each `i` below 4.
        let q = unsafe { _mm512_loadu_si512(chunk.q.as_ptr().add(64 * i).cast()) };
        let pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), q);
        *fours = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
    }
    // Adds up the four numbers of each quarter; quarter `l` then holds the sums of all quarters `l`.
    let [a, b, c, d] = fours;
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let total = _mm512_permutexvar_epi32(in_order, sums);
    let sum = _mm512_mul_ps(scales, _mm512_cvtepi32_ps(total));
    let total = _mm512_cvtepi32_epi16(total);
    let block_total = _mm256_madd_epi16(total, _mm256_set1_epi16(1));
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0);
    let block_sum =
        _mm512_add_ps(_mm512_permutexvar_ps(even, sum), _mm512_permutexvar_ps(odd, sum));
    // SAFETY: the arrays have as many elements as the vectors stored to them.
    unsafe {
        _mm512_storeu_ps(chunk.scale.as_mut_ptr(), scales);
        _mm512_storeu_ps(chunk.sum.as_mut_ptr(), sum);
        _mm256_storeu_ps(chunk.block_sum.as_mut_ptr(), _mm512_castps512_ps256(block_sum));
        _mm256_storeu_si256(chunk.total.as_mut_ptr().cast(), total);
        let block_total = _mm256_cvtepi32_epi16(block_total);
        _mm_storeu_si128(chunk.block_total.as_mut_ptr().cast(), block_total);
    }
}

entries!(Avx512<PLAIN>, Isa::Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c");
entries!(
    Avx512<VNNI>,
    Isa::Avx512Vnni,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
);
#[cfg(test)]
entries!(Avx512<MODEL>, Isa::Avx512, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c");

/// [`run`] as a processor with VNNI would.
#[cfg(test)]
pub(super) fn run_model(pool: &ThreadPool, products: &mut [Product<'_>]) {
    tiled::run_ints(Avx512::<MODEL>::new(), pool, products);
}

impl<const DOT: u8> Avx512<DOT> {
    /// Adds to `sum` in each lane four products of a byte of `w`, unsigned, and one of `a`, signed.
    #[inline(always)]
    unsafe fn dpbusd(sum: __m512i, w: __m512i, a: __m512i) -> __m512i {
        // SAFETY: the caller has the instructions that `DOT` stands for.
        unsafe {
            if DOT == VNNI {
                return _mm512_dpbusd_epi32(sum, w, a);
            }
            let even = _mm512_madd_epi16(
                _mm512_and_si512(w, _mm512_set1_epi16(255)),
                _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8),
            );
            let odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(a, 8));
            _mm512_add_epi32(sum, _mm512_add_epi32(even, odd))
        }
    }
}

// SAFETY: every method does what its documentation says with the named instructions, and loads and
// stores no more than that.
unsafe impl<const DOT: u8> Simd for Avx512<DOT> {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const INT_PANELS: usize = 2;
    const INT_COLS: usize = 5;
    const STREAMED_COLS: usize = 32;
    const FLOAT_COLS: usize = 12;
    const QUADS: bool = DOT != PLAIN;
    type F = __m512;
    type B = __m512i;
    type Sum = __m512i;

    methods! {
        fn zero() -> __m512 {
            _mm512_setzero_ps()
        }

        fn splat(x: f32) -> __m512 {
            _mm512_set1_ps(x)
        }

        fn load(p: *const f32) -> __m512 {
            _mm512_loadu_ps(p)
        }

        fn store(p: *mut f32, x: __m512) {
            _mm512_storeu_ps(p, x);
        }

        fn mul(a: __m512, b: __m512) -> __m512 {
            _mm512_mul_ps(a, b)
        }

        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            _mm512_fmadd_ps(a, b, c)
        }

        fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
            _mm512_fnmadd_ps(a, b, c)
        }

        fn sum(x: __m512) -> f32 {
            _mm512_reduce_add_ps(x)
        }

        fn convert<const T: u8>(p: *const u8) -> __m512 {
            match T {
                tag::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
                tag::BF16 => {
                    let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32(x, 16))
                }
                _ => _mm512_loadu_ps(p.cast()),
            }
        }

        fn from_signed(p: *const i8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
        }

        fn from_unsigned(p: *const u8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
        }

        fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
            // Four quarter rows to a register, rows i, i + 4, i + 8 and i + 12, so that what is
            // left is 4 x 4 in each quarter.
            let quarters = |i: usize, at: usize| {
                let part = |row: usize| _mm_loadu_ps(src.add((i + 4 * row) * src_stride + at));
                let x = _mm512_castps128_ps512(part(0));
                let x = _mm512_insertf32x4(x, part(1), 1);
                let x = _mm512_insertf32x4(x, part(2), 2);
                _mm512_insertf32x4(x, part(3), 3)
            };
            for at in [0, 4, 8, 12] {
                let x: [__m512; 4] = std::array::from_fn(|i| quarters(i, at));
                let (a, b) = (_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
                let (c, d) = (_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
                let rows = [
                    _mm512_shuffle_ps(a, c, 0x44),
                    _mm512_shuffle_ps(a, c, 0xee),
                    _mm512_shuffle_ps(b, d, 0x44),
                    _mm512_shuffle_ps(b, d, 0xee),
                ];
                for (i, row) in rows.into_iter().enumerate() {
                    _mm512_storeu_ps(dst.add((at + i) * dst_stride), row);
                }
            }
        }

        fn load_bytes(p: *const u8) -> __m512i {
            _mm512_loadu_si512(p.cast())
        }

        fn store_bytes(p: *mut u8, x: __m512i) {
            _mm512_storeu_si512(p.cast(), x);
        }

        fn splat_int(x: i32) -> __m512i {
            _mm512_set1_epi32(x)
        }

        fn and(a: __m512i, b: __m512i) -> __m512i {
            _mm512_and_si512(a, b)
        }

        fn or(a: __m512i, b: __m512i) -> __m512i {
            _mm512_or_si512(a, b)
        }

        fn shift(x: __m512i, by: i32) -> __m512i {
            let count = _mm_cvtsi32_si128(by.abs());
            if by < 0 { _mm512_srl_epi16(x, count) } else { _mm512_sll_epi16(x, count) }
        }

        fn sub_bytes(a: __m512i, b: __m512i) -> __m512i {
            _mm512_sub_epi8(a, b)
        }

        fn start(word: i32) -> __m512i {
            _mm512_set1_epi32(word)
        }

        fn add_products(kind: u8, sum: __m512i, w: __m512i, a: __m512i) -> __m512i {
            match kind {
                sums::QUADS => Self::dpbusd(sum, w, a),
                sums::PAIRS => pinned(_mm512_add_epi16(sum, _mm512_maddubs_epi16(w, a))),
                _ => pinned(_mm512_add_epi32(sum, _mm512_madd_epi16(w, a))),
            }
        }

        fn total(kind: u8, sum: __m512i) -> __m512 {
            _mm512_cvtepi32_ps(match kind {
                sums::PAIRS => _mm512_madd_epi16(sum, _mm512_set1_epi16(1)),
                _ => sum,
            })
        }
    }

    #[inline(always)]
    fn fetch_ahead(p: *const u8, ahead: Ahead) {
        x86::fetch_ahead(p, ahead);
    }
}

/// The same vector, which compilers do not know to be: they regroup long chains of sums, and then run
/// out of registers (40 instead of 120 thousand million products in a second).
#[inline]
#[target_feature(enable = "avx512f")]
fn pinned(x: __m512i) -> __m512i {
    let mut x = x;
    // SAFETY: there are no instructions in it.
    unsafe { asm!("/* {0} */", inout(zmm_reg) x, options(nomem, nostack, preserves_flags)) };
    x
}
