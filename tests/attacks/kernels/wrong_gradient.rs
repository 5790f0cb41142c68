//! `kernel_backward` gives something else than the gradient of the kernel's operation.

use super::{differentiable, later_backward, outlived_backward, refused};

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
fn a_wrong_gradient_later_is_caught_by_the_cross_check() {
    let end = later_backward("(f32.store (local.get $dw) (f32.const 0.25))");
    assert_eq!(outlived_backward(&differentiable("", &end)), "kernel_mismatch");
}
