//! The module carries more data than a kernel needs.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn too_many_bytes_of_data_are_refused() {
    let fields = format!("(data \"{}\")", "x".repeat(600 << 10));
    let module = Module { fields, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["module_data"]);
}

#[test]
fn too_many_segments_are_refused() {
    let module = Module { fields: "(data \"\")".repeat(2000), ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["module_items"]);
}
