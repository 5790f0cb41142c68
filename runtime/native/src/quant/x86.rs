//! Unpacking with AVX2 and AVX-512: the layouts of [`super::layout`], a chunk at a time.
//!
//! Every function here is inlined into a caller that enables its instructions; none checks for
//! them. Loads are unaligned and stay inside the chunk.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use ruvllm_abi::DType;

use super::{CHUNK, GROUP, chunk_bytes, dequantize, dequantize_scalar, tag};

/// An unpacked chunk in AVX2 registers, as [`Unpacked`].
#[derive(Clone, Copy)]
pub(crate) struct Chunk256 {
    pub(crate) q: [__m256i; 8],
    pub(crate) scale: [__m256; 2],
    pub(crate) offset: [__m256; 2],
}

/// An unpacked chunk in AVX-512 registers, as [`Unpacked`].
#[derive(Clone, Copy)]
pub(crate) struct Chunk512 {
    pub(crate) q: [__m512i; 4],
    pub(crate) scale: __m512,
    pub(crate) offset: __m512,
}

/// The f16 at the start of each of eight blocks of `STRIDE` bytes.
#[inline(always)]
unsafe fn halves<const STRIDE: usize>(p: *const u8) -> __m256 {
    // SAFETY: the caller has AVX2 and F16C, and eight blocks at `p`.
    unsafe {
        let at = |i: usize| u64::from(p.add(i * STRIDE).cast::<u16>().read_unaligned());
        let low = at(0) | at(1) << 16 | at(2) << 32 | at(3) << 48;
        let high = at(4) | at(5) << 16 | at(6) << 32 | at(7) << 48;
        _mm256_cvtph_ps(_mm_set_epi64x(high.cast_signed(), low.cast_signed()))
    }
}

/// One f16 in every lane.
#[inline(always)]
unsafe fn half_everywhere(p: *const u8) -> __m256 {
    // SAFETY: the caller has AVX2 and F16C, and two bytes at `p`.
    unsafe { _mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned())) }
}

/// Each of eight values twice: a scale per 32 elements as one per 16.
#[inline(always)]
unsafe fn twice(x: __m256) -> [__m256; 2] {
    // SAFETY: the caller has AVX2.
    unsafe {
        [
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)),
        ]
    }
}

/// [`twice`] in one register.
#[inline(always)]
unsafe fn twice_512(x: __m256) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        _mm512_permutexvar_ps(index, _mm512_castps256_ps512(x))
    }
}

/// Low nibbles of 16 bytes, then their high ones.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: the caller has AVX2 and 16 bytes at `p`.
    unsafe {
        let x = _mm_loadu_si128(p.cast());
        let x = _mm256_set_m128i(_mm_srli_epi16(x, 4), x);
        _mm256_and_si256(x, _mm256_set1_epi8(15))
    }
}

/// 16 in every byte whose bit is set.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: the caller has AVX2 and four bytes at `p`.
    unsafe {
        let x = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        let lane = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
        let x = _mm256_and_si256(_mm256_shuffle_epi8(x, lane), bit);
        _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(16))
    }
}

/// Scales and offsets of `Q4_K` and `Q5_K`, one per sub-block of 32.
#[inline(always)]
unsafe fn k_scales(p: *const u8) -> (__m256, __m256) {
    // SAFETY: the caller has AVX2 and F16C, and 16 bytes at `p`.
    unsafe {
        let word = |i: usize| p.add(4 + 4 * i).cast::<u32>().read_unaligned();
        let (a, b, c) = (word(0), word(1), word(2));
        let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
        let scales = [a & six, c & four | (a >> 6 & two) << 4];
        let mins = [b & six, c >> 4 & four | (b >> 6 & two) << 4];
        let float = |x: [u32; 2]| {
            let x = u64::from(x[0]) | u64::from(x[1]) << 32;
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x.cast_signed())))
        };
        (
            _mm256_mul_ps(half_everywhere(p), float(scales)),
            _mm256_mul_ps(half_everywhere(p.add(2)), float(mins)),
        )
    }
}

/// Unpacks the chunk at `p` of the format `T`.
///
/// # Safety
/// The processor has AVX2, FMA and F16C, and [`chunk_bytes`] of the format can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn unpack_256<const T: u8>(p: *const u8) -> Chunk256 {
    // SAFETY: the caller's contract; every offset below is inside the chunk.
    unsafe {
        let zero = _mm256_setzero_ps();
        let negated = |x| _mm256_sub_ps(zero, x);
        let mut q = [_mm256_setzero_si256(); 8];
        let (scale, offset) = match T {
            tag::Q8_0 => {
                for (i, q) in q.iter_mut().enumerate() {
                    *q = _mm256_loadu_si256(p.add(34 * i + 2).cast());
                }
                (halves::<34>(p), zero)
            }
            tag::Q4_0 => {
                for (i, q) in q.iter_mut().enumerate() {
                    *q = nibbles(p.add(18 * i + 2));
                }
                let d = halves::<18>(p);
                (d, _mm256_mul_ps(d, _mm256_set1_ps(8.0)))
            }
            tag::Q4_1 => {
                for (i, q) in q.iter_mut().enumerate() {
                    *q = nibbles(p.add(20 * i + 4));
                }
                (halves::<20>(p), negated(halves::<20>(p.add(2))))
            }
            tag::Q5_0 => {
                for (i, q) in q.iter_mut().enumerate() {
                    let block = p.add(22 * i);
                    *q = _mm256_or_si256(nibbles(block.add(6)), fifth_bits(block.add(2)));
                }
                let d = halves::<22>(p);
                (d, _mm256_mul_ps(d, _mm256_set1_ps(16.0)))
            }
            tag::Q5_1 => {
                for (i, q) in q.iter_mut().enumerate() {
                    let block = p.add(24 * i);
                    *q = _mm256_or_si256(nibbles(block.add(8)), fifth_bits(block.add(4)));
                }
                (halves::<24>(p), negated(halves::<24>(p.add(2))))
            }
            tag::Q4_K => {
                let mask = _mm256_set1_epi8(15);
                for i in 0..4 {
                    let x = _mm256_loadu_si256(p.add(16 + 32 * i).cast());
                    q[2 * i] = _mm256_and_si256(x, mask);
                    q[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(x, 4), mask);
                }
                k_scales(p)
            }
            tag::Q5_K => {
                let (mask, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
                let high = _mm256_loadu_si256(p.add(16).cast());
                for i in 0..4 {
                    let x = _mm256_loadu_si256(p.add(48 + 32 * i).cast());
                    // Bit 2i of `high` to bit 4, and bit 2i + 1.
                    let count = |n: i64| _mm_cvtsi64_si128(n);
                    let at = 2 * i as i64;
                    let even = _mm256_srl_epi16(_mm256_slli_epi16(high, 4), count(at));
                    let odd = _mm256_srl_epi16(_mm256_slli_epi16(high, 3), count(at));
                    // The shifts work on 16 bits; `slli` first would lose the top bits, so the
                    // upper pairs come from a right shift alone.
                    let (even, odd) = if i < 2 {
                        (even, odd)
                    } else {
                        (
                            _mm256_srl_epi16(high, count(at - 4)),
                            _mm256_srl_epi16(high, count(at - 3)),
                        )
                    };
                    let low = _mm256_and_si256(x, mask);
                    let upper = _mm256_and_si256(_mm256_srli_epi16(x, 4), mask);
                    q[2 * i] = _mm256_or_si256(low, _mm256_and_si256(even, fifth));
                    q[2 * i + 1] = _mm256_or_si256(upper, _mm256_and_si256(odd, fifth));
                }
                k_scales(p)
            }
            _ => {
                let (mask, high_mask) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
                for half in 0..2 {
                    let low0 = _mm256_loadu_si256(p.add(64 * half).cast());
                    let low1 = _mm256_loadu_si256(p.add(64 * half + 32).cast());
                    let high = _mm256_loadu_si256(p.add(128 + 32 * half).cast());
                    let join = |low, high| {
                        _mm256_or_si256(
                            _mm256_and_si256(low, mask),
                            _mm256_and_si256(high, high_mask),
                        )
                    };
                    q[4 * half] = join(low0, _mm256_slli_epi16(high, 4));
                    q[4 * half + 1] = join(low1, _mm256_slli_epi16(high, 2));
                    q[4 * half + 2] = join(_mm256_srli_epi16(low0, 4), high);
                    q[4 * half + 3] = join(_mm256_srli_epi16(low1, 4), _mm256_srli_epi16(high, 2));
                }
                let d = half_everywhere(p.add(208));
                let scale = |at: usize| {
                    let x = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(at).cast()));
                    _mm256_mul_ps(d, _mm256_cvtepi32_ps(x))
                };
                let scale = [scale(192), scale(200)];
                let offset = scale.map(|x| _mm256_mul_ps(x, _mm256_set1_ps(32.0)));
                return Chunk256 { q, scale, offset };
            }
        };
        Chunk256 { q, scale: twice(scale), offset: twice(offset) }
    }
}

/// The scales and offsets of `Q4_K` and `Q5_K` as [`Unpacked`] has them.
#[inline(always)]
unsafe fn k_scales_512(p: *const u8) -> (__m512, __m512) {
    // SAFETY: the caller has AVX-512 F, BW and VL, and 16 bytes at `p`.
    unsafe {
        // d, dmin, then bytes a0-a3, b0-b3, c0-c3: scales are a & 63 and c & 15 | a >> 6 << 4, mins
        // b & 63 and c >> 4 | b >> 6 << 4.
        let x = _mm_loadu_si128(p.cast());
        let low = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
        let low = _mm_srlv_epi32(_mm_shuffle_epi8(x, low), _mm_setr_epi32(0, 0, 0, 4));
        let low =
            _mm_and_si128(low, _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f));
        let high = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11);
        let high = _mm_srli_epi16(_mm_shuffle_epi8(x, high), 2);
        let high = _mm_and_si128(high, _mm_set1_epi8(0x30));
        let both = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_or_si128(low, high)));
        let d = _mm512_cvtph_ps(_mm256_set1_epi32(p.cast::<i32>().read_unaligned()));
        let d = _mm512_permutexvar_ps(
            _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
            d,
        );
        let both = _mm512_mul_ps(d, both);
        let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        let upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
        (_mm512_permutexvar_ps(twice, both), _mm512_permutexvar_ps(upper, both))
    }
}

/// Unpacks the chunk at `p` of the format `T`.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL and DQ besides what [`unpack_256`] needs, and
/// [`chunk_bytes`] of the format can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn unpack_512<const T: u8>(p: *const u8) -> Chunk512 {
    // SAFETY: the caller's contract; every offset below is inside the chunk.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        // Shifts the upper half of a register, where a copy of the same bytes lies, by a nibble.
        let upper_by_4 = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
        let mut q = [_mm512_setzero_si512(); 4];
        match T {
            tag::Q4_0 => {
                let odd_by_4 = _mm512_broadcast_i32x8(_mm256_set_m128i(
                    _mm_set1_epi16(4),
                    _mm_setzero_si128(),
                ));
                for (i, q) in q.iter_mut().enumerate() {
                    let block = p.add(36 * i);
                    let first = _mm512_broadcast_i64x2(_mm_loadu_si128(block.add(2).cast()));
                    let second = _mm_loadu_si128(block.add(20).cast());
                    let x = _mm512_mask_broadcast_i64x2(first, 0xf0, second);
                    *q = _mm512_and_si512(_mm512_srlv_epi16(x, odd_by_4), mask);
                }
                let scale = twice_512(halves::<18>(p));
                let offset = _mm512_mul_ps(scale, _mm512_set1_ps(8.0));
                Chunk512 { q, scale, offset }
            }
            tag::Q4_K => {
                for (i, q) in q.iter_mut().enumerate() {
                    let x = _mm256_loadu_si256(p.add(16 + 32 * i).cast());
                    let x = _mm512_srlv_epi16(_mm512_broadcast_i64x4(x), upper_by_4);
                    *q = _mm512_and_si512(x, mask);
                }
                let (scale, offset) = k_scales_512(p);
                Chunk512 { q, scale, offset }
            }
            tag::Q6_K => {
                let high_mask = _mm512_set1_epi8(48);
                let both = |low, high| {
                    _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1)
                };
                let (left, right) = (both(4, 2), both(0, 2));
                for half in 0..2 {
                    let low = _mm512_loadu_si512(p.add(64 * half).cast());
                    let high = _mm256_loadu_si256(p.add(128 + 32 * half).cast());
                    let high = _mm512_broadcast_i64x4(high);
                    let join = |low, high| {
                        _mm512_or_si512(
                            _mm512_and_si512(low, mask),
                            _mm512_and_si512(high, high_mask),
                        )
                    };
                    q[2 * half] = join(low, _mm512_sllv_epi16(high, left));
                    q[2 * half + 1] =
                        join(_mm512_srli_epi16(low, 4), _mm512_srlv_epi16(high, right));
                }
                let d = _mm512_broadcast_f32x8(half_everywhere(p.add(208)));
                let scale = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(192).cast()));
                let scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale));
                let offset = _mm512_mul_ps(scale, _mm512_set1_ps(32.0));
                Chunk512 { q, scale, offset }
            }
            _ => {
                let half = unpack_256::<T>(p);
                for (i, q) in q.iter_mut().enumerate() {
                    let low = _mm512_castsi256_si512(half.q[2 * i]);
                    *q = _mm512_inserti64x4(low, half.q[2 * i + 1], 1);
                }
                let join =
                    |x: [__m256; 2]| _mm512_insertf32x8(_mm512_castps256_ps512(x[0]), x[1], 1);
                Chunk512 { q, scale: join(half.scale), offset: join(half.offset) }
            }
        }
    }
}

/// The numbers of an unpacked chunk.
///
/// # Safety
/// As [`unpack_256`].
#[inline(always)]
unsafe fn expand_256(chunk: &Chunk256, y: &mut [f32; CHUNK]) {
    let groups = y.as_chunks_mut::<GROUP>().0.iter_mut().enumerate();
    // SAFETY: the caller has AVX2; a group is two vectors of numbers.
    unsafe {
        for (group, y) in groups {
            let q = chunk.q[group / 2];
            let q = match group % 2 {
                0 => _mm256_castsi256_si128(q),
                _ => _mm256_extracti128_si256(q, 1),
            };
            let lane = _mm256_set1_epi32((group % 8) as i32);
            let scale = _mm256_permutevar8x32_ps(chunk.scale[group / 8], lane);
            let offset = _mm256_permutevar8x32_ps(chunk.offset[group / 8], lane);
            for (half, q) in [q, _mm_unpackhi_epi64(q, q)].into_iter().enumerate() {
                let x = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
                let x = _mm256_sub_ps(_mm256_mul_ps(scale, x), offset);
                _mm256_storeu_ps(y.as_mut_ptr().add(8 * half), x);
            }
        }
    }
}

/// [`expand_256`] of a chunk in wider registers.
///
/// # Safety
/// As [`unpack_512`].
#[inline(always)]
unsafe fn expand_512(chunk: &Chunk512, y: &mut [f32; CHUNK]) {
    let groups = y.as_chunks_mut::<GROUP>().0.iter_mut().enumerate();
    // SAFETY: the caller has AVX-512 F; a group is one vector of numbers.
    unsafe {
        for (group, y) in groups {
            let q = chunk.q[group / 4];
            let q = match group % 4 {
                0 => _mm512_castsi512_si128(q),
                1 => _mm512_extracti32x4_epi32(q, 1),
                2 => _mm512_extracti32x4_epi32(q, 2),
                _ => _mm512_extracti32x4_epi32(q, 3),
            };
            let lane = _mm512_set1_epi32(group as i32);
            let scale = _mm512_permutexvar_ps(lane, chunk.scale);
            let offset = _mm512_permutexvar_ps(lane, chunk.offset);
            let x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
            let x = _mm512_sub_ps(_mm512_mul_ps(scale, x), offset);
            _mm512_storeu_ps(y.as_mut_ptr(), x);
        }
    }
}

/// Calls `$f::<T>` for the blocked type `$dtype`.
macro_rules! by_format {
    ($dtype:expr, $f:ident($($arg:expr),*)) => {
        match $dtype {
            DType::Q8_0 => $f::<{ tag::Q8_0 }>($($arg),*),
            DType::Q4_0 => $f::<{ tag::Q4_0 }>($($arg),*),
            DType::Q4_1 => $f::<{ tag::Q4_1 }>($($arg),*),
            DType::Q5_0 => $f::<{ tag::Q5_0 }>($($arg),*),
            DType::Q5_1 => $f::<{ tag::Q5_1 }>($($arg),*),
            DType::Q4_K => $f::<{ tag::Q4_K }>($($arg),*),
            DType::Q5_K => $f::<{ tag::Q5_K }>($($arg),*),
            _ => $f::<{ tag::Q6_K }>($($arg),*),
        }
    };
}

/// [`dequantize`] of `F16` with F16C; sizes are checked by the caller, who passes an available `Isa`.
pub(crate) fn dequantize_f16(src: &[u8], dst: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn run(src: &[u8], dst: &mut [f32]) {
        let (vectors, rest) = dst.as_chunks_mut::<8>();
        let (halves, last) = src.as_chunks::<16>();
        for (y, x) in vectors.iter_mut().zip(halves) {
            // SAFETY: `x` is eight numbers of 16 bits, `y` eight of 32.
            unsafe {
                _mm256_storeu_ps(
                    y.as_mut_ptr(),
                    _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
                );
            }
        }
        dequantize_scalar(DType::F16, last, rest);
    }
    if !crate::Isa::Avx2.is_available() {
        return dequantize_scalar(DType::F16, src, dst);
    }
    // SAFETY: AVX2, FMA and F16C were just found.
    unsafe { run(src, dst) }
}

/// [`dequantize`] with AVX2; sizes are checked by the caller, who passes an available `Isa`.
pub(crate) fn dequantize_avx2(dtype: DType, src: &[u8], dst: &mut [f32]) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn run<const T: u8>(dtype: DType, src: &[u8], dst: &mut [f32]) {
        dequantize(dtype, src, dst, |chunk, y| {
            debug_assert_eq!(chunk.len(), chunk_bytes(dtype));
            // SAFETY: this function has the instructions; `chunk` is one chunk of the format.
            unsafe { expand_256(&unpack_256::<T>(chunk.as_ptr()), y) };
        });
    }
    if !crate::Isa::Avx2.is_available() {
        return dequantize_scalar(dtype, src, dst);
    }
    // SAFETY: AVX2, FMA and F16C were just found.
    unsafe { by_format!(dtype, run(dtype, src, dst)) }
}

/// [`dequantize`] with AVX-512; sizes are checked by the caller, who passes an available `Isa`.
pub(crate) fn dequantize_avx512(dtype: DType, src: &[u8], dst: &mut [f32]) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    fn run<const T: u8>(dtype: DType, src: &[u8], dst: &mut [f32]) {
        dequantize(dtype, src, dst, |chunk, y| {
            debug_assert_eq!(chunk.len(), chunk_bytes(dtype));
            // SAFETY: this function has the instructions; `chunk` is one chunk of the format.
            unsafe { expand_512(&unpack_512::<T>(chunk.as_ptr()), y) };
        });
    }
    if !crate::Isa::Avx512.is_available() {
        return dequantize_scalar(dtype, src, dst);
    }
    // SAFETY: AVX-512 F, BW, VL, DQ and the AVX2 set were just found.
    unsafe { by_format!(dtype, run(dtype, src, dst)) }
}

const _: () = assert!(CHUNK == 256);
