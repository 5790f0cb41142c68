//! The kernel writes into its inputs, which the fallback would then read.

use super::{ends_with, pack, refused};

#[test]
fn a_kernel_that_writes_its_inputs_is_refused() {
    for input in [0, 8] {
        let module = ends_with(&format!(
            "(f32.store (i32.load offset={input} (local.get $desc)) (f32.const 9))"
        ));
        assert_eq!(refused(&pack(&module)), ["kernel_wrote_input"], "{input}");
    }
}
