//! The kernel keeps state between calls that changes its results.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_result_that_depends_on_earlier_calls_is_refused() {
    // Off by one unit in the last place every other call: within any tolerance.
    let module = Module {
        fields: "(global $odd (mut i32) (i32.const 0))".to_owned(),
        epilogue: "(global.set $odd (i32.xor (global.get $odd) (i32.const 1)))
            (i32.store (local.get $out)
                (i32.xor (i32.load (local.get $out)) (global.get $odd)))"
            .to_owned(),
        ..Module::default()
    };
    assert_eq!(refused(&pack(&module)), ["kernel_not_deterministic"]);
}
