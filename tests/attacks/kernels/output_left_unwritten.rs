//! The kernel says that all is well and writes nothing, or not all of it.

use super::{begins_with, ends_with, pack, refused};

#[test]
fn an_output_that_nobody_wrote_is_refused() {
    assert_eq!(refused(&pack(&begins_with("(return (i32.const 0))"))), ["kernel_mismatch"]);
}

#[test]
fn an_output_that_is_cut_short_is_refused() {
    // Of a call without rows there is nothing to cut.
    let module = ends_with(
        "(if (i32.gt_u (local.get $out_end) (local.get $out))
           (then (i32.store (i32.sub (local.get $out_end) (i32.const 4)) (i32.const 0))))",
    );
    assert_eq!(refused(&pack(&module)), ["kernel_mismatch"]);
}
