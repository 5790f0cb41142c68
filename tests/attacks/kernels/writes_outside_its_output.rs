//! The kernel writes behind its output.

use super::{ends_with, pack, refused};

#[test]
fn a_byte_behind_the_output_is_refused() {
    let module = ends_with("(i32.store8 (local.get $out_end) (i32.const 0))");
    assert_eq!(refused(&pack(&module)), ["kernel_mismatch"]);
}
