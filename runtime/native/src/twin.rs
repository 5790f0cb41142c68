//! The native twins of pack kernels, called as a kernel is: by operation and element types, over
//! bytes, with the params block that [`ruvllm_abi::contract`] lays out. The host falls back to these.
//!
//! Everything that a caller hands over is checked against the params block, whose words may come
//! from anywhere: a call that does not fit is refused before the output is touched. Bytes are those
//! of a little-endian machine, as everywhere in the ABI.

use crate::catalogue::{Backward, layout, row};
use crate::judge::Called;
use crate::ops::product;
use crate::oracle::numbers;
use crate::{Isa, NativeError};
use bytemuck::Pod;
use ruvllm_abi::contract::Variant;
use ruvllm_abi::{DType, Op};
use std::borrow::Cow;

#[cfg(target_endian = "big")]
compile_error!(
    "tensors and weights are little-endian in place; big-endian targets are unsupported"
);

/// Whether [`run`] has a twin for these element types: those of the operation's contract.
pub fn supports(op: Op, inputs: &[DType], output: DType) -> bool {
    variant(op, inputs, output).is_some()
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
    let call = Call::new(op, inputs, output, a, b, words)?;
    NativeError::check("twin: output bytes", call.output_bytes, y.len())?;
    (row(op).native)(isa, &call, y)
}

/// Computes the gradients of `op` by the inputs of a call that its contract names, given that of its output;
/// the second slice is empty where there is one. Both are overwritten.
///
/// # Errors
/// As [`run`], of the gradients too; [`NativeError::Unsupported`] where the operation has none in these element
/// types.
pub fn backward(
    isa: Isa,
    op: Op,
    inputs: &[DType],
    output: DType,
    called: Called<'_>,
    grad_output: &[u8],
    gradients: [&mut [f32]; 2],
) -> Result<(), NativeError> {
    let (call, backward) = Call::differentiable(op, inputs, output, called, grad_output.len())?;
    let second = if op.contract().gradients.contains(&1) { called.b.len() } else { 0 };
    let sizes = [called.a.len(), second];
    for (gradient, bytes) in gradients.iter().zip(sizes) {
        NativeError::check("twin: bytes of a gradient", bytes, size_of_val(*gradient))?;
    }
    (backward.native)(isa, &call, &view(grad_output)?, gradients)
}

/// A call whose operands have the sizes that its words give.
pub(crate) struct Call<'a> {
    pub(crate) variant: &'static Variant,
    pub(crate) a: &'a [u8],
    pub(crate) b: &'a [u8],
    output_bytes: usize,
    words: &'a [u32],
}

impl<'a> Call<'a> {
    /// # Errors
    /// As [`run`].
    pub(crate) fn new(
        op: Op,
        inputs: &[DType],
        output: DType,
        a: &'a [u8],
        b: &'a [u8],
        words: &'a [u32],
    ) -> Result<Self, NativeError> {
        let Some(variant) = variant(op, inputs, output) else {
            let inputs = inputs.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",");
            return Err(NativeError::Unsupported {
                what: op.name(),
                detail: format!("({inputs})->{output}"),
            });
        };
        let [size_a, size_b, output_bytes] = sizes(op, variant, words)?;
        (row(op).check)(words)?;
        NativeError::check("twin: bytes of input a", size_a, a.len())?;
        NativeError::check("twin: bytes of input b", size_b, b.len())?;
        Ok(Self { variant, a, b, output_bytes, words })
    }

    /// A call for gradients, where that of the output has so many bytes.
    ///
    /// # Errors
    /// As [`backward`].
    pub(crate) fn differentiable(
        op: Op,
        inputs: &[DType],
        output: DType,
        Called { a, b, words }: Called<'a>,
        grad_output: usize,
    ) -> Result<(Self, &'static Backward), NativeError> {
        let call = Self::new(op, inputs, output, a, b, words)?;
        let has_gradient = !op.contract().gradients_of(inputs, output).is_empty();
        let Some(backward) = row(op).backward.as_ref().filter(|_| has_gradient) else {
            let detail = format!("gradients in {output}");
            return Err(NativeError::Unsupported { what: op.name(), detail });
        };
        let what = "twin: bytes of the gradient of the output";
        NativeError::check(what, call.output_bytes, grad_output)?;
        Ok((call, backward))
    }

    /// The words of the params block.
    ///
    /// # Errors
    /// [`NativeError::Shape`] where the contract has another number of them.
    pub(crate) fn words<const N: usize>(&self) -> Result<[u32; N], NativeError> {
        let (what, actual) = ("twin: words of the params block", self.words.len());
        self.words.try_into().map_err(|_| NativeError::Shape { what, expected: N, actual })
    }

    /// The first input as numbers.
    pub(crate) fn numbers_a(&self) -> Result<Vec<f32>, NativeError> {
        numbers(self.variant.inputs[0], self.a)
    }

    /// The second input as numbers.
    pub(crate) fn numbers_b(&self) -> Result<Vec<f32>, NativeError> {
        numbers(self.variant.inputs[1], self.b)
    }
}

/// The sizes in bytes of both inputs and the output of a call.
///
/// # Errors
/// [`NativeError::Shape`] where a row does not fill whole blocks or the words are too few.
pub(crate) fn sizes(op: Op, variant: &Variant, words: &[u32]) -> Result<[usize; 3], NativeError> {
    let layout = layout(op);
    NativeError::check("twin: words of the params block", layout.words, words.len())?;
    let size = |i: usize| match variant.inputs.get(i) {
        Some(&dtype) => bytes(dtype, layout.inputs[i].sizes(words)?),
        None => Ok(0),
    };
    Ok([size(0)?, size(1)?, bytes(variant.output, layout.output.sizes(words)?)?])
}

/// The variant of an operation with these element types.
pub(crate) fn variant(op: Op, inputs: &[DType], output: DType) -> Option<&'static Variant> {
    op.contract().variants.iter().find(|v| v.inputs == inputs && v.output == output)
}

fn bytes(dtype: DType, (row, rows): (usize, usize)) -> Result<usize, NativeError> {
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
pub(crate) fn write<T: Pod>(
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
