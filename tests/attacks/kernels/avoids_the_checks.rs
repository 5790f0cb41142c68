//! The kernel is right when it is admitted and wherever it thinks that it is checked, and else wrong.

use super::{LATER, pack, wrong_calls_until_quarantine};
use ruvllm_tests::wat::Module;

/// A kernel that counts its calls, as far as it can: those of one client.
fn wrong_where(condition: &str) -> Module {
    Module {
        fields: "(global $calls (mut i32) (i32.const 0))".to_owned(),
        epilogue: format!(
            "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
             (if {condition} (then (f32.store (local.get $out) (f32.const 0.25))))"
        ),
        ..Module::default()
    }
}

/// Holds what it takes to find the kernel out against the probability that is stated: of the checks that
/// it takes, more than a few hundred calls each, one in 256 is made.
fn is_found_out(condition: &str) {
    let calls = wrong_calls_until_quarantine(&pack(&wrong_where(condition)), 20_000);
    assert!(calls.is_some(), "{condition}: 20,000 calls and nobody has noticed");
}

#[test]
fn who_counts_is_found_out() {
    // Right in all of its admission, and where a fixed interval of any power of two would look.
    is_found_out(
        "(i32.and (i32.gt_u (global.get $calls) (i32.const 150))
            (i32.ne (i32.and (global.get $calls) (i32.const 63)) (i32.const 1)))",
    );
}

#[test]
fn who_recognises_sizes_is_found_out() {
    is_found_out(&format!("(i32.eq (local.get $dim) (i32.const {LATER}))"));
}

#[test]
fn who_recognises_numbers_is_found_out() {
    // The first number of a client, which no test would think of.
    is_found_out("(f32.eq (f32.load (i32.load offset=0 (local.get $desc))) (f32.const -6))");
}

#[test]
fn who_is_seldom_wrong_is_found_out_later() {
    is_found_out(
        "(i32.and (i32.gt_u (global.get $calls) (i32.const 150))
            (i32.eqz (i32.rem_u (global.get $calls) (i32.const 3))))",
    );
}
