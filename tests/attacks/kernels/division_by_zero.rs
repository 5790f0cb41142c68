//! The kernel divides by zero, and the like.

use super::{begins_with, later_begins_with, outlived_once, pack, refused};

#[test]
fn arithmetic_traps_are_refused_and_later_answered_by_the_twin() {
    for instructions in [
        "(drop (i32.div_s (i32.const 1) (i32.const 0)))",
        "(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))",
        "(drop (i32.trunc_f32_s (f32.const nan)))",
    ] {
        assert_eq!(refused(&pack(&begins_with(instructions))), ["kernel_trap"], "{instructions}");
        assert_eq!(outlived_once(&later_begins_with(instructions)), "kernel_trap");
    }
}
