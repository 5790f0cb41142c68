//! The kernel moves its stack pointer by what it saw.

use super::{Fate, Spy};

#[test]
fn the_stack_pointer_is_set_back() {
    let spy = Spy {
        keep: r#"(global.set $sp (i32.sub (i32.const 1024) (local.get $i)))"#.into(),
        recall: r#"(i32.sub (i32.const 1024) (global.get $sp))"#.into(),
        fields: r#"(global $sp (mut i32) (i32.const 1024))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
