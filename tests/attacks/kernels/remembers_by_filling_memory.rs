//! The kernel fills its constants with what it saw by an instruction that the engine carries out itself.

use super::{Fate, Spy};

#[test]
fn a_fill_of_a_page_that_is_read_only_is_a_trap() {
    let spy = Spy {
        keep:
            r#"(memory.fill (i32.load offset=8 (local.get $desc)) (local.get $i) (i32.const 4096))"#
                .into(),
        recall: r#"(i32.load (i32.load offset=8 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
