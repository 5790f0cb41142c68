//! The kernel keeps what it saw in the gap behind a constant.

use super::{Fate, Spy};

#[test]
fn the_gap_behind_a_constant_cannot_be_written() {
    let spy = Spy {
        keep: r#"(i32.store offset=400 (i32.load offset=8 (local.get $desc)) (local.get $i))"#
            .into(),
        recall: r#"(i32.load offset=400 (i32.load offset=8 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
