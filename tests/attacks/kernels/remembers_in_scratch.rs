//! The kernel keeps what it saw at the start of its scratch region.

use super::{Fate, Spy};

#[test]
fn scratch_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store (i32.load offset=24 (local.get $desc)) (local.get $i))"#.into(),
        recall: r#"(i32.load (i32.load offset=24 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
