//! A function nests blocks thousands deep, to exhaust a compiler's stack.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn deep_nesting_is_refused_before_compilation() {
    let fields = format!("(func {} {})", "block ".repeat(5000), "end ".repeat(5000));
    let module = Module { fields, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["module_nesting"]);
}
