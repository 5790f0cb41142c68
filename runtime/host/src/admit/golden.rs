//! Inputs that every kernel of an operation must get right before it is published: the judge's cases, and
//! for custom operations, which it does not know, what their manifest lets the host make up.

use crate::op::call::{OpCall, Operand, Resident, Words};
use crate::op::plan::CallPlan;
use crate::random::Random;
use ruvllm_abi::Op;
use ruvllm_abi::contract::Variant;
use ruvllm_native::NativeError;
use ruvllm_native::judge::{self, Kind};

/// One call with owned operands.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) what: String,
    pub(crate) a: Vec<u8>,
    pub(crate) b: Vec<u8>,
    /// The gradient of the output, in a case for gradients; else empty.
    pub(crate) gradient: Vec<u8>,
    pub(crate) words: Words,
}

impl Case {
    pub(crate) fn call(&self) -> OpCall<'_> {
        let [a, b, gradient] =
            [&self.a, &self.b, &self.gradient].map(|bytes| match bytes.is_empty() {
                true => Operand::None,
                false => Operand::Bytes(bytes),
            });
        OpCall::new(a, b, self.words).backward(gradient)
    }

    /// The second operand as models have theirs, most of which are constants.
    pub(crate) fn constant(&self) -> Resident {
        Resident::from_bytes(&self.b)
    }

    /// The call with its second operand kept in place.
    pub(crate) fn call_with<'a>(&'a self, constant: &'a Resident) -> OpCall<'a> {
        let mut call = self.call();
        if !constant.is_empty() {
            call.b = Operand::Resident(constant, 0..constant.len());
        }
        call
    }
}

/// The cases of a catalogue operation, in an order that is drawn, and then, where a kernel has `backward`, those
/// for its gradients. Those whose shapes are drawn too move `room` bytes at most.
///
/// # Errors
/// As [`judge::cases`].
pub(crate) fn cases(
    (op, variant): (Op, &Variant),
    backward: bool,
    room: usize,
    random: &mut Random,
) -> Result<Vec<Case>, NativeError> {
    let mut cases = judge::cases(op, variant, room, random)?;
    if backward {
        let gradients = judge::backward_cases(op, variant, room, random)?;
        // Without one there would be nothing that tells such a call from any other.
        cases.extend(gradients.into_iter().filter(|case| !case.gradient.is_empty()));
    }
    Ok(cases.into_iter().filter_map(|case| own(case, |what| what)).collect())
}

/// The case whose gradients are held against differences of the operation too.
pub(crate) fn differentiable_case(
    (op, variant): (Op, &Variant),
    random: &mut Random,
) -> Option<Case> {
    let case = judge::differentiable_case(op, variant, &judge::sample(op), random)?;
    own(case, |what| what)
}

/// A call of a catalogue operation in the shape that these words give, on numbers like a model's.
/// `None` where the words are none of the operation's.
pub(crate) fn live_case(
    (op, variant): (Op, &Variant),
    words: Words,
    random: &mut Random,
) -> Option<Case> {
    let case = judge::live_case(op, variant, words.as_slice(), random)?;
    let shapes: Vec<_> = (0..variant.inputs.len()).map(|i| case.input_shape(op, i)).collect();
    own(case, |what| format!("{what}: the live shape {shapes:?} in {}", variant.output))
}

fn own(case: judge::Case, name: impl FnOnce(String) -> String) -> Option<Case> {
    let judge::Case { what, a, b, gradient, words, .. } = case;
    Some(Case { what: name(what), a, b, gradient, words: Words::new(&words)? })
}

/// Cases of a custom operation, on [`CallPlan::trials`]. There is no truth to hold the output against, only whether
/// the kernel keeps the contract.
pub(crate) fn custom_cases(plan: &CallPlan, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for (extent, words, bytes) in plan.trials() {
        let mut operand = |i: usize, size: usize| match plan.inputs.get(i) {
            None => Some(Vec::new()),
            Some(tensor) => {
                let layout = tensor.dtype.layout();
                let n = size / layout.bytes * layout.elems;
                judge::custom_operand(random, n, Kind::Normal, tensor.dtype)
            }
        };
        if let (Some(a), Some(b)) = (operand(0, bytes.a), operand(1, bytes.b)) {
            let what = format!("every extent {extent}");
            cases.push(Case { what, a, b, gradient: Vec::new(), words });
        }
    }
    cases
}
