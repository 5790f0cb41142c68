//! The kernel computes something else than it says.

use super::{ends_with, pack, refused};

#[test]
fn one_wrong_element_is_refused() {
    let module = ends_with("(f32.store (local.get $out) (f32.const 0.25))");
    assert_eq!(refused(&pack(&module)), ["kernel_mismatch"]);
}

#[test]
fn a_result_that_is_off_by_a_ten_thousandth_is_refused() {
    let module = ends_with(
        "(f32.store (local.get $out)
            (f32.mul (f32.load (local.get $out)) (f32.const 1.0001)))",
    );
    assert_eq!(refused(&pack(&module)), ["kernel_mismatch"]);
}
