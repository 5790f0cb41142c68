//! The module uses a feature that its manifest keeps quiet about, or one that kernels never get.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn features_in_use_that_are_not_declared_are_refused() {
    let fields = "(func (drop (v128.const i32x4 0 0 0 0)))".to_owned();
    let module = Module { fields, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["feature_undeclared"]);
}

#[test]
fn shared_and_64_bit_memories_are_refused() {
    for kind in ["1 4 shared", "i64 1 4"] {
        let memory = format!(r#"(memory (export "memory") {kind}) (func $unused)"#);
        let module = Module { memory, ..Module::default() };
        assert_eq!(refused(&pack(&module)).len(), 1, "{kind}");
    }
}
