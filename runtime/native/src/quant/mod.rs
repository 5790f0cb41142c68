//! The block formats of [`DType`]: reading all of them, writing those that a cache or a converted
//! model is stored in.
//!
//! Everything inside works on chunks of `CHUNK` elements, unpacked to one common form: a byte
//! per element, and a scale and an offset per `GROUP` elements, with `x = scale * q - offset`.
//! A format is thus described in one place per instruction set; dequantisation, dot products and
//! tiled products all start from there. For every format that form is exact: scale, offset and
//! each element fit an f32 without rounding before the last subtraction.
//!
//! Rows are whole blocks. Nothing here assumes that bytes are aligned.

mod encode;
mod layout;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use half::{bf16, f16};
use ruvllm_abi::DType;

use crate::{Isa, NativeError};

pub use encode::quantize_row;
pub(crate) use layout::{unpack, word};

/// Elements that are unpacked together: one block of a k-quant, eight of the older formats.
pub(crate) const CHUNK: usize = ruvllm_abi::team::CHUNK;

/// Elements that share a scale in the unpacked form.
pub(crate) const GROUP: usize = ruvllm_abi::team::GROUP;

/// Bytes of the largest chunk, rounded up to whole vectors.
pub(crate) const MAX_CHUNK_BYTES: usize = 320;

/// Element types as constants, to select a format at compile time.
pub(crate) mod tag {
    use ruvllm_abi::DType;

    pub(crate) const F32: u8 = DType::F32 as u8;
    pub(crate) const F16: u8 = DType::F16 as u8;
    pub(crate) const BF16: u8 = DType::BF16 as u8;
    pub(crate) const Q8_0: u8 = DType::Q8_0 as u8;
    pub(crate) const Q4_0: u8 = DType::Q4_0 as u8;
    pub(crate) const Q4_1: u8 = DType::Q4_1 as u8;
    pub(crate) const Q5_0: u8 = DType::Q5_0 as u8;
    pub(crate) const Q5_1: u8 = DType::Q5_1 as u8;
    pub(crate) const Q4_K: u8 = DType::Q4_K as u8;
    pub(crate) const Q5_K: u8 = DType::Q5_K as u8;
    pub(crate) const Q6_K: u8 = DType::Q6_K as u8;
}

/// A chunk in the common form; element `i` is `scale[i / GROUP] * q[i] - offset[i / GROUP]`.
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// Signed for `Q8_0`, in `0..64` for the others.
    pub(crate) q: [i8; CHUNK],
    pub(crate) scale: [f32; CHUNK / GROUP],
    pub(crate) offset: [f32; CHUNK / GROUP],
}

impl Unpacked {
    pub(crate) const ZERO: Unpacked =
        Unpacked { q: [0; CHUNK], scale: [0.0; CHUNK / GROUP], offset: [0.0; CHUNK / GROUP] };
}

/// Whether rows of this type are blocks that [`unpack`] takes.
pub(crate) const fn is_blocked(dtype: DType) -> bool {
    dtype.is_quantized()
}

/// Whether rows of this type are numbers that stand alone.
pub(crate) const fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether rows of this type can be read as numbers: all but the integers that kernels take as they
/// are.
pub(crate) const fn is_readable(dtype: DType) -> bool {
    is_float(dtype) || is_blocked(dtype)
}

/// Bytes of `CHUNK` elements.
pub(crate) const fn chunk_bytes(dtype: DType) -> usize {
    let layout = dtype.layout();
    CHUNK / layout.elems * layout.bytes
}

/// Turns one row, or several in sequence, into numbers: `dst[i]` is element `i` of `src`.
/// Exactly what the reference decoder of GGML gives.
///
/// # Errors
/// `src` does not hold `dst.len()` elements in whole blocks, or `dtype` is an integer type.
pub fn dequantize_row(dtype: DType, src: &[u8], dst: &mut [f32]) -> Result<(), NativeError> {
    dequantize_row_with(Isa::detect(), dtype, src, dst)
}

/// [`dequantize_row`] with the instructions of `isa`.
///
/// # Errors
/// As [`dequantize_row`].
pub fn dequantize_row_with(
    isa: Isa,
    dtype: DType,
    src: &[u8],
    dst: &mut [f32],
) -> Result<(), NativeError> {
    check_row("dequantize_row", dtype, dst.len(), src.len())?;
    match isa.usable().widest().plain() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 if dtype == DType::F16 => x86::dequantize_f16(src, dst),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::dequantize_avx2(dtype, src, dst),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86::dequantize_avx512(dtype, src, dst),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::dequantize_neon(dtype, src, dst),
        _ => dequantize_scalar(dtype, src, dst),
    }
    Ok(())
}

/// Checks that `bytes` is what `elems` elements take.
pub(crate) fn check_row(
    what: &'static str,
    dtype: DType,
    elems: usize,
    bytes: usize,
) -> Result<(), NativeError> {
    if !is_readable(dtype) {
        return Err(NativeError::unsupported(what, dtype));
    }
    let block = dtype.layout().elems;
    let Some(expected) = dtype.bytes_for(elems) else {
        let expected = elems.div_ceil(block).saturating_mul(block);
        return Err(NativeError::Shape { what, expected, actual: elems });
    };
    NativeError::check(what, expected, bytes)
}

/// [`dequantize`] for any processor; sizes are checked by the caller.
pub(crate) fn dequantize_scalar(dtype: DType, src: &[u8], dst: &mut [f32]) {
    dequantize(dtype, src, dst, |chunk, y| {
        let mut unpacked = Unpacked::ZERO;
        unpack(dtype, chunk, &mut unpacked);
        expand(&unpacked, y);
    });
}

/// The body of every dequantisation, inlined into functions that enable instructions so that the
/// loops are vectorised with them; `expand_chunk` makes numbers of a chunk. Sizes are checked by the caller.
#[inline(always)]
pub(crate) fn dequantize(
    dtype: DType,
    src: &[u8],
    dst: &mut [f32],
    expand_chunk: impl Fn(&[u8], &mut [f32; CHUNK]),
) {
    match dtype {
        DType::F32 => {
            for (y, x) in dst.iter_mut().zip(src.as_chunks().0) {
                *y = f32::from_le_bytes(*x);
            }
        }
        DType::F16 => {
            for (y, x) in dst.iter_mut().zip(src.as_chunks().0) {
                *y = f16::from_le_bytes(*x).to_f32();
            }
        }
        DType::BF16 => {
            for (y, x) in dst.iter_mut().zip(src.as_chunks().0) {
                *y = bf16::from_le_bytes(*x).to_f32();
            }
        }
        _ => {
            let bytes = chunk_bytes(dtype);
            let mut chunks = src.chunks_exact(bytes);
            let (head, tail) = dst.as_chunks_mut::<CHUNK>();
            for (y, x) in head.iter_mut().zip(&mut chunks) {
                expand_chunk(x, y);
            }
            let rest = chunks.remainder();
            if !rest.is_empty() {
                let mut padded = [0; MAX_CHUNK_BYTES];
                padded[..rest.len()].copy_from_slice(rest);
                let mut y = [0.0; CHUNK];
                expand_chunk(&padded[..bytes], &mut y);
                let len = tail.len();
                tail.copy_from_slice(&y[..len]);
            }
        }
    }
}

#[inline(always)]
pub(crate) fn expand(chunk: &Unpacked, dst: &mut [f32; CHUNK]) {
    let groups = dst.as_chunks_mut::<GROUP>().0.iter_mut().zip(chunk.q.as_chunks::<GROUP>().0);
    for ((y, q), (scale, offset)) in groups.zip(chunk.scale.iter().zip(&chunk.offset)) {
        for (y, q) in y.iter_mut().zip(q) {
            *y = scale * f32::from(*q) - offset;
        }
    }
}

#[cfg(test)]
mod tests;
