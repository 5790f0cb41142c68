//! The module lacks an export that the host needs, or gives it another type.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn an_entry_point_of_another_name_is_refused() {
    let module = Module { entry_point: "elsewhere".to_owned(), ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["export_missing"]);
}

#[test]
fn an_optional_export_of_another_type_is_refused() {
    let fields = r#"(func (export "kernel_init") (param i64))"#.to_owned();
    let module = Module { fields, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["export_type"]);
}
