//! The kernel grows its memory, to exhaust the host's or to keep the size as a note to itself.

use super::{begins_with, pack, refused};

#[test]
fn a_kernel_that_could_grow_its_memory_is_refused() {
    let insists = "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))";
    assert_eq!(refused(&pack(&begins_with(insists))), ["module_memory_grow"]);
    // The size is state, too: how often it was called with some number, say.
    let once = "(if (i32.eqz (local.get $desc)) (then (drop (memory.grow (i32.const 1)))))";
    assert_eq!(refused(&pack(&begins_with(once))), ["module_memory_grow"]);
}
