//! The judge of kernels, in the host's words.

use crate::error::Failure;
use crate::op::call::OpCall;
use ruvllm_abi::contract::Variant;
use ruvllm_abi::{DType, Op};
use ruvllm_manifest::Tolerance;
use ruvllm_native::judge::{self, Called, Judge, Wrong};

pub use ruvllm_native::judge::LARGEST_INPUT;

/// The distance from the f64 definition of `op` that the host allows where the output is `dtype`.
/// `None` where the bytes must be exact.
pub fn host_tolerance(op: Op, output: DType) -> Option<Tolerance> {
    judge::tolerance(op, output).map(|judge::Tolerance { rel, abs }| Tolerance { rel, abs })
}

/// The judge of a variant of an operation, which also knows what the author of a kernel promises.
pub fn judge_of((op, variant): (Op, &'static Variant), author: Option<Tolerance>) -> Judge {
    let author = author.map(|Tolerance { rel, abs }| judge::Tolerance { rel, abs });
    Judge::new(op, variant).with_author(author)
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::NonFinite { index } => Failure::NonFinite { index },
            Wrong::Mismatch { detail } => Failure::Mismatch { detail },
            Wrong::Refused(error) => Failure::Native { detail: error.to_string() },
        }
    }
}

/// What the judge is asked about; the operands' ranges have been checked with the call.
pub(crate) fn called<'a>(call: &'a OpCall<'_>) -> Called<'a> {
    let bytes = |operand: &'a crate::Operand<'_>| operand.bytes().unwrap_or(&[]);
    Called { a: bytes(&call.a), b: bytes(&call.b), words: call.words.as_slice() }
}
