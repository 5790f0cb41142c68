//! The manifest names this ABI, but the module itself says that it was built for another.

use super::{pack, refused};
use ruvllm_abi::ABI_VERSION;
use ruvllm_tests::wat::Module;

#[test]
fn a_module_that_was_built_for_another_abi_is_refused() {
    let fields = format!(
        r#"(func (export "kernel_info") (param i32) (result i32)
            (i32.store (local.get 0) (i32.const {})) (i32.const 0))"#,
        ABI_VERSION + 1
    );
    assert_eq!(refused(&pack(&Module { fields, ..Module::default() })), ["kernel_abi"]);
}
