//! The kernel returns a status other than `OK`, defined or not.

use super::{begins_with, later_begins_with, outlived_once, pack, refused};

#[test]
fn every_other_status_is_refused() {
    for status in [1, 2, 3, 4, 5, 6, 7, 255, -1, i32::MIN] {
        let module = begins_with(&format!("(return (i32.const {status}))"));
        assert_eq!(refused(&pack(&module)), ["kernel_status"], "{status}");
    }
}

#[test]
fn every_other_status_later_is_answered_by_the_twin() {
    for status in [1, 2, 3, 4, 5, 6, 7, -1] {
        let module = later_begins_with(&format!("(return (i32.const {status}))"));
        assert_eq!(outlived_once(&module), "kernel_status", "{status}");
    }
}
