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

/// Sizes that a kernel declined.
#[derive(Clone, Copy)]
struct Declined<'a> {
    plan: &'a CallPlan,
    words: Words,
    bytes: CallBytes,
    status: Status,
}

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
        self.ask_again(plan, call, status).unwrap_or_else(|| given(plan, call))
    }

    /// What a kernel takes instead, where its status is one of sizes: of anything else no other call tells more.
    fn ask_again(&mut self, plan: &CallPlan, call: &OpCall<'_>, status: i32) -> Option<String> {
        let status = Status::from_code(status).filter(|_| !call.is_backward())?;
        let explain = match status {
            Status::InvalidInput => Declined::explain_input,
            Status::InvalidOutput => Declined::explain_output,
            Status::InvalidParams => Declined::explain_params,
            _ => return None,
        };
        let declined = |words: Words| {
            let bytes = plan.bytes(words.as_slice()).ok()?;
            Some(Declined { plan, words, bytes, status })
        };
        let asked = declined(call.words)?;
        if asked.is_taken(self, asked.words, asked.bytes) {
            let given = given(plan, call);
            return Some(format!(
                "it takes tensors of these sizes, but not these numbers; {given}"
            ));
        }
        // With a single row, `[rows]`, `[]` and `[1]` have one size. And a shape such as `[dim, dim]` may be more than
        // is tried, or than the kernel's memory holds.
        let apart = plan.with_extents_apart(call.words);
        let mut tried = vec![apart, call.words, plan.with_extents_up_to(SMALL, apart)];
        tried.dedup_by(|next, words| next.as_slice() == words.as_slice());
        tried.into_iter().filter_map(declined).find_map(|sizes| {
            // A kernel that does not decline these sizes says nothing here.
            let is_declined = !sizes.is_taken(self, sizes.words, sizes.bytes);
            is_declined.then(|| explain(sizes, self)).flatten()
        })
    }
}

impl Declined<'_> {
    fn explain_input(self, kernel: &mut Instance) -> Option<String> {
        let Declined { plan, words, bytes, .. } = self;
        let mut takes =
            |a: usize, b: usize| self.is_taken(kernel, words, CallBytes { a, b, ..bytes });
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
            for (other, size) in others {
                let (a, b) = if of == 0 { (*size, bytes.b) } else { (bytes.a, *size) };
                if takes(a, b) {
                    return Some(said(of, other));
                }
            }
        }
        let [first, second] = &others[..] else { return None };
        if takes(bytes.b, bytes.a) {
            let [a, b] = [0, 1].map(|of| &plan.inputs[of].name);
            return Some(format!(
                "it takes `{b}` first and then `{a}`, the manifest has them the other way"
            ));
        }
        for (a, a_size) in first.iter().take(PAIRS) {
            for (b, b_size) in second.iter().take(PAIRS) {
                if takes(*a_size, *b_size) {
                    return Some(format!("{}; {}", said(0, a), said(1, b)));
                }
            }
        }
        None
    }

    fn explain_output(self, kernel: &mut Instance) -> Option<String> {
        let Declined { plan, words, bytes, .. } = self;
        let output = &plan.output;
        let mut others = plan.alternatives(output, words.as_slice()).into_iter();
        let (takes, _) = others
            .find(|(_, out)| self.is_taken(kernel, words, CallBytes { out: *out, ..bytes }))?;
        let (name, says) = (&output.name, plan.type_of(output));
        Some(format!("it gives `{name}` as {takes}, the manifest says {says}"))
    }

    fn explain_params(self, kernel: &mut Instance) -> Option<String> {
        let words = self.words.as_slice();
        let longer = (words.len() + 1..=MAX_PARAM_WORDS).find(|length| {
            let mut longer = words.to_vec();
            longer.resize(*length, 0);
            // Tensors may be of the wrong sizes then: it is past its params all the same.
            Words::new(&longer).is_some_and(|words| self.is_taken(kernel, words, self.bytes))
        })?;
        Some(format!(
            "it reads {longer} words of extents and params, the manifest has {}: {}",
            words.len(),
            names(self.plan)
        ))
    }

    /// Whether the kernel gets beyond its status where it is called with zeros of these sizes.
    fn is_taken(self, kernel: &mut Instance, words: Words, bytes: CallBytes) -> bool {
        if bytes.a.max(bytes.b).max(bytes.out) > MOST_BYTES {
            return false;
        }
        let zeros = vec![0; bytes.a.max(bytes.b)];
        let operand = |size: usize| match size {
            0 => Operand::None,
            _ => Operand::Bytes(&zeros[..size]),
        };
        let call = OpCall::new(operand(bytes.a), operand(bytes.b), words);
        match kernel.prepare(&call, &bytes).and_then(|()| kernel.run().map(|_| ())) {
            Ok(()) => true,
            Err(Failure::Status { status, .. }) => status != self.status.code(),
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
