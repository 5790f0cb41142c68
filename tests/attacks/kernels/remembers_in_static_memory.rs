//! The kernel keeps what it saw in static memory that it writes to in every call.

use super::{Fate, Spy};

#[test]
fn static_memory_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store (i32.const 512) (local.get $i))"#.into(),
        recall: r#"(i32.load (i32.const 512))"#.into(),
        always: r#"(i32.store (i32.const 516) (i32.const 1))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
