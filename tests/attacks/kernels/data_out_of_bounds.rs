//! A data segment lies outside of the memory, so that the instance fails while it is made.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn the_instance_is_refused() {
    for offset in ["65534", "-1", "65536"] {
        let fields = format!("(data (i32.const {offset}) \"abcd\")");
        let module = Module { fields, ..Module::default() };
        assert_eq!(refused(&pack(&module)), ["kernel_instantiate"], "{offset}");
    }
}
