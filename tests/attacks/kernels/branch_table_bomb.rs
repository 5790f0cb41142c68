//! A branch table with so many targets that its function is larger than any kernel's.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_giant_branch_table_is_refused() {
    let fields = format!("(func (block (br_table {} (i32.const 0))))", "0 ".repeat(200_000));
    let module = Module { fields, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["module_function_size"]);
}
