//! The kernel keeps what it saw in a global.

use super::{Fate, Spy};

#[test]
fn a_global_is_set_back() {
    let spy = Spy {
        keep: r#"(global.set $kept (local.get $i))"#.into(),
        recall: r#"(global.get $kept)"#.into(),
        fields: r#"(global $kept (mut i32) (i32.const 0))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
