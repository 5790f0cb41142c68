//! The kernel keeps what it saw far behind its last region.

use super::{Fate, Spy};

#[test]
fn pages_behind_the_window_cannot_be_written() {
    let spy = Spy {
        keep: r#"(i32.store offset=9000 (local.get $out_end) (local.get $i))"#.into(),
        recall: r#"(i32.load offset=9000 (local.get $out_end))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Trapped);
}
