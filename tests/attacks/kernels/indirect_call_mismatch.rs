//! The kernel calls through a table, to nowhere or to a function of another type.

use super::{later_begins_with, outlived};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};

#[test]
fn a_wrong_indirect_call_is_answered_by_the_twin() {
    for index in [0, 1, 7] {
        let call = format!("(call_indirect (type $t) (i32.const {index}))");
        let fields = "(type $t (func)) (table 2 2 funcref) (func $other (param f32))
            (elem (i32.const 0) $other)";
        let module = Module { fields: fields.to_owned(), ..later_begins_with(&call) };
        let pack = PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(&module))
            .manifest(|m| m.kernels[0].resource_limits.max_table_elements = 2)
            .build();
        let incidents = outlived(&pack, 1);
        assert_eq!(incidents[0].failure.code(), "kernel_trap", "{index}");
    }
}
