//! `kernel_backward` returns a status other than `OK`, or traps.

use super::{differentiable, later_backward, outlived_backward, refused};

#[test]
fn every_other_status_is_refused() {
    for status in [1, 5, 6, 7, -1] {
        let pack = differentiable(&format!("(return (i32.const {status}))"), "");
        assert_eq!(refused(&pack), ["kernel_status"], "{status}");
    }
}

#[test]
fn a_trap_is_refused() {
    assert_eq!(refused(&differentiable("unreachable", "")), ["kernel_trap"]);
}

#[test]
fn a_status_or_a_trap_later_is_answered_by_the_twin() {
    let status = later_backward("(return (i32.const 5))");
    assert_eq!(outlived_backward(&differentiable(&status, "")), "kernel_status");
    let trap = later_backward("unreachable");
    assert_eq!(outlived_backward(&differentiable(&trap, "")), "kernel_trap");
}
