//! The kernel reads or writes outside of its memory.

use super::{begins_with, later_begins_with, outlived_once, pack, refused};

const ACCESSES: [&str; 3] = [
    "(f32.store (i32.const 0xfffffffc) (f32.const 1))",
    "(drop (i32.load offset=0xffffffff (i32.const 0x7fffffff)))",
    "(drop (i64.load (i32.const 0x01000000)))",
];

#[test]
fn an_access_out_of_bounds_is_refused() {
    for access in ACCESSES {
        assert_eq!(refused(&pack(&begins_with(access))), ["kernel_trap"], "{access}");
    }
}

#[test]
fn an_access_out_of_bounds_later_is_answered_by_the_twin() {
    for access in ACCESSES {
        assert_eq!(outlived_once(&later_begins_with(access)), "kernel_trap", "{access}");
    }
}
