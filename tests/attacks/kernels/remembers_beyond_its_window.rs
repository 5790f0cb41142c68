//! The kernel keeps what it saw far behind its last region.

use super::{Fate, Spy};

#[test]
fn pages_behind_the_window_cannot_be_written() {
    let spy = Spy {
        keep: r#"(i32.store offset=12288 (i32.and (local.get $out_end) (i32.const -4096)) (local.get $i))"#.into(),
        recall: r#"(i32.load offset=12288 (i32.and (local.get $out_end) (i32.const -4096)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
