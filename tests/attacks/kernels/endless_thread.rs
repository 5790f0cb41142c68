//! One thread of a kernel loops for ever, while the others are done.

use super::{outlived, refused, thread_begins_with, thread_later_begins_with, threaded_pack};

const LOOP: &str = "(loop $l (br $l))";

#[test]
fn a_thread_that_never_ends_is_refused_at_its_deadline() {
    assert_eq!(refused(&threaded_pack(&thread_begins_with(0, LOOP))), ["kernel_deadline"]);
    assert_eq!(refused(&threaded_pack(&thread_begins_with(3, LOOP))), ["kernel_deadline"]);
}

#[test]
fn a_thread_that_never_ends_later_is_answered_by_the_twin() {
    let incidents = outlived(&threaded_pack(&thread_later_begins_with(2, LOOP)), 1);
    assert_eq!(incidents[0].failure.code(), "kernel_deadline");
}
