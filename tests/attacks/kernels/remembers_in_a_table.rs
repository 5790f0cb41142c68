//! The kernel keeps what it saw in a table.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_table_that_could_change_is_refused() {
    let module = Module {
        fields: "(table $t 2 funcref)".to_owned(),
        prologue: "(table.set $t (i32.const 0) (ref.null func))".to_owned(),
        ..Module::default()
    };
    assert_eq!(refused(&pack(&module)), ["module_table_write"]);
}
