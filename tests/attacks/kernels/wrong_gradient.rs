//! `kernel_backward` gives something else than the gradient of the kernel's operation.

use super::{config_for, differentiable, later_backward, outlived_backward, refused};
use ruvllm_host::{Host, HostConfig};

#[test]
fn gradients_that_do_not_agree_with_the_operation_are_refused() {
    let of = |gradient: &str, wrong: &str| {
        let end = format!(
            "(f32.store (local.get {gradient}) ({wrong} (f32.load (local.get {gradient}))))"
        );
        refused(&differentiable("", &end))
    };
    for gradient in ["$dx", "$dw"] {
        assert_eq!(of(gradient, "f32.add (f32.const 0.5)"), ["kernel_mismatch"]);
        assert_eq!(of(gradient, "f32.mul (f32.const 1.001)"), ["kernel_mismatch"]);
        assert_eq!(of(gradient, "f32.neg"), ["kernel_mismatch"]);
    }
}

#[test]
fn gradients_that_contradict_differences_of_the_operation_are_refused() {
    // Wrong in the shape alone that differences are taken in.
    let end = "(if (i32.and (i32.eq (local.get $rows) (i32.const 16)) (i32.eq (local.get $dim) (i32.const 256)))
        (then (f32.store (local.get $dw) (f32.neg (f32.load (local.get $dw))))))";
    let pack = differentiable("", end);
    // With which no other case has it.
    let config = HostConfig { admission_seed: Some(36), ..config_for(&pack) };
    let error = Host::new(config).unwrap().install(pack.verify().unwrap()).unwrap_err();
    let [refusal] = error.refusals() else { panic!("{error}") };
    assert_eq!(refusal.code, "kernel_mismatch");
    let told = "along a small step the gradient by weight says";
    assert!(refusal.message.contains(told), "{refusal:?}");
}

#[test]
fn a_wrong_gradient_later_is_caught_by_the_cross_check() {
    let end = later_backward("(f32.store (local.get $dw) (f32.const 0.25))");
    assert_eq!(outlived_backward(&differentiable("", &end)), "kernel_mismatch");
}
