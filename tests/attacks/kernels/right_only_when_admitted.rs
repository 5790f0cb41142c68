//! The kernel is right where it takes its call for one of those that it is admitted on, and else wrong.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

/// A kernel that is wrong but where a condition holds, which is looked at before it computes.
fn right_only_where(condition: &str) -> Vec<&'static str> {
    refused(&pack(&Module {
        fields: "(global $right (mut i32) (i32.const 0))".to_owned(),
        prologue: format!("(global.set $right {condition})"),
        epilogue: "(if (i32.eqz (global.get $right)) (then (f32.store (local.get $out) (f32.const 0.25))))"
            .to_owned(),
        ..Module::default()
    }))
}

#[test]
fn what_lies_in_the_output_before_tells_it_nothing() {
    let output = "(i32.load (i32.load offset=16 (local.get $desc)))";
    for pattern in ["0xa5a5a5a5", "0"] {
        let filled = format!("(i32.eq {output} (i32.const {pattern}))");
        assert_eq!(right_only_where(&filled), ["kernel_mismatch"]);
    }
}

#[test]
fn numbers_are_not_those_of_a_test() {
    // Coarse steps, as generators of test data make them.
    let scaled = "(f32.mul (f32.load (i32.load offset=0 (local.get $desc))) (f32.const 65536))";
    let coarse = format!("(f32.eq (f32.nearest {scaled}) {scaled})");
    assert_eq!(right_only_where(&coarse), ["kernel_mismatch"]);
}

#[test]
fn shapes_are_not_always_the_same() {
    let dim = "(i32.load offset=4 (i32.load offset=32 (local.get $desc)))";
    let known = [1, 7, 33, 64, 897, 2048].map(|n| format!("(i32.eq {dim} (i32.const {n}))"));
    let known = known.into_iter().reduce(|a, b| format!("(i32.or {a} {b})")).unwrap();
    assert_eq!(right_only_where(&known), ["kernel_mismatch"]);
}

#[test]
fn constants_are_kept_in_place_as_in_service() {
    let copied =
        "(i32.lt_u (i32.load offset=8 (local.get $desc)) (i32.load offset=16 (local.get $desc)))";
    assert_eq!(right_only_where(copied), ["kernel_not_deterministic"]);
}

#[test]
fn instances_are_as_large_as_in_service() {
    // Those that can hold a run of a large call have several pages.
    let large = "(i32.gt_u (memory.size) (i32.const 2))";
    assert_eq!(right_only_where(large), ["kernel_not_deterministic"]);
}
