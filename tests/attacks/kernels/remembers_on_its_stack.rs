//! The kernel leaves what it saw on its stack, and reads below the pointer later.

use super::{Fate, Spy};

#[test]
fn the_stack_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store (i32.sub (global.get $sp) (i32.const 32)) (local.get $i))"#.into(),
        recall: r#"(i32.load (i32.sub (global.get $sp) (i32.const 32)))"#.into(),
        fields: r#"(global $sp (mut i32) (i32.const 1024))"#.into(),
        always: r#"(i32.store (i32.sub (global.get $sp) (i32.const 16)) (i32.const 7))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
