//! The oracle called by contract, over the bytes that a kernel gets.

use super::backward::Gradients;
use super::{kv_unpack_q4, kv_unpack_q8};
use crate::NativeError;
use crate::catalogue::row;
use crate::judge::Called;
use crate::twin::{Call, view};
use half::f16;
use ruvllm_abi::{DType, Op};

/// What an operation of the catalogue should give, as real numbers: the arguments are those of
/// [`twin::run`](crate::twin::run), and the result has one number per element of the output.
///
/// For outputs of numbers, also binary16, this is the exact result before rounding. For outputs of
/// blocks it is what GGML's reference blocks of that result stand for, so a kernel that rounds one
/// element the other way is off by one step of its block.
///
/// # Errors
/// As [`twin::run`](crate::twin::run).
pub fn run(
    op: Op,
    inputs: &[DType],
    output: DType,
    a: &[u8],
    b: &[u8],
    words: &[u32],
) -> Result<Vec<f64>, NativeError> {
    (row(op).oracle)(&Call::new(op, inputs, output, a, b, words)?)
}

/// The gradients of an operation of the catalogue, as real numbers: the arguments are those of
/// [`twin::backward`](crate::twin::backward), and the results have one element for each of the inputs.
///
/// # Errors
/// As [`twin::backward`](crate::twin::backward).
pub fn backward(
    op: Op,
    inputs: &[DType],
    output: DType,
    called: Called<'_>,
    grad_output: &[u8],
) -> Result<Gradients, NativeError> {
    let (call, backward) = Call::differentiable(op, inputs, output, called, grad_output.len())?;
    (backward.oracle)(&call, &view(grad_output)?)
}

/// Elements as f32, which holds those of every type here exactly.
pub(crate) fn numbers(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>, NativeError> {
    Ok(match dtype {
        DType::F32 => view::<f32>(bytes)?.into_owned(),
        DType::F16 => {
            view::<f16>(bytes)?.iter().map(|x| ruvllm_abi::f16_to_f32(x.to_bits())).collect()
        }
        DType::Q8_0 => kv_unpack_q8(bytes).iter().map(|&x| x as f32).collect(),
        DType::Q4_0 => kv_unpack_q4(bytes).iter().map(|&x| x as f32).collect(),
        _ => return Err(NativeError::unsupported("oracle", dtype)),
    })
}
