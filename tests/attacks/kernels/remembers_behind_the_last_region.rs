//! The kernel keeps what it saw in the rest of the page behind its last region.

use super::{Fate, Spy};

#[test]
fn the_rest_of_the_page_is_gone() {
    let spy = Spy {
        keep: r#"(i32.store offset=1500 (i32.load offset=0 (local.get $desc)) (local.get $i))"#
            .into(),
        recall: r#"(i32.load offset=1500 (i32.load offset=0 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
