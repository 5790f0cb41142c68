//! The kernel keeps what it saw in the gap behind the descriptor.

use super::{Fate, Spy};

#[test]
fn the_gap_behind_the_descriptor_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store offset=56 (local.get $desc) (local.get $i))"#.into(),
        recall: r#"(i32.load offset=56 (local.get $desc))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
