//! The kernel keeps what it saw behind its output.

use super::{Fate, Spy};

#[test]
fn what_follows_the_output_is_gone() {
    let spy = Spy {
        keep: r#"(i32.store (local.get $out_end) (local.get $i))"#.into(),
        recall: r#"(i32.load offset=848 (i32.load offset=0 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
