//! Writing rows, with the rounding of GGML's reference quantisers, so that a block made here is
//! the block made there, byte for byte.

use half::{bf16, f16};
use ruvllm_abi::DType;

use super::check_row;
use crate::NativeError;

/// Turns numbers into one row, or several in sequence, of `dtype`: `F32`, `F16`, `BF16`, `Q8_0` or
/// `Q4_0`. `dst` is exactly as long as `src` takes. `NaN` becomes an unspecified value.
///
/// # Errors
/// The sizes do not fit, or `dtype` is not one of the five.
pub fn quantize_row(dtype: DType, src: &[f32], dst: &mut [u8]) -> Result<(), NativeError> {
    check_row("quantize_row", dtype, src.len(), dst.len())?;
    match dtype {
        DType::F32 => {
            for (y, x) in dst.as_chunks_mut().0.iter_mut().zip(src) {
                *y = x.to_le_bytes();
            }
        }
        DType::F16 => {
            for (y, x) in dst.as_chunks_mut().0.iter_mut().zip(src) {
                *y = f16::from_f32(*x).to_le_bytes();
            }
        }
        DType::BF16 => {
            for (y, x) in dst.as_chunks_mut().0.iter_mut().zip(src) {
                *y = bf16::from_f32(*x).to_le_bytes();
            }
        }
        DType::Q8_0 => {
            let blocks = dst.as_chunks_mut::<34>().0.iter_mut();
            blocks.zip(src.as_chunks::<32>().0).for_each(|(block, x)| q8_0(x, block));
        }
        DType::Q4_0 => {
            let blocks = dst.as_chunks_mut::<18>().0.iter_mut();
            blocks.zip(src.as_chunks::<32>().0).for_each(|(block, x)| q4_0(x, block));
        }
        _ => return Err(NativeError::unsupported("quantize_row", dtype)),
    }
    Ok(())
}

fn q8_0(x: &[f32; 32], block: &mut [u8; 34]) {
    let amax = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let d = amax / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (q, x) in block[2..].iter_mut().zip(x) {
        // `round` is half away from zero, as C's `roundf`.
        *q = ((x * inverse).round() as i8).cast_unsigned();
    }
}

fn q4_0(x: &[f32; 32], block: &mut [u8; 18]) {
    // The element of largest magnitude, sign kept, maps to -8: the end of the range that 4 bits
    // have more of.
    let (_, max) =
        x.iter().fold(
            (0.0f32, 0.0f32),
            |(amax, max), &x| {
                if x.abs() > amax { (x.abs(), x) } else { (amax, max) }
            },
        );
    let d = max / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let nibble = |x: f32| ((x * inverse + 8.5) as i8).clamp(0, 15).cast_unsigned();
    for (j, byte) in block[2..].iter_mut().enumerate() {
        *byte = nibble(x[j]) | nibble(x[j + 16]) << 4;
    }
}
