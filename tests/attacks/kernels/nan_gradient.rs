//! `kernel_backward` gives NaN or infinity for finite numbers.

use super::{differentiable, later_backward, outlived_backward, refused};

#[test]
fn gradients_that_are_no_numbers_are_refused() {
    for of in ["$dx", "$dw"] {
        for value in ["nan", "inf"] {
            let end = format!("(f32.store (local.get {of}) (f32.const {value}))");
            assert_eq!(refused(&differentiable("", &end)), ["kernel_non_finite"], "{of} {value}");
        }
    }
}

#[test]
fn they_are_caught_by_the_cross_check_later() {
    let end = later_backward("(f32.store (local.get $dw) (f32.const nan))");
    assert_eq!(outlived_backward(&differentiable("", &end)), "kernel_non_finite");
}
