//! Kernels of known ops must be called as the host calls them.

use crate::{edited, findings};
use ruvllm_abi::Op;
use ruvllm_abi::contract::Dim;
use serde_json::{Map, Value, json};

/// The manifest entry that follows from an op's contract.
fn entry(op: Op, variant: usize) -> Value {
    let contract = op.contract();
    let variant = contract.variants[variant];
    let shape = |dims: &[Dim]| -> Vec<Value> {
        dims.iter()
            .map(|dim| match dim {
                Dim::Sym(name) => json!(name),
                Dim::Fixed(n) => json!(n),
            })
            .collect()
    };
    let inputs: Vec<Value> = contract
        .inputs
        .iter()
        .zip(variant.inputs)
        .map(|(t, d)| json!({"name": t.name, "dtype": d.name(), "shape": shape(t.shape)}))
        .collect();
    let output = &contract.output;
    let params: Map<String, Value> =
        contract.params.iter().map(|p| (p.name.to_owned(), json!({"type": p.ty.name()}))).collect();
    json!({
        "op": op.name(), "inputs": inputs, "params": params,
        "outputs": [{"name": output.name, "dtype": variant.output.name(), "shape": shape(output.shape)}],
    })
}

fn with(op: Op, variant: usize, edit: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut fields = entry(op, variant);
    fields["backward"] = json!(false);
    edit(&mut fields);
    findings(&edited(|m| {
        for (key, value) in fields.as_object().unwrap() {
            m["kernels"][0][key] = value.clone();
        }
    }))
}

#[test]
fn every_kernel_of_the_catalogue_agrees_with_its_contract() {
    for op in Op::ALL {
        for variant in 0..op.contract().variants.len() {
            assert_eq!(with(op, variant, |_| ()), [""; 0], "{op} {variant}");
        }
    }
}

#[test]
fn names_of_tensors_and_symbols_are_free_if_they_are_consistent() {
    let renamed = with(Op::RmsNorm, 0, |k| {
        k["inputs"][0] = json!({"name": "input", "dtype": "f32", "shape": ["n", "d"]});
        k["inputs"][1]["shape"] = json!(["d"]);
        k["outputs"][0]["shape"] = json!(["n", "d"]);
    });
    assert_eq!(renamed, [""; 0]);
    let split = with(Op::RmsNorm, 0, |k| k["inputs"][1]["shape"] = json!(["other"]));
    assert_eq!(split, ["contract_shape@kernels[0].inputs[1].shape"]);
    let merged = with(Op::RmsNorm, 0, |k| {
        k["inputs"][0]["shape"] = json!(["dim", "dim"]);
    });
    assert_eq!(merged[0], "contract_shape@kernels[0].inputs[0].shape");
    let swapped = with(Op::RmsNorm, 0, |k| k["outputs"][0]["shape"] = json!(["dim", "rows"]));
    assert_eq!(swapped, ["contract_shape@kernels[0].outputs[0].shape"]);
    let fixed = with(Op::Rope, 0, |k| k["inputs"][1]["shape"][2] = json!(3));
    assert_eq!(fixed, ["contract_shape@kernels[0].inputs[1].shape"]);
}

#[test]
fn tensors_dtypes_and_params_must_be_those_of_the_op() {
    let fewer = with(Op::RmsNorm, 0, |k| {
        k["inputs"].as_array_mut().unwrap().pop();
    });
    assert_eq!(fewer, ["contract_tensors@kernels[0].inputs"]);
    let dtype = with(Op::KvPack, 0, |k| k["outputs"][0]["dtype"] = json!("q5_0"));
    assert_eq!(dtype, ["contract_dtypes@kernels[0].inputs"]);
    let extra = with(Op::SwiGlu, 0, |k| k["params"]["alpha"] = json!({"type": "f32"}));
    assert_eq!(extra, ["contract_params@kernels[0].params"]);
    let order = with(Op::Rope, 0, |k| {
        k["params"] = json!({"interleaved": {"type": "u32"}, "theta": {"type": "f32"}});
    });
    assert_eq!(order, ["contract_params@kernels[0].params"]);
    let ty = with(Op::RmsNorm, 0, |k| k["params"]["eps"]["type"] = json!("u32"));
    assert_eq!(ty, ["contract_params@kernels[0].params"]);
}

#[test]
fn only_what_has_a_gradient_in_f32_may_say_that_it_gives_one() {
    for op in Op::ALL {
        for (i, variant) in op.contract().variants.iter().enumerate() {
            let found = with(op, i, |k| k["backward"] = json!(true));
            match op.contract().gradients_of(variant.inputs, variant.output) {
                [] => assert_eq!(found, ["contract_backward@kernels[0].backward"], "{op} {i}"),
                _ => assert_eq!(found, [""; 0], "{op} {i}"),
            }
        }
    }
    let custom = with(Op::RmsNorm, 0, |k| {
        (k["op"], k["backward"]) = (json!("my_norm"), json!(true));
    });
    assert_eq!(custom, ["contract_backward@kernels[0].backward"]);
}

#[test]
fn contracts_of_another_abi_are_not_ours_to_judge() {
    let json = edited(|m| {
        m["abi_version"] = json!(2);
        m["kernels"][0]["params"] = json!({});
    });
    assert_eq!(findings(&json), [""; 0]);
}
