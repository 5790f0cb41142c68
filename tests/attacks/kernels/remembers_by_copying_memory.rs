//! The kernel copies what it saw over its constants by an instruction that the engine carries out itself.

use super::{Fate, Spy};

#[test]
fn a_copy_to_a_page_that_is_read_only_is_a_trap() {
    let spy = Spy {
        keep: r#"(memory.copy (i32.load offset=8 (local.get $desc)) (i32.load offset=0 (local.get $desc)) (i32.const 300))"#.into(),
        recall: r#"(i32.load offset=4 (i32.load offset=8 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
