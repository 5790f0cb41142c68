//! AVX2, FMA and F16C, with and without the 8-bit dot products of AVX-VNNI.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;

use super::kernels::int::{Form, sums};
use super::kernels::packed::Streams;
use super::kernels::{self, ActTile, Entries, Input, Rows, Simd, entries, entry, methods, unroll};
use super::out::Columns;
use super::{ActChunk, Plan, Product, act, tiled, tiles, x86};
use crate::prefetch::Ahead;
use crate::quant::{CHUNK, tag};
use crate::{Isa, ThreadPool};

/// The instruction set, with 8-bit dot products as `DOT` says. A value says that the processor has it.
#[derive(Clone, Copy)]
struct Avx2<const DOT: u8>(());

/// Two steps of AVX2, the first of which saturates at 16 bits.
const PLAIN: u8 = 0;
/// The instruction of AVX-VNNI.
const VNNI: u8 = 1;
/// What the instruction computes, without it: how tests reach that path on any machine.
#[cfg(test)]
const MODEL: u8 = 2;

/// Computes products, with the 8-bit dot products where `isa` has them.
pub(super) fn run(pool: &ThreadPool, isa: Isa, plan: Plan, products: &mut [Product<'_>]) {
    match (plan, isa) {
        (Plan::Ints, Isa::Avx2Vnni) => tiled::run_ints(Avx2::<VNNI>::new(), pool, products),
        (Plan::Ints, _) => tiled::run_ints(Avx2::<PLAIN>::new(), pool, products),
        // Products of floats are those without VNNI.
        _ => tiled::run_floats(Avx2::<PLAIN>::new(), pool, plan, products),
    }
}

/// [`act::quantize_row`] with these instructions.
pub(super) fn quantize(x: &[f32], row: &mut [ActChunk]) {
    assert!(Isa::Avx2.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    act::quantize_row(x, row, |x, chunk| unsafe { quantize_chunk(x, chunk) });
}

/// [`act::quantize_chunk`], operation by operation: what a compiler makes of that with AVX2 takes seven times as long.
#[target_feature(enable = "avx2")]
fn quantize_chunk(x: &[f32; CHUNK], chunk: &mut ActChunk) {
    // As `if b > a { b } else { a }`, NaN included.
    let larger = |a, b| _mm256_max_ps(b, a);
    let load = |i: usize| {
        // SAFETY: eight numbers are there for each `i` below 32.
        unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) }
    };
    let magnitude = |i| _mm256_andnot_ps(_mm256_set1_ps(-0.0), load(i));
    let mut amax = [0.0f32; 8];
    for (b, amax) in amax.iter_mut().enumerate() {
        let low = larger(magnitude(4 * b), magnitude(4 * b + 2));
        let high = larger(magnitude(4 * b + 1), magnitude(4 * b + 3));
        let x = larger(low, high);
        let larger = |a, b| _mm_max_ps(b, a);
        let x = larger(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = larger(x, _mm_movehl_ps(x, x));
        let x = larger(x, _mm_movehdup_ps(x));
        *amax = _mm_cvtss_f32(larger(_mm_setzero_ps(), x));
    }
    // SAFETY: eight numbers are there.
    let amax = unsafe { _mm256_loadu_ps(amax.as_ptr()) };
    let scale = _mm256_div_ps(amax, _mm256_set1_ps(127.0));
    let x = larger(scale, _mm256_permute2f128_ps::<0x01>(scale, scale));
    let x = larger(x, _mm256_permute_ps::<0b01_00_11_10>(x));
    let x = larger(x, _mm256_permute_ps::<0b10_11_00_01>(x));
    let step = act::step_below(_mm256_cvtss_f32(x) * act::WIDER);
    let steps = _mm256_ceil_ps(_mm256_mul_ps(scale, _mm256_set1_ps(1.0 / step)));
    let scale = _mm256_mul_ps(steps, _mm256_set1_ps(step));
    let some = _mm256_cmp_ps::<_CMP_GT_OQ>(scale, _mm256_setzero_ps());
    let inverse = _mm256_and_ps(some, _mm256_div_ps(_mm256_set1_ps(1.0), scale));

    // The low bytes of eight numbers, as the `i`th word of each half.
    let words = |i: usize| {
        let (mut order, low) = ([-1i8; 32], [0, 4, 8, 12]);
        order[4 * i..4 * i + 4].copy_from_slice(&low);
        order[16 + 4 * i..20 + 4 * i].copy_from_slice(&low);
        // SAFETY: 32 bytes are there.
        unsafe { _mm256_loadu_si256(order.as_ptr().cast()) }
    };
    let words = [words(0), words(1), words(2), words(3)];
    let halves_in_turn = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let mut fours = [_mm256_setzero_si256(); 8];
    for (b, fours) in fours.iter_mut().enumerate() {
        let inverse = _mm256_permutevar8x32_ps(inverse, _mm256_set1_epi32(b as i32));
        let mut q = _mm256_setzero_si256();
        for (i, words) in words.iter().enumerate() {
            let scaled = _mm256_mul_ps(load(4 * b + i), inverse);
            let sum = _mm256_add_ps(scaled, _mm256_set1_ps(act::ROUNDER));
            q = _mm256_or_si256(q, _mm256_shuffle_epi8(_mm256_castps_si256(sum), *words));
        }
        let q = _mm256_permutevar8x32_epi32(q, halves_in_turn);
        // SAFETY: 32 bytes are there for each `b` below 8.
        unsafe { _mm256_storeu_si256(chunk.q.as_mut_ptr().add(32 * b).cast(), q) };
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        *fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    let store = |to: *mut f32, x| {
        // SAFETY: only called with places of eight numbers.
        unsafe { _mm256_storeu_ps(to, x) };
    };
    let mut totals = [_mm256_setzero_si256(); 2];
    let mut sums = [_mm256_setzero_ps(); 2];
    for (i, fours) in fours.as_chunks::<4>().0.iter().enumerate() {
        let [a, b, c, d] = *fours;
        // The first halves of four blocks, then their second ones.
        let total = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        totals[i] = _mm256_permutevar8x32_epi32(total, halves_in_turn);
        let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        let twice = _mm256_add_epi32(twice, _mm256_set1_epi32(4 * i as i32));
        let scales = _mm256_permutevar8x32_ps(scale, twice);
        sums[i] = _mm256_mul_ps(scales, _mm256_cvtepi32_ps(totals[i]));
        store(chunk.scale[8 * i..][..8].as_mut_ptr(), scales);
        store(chunk.sum[8 * i..][..8].as_mut_ptr(), sums[i]);
    }
    let block_sum = _mm256_castps_pd(_mm256_hadd_ps(sums[0], sums[1]));
    store(
        chunk.block_sum.as_mut_ptr(),
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(block_sum)),
    );
    let total = _mm256_packs_epi32(totals[0], totals[1]);
    let total = _mm256_permute4x64_epi64::<0b11_01_10_00>(total);
    let block_total = _mm256_madd_epi16(total, _mm256_set1_epi16(1));
    let block_total = _mm256_packs_epi32(block_total, block_total);
    let block_total = _mm256_permute4x64_epi64::<0b11_01_10_00>(block_total);
    // SAFETY: the arrays have as many elements as the vectors stored to them.
    unsafe {
        _mm256_storeu_si256(chunk.total.as_mut_ptr().cast(), total);
        let block_total = _mm256_castsi256_si128(block_total);
        _mm_storeu_si128(chunk.block_total.as_mut_ptr().cast(), block_total);
    }
}

entries!(Avx2<PLAIN>, Isa::Avx2, "avx2,fma,f16c");
entries!(Avx2<VNNI>, Isa::Avx2Vnni, "avx2,fma,f16c,avxvnni");
#[cfg(test)]
entries!(Avx2<MODEL>, Isa::Avx2, "avx2,fma,f16c");

/// [`run`] as a processor with AVX-VNNI would.
#[cfg(test)]
pub(super) fn run_model(pool: &ThreadPool, products: &mut [Product<'_>]) {
    tiled::run_ints(Avx2::<MODEL>::new(), pool, products);
}

impl<const DOT: u8> Avx2<DOT> {
    /// Adds to `sum` in each lane four products of a byte of `w`, unsigned, and one of `a`, signed.
    #[inline(always)]
    unsafe fn dpbusd(sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions that `DOT` stands for.
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
}

// SAFETY: every method does what its documentation says with the named instructions, and loads and
// stores no more than that.
unsafe impl<const DOT: u8> Simd for Avx2<DOT> {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const INT_PANELS: usize = 2;
    const INT_COLS: usize = if DOT == PLAIN { 6 } else { 4 };
    const STREAMED_COLS: usize = 16;
    const STREAMED_WIDTHS: &'static [usize] =
        if DOT == PLAIN { &[8, 6, 5, 4, 3, 2, 1] } else { &[8, 4, 2, 1] };
    const FLOAT_COLS: usize = 6;
    const QUADS: bool = DOT != PLAIN;
    const FLOAT_SUMS: bool = DOT == PLAIN;
    const SCALED: bool = DOT == PLAIN;
    const STRASSEN: bool = DOT == PLAIN;
    type F = __m256;
    type B = __m256i;
    type Sum = __m256i;

    methods! {
        fn zero() -> __m256 {
            _mm256_setzero_ps()
        }

        fn splat(x: f32) -> __m256 {
            _mm256_set1_ps(x)
        }

        fn load(p: *const f32) -> __m256 {
            _mm256_loadu_ps(p)
        }

        fn store(p: *mut f32, x: __m256) {
            _mm256_storeu_ps(p, x);
        }

        fn mul(a: __m256, b: __m256) -> __m256 {
            _mm256_mul_ps(a, b)
        }

        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            _mm256_fmadd_ps(a, b, c)
        }

        fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 {
            _mm256_fnmadd_ps(a, b, c)
        }

        fn sum(x: __m256) -> f32 {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }

        fn convert<const T: u8>(p: *const u8) -> __m256 {
            match T {
                tag::F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                tag::BF16 => {
                    let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32(x, 16))
                }
                _ => _mm256_loadu_ps(p.cast()),
            }
        }

        fn from_signed(p: *const i8) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))
        }

        fn from_unsigned(p: *const u8) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())))
        }

        fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
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

        fn load_bytes(p: *const u8) -> __m256i {
            _mm256_loadu_si256(p.cast())
        }

        fn store_bytes(p: *mut u8, x: __m256i) {
            _mm256_storeu_si256(p.cast(), x);
        }

        fn splat_int(x: i32) -> __m256i {
            _mm256_set1_epi32(x)
        }

        fn and(a: __m256i, b: __m256i) -> __m256i {
            _mm256_and_si256(a, b)
        }

        fn or(a: __m256i, b: __m256i) -> __m256i {
            _mm256_or_si256(a, b)
        }

        fn shift(x: __m256i, by: i32) -> __m256i {
            let count = _mm_cvtsi32_si128(by.abs());
            if by < 0 { _mm256_srl_epi16(x, count) } else { _mm256_sll_epi16(x, count) }
        }

        fn sub_bytes(a: __m256i, b: __m256i) -> __m256i {
            _mm256_sub_epi8(a, b)
        }

        fn sub_halves(a: __m256i, b: __m256i) -> __m256i {
            _mm256_sub_epi16(a, b)
        }

        fn start(word: i32) -> __m256i {
            _mm256_set1_epi32(word)
        }

        fn add_products(kind: u8, sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
            match kind {
                sums::QUADS => Self::dpbusd(sum, w, a),
                sums::PAIRS => pinned(_mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a))),
                sums::FLOATS => {
                    let products = _mm256_castsi256_ps(_mm256_madd_epi16(w, a));
                    let sum = _mm256_add_ps(_mm256_castsi256_ps(sum), products);
                    pinned(_mm256_castps_si256(sum))
                }
                _ => pinned(_mm256_add_epi32(sum, _mm256_madd_epi16(w, a))),
            }
        }

        fn less(sum: __m256i, extra: __m256i) -> __m256i {
            _mm256_sub_epi32(sum, extra)
        }

        fn sub_sums(a: __m256i, b: __m256i) -> __m256i {
            _mm256_sub_epi32(a, b)
        }

        fn arrange(block: *mut u8, groups: usize) {
            if Self::FLOAT_SUMS && groups == 16 {
                // (w - 128) * (a - 128) = w * a - 128 * w - 128 * (a - 128): sums start at what the last term makes
                // of the activations, and this is the rest.
                let mut extra = _mm256_set1_epi32(sums::FLOATS_START);
                for group in 0..groups {
                    let w = _mm256_loadu_si256(block.add(32 * group).cast());
                    extra = _mm256_add_epi32(extra, _mm256_madd_epi16(w, _mm256_set1_epi16(128)));
                }
                _mm256_storeu_si256(block.add(32 * (groups + 1)).cast(), extra);
            }
        }

        fn factors(a: *const u8, b: *const u8) -> __m256i {
            let in_turn = _mm_unpacklo_epi8(_mm_loadl_epi64(a.cast()), _mm_loadl_epi64(b.cast()));
            _mm256_cvtepu8_epi16(in_turn)
        }

        fn add_scaled(sum: __m256i, of_block: __m256i, a: __m256i, b: __m256i) -> __m256i {
            _mm256_add_epi32(sum, _mm256_madd_epi16(of_block, _mm256_mullo_epi16(a, b)))
        }

        fn total(kind: u8, sum: __m256i) -> __m256 {
            _mm256_cvtepi32_ps(match kind {
                sums::PAIRS => _mm256_madd_epi16(sum, _mm256_set1_epi16(1)),
                _ => sum,
            })
        }
    }

    #[inline(always)]
    unsafe fn add_row<const P: usize, const C: usize>(
        kind: u8,
        sums: &mut [[__m256i; C]; P],
        i: usize,
        w: [__m256i; P],
        a: __m256i,
    ) {
        // SAFETY: the contract is the same.
        unsafe {
            if P == 2 && kind != sums::QUADS {
                let both = [sums[0][i], sums[P - 1][i]];
                [sums[0][i], sums[P - 1][i]] = add_both(kind, both, [w[0], w[P - 1]], a);
                return;
            }
            unroll!(p < P, 2 { sums[p][i] = Self::add_products(kind, sums[p][i], w[p], a); });
        }
    }

    fn sums_in_tiles() -> u8 {
        x86::sums_in_tiles()
    }

    #[inline(always)]
    fn fetch_ahead(p: *const u8, ahead: Ahead) {
        x86::fetch_ahead(p, ahead);
    }
}

/// The same vector, which compilers do not know to be: they regroup long chains of sums, and then run
/// out of registers (40 instead of 120 thousand million products in a second).
#[inline]
#[target_feature(enable = "avx2")]
fn pinned(x: __m256i) -> __m256i {
    let mut x = x;
    // SAFETY: there are no instructions in it.
    unsafe { asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags)) };
    x
}

/// Sums of a kind other than [`sums::QUADS`] with the products of two vectors of weights and the same activations.
///
/// Both are multiplied before either is added: where the sum comes between, a Zen 4 takes 1.1 times as long. Compilers
/// may not move what they load past it, which they would until registers run out.
#[inline]
#[target_feature(enable = "avx2")]
fn add_both(kind: u8, sums: [__m256i; 2], w: [__m256i; 2], a: __m256i) -> [__m256i; 2] {
    let [mut first, mut second] = sums;
    macro_rules! multiply_and_add {
        ($multiply:literal, $add:literal) => {
            // SAFETY: the instructions are enabled, and all that they change is registers.
            unsafe {
                asm!(
                    concat!($multiply, " {products}, {w0}, {a}"),
                    concat!($multiply, " {a}, {w1}, {a}"),
                    concat!($add, " {first}, {first}, {products}"),
                    concat!($add, " {second}, {second}, {a}"),
                    w0 = in(ymm_reg) w[0],
                    w1 = in(ymm_reg) w[1],
                    a = inout(ymm_reg) a => _,
                    products = out(ymm_reg) _,
                    first = inout(ymm_reg) first,
                    second = inout(ymm_reg) second,
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    match kind {
        sums::PAIRS => multiply_and_add!("vpmaddubsw", "vpaddw"),
        sums::FLOATS => multiply_and_add!("vpmaddwd", "vaddps"),
        _ => multiply_and_add!("vpmaddwd", "vpaddd"),
    }
    [first, second]
}
