//! The kernel is right on the golden inputs and wrong later.

use super::{later_ends_with, outlived, outlived_once, pack};

#[test]
fn a_wrong_number_later_is_caught_by_the_cross_check() {
    let wrong = later_ends_with("(f32.store (local.get $out) (f32.const 0.25))");
    assert_eq!(outlived_once(&wrong), "kernel_mismatch");
    assert_eq!(outlived(&pack(&wrong), 10).len(), 3, "three times, then it is out of service");
}

#[test]
fn inputs_written_later_are_caught_by_the_cross_check() {
    let write = "(f32.store (i32.load offset=8 (local.get $desc)) (f32.const 9))";
    assert_eq!(outlived_once(&later_ends_with(write)), "kernel_wrote_input");
}
