//! The kernel keeps what it saw in static memory that it did not write to when it was admitted.

use super::{Fate, Spy};

#[test]
fn memory_beyond_its_own_pages_cannot_be_written() {
    let spy = Spy {
        keep: r#"(i32.store (i32.const 12000) (local.get $i))"#.into(),
        recall: r#"(i32.load (i32.const 12000))"#.into(),
        spare: 16384,
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
