//! The kernel keeps what it saw in a field of the descriptor that it has read.

use super::{Fate, Spy};

#[test]
fn the_descriptor_is_written_anew() {
    let spy = Spy {
        keep: r#"(i32.store offset=28 (local.get $desc) (local.get $i))"#.into(),
        recall: r#"(i32.load offset=28 (local.get $desc))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Overwritten);
}
