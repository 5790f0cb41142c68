//! A call that the host's own code answers.

use crate::OpKey;
use crate::error::Failure;
use crate::instance::TILE_BYTES;
use crate::op::call::{Gradients, OpCall, Output};
use crate::op::plan::CallBytes;
use crate::registry::kernel::PublishedKernel;
use ruvllm_abi::Op;
use ruvllm_native::judge::Called;
use ruvllm_native::{Isa, twin};
use std::ops::Range;

/// Answers a call by the native twin of an operation. `buffer` holds results that are read instead of kept, of
/// numbers, so that it is aligned like them.
///
/// # Errors
/// [`Failure::Native`]; `out` may have a part of a result.
#[inline]
pub(crate) fn answer(
    isa: Isa,
    op: Op,
    kernel: &PublishedKernel,
    buffer: &mut Vec<u32>,
    call: &OpCall<'_>,
    bytes: &CallBytes,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    let read = match out {
        Output::Bytes(out) => return run(isa, op, kernel.key(), call, out),
        Output::Gradients(out) => {
            return differentiate(isa, op, kernel.key(), buffer, call, bytes, out);
        }
        Output::Read { read, .. } => read,
    };
    let mut one = |call: &OpCall<'_>, place: Range<usize>| {
        let words = place.len().div_ceil(size_of::<u32>());
        if buffer.len() < words {
            buffer.resize(words, 0);
        }
        let out = &mut bytemuck::cast_slice_mut(buffer)[..place.len()];
        run(isa, op, kernel.key(), call, out)?;
        read(place.start, out);
        Ok(())
    };
    // Runs of rows that are still in cache when they are read, as those of a kernel are.
    match kernel.plan().tiles(call, bytes, TILE_BYTES, [false; 2]) {
        Some(mut tiles) => tiles.try_for_each(|tile| one(&tile.call, tile.out)),
        None => one(call, 0..bytes.out),
    }
}

/// Gives the gradients of a call by the native twin. `buffer` holds what nobody wants.
fn differentiate(
    isa: Isa,
    op: Op,
    key: &OpKey,
    buffer: &mut Vec<u32>,
    call: &OpCall<'_>,
    bytes: &CallBytes,
    Gradients { a: grad_a, b: grad_b }: &mut Gradients<'_>,
) -> Result<(), Failure> {
    let [a, b, gradient] = [&call.a, &call.b, &call.gradient].map(|o| o.bytes().unwrap_or(&[]));
    let unwanted = bytes.out_b / size_of::<u32>();
    let grad_b = match grad_b {
        Some(grad_b) => &mut **grad_b,
        None => {
            if buffer.len() < unwanted {
                buffer.resize(unwanted, 0);
            }
            bytemuck::cast_slice_mut(&mut buffer[..unwanted])
        }
    };
    let called = Called { a, b, words: call.words.as_slice() };
    twin::backward(isa, op, &key.inputs, key.output, called, gradient, [grad_a, grad_b])
        .map_err(|e| Failure::Native { detail: e.to_string() })
}

/// Answers a call by the native twin.
///
/// # Errors
/// [`Failure::Native`].
pub(crate) fn run(
    isa: Isa,
    op: Op,
    key: &OpKey,
    call: &OpCall<'_>,
    out: &mut [u8],
) -> Result<(), Failure> {
    // The operands' ranges have been checked with the call.
    let a = call.a.bytes().unwrap_or(&[]);
    let b = call.b.bytes().unwrap_or(&[]);
    twin::run(isa, op, &key.inputs, key.output, a, b, call.words.as_slice(), out)
        .map_err(|e| Failure::Native { detail: e.to_string() })
}
