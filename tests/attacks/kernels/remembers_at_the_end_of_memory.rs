//! The kernel keeps what it saw in the last word of its memory.

use super::{Fate, Spy};

#[test]
fn the_end_of_the_memory_cannot_be_written() {
    let spy = Spy {
        keep: r#"(i32.store (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 4)) (local.get $i))"#.into(),
        recall: r#"(i32.load (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 4)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
