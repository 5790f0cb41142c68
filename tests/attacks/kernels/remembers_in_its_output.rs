//! The kernel leaves its output as it was, so that the last one is taken for it.

use super::{Fate, Spy};

#[test]
fn an_output_left_unwritten_is_empty() {
    let spy = Spy {
        keep: r#"(i32.store offset=8 (local.get $out) (local.get $i))"#.into(),
        recall: r#"(i32.load offset=8 (i32.load offset=16 (local.get $desc)))"#.into(),
        silent: true,
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
