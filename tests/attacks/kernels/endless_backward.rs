//! `kernel_backward` does not return.

use super::{differentiable, later_backward, outlived_backward, refused};

#[test]
fn endless_gradients_are_refused() {
    assert_eq!(refused(&differentiable("(loop $l (br $l))", "")), ["kernel_deadline"]);
}

#[test]
fn endless_gradients_later_are_answered_by_the_twin() {
    let endless = later_backward("(loop $l (br $l))");
    assert_eq!(outlived_backward(&differentiable(&endless, "")), "kernel_deadline");
}
