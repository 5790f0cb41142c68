//! Which tensor a kernel declined.
//!
//! A kernel that finds another size than it was written for returns a status, and that does not say of which
//! tensor: its sources say one thing of the shapes and the manifest another. So it is asked again, with
//! zeros of the sizes that other types and shapes would have. What it then takes is what it was written
//! for. This is for authors, and costs nothing where nobody is told.

use super::Instance;
use crate::error::Failure;
use crate::op::call::{OpCall, Operand, Words};
use crate::op::plan::{CallBytes, CallPlan};
use ruvllm_abi::{MAX_PARAM_WORDS, Status};

/// Bytes of the largest tensor that is tried.
const MOST_BYTES: usize = 4 << 20;
/// The extents at which a kernel is asked once more. They are multiples of the largest block of a type.
const SMALL: u32 = 256;
/// Sizes of each of two tensors that are tried together.
const PAIRS: usize = 48;

impl Instance {
    /// What a kernel that declined a call takes instead, or else what it was given, in a sentence for its
    /// author. Afterwards the instance is of no use to others.
    #[cold]
    pub(crate) fn explain_status(
        &mut self,
        plan: &CallPlan,
        call: &OpCall<'_>,
        status: i32,
    ) -> String {
        let of_sizes = matches!(
            Status::from_code(status),
            Some(Status::InvalidInput | Status::InvalidOutput | Status::InvalidParams)
        );
        // Of anything else no other call would tell more.
        if call.is_backward() || !of_sizes {
            return given(plan, call);
        }
        let sized = |words: Words| plan.bytes(words.as_slice()).ok();
        let Some(bytes) = sized(call.words) else { return given(plan, call) };
        if self.takes_zeros(call.words, bytes, status) {
            let given = given(plan, call);
            return format!("it takes tensors of these sizes, but not these numbers; {given}");
        }
        let mut found = self.explain_sizes(plan, call.words, bytes, status);
        if found.is_none() {
            // A shape such as `[dim, dim]` may be more than is tried, or than the kernel's memory holds.
            let smaller = plan.with_extents_up_to(SMALL, call.words);
            if let Some(bytes) = sized(smaller)
                && smaller.as_slice() != call.words.as_slice()
                && !self.takes_zeros(smaller, bytes, status)
            {
                found = self.explain_sizes(plan, smaller, bytes, status);
            }
        }
        found.unwrap_or_else(|| given(plan, call))
    }

    /// What a kernel takes instead that declines calls of these sizes.
    fn explain_sizes(
        &mut self,
        plan: &CallPlan,
        words: Words,
        bytes: CallBytes,
        status: i32,
    ) -> Option<String> {
        match Status::from_code(status)? {
            Status::InvalidInput => self.explain_input(plan, words, bytes, status),
            Status::InvalidOutput => self.explain_output(plan, words, bytes, status),
            Status::InvalidParams => self.explain_params(plan, words, bytes, status),
            _ => None,
        }
    }

    fn explain_input(
        &mut self,
        plan: &CallPlan,
        words: Words,
        bytes: CallBytes,
        status: i32,
    ) -> Option<String> {
        let sized = |a: usize, b: usize| CallBytes { a, b, ..bytes };
        let others: Vec<Vec<(String, usize)>> =
            plan.inputs.iter().map(|input| plan.alternatives(input, words.as_slice())).collect();
        let said = |of: usize, takes: &str| {
            let input = &plan.inputs[of];
            format!(
                "it takes `{}` as {takes}, the manifest says {}",
                input.name,
                plan.type_of(input)
            )
        };
        for (of, others) in others.iter().enumerate() {
            for (takes, size) in others {
                let tried = if of == 0 { sized(*size, bytes.b) } else { sized(bytes.a, *size) };
                if self.takes_zeros(words, tried, status) {
                    return Some(said(of, takes));
                }
            }
        }
        let [first, second] = &others[..] else { return None };
        if self.takes_zeros(words, sized(bytes.b, bytes.a), status) {
            let [a, b] = [0, 1].map(|of| &plan.inputs[of].name);
            return Some(format!(
                "it takes `{b}` first and then `{a}`, the manifest has them the other way"
            ));
        }
        for (a, a_size) in first.iter().take(PAIRS) {
            for (b, b_size) in second.iter().take(PAIRS) {
                if self.takes_zeros(words, sized(*a_size, *b_size), status) {
                    return Some(format!("{}; {}", said(0, a), said(1, b)));
                }
            }
        }
        None
    }

    fn explain_output(
        &mut self,
        plan: &CallPlan,
        words: Words,
        bytes: CallBytes,
        status: i32,
    ) -> Option<String> {
        let output = &plan.output;
        let mut others = plan.alternatives(output, words.as_slice()).into_iter();
        let (takes, _) = others
            .find(|(_, out)| self.takes_zeros(words, CallBytes { out: *out, ..bytes }, status))?;
        let (name, says) = (&output.name, plan.type_of(output));
        Some(format!("it gives `{name}` as {takes}, the manifest says {says}"))
    }

    fn explain_params(
        &mut self,
        plan: &CallPlan,
        words: Words,
        bytes: CallBytes,
        status: i32,
    ) -> Option<String> {
        let words = words.as_slice();
        let longer = (words.len() + 1..=MAX_PARAM_WORDS).find(|length| {
            let mut longer = words.to_vec();
            longer.resize(*length, 0);
            // Tensors may be of the wrong sizes then: it is past its params all the same.
            Words::new(&longer).is_some_and(|words| self.takes_zeros(words, bytes, status))
        })?;
        Some(format!(
            "it reads {longer} words of extents and params, the manifest has {}: {}",
            words.len(),
            names(plan)
        ))
    }

    /// Whether the kernel gets beyond this status where it is called with zeros of these sizes.
    fn takes_zeros(&mut self, words: Words, bytes: CallBytes, status: i32) -> bool {
        if bytes.a.max(bytes.b).max(bytes.out) > MOST_BYTES {
            return false;
        }
        let zeros = vec![0; bytes.a.max(bytes.b)];
        let operand = |size: usize| match size {
            0 => Operand::None,
            _ => Operand::Bytes(&zeros[..size]),
        };
        let call = OpCall::new(operand(bytes.a), operand(bytes.b), words);
        match self.prepare(&call, &bytes).and_then(|()| self.run().map(|_| ())) {
            Ok(()) => true,
            Err(Failure::Status { status: other, .. }) => other != status,
            // Nothing can be told from a trap.
            Err(_) => false,
        }
    }
}

/// What a call hands a kernel.
fn given(plan: &CallPlan, call: &OpCall<'_>) -> String {
    let words = call.words.as_slice();
    let tensors = plan.inputs.iter().chain([&plan.output]);
    let tensors =
        tensors.map(|tensor| format!("{}: {}{:?}", tensor.name, tensor.dtype, tensor.shape(words)));
    let tensors: Vec<String> = tensors.collect();
    let whose = if call.is_backward() { " for the gradients" } else { "" };
    format!("it was called{whose} with {}", tensors.join(", "))
}

/// The extents and params of a call by name.
fn names(plan: &CallPlan) -> String {
    let params = plan.params.iter().map(|param| param.name.as_str());
    let all: Vec<&str> = plan.symbols.iter().map(String::as_str).chain(params).collect();
    all.join(", ")
}
