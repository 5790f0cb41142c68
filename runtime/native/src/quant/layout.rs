//! Where each format keeps its bits: the portable unpacking that the SIMD versions are held
//! against. The formats are those of GGML; see [`DType`] for their block sizes.

use half::f16;
use ruvllm_abi::DType;

use super::{CHUNK, Unpacked};

/// Unpacks one chunk. `src` holds [`CHUNK`] elements; of a type without blocks nothing is read.
#[inline]
pub(crate) fn unpack(dtype: DType, src: &[u8], out: &mut Unpacked) {
    match dtype {
        DType::Q8_0 => q8_0(src, out),
        DType::Q4_0 => legacy::<18>(src, out, |block| {
            let d = half(block, 0);
            (d, 8.0 * d, 0, 2)
        }),
        DType::Q4_1 => legacy::<20>(src, out, |block| (half(block, 0), -half(block, 2), 0, 4)),
        DType::Q5_0 => legacy::<22>(src, out, |block| {
            let d = half(block, 0);
            (d, 16.0 * d, word(block, 2), 6)
        }),
        DType::Q5_1 => {
            legacy::<24>(src, out, |block| (half(block, 0), -half(block, 2), word(block, 4), 8));
        }
        DType::Q4_K => q4_k(src, out),
        DType::Q5_K => q5_k(src, out),
        DType::Q6_K => q6_k(src, out),
        _ => {}
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Four bytes from `at` on.
#[inline(always)]
pub(crate) fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn q8_0(src: &[u8], out: &mut Unpacked) {
    for (b, block) in src.as_chunks::<34>().0.iter().enumerate() {
        out.scale[2 * b..2 * b + 2].fill(half(block, 0));
        out.offset[2 * b..2 * b + 2].fill(0.0);
        for (q, byte) in out.q[32 * b..].iter_mut().zip(&block[2..]) {
            *q = byte.cast_signed();
        }
    }
}

/// Blocks of 32 with nibbles. `head` gives scale, offset, the fifth bits and where nibbles start.
fn legacy<const BYTES: usize>(
    src: &[u8],
    out: &mut Unpacked,
    head: impl Fn(&[u8; BYTES]) -> (f32, f32, u32, usize),
) {
    for (b, block) in src.as_chunks::<BYTES>().0.iter().enumerate() {
        let (scale, offset, high, start) = head(block);
        out.scale[2 * b..2 * b + 2].fill(scale);
        out.offset[2 * b..2 * b + 2].fill(offset);
        for (j, byte) in block[start..start + 16].iter().enumerate() {
            let bit = |at: usize| ((high >> at & 1) << 4) as u8;
            out.q[32 * b + j] = (byte & 15 | bit(j)).cast_signed();
            out.q[32 * b + j + 16] = (byte >> 4 | bit(j + 16)).cast_signed();
        }
    }
}

/// The 6-bit scales and mins of the eight sub-blocks of `Q4_K` and `Q5_K`.
fn scales_and_mins(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
    }
}

fn k_scales(src: &[u8], out: &mut Unpacked) {
    let (d, dmin) = (half(src, 0), half(src, 2));
    for j in 0..8 {
        let (scale, min) = scales_and_mins(&src[4..16], j);
        out.scale[2 * j..2 * j + 2].fill(d * f32::from(scale));
        out.offset[2 * j..2 * j + 2].fill(dmin * f32::from(min));
    }
}

fn q4_k(src: &[u8], out: &mut Unpacked) {
    k_scales(src, out);
    for (i, byte) in src[16..144].iter().enumerate() {
        let at = i / 32 * 64 + i % 32;
        out.q[at] = (byte & 15).cast_signed();
        out.q[at + 32] = (byte >> 4).cast_signed();
    }
}

fn q5_k(src: &[u8], out: &mut Unpacked) {
    k_scales(src, out);
    let high = &src[16..48];
    for (i, byte) in src[48..176].iter().enumerate() {
        let (pair, l) = (i / 32, i % 32);
        let at = pair * 64 + l;
        let bit = |j: usize| (high[l] >> j & 1) << 4;
        out.q[at] = (byte & 15 | bit(2 * pair)).cast_signed();
        out.q[at + 32] = (byte >> 4 | bit(2 * pair + 1)).cast_signed();
    }
}

fn q6_k(src: &[u8], out: &mut Unpacked) {
    let d = half(src, 208);
    for (j, scale) in src[192..208].iter().enumerate() {
        out.scale[j] = d * f32::from(scale.cast_signed());
        out.offset[j] = 32.0 * out.scale[j];
    }
    for e in 0..CHUNK {
        let (half, quarter, l) = (e / 128, e % 128 / 32, e % 32);
        let low = src[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        let high = src[128 + half * 32 + l] >> (quarter * 2) & 3;
        out.q[e] = (low | high << 4).cast_signed();
    }
}
