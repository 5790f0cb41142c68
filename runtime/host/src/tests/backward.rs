//! Gradients of a call: who gives them, and that they are right.

use super::*;
use crate::compare::called;
use crate::{Failure, Gradients, LoraDims, Policy, Resident, Tensor, Words};
use ruvllm_manifest::ParamValue;
use ruvllm_native::judge::{self, Judge, Verdict};
use ruvllm_native::random::Random;
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use ruvllm_tests::wat::rmsnorm_backward;
use std::path::Path;

/// A host with the core pack, whose every run is checked.
fn core(config: HostConfig) -> Host {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default()).unwrap();
    let host = Host::new(HostConfig { cross_check_every: 1, ..config }).unwrap();
    host.install(pack.verify(&TrustPolicy::builtin(), None).unwrap()).unwrap();
    host
}

/// The id of the kernel that answers an operation: executors differ in the variants that they take.
fn chosen(host: &Host, key: &OpKey) -> String {
    host.explain(key).selected.unwrap()
}

/// The gradients of a call by whoever comes first.
fn gradients(
    host: &Host,
    key: &OpKey,
    call: &OpCall<'_>,
    dy: &[f32],
    lens: [usize; 2],
) -> [Vec<f32>; 2] {
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    // What was there is no part of the result.
    let [mut a, mut b] = lens.map(|len| vec![f32::NAN; len]);
    let to = Gradients { a: &mut a, b: (lens[1] > 0).then_some(&mut b[..]) };
    worker.backward(&snap, snap.slot(key).unwrap(), call, dy, to).unwrap();
    [a, b]
}

/// Holds gradients against the judge's.
fn check(key: &OpKey, call: &OpCall<'_>, dy: &[f32], got: &[Vec<f32>; 2]) {
    let (op, variant) = key.known().unwrap();
    let [a, b] = got.each_ref().map(|gradient| bytemuck::cast_slice(gradient));
    let judged =
        Judge::new(op, variant).check_gradients(called(call), bytemuck::cast_slice(dy), [a, b]);
    assert!(matches!(judged, Ok(Verdict::Right(_))), "{key}: {judged:?}");
}

#[test]
fn gradients_of_the_core_pack_and_of_the_twins_are_right_for_one_row_and_for_many() {
    let (core, native) = (core(config()), Host::new(config()).unwrap());
    let both = |key: &OpKey, call: &OpCall<'_>, dy: &[f32], lens| {
        let got = gradients(&core, key, call, dy, lens);
        check(key, call, dy, &got);
        check(key, call, dy, &gradients(&native, key, call, dy, lens));
        let bits = |all: [Vec<f32>; 2]| all.map(|g| g.into_iter().map(f32::to_bits).collect());
        let [first, second]: [[Vec<u32>; 2]; 2] =
            [got, gradients(&core, key, call, dy, lens)].map(bits);
        assert_eq!(first, second, "{key}: the same call gives the same bits");
    };
    for (rows, dim) in [(1, 64), (3, 100), (150, 2048)] {
        let (x, weight) = input(rows, dim);
        let dy: Vec<f32> = x.iter().rev().copied().collect();
        let constant = Resident::from_f32(&weight);
        let call = OpCall::rmsnorm(Operand::f32(&x), constant.all(), rows, dim, 1e-5);
        both(&OpKey::rmsnorm_f32(), &call, &dy, [x.len(), dim as usize]);
        let call = OpCall::swiglu(Operand::f32(&x), Operand::f32(&dy), rows, dim);
        both(&OpKey::swiglu_f32(), &call, &x, [x.len(), x.len()]);
    }
    let dims = LoraDims { rows: 90, in_dim: 512, rank: 8, out_dim: 768 };
    let (x, ab) = (input(90, 512).0, input(320, 32).0);
    let dy = input(90, 768).0;
    let call = OpCall::lora(Operand::f32(&x), Operand::f32(&ab), dims, 0.5);
    both(&OpKey::lora_f32(), &call, &dy, [x.len(), ab.len()]);
    let mut expected =
        vec![(OpKey::rmsnorm_f32(), 6), (OpKey::swiglu_f32(), 6), (OpKey::lora_f32(), 2)];
    // Every operation that has gradients, in the shapes of the calls that admission makes.
    for op in Op::ALL {
        for variant in op.contract().variants {
            let of = op.contract().gradients_of(variant.inputs, variant.output);
            if of.is_empty() {
                continue;
            }
            let key = OpKey::new(op.name(), variant.inputs.to_vec(), variant.output);
            let cases = judge::backward_cases(op, variant, 1 << 20, &mut Random::new(11)).unwrap();
            // Of numbers that the judge can tell the gradients of.
            let random = &mut Random::new(12);
            let mut normal = |words| judge::differentiable_case(op, variant, words, random);
            let cases = cases.iter().filter_map(|case| normal(&case.words));
            let cases: Vec<_> = cases.filter(|case| !case.gradient.is_empty()).collect();
            let (mut one_row, mut rows) = (0, 0);
            for case in &cases {
                let words = Words::new(&case.words).unwrap();
                let second = match case.b.is_empty() {
                    true => Operand::None,
                    false => Operand::Bytes(&case.b),
                };
                let call = OpCall::new(Operand::Bytes(&case.a), second, words);
                let dy: Vec<f32> =
                    case.gradient.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                let second = if of.contains(&1) { case.b.len() / 4 } else { 0 };
                both(&key, &call, &dy, [case.a.len() / 4, second]);
                match case.words[0] {
                    1 => one_row += 1,
                    _ => rows += 1,
                }
            }
            assert!(one_row > 0 && rows > 0, "{key}: {one_row} and {rows}");
            match expected.iter_mut().find(|(other, _)| *other == key) {
                Some((_, calls)) => *calls += 2 * (one_row + rows),
                None => expected.push((key, 2 * (one_row + rows))),
            }
        }
    }
    assert_eq!(expected.len(), 7, "{expected:?}");
    let (incidents, _) = core.take_incidents();
    assert!(incidents.is_empty(), "{incidents:?}");
    let of = |key| stats(&core, &chosen(&core, &key));
    for (key, calls) in expected {
        assert_eq!(of(key.clone()).backward_calls, calls, "{key}");
    }
    assert_eq!(stats(&core, "native:rmsnorm_f32").backward_calls, 0);
    assert_eq!(of(OpKey::rmsnorm_f32()).calls, 0);
}

#[test]
fn constants_in_place_and_copied_ones_give_the_same_bits() {
    let host = core(config());
    let (x, weight) = input(200, 1000);
    let constant = Resident::from_f32(&weight);
    let key = OpKey::rmsnorm_f32();
    let of = |weight| {
        let call = OpCall::rmsnorm(Operand::f32(&x), weight, 200, 1000, 1e-5);
        gradients(&host, &key, &call, &x, [x.len(), 1000])
    };
    assert_eq!(of(constant.all()), of(Operand::f32(&weight)));
}

#[test]
fn a_kernel_without_gradients_is_passed_over_and_no_failure() {
    let host = host(HostConfig { strict: true, ..config() }, &pack(&Module::default()));
    let (x, weight) = input(2, 8);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 2, 8, 1e-5);
    let lens = [x.len(), weight.len()];
    gradients(&host, &OpKey::rmsnorm_f32(), &call, &x, lens);
    assert!(host.take_incidents().0.is_empty());
    assert_eq!(stats(&host, "native:rmsnorm_f32").backward_calls, 1);
}

#[test]
fn no_rows_give_zeros_and_what_has_no_gradient_is_an_error_of_the_call() {
    let host = core(config());
    let weight = [1f32; 4];
    let call = OpCall::rmsnorm(Operand::f32(&[]), Operand::f32(&weight), 0, 4, 1e-5);
    assert_eq!(gradients(&host, &OpKey::rmsnorm_f32(), &call, &[], [0, 4])[1], [0.0; 4]);
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let slot = snap.slot(&OpKey::kv_pack(DType::Q8_0)).unwrap();
    let (x, mut dx) = ([0f32; 32], [0f32; 32]);
    let call = OpCall::kv_pack(Operand::f32(&x), 1, 32);
    let to = Gradients { a: &mut dx, b: None };
    let error = worker.backward(&snap, slot, &call, &x, to).unwrap_err();
    assert!(error.to_string().contains("no gradient"), "{error}");
}

#[test]
fn a_failure_in_gradients_is_answered_by_the_twin_and_counts_against_the_kernel() {
    let bad =
        "(if (i32.eq (i32.load offset=4 (i32.load offset=32 (local.get $desc))) (i32.const 100))
        (then unreachable))";
    let module = Module { fields: rmsnorm_backward(bad, ""), ..Module::default() };
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| m.kernels[0].backward = true)
        .build();
    let host = host(HostConfig { policy: Policy::SandboxFirst, ..config() }, &pack);
    let native = Host::new(config()).unwrap();
    let (x, weight) = input(2, 100);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 2, 100, 1e-5);
    let (key, lens) = (OpKey::rmsnorm_f32(), [x.len(), weight.len()]);
    let want = gradients(&native, &key, &call, &x, lens);
    for _ in 0..3 {
        assert_eq!(gradients(&host, &key, &call, &x, lens), want);
    }
    let (incidents, _) = host.take_incidents();
    assert!(incidents.iter().all(|incident| matches!(incident.failure, Failure::Trap { .. })));
    assert_eq!((incidents.len(), stats(&host, "rmsnorm_f32").quarantined), (3, true));
    // Out of service it is asked for neither.
    rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 2, 64).unwrap();
    assert_eq!(stats(&host, "rmsnorm_f32").calls, 0);
}

#[test]
fn a_kernel_is_asked_by_name_and_says_what_it_lacks() {
    let host = core(HostConfig { all_variants: true, ..config() });
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let x = Tensor::from_f32([1, 2], &[3.0, 4.0]).unwrap();
    let weight = Tensor::from_f32([2], &[1.0, 1.0]).unwrap();
    let (inputs, eps) = ([x.clone(), weight], [("eps", ParamValue::F32(0.0))]);
    let first = chosen(&host, &OpKey::rmsnorm_f32());
    for name in ["rmsnorm", &first, "rmsnorm_f32_scalar", "native:rmsnorm_f32"] {
        let found = worker.backward_generic(&snap, name, &inputs, &eps, &x).unwrap();
        assert_eq!([found[0].shape(), found[1].shape()], [&[1, 2][..], &[2]], "{name}");
        // The output is x / sqrt(12.5), whose length does not change along x.
        assert!(found[0].to_f32().iter().all(|x| x.abs() < 1e-6), "{name}");
    }
    let wrong = Tensor::from_f32([2], &[1.0, 1.0]).unwrap();
    let error = worker.backward_generic(&snap, "rmsnorm", &inputs, &eps, &wrong).unwrap_err();
    assert!(error.to_string().contains("f32[2] instead of f32[1, 2]"), "{error}");
    let halves = Tensor::new(DType::F16, [1, 2], vec![0; 4]).unwrap();
    let inputs = [halves.clone(), inputs[1].clone()];
    let name = "rmsnorm_f16_scalar";
    let error = worker.backward_generic(&snap, name, &inputs, &eps, &halves).unwrap_err();
    assert!(error.to_string().contains("rmsnorm_f16_scalar has no kernel_backward"), "{error}");
}
