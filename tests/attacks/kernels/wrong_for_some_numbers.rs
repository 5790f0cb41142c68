//! The kernel is right for ordinary numbers and wrong for tiny, huge or zero ones.

use super::{ends_with, pack, refused};

/// Spoils the last result where the magnitude of the first input fulfils a condition.
fn spoiled_where(condition: &str) -> Vec<&'static str> {
    let first = "(f32.abs (f32.load (i32.load offset=0 (local.get $desc))))";
    refused(&pack(&ends_with(&format!(
        "(if {} (then (f32.store (local.get $out) (f32.const 3))))",
        condition.replace("FIRST", first)
    ))))
}

#[test]
fn golden_inputs_have_all_of_them() {
    for condition in [
        "(f32.eq FIRST (f32.const 0))",
        "(f32.gt FIRST (f32.const 1e12))",
        "(i32.and (f32.lt FIRST (f32.const 1e-15)) (f32.gt FIRST (f32.const 0)))",
        "(i32.and (f32.lt FIRST (f32.const 1.2e-38)) (f32.gt FIRST (f32.const 0)))",
    ] {
        assert_eq!(spoiled_where(condition), ["kernel_mismatch"], "{condition}");
    }
}
