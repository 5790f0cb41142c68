//! The module wants to run code as soon as it is instantiated.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_start_function_is_refused_before_it_could_run() {
    let fields = "(func $start (loop $l (br $l))) (start $start)".to_owned();
    let module = Module { fields, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["module_start"]);
}
