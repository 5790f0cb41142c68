//! The kernel keeps what it saw in static memory that it did not write to when it was admitted.

use super::{Fate, Spy};

#[test]
fn memory_that_it_needs_later_is_set_back() {
    let spy = Spy {
        keep: r#"(i32.store (i32.const 12000) (local.get $i))"#.into(),
        recall: r#"(i32.load (i32.const 12000))"#.into(),
        spare: 16384,
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::Forgotten);
}

#[test]
fn which_of_it_was_written_is_forgotten() {
    // All pages that a host sets back, so that another one could not be written.
    let keep = (2..18).map(|page| format!("(i32.store (i32.const {}) (local.get $i))", page << 12));
    let recall = "(block (result i32) (i32.store (i32.const 4096) (i32.const 7)) (i32.load (i32.const 8192)))";
    let spy =
        Spy { keep: keep.collect(), recall: recall.into(), spare: 18 << 12, ..Spy::default() };
    assert_eq!(spy.fate(), Fate::Forgotten);
}

#[test]
fn more_of_it_than_a_host_sets_back_cannot_be_written() {
    let keep = (0..17).map(|page| format!("(i32.store (i32.const {}) (local.get $i))", page << 12));
    let spy = Spy {
        keep: keep.collect(),
        recall: r#"(i32.load (i32.const 0))"#.into(),
        spare: 17 << 12,
        ..Spy::default()
    };
    assert_eq!(spy.fate(), Fate::of_a_fence());
}
