//! The module has more functions than a compiler should be given.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn thousands_of_functions_are_refused_before_compilation() {
    let module = Module { fields: "(func)".repeat(5000), ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["module_functions"]);
}
