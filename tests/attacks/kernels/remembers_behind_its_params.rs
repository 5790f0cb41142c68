//! The kernel keeps what it saw behind the words of its params.

use super::{Fate, Spy};

#[test]
fn what_follows_the_params_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store offset=100 (i32.load offset=32 (local.get $desc)) (local.get $i))"#
            .into(),
        recall: r#"(i32.load offset=100 (i32.load offset=32 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
