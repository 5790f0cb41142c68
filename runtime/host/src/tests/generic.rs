//! Calls by name, with tensors.

use super::*;
use crate::{ParamValue, Tensor};
use ruvllm_abi::contract::ParamType;
use ruvllm_manifest::ParamSpec;
use ruvllm_native::judge::Tolerance;
use ruvllm_tests::custom_entry;

/// `y = factor * x`, an operation that no host has heard of.
fn scaling() -> TestPack {
    let module = ruvllm_tests::wat::assemble(
        r#"(module
          (memory (export "memory") 1 16)
          (global (export "__heap_base") i32 (i32.const 64))
          (func (export "run") (param $d i32) (result i32)
            (local $x i32) (local $y i32) (local $end i32) (local $factor f32)
            (local.set $x (i32.load (local.get $d)))
            (local.set $y (i32.load offset=16 (local.get $d)))
            (local.set $end (i32.add (local.get $y) (i32.load offset=20 (local.get $d))))
            (local.set $factor (f32.load offset=4 (i32.load offset=32 (local.get $d))))
            (loop $next
              (f32.store (local.get $y)
                (f32.mul (local.get $factor) (f32.load (local.get $x))))
              (local.set $x (i32.add (local.get $x) (i32.const 4)))
              (local.set $y (i32.add (local.get $y) (i32.const 4)))
              (br_if $next (i32.lt_u (local.get $y) (local.get $end))))
            (i32.const 0)))"#,
    );
    let mut entry = custom_entry("scale_f32", "scale", "run");
    let factor = ParamSpec { ty: ParamType::F32, default: Some(ParamValue::F32(2.0)) };
    entry.params.insert("factor".to_owned(), factor);
    PackBuilder::new().entry(entry, module).build()
}

fn f32(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(shape, values).unwrap()
}

#[test]
fn a_custom_operation_is_called_by_name_with_its_params() {
    let host = host(config(), &scaling());
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    let x = [f32(&[3], &[1.0, -2.0, 0.5])];
    let y = worker.call_generic(&snap, "scale", &x, &[]).unwrap();
    assert_eq!(y[0].to_f32(), [2.0, -4.0, 1.0]);
    let factor = [("factor", ParamValue::F32(10.0))];
    let y = worker.call_generic(&snap, "test-kernels/scale_f32", &x, &factor).unwrap();
    assert_eq!((y[0].to_f32(), y[0].shape()), (vec![10.0, -20.0, 5.0], &[3][..]));
    assert!(host.explain(&OpKey::new("scale", [DType::F32], DType::F32)).selected.is_some());
}

#[test]
fn shapes_types_and_names_are_checked_before_any_kernel_is_asked() {
    let host = host(config(), &scaling());
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    let mut code = |name: &str, inputs: &[Tensor], params: &[(&str, ParamValue)]| {
        worker.call_generic(&snap, name, inputs, params).unwrap_err().code()
    };
    let x = f32(&[3], &[1.0, 2.0, 3.0]);
    assert_eq!(code("scale", &[f32(&[1, 1], &[1.0])], &[]), "call_shape");
    assert_eq!(code("scale_f32", &[x.clone(), x.clone()], &[]), "call_shape");
    assert_eq!(
        code("scale", std::slice::from_ref(&x), &[("factor", ParamValue::U32(1))]),
        "call_shape"
    );
    assert_eq!(code("scale", &[], &[]), "unknown_kernel");
    assert_eq!(code("rotate", &[x], &[]), "unknown_kernel");
    assert!(host.take_incidents().0.is_empty());
}

#[test]
fn a_known_operation_and_its_twin_can_be_called_by_name() {
    let host = Host::new(config()).unwrap();
    let snap = host.snapshot();
    let mut worker = host.worker().unwrap();
    let inputs = [f32(&[1, 2], &[3.0, 4.0]), f32(&[2], &[1.0, 1.0])];
    let eps = [("eps", ParamValue::F32(0.0))];
    for name in ["rmsnorm", "native:rmsnorm_f32"] {
        let y = worker.call_generic(&snap, name, &inputs, &eps).unwrap()[0].to_f32();
        let root = 12.5f32.sqrt();
        let near = Tolerance { rel: 0.0, abs: 1e-6 };
        let want = [3.0 / root, 4.0 / root];
        let holds = |(got, want)| near.holds(f64::from(got), f64::from(want));
        assert!(y.iter().copied().zip(want).all(holds), "{y:?}");
    }
    let blocks =
        worker.call_generic(&snap, "native:kv_pack_q8", &[f32(&[1, 32], &[1.0; 32])], &[]).unwrap();
    assert_eq!((blocks[0].dtype(), blocks[0].bytes().len()), (DType::Q8_0, 34));
}

#[test]
fn a_kernel_called_by_its_id_answers_alone() {
    let host = host(config(), &pack(&but_for(2, "(unreachable)")));
    let mut worker = host.worker().unwrap();
    let inputs = [f32(&[1, 2], &[3.0, 4.0]), f32(&[2], &[1.0, 1.0])];
    let eps = [("eps", ParamValue::F32(1e-5))];
    let snap = host.snapshot();
    assert!(worker.call_generic(&snap, "rmsnorm", &inputs, &eps).is_ok());
    let error = worker.call_generic(&snap, "rmsnorm_f32", &inputs, &eps).unwrap_err();
    assert_eq!(error.code(), "kernel_trap");
}
