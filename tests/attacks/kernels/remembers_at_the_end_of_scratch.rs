//! The kernel keeps what it saw at the end of its scratch region, which it uses in every call.

use super::{Fate, Spy};

#[test]
fn all_of_scratch_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store offset=16376 (i32.load offset=24 (local.get $desc)) (local.get $i))"#
            .into(),
        recall: r#"(i32.load offset=16376 (i32.load offset=24 (local.get $desc)))"#.into(),
        always: r#"(i32.store offset=8192 (i32.load offset=24 (local.get $desc)) (i32.const 1))"#
            .into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
