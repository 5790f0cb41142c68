//! The native twins of pack kernels, called as a kernel is: by operation and element types, over
//! bytes, with the params block that [`ruvllm_abi::contract`] lays out. The host falls back to these.
//!
//! Everything that a caller hands over is checked against the params block, whose words may come
//! from anywhere: a call that does not fit is refused before the output is touched. Bytes are those
//! of a little-endian machine, as everywhere in the ABI.

use crate::ops::{self, LoraShape, RopeShape, product};
use crate::{Isa, NativeError};
use bytemuck::Pod;
use half::f16;
use ruvllm_abi::{DType, Op};
use std::borrow::Cow;

#[cfg(target_endian = "big")]
compile_error!(
    "tensors and weights are little-endian in place; big-endian targets are unsupported"
);

/// Whether [`run`] has a twin for these element types: those of the operation's contract.
pub fn supports(op: Op, inputs: &[DType], output: DType) -> bool {
    op.contract().variants.iter().any(|v| v.inputs == inputs && v.output == output)
}

/// Computes `op` from input bytes `a` and `b` (empty where there is one input) into `y`.
///
/// `words` is the params block: shape symbols in order of first appearance, then parameters, floats
/// as their bits. Buffers that are not aligned for their element type are copied, not refused.
///
/// # Errors
/// [`NativeError::Unsupported`] where [`supports`] says no, [`NativeError::Shape`] where `words` has
/// the wrong length or a buffer does not have the size that it gives.
#[expect(clippy::too_many_arguments, reason = "the contract of a call, flat")]
pub fn run(
    isa: Isa,
    op: Op,
    inputs: &[DType],
    output: DType,
    a: &[u8],
    b: &[u8],
    words: &[u32],
    y: &mut [u8],
) -> Result<(), NativeError> {
    let call = Call::new(op, inputs, output, words)?;
    call.check_inputs(inputs, a, b)?;
    NativeError::check("twin: output bytes", call.output_bytes(output)?, y.len())?;
    match (call, inputs[0]) {
        (Call::Rope(shape), DType::F32) => {
            write(y, |y| ops::rope(isa, &shape, &view(a)?, &view(b)?, y))
        }
        (Call::Rope(shape), DType::F16) => {
            write(y, |y| ops::rope_f16(isa, &shape, &view::<f16>(a)?, &view(b)?, y))
        }
        (Call::Rope(shape), _) => ops::rope_q8(isa, &shape, a, &view(b)?, y),
        (Call::RmsNorm { eps, .. }, DType::F16) => {
            write(y, |y| ops::rmsnorm_f16(isa, &view::<f16>(a)?, &view(b)?, eps, y))
        }
        (Call::RmsNorm { eps, .. }, _) => {
            write(y, |y| ops::rmsnorm(isa, &view(a)?, &view(b)?, eps, y))
        }
        (Call::SwiGlu { .. }, DType::F16) => {
            write(y, |y| ops::swiglu_f16(isa, &view::<f16>(a)?, &view::<f16>(b)?, y))
        }
        (Call::SwiGlu { .. }, _) => write(y, |y| ops::swiglu(isa, &view(a)?, &view(b)?, y)),
        (Call::KvPack { .. }, _) if output == DType::Q8_0 => ops::kv_pack_q8(isa, &view(a)?, y),
        (Call::KvPack { .. }, _) => ops::kv_pack_q4(isa, &view(a)?, y),
        (Call::KvUnpack { .. }, DType::Q8_0) => write(y, |y| ops::kv_unpack_q8(isa, a, y)),
        (Call::KvUnpack { .. }, _) => write(y, |y| ops::kv_unpack_q4(isa, a, y)),
        (Call::Lora(shape), DType::F16) => {
            write(y, |y| ops::lora_apply_f16(isa, &shape, &view::<f16>(a)?, &view::<f16>(b)?, y))
        }
        (Call::Lora(shape), _) => {
            write(y, |y| ops::lora_apply(isa, &shape, &view(a)?, &view(b)?, y))
        }
    }
}

/// A params block, read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Call {
    Rope(RopeShape),
    RmsNorm { rows: usize, dim: usize, eps: f32 },
    SwiGlu { rows: usize, dim: usize },
    KvPack { rows: usize, dim: usize },
    KvUnpack { rows: usize, dim: usize },
    Lora(LoraShape),
}

impl Call {
    pub(crate) fn new(
        op: Op,
        inputs: &[DType],
        output: DType,
        words: &[u32],
    ) -> Result<Call, NativeError> {
        if !supports(op, inputs, output) {
            let inputs = inputs.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",");
            return Err(NativeError::Unsupported {
                what: op.name(),
                detail: format!("({inputs})->{output}"),
            });
        }
        let wrong = |expected| NativeError::Shape {
            what: "twin: words of the params block",
            expected,
            actual: words.len(),
        };
        let size = |word: u32| word as usize;
        Ok(match op {
            Op::Rope => {
                let &[batch, seq, heads, dim, dim_half, _theta, interleaved] = words else {
                    return Err(wrong(7));
                };
                Call::Rope(RopeShape {
                    batch: size(batch),
                    seq: size(seq),
                    heads: size(heads),
                    dim: size(dim),
                    dim_half: size(dim_half),
                    interleaved: interleaved != 0,
                })
            }
            Op::RmsNorm => {
                let &[rows, dim, eps] = words else { return Err(wrong(3)) };
                Call::RmsNorm { rows: size(rows), dim: size(dim), eps: f32::from_bits(eps) }
            }
            Op::SwiGlu | Op::KvPack | Op::KvUnpack => {
                let &[rows, dim] = words else { return Err(wrong(2)) };
                let (rows, dim) = (size(rows), size(dim));
                match op {
                    Op::SwiGlu => Call::SwiGlu { rows, dim },
                    Op::KvPack => Call::KvPack { rows, dim },
                    _ => Call::KvUnpack { rows, dim },
                }
            }
            Op::LoraApply => {
                let &[rows, in_dim, groups, rank, out_dim, scale] = words else {
                    return Err(wrong(6));
                };
                let shape = LoraShape {
                    rows: size(rows),
                    in_dim: size(in_dim),
                    rank: size(rank),
                    out_dim: size(out_dim),
                    scale: f32::from_bits(scale),
                };
                NativeError::check("twin: groups of ab", shape.groups(), size(groups))?;
                Call::Lora(shape)
            }
        })
    }

    /// Checks the sizes of the inputs, in bytes, and the shape itself.
    pub(crate) fn check_inputs(
        &self,
        inputs: &[DType],
        a: &[u8],
        b: &[u8],
    ) -> Result<(), NativeError> {
        let (a_row, a_rows) = self.x_shape()?;
        NativeError::check("twin: bytes of input a", bytes(inputs[0], a_row, a_rows)?, a.len())?;
        let second = inputs.get(1).copied().unwrap_or(DType::U8);
        let elems = match *self {
            Call::Rope(shape) => {
                if shape.dim / 2 < shape.dim_half {
                    let (expected, actual) = (shape.dim / 2, shape.dim_half);
                    return Err(NativeError::Shape { what: "rope: dim_half", expected, actual });
                }
                product("twin: elements of freqs", &[shape.seq, shape.dim_half, 2])?
            }
            Call::RmsNorm { dim, .. } => dim,
            Call::SwiGlu { rows, dim } => product("twin: elements of up", &[rows, dim])?,
            Call::KvPack { .. } | Call::KvUnpack { .. } => 0,
            Call::Lora(shape) => product("twin: elements of ab", &[shape.groups(), shape.rank, 4])?,
        };
        NativeError::check("twin: bytes of input b", bytes(second, elems, 1)?, b.len())
    }

    /// Elements of a row of the first input, which a row of blocks must fill, and its rows.
    fn x_shape(&self) -> Result<(usize, usize), NativeError> {
        Ok(match *self {
            Call::Rope(shape) => (
                product("twin: elements of a row of x", &[shape.heads, shape.dim])?,
                product("twin: rows of x", &[shape.batch, shape.seq])?,
            ),
            Call::RmsNorm { rows, dim, .. }
            | Call::SwiGlu { rows, dim }
            | Call::KvPack { rows, dim }
            | Call::KvUnpack { rows, dim } => (dim, rows),
            Call::Lora(shape) => (shape.in_dim, shape.rows),
        })
    }

    fn output_bytes(&self, output: DType) -> Result<usize, NativeError> {
        let (row, rows) = match *self {
            Call::Lora(shape) => (shape.out_dim, shape.rows),
            _ => self.x_shape()?,
        };
        bytes(output, row, rows)
    }
}

fn bytes(dtype: DType, row: usize, rows: usize) -> Result<usize, NativeError> {
    let what = "twin: elements of a row, in whole blocks";
    let expected = row.checked_next_multiple_of(dtype.layout().elems).unwrap_or(usize::MAX);
    let row = dtype.bytes_for(row).ok_or(NativeError::Shape { what, expected, actual: row })?;
    product("twin: bytes of a tensor", &[row, rows])
}

/// Bytes as numbers, copied only where they are not aligned.
pub(crate) fn view<T: Pod>(bytes: &[u8]) -> Result<Cow<'_, [T]>, NativeError> {
    let size = size_of::<T>();
    NativeError::check("twin: bytes of whole elements", bytes.len() / size * size, bytes.len())?;
    Ok(match bytemuck::try_cast_slice(bytes) {
        Ok(view) => Cow::Borrowed(view),
        Err(_) => {
            let mut copy = vec![T::zeroed(); bytes.len() / size];
            bytemuck::cast_slice_mut(&mut copy).copy_from_slice(bytes);
            Cow::Owned(copy)
        }
    })
}

/// Lets `f` fill bytes as numbers, through a copy only where they are not aligned.
fn write<T: Pod>(
    bytes: &mut [u8],
    f: impl FnOnce(&mut [T]) -> Result<(), NativeError>,
) -> Result<(), NativeError> {
    if let Ok(view) = bytemuck::try_cast_slice_mut(bytes) {
        return f(view);
    }
    let mut copy = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    f(&mut copy)?;
    let copy = bytemuck::cast_slice(&copy);
    NativeError::check("twin: bytes of whole elements", copy.len(), bytes.len())?;
    bytes.copy_from_slice(copy);
    Ok(())
}

#[cfg(test)]
mod tests;
