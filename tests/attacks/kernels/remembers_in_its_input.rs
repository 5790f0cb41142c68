//! The kernel keeps what it saw in place of the end of a longer input, where a shorter call has nothing.

use super::{Fate, Spy};

#[test]
fn what_a_longer_input_leaves_is_gone() {
    let spy = Spy {
        keep: r#"(i32.store offset=380 (i32.load offset=0 (local.get $desc)) (local.get $i))"#
            .into(),
        recall: r#"(i32.load offset=380 (i32.load offset=0 (local.get $desc)))"#.into(),
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}
