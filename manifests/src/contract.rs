//! Whether a kernel is called the way the host calls its op.

use crate::Violation;
use crate::types::{Dim, KernelEntry, TensorSpec};
use ruvllm_abi::Op;
use ruvllm_abi::contract::{Dim as ContractDim, OpContract, TensorContract};

/// Compares a kernel with the contract of its op. Of a custom op nothing is known but that hosts ask for no
/// gradient of it.
///
/// Tensors and shape symbols may have names of their own, as long as one name stands for one
/// symbol throughout. Parameters go by name, type and order.
pub fn check_contract(kernel: &KernelEntry, location: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    if kernel.backward && !has_gradient(kernel) {
        let names = Op::ALL.into_iter().filter(|op| !op.contract().gradients.is_empty());
        let names: Vec<&str> = names.map(Op::name).collect();
        let what = format!(
            "the ABI defines gradients of {} in f32; remove kernel_backward and say nothing of it here",
            names.join(", ")
        );
        found.push(Violation::new("contract_backward", format!("{location}.backward"), what));
    }
    let Some(op) = kernel.known_op() else { return found };
    let contract = op.contract();
    let mut add = |code, field: &str, what: String| {
        found.push(Violation::new(code, format!("{location}.{field}"), what));
    };
    let counts = kernel.inputs.len() == contract.inputs.len() && kernel.outputs.len() == 1;
    if !counts {
        let what = format!("{op} takes {} input(s) and gives 1 output", contract.inputs.len());
        add("contract_tensors", "inputs", what);
    } else {
        let mut names = Names::default();
        let expected = contract.inputs.iter().chain([&contract.output]);
        let actual = kernel.inputs.iter().chain(&kernel.outputs);
        for (i, (expected, actual)) in expected.zip(actual).enumerate() {
            if !names.shape_matches(expected, actual) {
                let field = match i.checked_sub(contract.inputs.len()) {
                    Some(output) => format!("outputs[{output}].shape"),
                    None => format!("inputs[{i}].shape"),
                };
                let what = format!(
                    "{op} has shape {} here, the same symbol wherever the contract has the same",
                    shape_text(expected.shape)
                );
                add("contract_shape", &field, what);
            }
        }
        if !dtypes_match(contract, kernel) {
            let what = format!("{op} is defined for {}; use one of these", variants_text(contract));
            add("contract_dtypes", "inputs", what);
        }
    }
    let params = kernel.params.iter().map(|(name, spec)| (name.as_str(), spec.ty));
    if !params.eq(contract.params.iter().map(|param| (param.name, param.ty))) {
        let wanted: Vec<String> =
            contract.params.iter().map(|p| format!("{}: {}", p.name, p.ty.name())).collect();
        let what = format!("{op} takes exactly these, in this order: [{}]", wanted.join(", "));
        add("contract_params", "params", what);
    }
    found
}

/// Whether the ABI says what the gradient of such a kernel is.
fn has_gradient(kernel: &KernelEntry) -> bool {
    let inputs: Vec<_> = kernel.inputs.iter().map(|tensor| tensor.dtype).collect();
    let contract = kernel.known_op().map(Op::contract);
    contract
        .zip(kernel.outputs.first())
        .is_some_and(|(contract, output)| !contract.gradients_of(&inputs, output.dtype).is_empty())
}

/// The manifest's names for the contract's symbols.
#[derive(Default)]
struct Names<'k>(Vec<(&'static str, &'k str)>);

impl<'k> Names<'k> {
    fn shape_matches(&mut self, expected: &TensorContract, actual: &'k TensorSpec) -> bool {
        expected.shape.len() == actual.shape.len()
            && expected.shape.iter().zip(&actual.shape).all(|(e, a)| match (e, a) {
                (ContractDim::Fixed(e), Dim::Fixed(a)) => e == a,
                (ContractDim::Sym(symbol), Dim::Symbol(name)) => self.bind(symbol, name),
                _ => false,
            })
    }

    /// One name for each symbol and one symbol for each name.
    fn bind(&mut self, symbol: &'static str, name: &'k str) -> bool {
        match self.0.iter().find(|(s, n)| *s == symbol || *n == name) {
            Some(bound) => *bound == (symbol, name),
            None => {
                self.0.push((symbol, name));
                true
            }
        }
    }
}

fn dtypes_match(contract: &OpContract, kernel: &KernelEntry) -> bool {
    contract.variants.iter().any(|variant| {
        variant.inputs.iter().eq(kernel.inputs.iter().map(|t| &t.dtype))
            && kernel.outputs.iter().all(|t| t.dtype == variant.output)
    })
}

fn shape_text(shape: &[ContractDim]) -> String {
    let dims: Vec<String> = shape
        .iter()
        .map(|dim| match dim {
            ContractDim::Sym(name) => (*name).to_owned(),
            ContractDim::Fixed(n) => n.to_string(),
        })
        .collect();
    format!("[{}]", dims.join(", "))
}

fn variants_text(contract: &OpContract) -> String {
    let variants: Vec<String> = contract
        .variants
        .iter()
        .map(|v| {
            let inputs: Vec<&str> = v.inputs.iter().map(|dtype| dtype.name()).collect();
            format!("({})->{}", inputs.join(","), v.output)
        })
        .collect();
    variants.join(", ")
}
