//! Unpacking with NEON, which every AArch64 processor has: the layouts of [`super::layout`], a
//! chunk at a time.
//!
//! Loads are unaligned and stay inside the chunk.
#![allow(unsafe_code)]

use core::arch::aarch64::*;
use core::arch::asm;

use ruvllm_abi::DType;

use super::{Unpacked, chunk_bytes, dequantize, expand, tag};

/// An unpacked chunk in registers, as [`Unpacked`].
#[derive(Clone, Copy)]
pub(crate) struct ChunkNeon {
    pub(crate) q: [int8x16_t; 16],
    pub(crate) scale: [float32x4_t; 4],
    pub(crate) offset: [float32x4_t; 4],
}

/// Four f16 as f32.
#[inline(always)]
pub(crate) fn widen(x: uint16x4_t) -> float32x4_t {
    let y: float32x4_t;
    // SAFETY: `fcvtl` is part of every Advanced SIMD; it reads and writes registers only.
    unsafe {
        asm!(
            "fcvtl {y:v}.4s, {x:v}.4h",
            x = in(vreg) x,
            y = lateout(vreg) y,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    y
}

/// The f16 at the start of each of eight blocks of `STRIDE` bytes, each twice: a scale per 32
/// elements as one per 16.
#[inline(always)]
unsafe fn halves<const STRIDE: usize>(p: *const u8) -> [float32x4_t; 4] {
    // SAFETY: the caller has eight blocks at `p`.
    unsafe {
        let at = |i: usize| u64::from(p.add(i * STRIDE).cast::<u16>().read_unaligned());
        std::array::from_fn(|i| widen(vcreate_u16((at(2 * i) | at(2 * i + 1) << 32) * 0x1_0001)))
    }
}

/// One f16 as f32.
#[inline(always)]
unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: the caller has two bytes at `p`; NEON is always there.
    unsafe { vgetq_lane_f32(widen(vdup_n_u16(p.cast::<u16>().read_unaligned())), 0) }
}

#[inline(always)]
unsafe fn times(x: [float32x4_t; 4], by: f32) -> [float32x4_t; 4] {
    // SAFETY: NEON is always there.
    unsafe { x.map(|x| vmulq_n_f32(x, by)) }
}

/// 16 in each of 16 bytes whose bit is set.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8) -> uint8x16_t {
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: the caller has two bytes at `p`.
    unsafe {
        let x = vcombine_u8(vdup_n_u8(*p), vdup_n_u8(*p.add(1)));
        vandq_u8(vtstq_u8(x, vld1q_u8(BITS.as_ptr())), vdupq_n_u8(16))
    }
}

/// The eight older blocks at `p`: nibbles at `NIBBLES`, fifth bits, if not 0, at `BITS`.
#[inline(always)]
unsafe fn legacy<const BYTES: usize, const NIBBLES: usize, const BITS: usize>(
    p: *const u8,
) -> [int8x16_t; 16] {
    // SAFETY: the caller has eight blocks at `p`.
    unsafe {
        std::array::from_fn(|i| {
            let block = p.add(i / 2 * BYTES);
            let x = vld1q_u8(block.add(NIBBLES));
            let x = if i % 2 == 0 { vandq_u8(x, vdupq_n_u8(15)) } else { vshrq_n_u8(x, 4) };
            let x =
                if BITS == 0 { x } else { vorrq_u8(x, fifth_bits(block.add(BITS + i % 2 * 2))) };
            vreinterpretq_s8_u8(x)
        })
    }
}

/// Scales and offsets of `Q4_K` and `Q5_K`.
#[inline(always)]
unsafe fn k_scales(p: *const u8) -> ([float32x4_t; 4], [float32x4_t; 4]) {
    // SAFETY: the caller has 16 bytes at `p`.
    unsafe {
        let word = |i: usize| p.add(4 + 4 * i).cast::<u32>().read_unaligned();
        let (a, b, c) = (word(0), word(1), word(2));
        let (six, four, two) = (0x3f3f_3f3f, 0x0f0f_0f0f, 0x0303_0303);
        let scales = [a & six, c & four | (a >> 6 & two) << 4];
        let mins = [b & six, c >> 4 & four | (b >> 6 & two) << 4];
        let float = |x: [u32; 2], by: f32| {
            let x = vcreate_u8(u64::from(x[0]) | u64::from(x[1]) << 32);
            let x = vmovl_u8(x);
            let low = vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), by);
            let high = vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(x))), by);
            [
                vzip1q_f32(low, low),
                vzip2q_f32(low, low),
                vzip1q_f32(high, high),
                vzip2q_f32(high, high),
            ]
        };
        (float(scales, half(p)), float(mins, half(p.add(2))))
    }
}

/// Unpacks the chunk at `p` of the format `T`.
///
/// # Safety
/// [`chunk_bytes`] of the format can be read at `p`.
#[inline(always)]
pub(crate) unsafe fn unpack_neon<const T: u8>(p: *const u8) -> ChunkNeon {
    // SAFETY: the caller's contract; every offset below is inside the chunk.
    unsafe {
        match T {
            tag::Q8_0 => ChunkNeon {
                q: std::array::from_fn(|i| vld1q_s8(p.add(i / 2 * 34 + 2 + i % 2 * 16).cast())),
                scale: halves::<34>(p),
                offset: [vdupq_n_f32(0.0); 4],
            },
            tag::Q4_0 => {
                let scale = halves::<18>(p);
                ChunkNeon { q: legacy::<18, 2, 0>(p), scale, offset: times(scale, 8.0) }
            }
            tag::Q4_1 => ChunkNeon {
                q: legacy::<20, 4, 0>(p),
                scale: halves::<20>(p),
                offset: times(halves::<20>(p.add(2)), -1.0),
            },
            tag::Q5_0 => {
                let scale = halves::<22>(p);
                ChunkNeon { q: legacy::<22, 6, 2>(p), scale, offset: times(scale, 16.0) }
            }
            tag::Q5_1 => ChunkNeon {
                q: legacy::<24, 8, 4>(p),
                scale: halves::<24>(p),
                offset: times(halves::<24>(p.add(2)), -1.0),
            },
            tag::Q4_K | tag::Q5_K => {
                let start = if T == tag::Q4_K { 16 } else { 48 };
                let (scale, offset) = k_scales(p);
                let q = std::array::from_fn(|i| {
                    // Two registers of low nibbles, then the high ones of the same bytes.
                    let x = vld1q_u8(p.add(start + i / 4 * 32 + i % 2 * 16));
                    let low = i % 4 < 2;
                    let x = if low { vandq_u8(x, vdupq_n_u8(15)) } else { vshrq_n_u8(x, 4) };
                    if T == tag::Q4_K {
                        return vreinterpretq_s8_u8(x);
                    }
                    let high = vld1q_u8(p.add(16 + i % 2 * 16));
                    let high = vshlq_u8(high, vdupq_n_s8(4 - (i / 2) as i8));
                    vreinterpretq_s8_u8(vorrq_u8(x, vandq_u8(high, vdupq_n_u8(16))))
                });
                ChunkNeon { q, scale, offset }
            }
            _ => {
                let q = std::array::from_fn(|i| {
                    let (part, quarter, at) = (i / 8, i % 8 / 2, i % 2 * 16);
                    let x = vld1q_u8(p.add(part * 64 + quarter % 2 * 32 + at));
                    let x =
                        if quarter < 2 { vandq_u8(x, vdupq_n_u8(15)) } else { vshrq_n_u8(x, 4) };
                    let high = vld1q_u8(p.add(128 + part * 32 + at));
                    let high = vshlq_u8(high, vdupq_n_s8(4 - 2 * quarter as i8));
                    vreinterpretq_s8_u8(vorrq_u8(x, vandq_u8(high, vdupq_n_u8(48))))
                });
                let d = half(p.add(208));
                let bytes = vld1q_s8(p.add(192).cast());
                let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
                let scale = [
                    vmovl_s16(vget_low_s16(low)),
                    vmovl_high_s16(low),
                    vmovl_s16(vget_low_s16(high)),
                    vmovl_high_s16(high),
                ]
                .map(|x| vmulq_n_f32(vcvtq_f32_s32(x), d));
                ChunkNeon { q, scale, offset: times(scale, 32.0) }
            }
        }
    }
}

/// Stores an unpacked chunk.
#[inline(always)]
pub(crate) fn spill_neon(chunk: &ChunkNeon, out: &mut Unpacked) {
    // SAFETY: the arrays of `out` have the size of those of `chunk`.
    unsafe {
        for (i, q) in chunk.q.iter().enumerate() {
            vst1q_s8(out.q.as_mut_ptr().add(16 * i), *q);
        }
        for i in 0..4 {
            vst1q_f32(out.scale.as_mut_ptr().add(4 * i), chunk.scale[i]);
            vst1q_f32(out.offset.as_mut_ptr().add(4 * i), chunk.offset[i]);
        }
    }
}

/// [`dequantize`] with NEON; sizes are checked by the caller.
pub(crate) fn dequantize_neon(dtype: DType, src: &[u8], dst: &mut [f32]) {
    fn run<const T: u8>(dtype: DType, src: &[u8], dst: &mut [f32]) {
        dequantize(dtype, src, dst, |chunk, y| {
            debug_assert_eq!(chunk.len(), chunk_bytes(dtype));
            let mut unpacked = Unpacked::ZERO;
            // SAFETY: `chunk` is one chunk of the format.
            spill_neon(&unsafe { unpack_neon::<T>(chunk.as_ptr()) }, &mut unpacked);
            expand(&unpacked, y);
        });
    }
    match dtype {
        DType::Q8_0 => run::<{ tag::Q8_0 }>(dtype, src, dst),
        DType::Q4_0 => run::<{ tag::Q4_0 }>(dtype, src, dst),
        DType::Q4_1 => run::<{ tag::Q4_1 }>(dtype, src, dst),
        DType::Q5_0 => run::<{ tag::Q5_0 }>(dtype, src, dst),
        DType::Q5_1 => run::<{ tag::Q5_1 }>(dtype, src, dst),
        DType::Q4_K => run::<{ tag::Q4_K }>(dtype, src, dst),
        DType::Q5_K => run::<{ tag::Q5_K }>(dtype, src, dst),
        _ => run::<{ tag::Q6_K }>(dtype, src, dst),
    }
}
