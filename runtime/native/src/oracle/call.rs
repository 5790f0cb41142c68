//! The oracle called by contract, over the bytes that a kernel gets.

use super::{kv_pack_q4, kv_pack_q8, kv_unpack_q4, kv_unpack_q8, lora, rmsnorm, rope, swiglu};
use crate::NativeError;
use crate::ops::LoraShape;
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
    let call = Call::new(op, inputs, output, words)?;
    call.check_inputs(inputs, a, b)?;
    Ok(match call {
        Call::Rope(shape) => {
            let y = rope(&shape, &numbers(inputs[0], a)?, &numbers(inputs[1], b)?);
            if output == DType::Q8_0 {
                let y: Vec<f32> = y.iter().map(|&y| y as f32).collect();
                kv_pack_q8(&y)?
            } else {
                y
            }
        }
        Call::RmsNorm { eps, .. } => rmsnorm(&numbers(inputs[0], a)?, &numbers(inputs[1], b)?, eps),
        Call::SwiGlu { .. } => swiglu(&numbers(inputs[0], a)?, &numbers(inputs[1], b)?),
        Call::KvPack { .. } if output == DType::Q8_0 => kv_pack_q8(&view::<f32>(a)?)?,
        Call::KvPack { .. } => kv_pack_q4(&view::<f32>(a)?)?,
        Call::KvUnpack { .. } if inputs[0] == DType::Q8_0 => kv_unpack_q8(a),
        Call::KvUnpack { .. } => kv_unpack_q4(a),
        Call::Lora(shape) => {
            let (fa, fb) = factors(&shape, &numbers(inputs[1], b)?);
            lora(&shape, &numbers(inputs[0], a)?, &fa, &fb)
        }
    })
}

/// Elements as f32, which holds those of every type here exactly.
fn numbers(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>, NativeError> {
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

/// Takes interleaved factors apart: `A` as `[rank, in_dim]` and `B` as `[out_dim, rank]`.
fn factors(shape: &LoraShape, ab: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let LoraShape { in_dim, rank, out_dim, .. } = *shape;
    let at = |group: usize, r: usize, i: usize| ab[(group * rank + r) * 4 + i];
    let first_b = shape.in_groups();
    let a = (0..rank).flat_map(|r| (0..in_dim).map(move |i| at(i / 4, r, i % 4))).collect();
    let b =
        (0..out_dim).flat_map(|j| (0..rank).map(move |r| at(first_b + j / 4, r, j % 4))).collect();
    (a, b)
}
