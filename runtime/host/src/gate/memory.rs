//! Whether the memory that a small device gives an instance is enough for a kernel: to begin with, and for the calls
//! that admission tries it on. One that has too little is no worse for that, and its twin answers.

use super::module;
use crate::exec::WASM_PAGE;
use crate::instance::taken;
use crate::op::call::{OpCall, Operand, Words};
use crate::op::plan::{CallBytes, CallPlan};
use crate::{HostConfig, OpKey};
use ruvllm_abi::Op;
use ruvllm_abi::contract::Variant;
use ruvllm_manifest::KernelEntry;
use ruvllm_native::judge::{self, Case};
use ruvllm_native::random::Random;

/// The most that the regions of one of the judge's cases of a fixed shape take, so that they need not be made for a
/// kernel that has as much.
const CASES: usize = 80 << 10;

/// What of memory a kernel lacks on a host that bounds that of an instance; `None` where it has enough, or where that
/// shows only when it runs.
pub(super) fn lack(
    entry: &KernelEntry,
    key: &OpKey,
    module: &[u8],
    config: &HostConfig,
) -> Option<String> {
    let most = config.instance_memory?;
    let lack = |what: &str, bytes: usize| {
        let class = config.device_class;
        format!("{what} {bytes} bytes of memory; the device class {class} gives an instance {most}")
    };
    let begins = module::begins_with(module);
    if begins > most {
        return Some(lack("it begins with", begins));
    }
    let limit = most / WASM_PAGE * WASM_PAGE;
    let heap_base = module::heap_base(module)?;
    let before = taken(heap_base, CallBytes::default());
    if before > limit {
        return Some(lack("before any call it takes", before));
    }
    let plan = CallPlan::of_entry(entry);
    let on_calls = |sizes: &mut dyn Iterator<Item = CallBytes>| {
        sizes.map(|bytes| taken(heap_base, bytes)).max().filter(|&needed| needed > limit)
    };
    let needed = match key.known() {
        Some(_) if before + CASES <= limit => None,
        Some(known) => on_calls(&mut cases(known, entry.backward, &plan).into_iter()),
        None => on_calls(&mut plan.trials().map(|(_, _, bytes)| bytes)),
    };
    needed.map(|needed| lack("for a call that admission tries it on it takes", needed))
}

/// The sizes of the cases of an operation that every kernel of it is tried on, whatever memory it has.
fn cases((op, variant): (Op, &Variant), backward: bool, plan: &CallPlan) -> Vec<CallBytes> {
    // Their shapes are the same whatever is drawn, and without room there are no others.
    let mut random = Random::new(0);
    let mut cases = judge::cases(op, variant, 0, &mut random).unwrap_or_default();
    if backward {
        cases.extend(judge::backward_cases(op, variant, 0, &mut random).unwrap_or_default());
        cases.extend(judge::differentiable_case(op, variant, &judge::sample(op), &mut random));
    }
    let bytes = |case: &Case| {
        let call = OpCall::new(Operand::None, Operand::None, Words::new(&case.words)?);
        let gradient = match case.gradient.is_empty() {
            true => Operand::None,
            false => Operand::Bytes(&case.gradient),
        };
        plan.bytes_of(&call.backward(gradient)).ok()
    };
    cases.iter().filter_map(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_takes_more_than_is_assumed_of_all() {
        for op in Op::ALL {
            for variant in op.contract().variants {
                let plan = CallPlan::of_op(op, variant.inputs, variant.output);
                let sizes = cases((op, variant), true, &plan);
                assert!(sizes.len() > 20, "{op:?}");
                let most = sizes.into_iter().map(|bytes| taken(0, bytes)).max().unwrap();
                assert!(most - taken(0, CallBytes::default()) <= CASES, "{}", variant.kernel);
            }
        }
    }
}
