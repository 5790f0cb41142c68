//! The kernel gives NaN or infinity for finite inputs.

use super::{ends_with, later_ends_with, outlived_once, pack, refused};

#[test]
fn what_is_not_finite_is_refused_and_later_answered_by_the_twin() {
    for bad in ["nan", "inf", "-inf"] {
        let store = format!("(f32.store (local.get $out) (f32.const {bad}))");
        assert_eq!(refused(&pack(&ends_with(&store))), ["kernel_non_finite"], "{bad}");
        assert_eq!(outlived_once(&later_ends_with(&store)), "kernel_non_finite", "{bad}");
    }
}
