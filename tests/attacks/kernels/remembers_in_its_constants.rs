//! The kernel writes what it saw to its copy of a model's weights.

use super::{Fate, Spy};

#[test]
fn constants_cannot_be_written() {
    let spy = Spy {
        keep: r#"(i32.store offset=64 (i32.load offset=8 (local.get $desc)) (local.get $i))"#
            .into(),
        recall: r#"(i32.load offset=64 (i32.load offset=8 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
