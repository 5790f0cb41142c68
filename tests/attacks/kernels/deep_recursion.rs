//! The kernel calls itself without end.

use super::{later_begins_with, outlived_once, pack, refused};
use ruvllm_tests::wat::Module;

const RECURSION: &str =
    "(func $f (param i32) (result i32) (i32.add (call $f (local.get 0)) (i32.const 1)))";

#[test]
fn endless_recursion_is_refused() {
    let module = Module {
        fields: RECURSION.to_owned(),
        ..super::begins_with("(drop (call $f (i32.const 0)))")
    };
    assert_eq!(refused(&pack(&module)), ["kernel_trap"]);
}

#[test]
fn endless_recursion_later_is_answered_by_the_twin() {
    let module = Module {
        fields: RECURSION.to_owned(),
        ..later_begins_with("(drop (call $f (i32.const 0)))")
    };
    assert_eq!(outlived_once(&module), "kernel_trap");
}
