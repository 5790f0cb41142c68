//! A thread of a kernel parks itself, where no deadline of the engine reaches it.

use super::{refused, thread_begins_with, threaded_pack};

#[test]
fn a_kernel_that_could_wait_is_refused() {
    for wait in [
        "(memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const -1))",
        // Nor for a while.
        "(memory.atomic.wait64 (i32.const 0) (i64.const 0) (i64.const 1))",
    ] {
        let module = thread_begins_with(1, &format!("(drop {wait})"));
        assert_eq!(refused(&threaded_pack(&module)), ["module_atomic_wait"]);
    }
}
