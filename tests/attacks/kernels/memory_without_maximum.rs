//! The memory has no maximum.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_memory_without_maximum_is_refused() {
    let memory = r#"(memory (export "memory") 1)"#.to_owned();
    let module = Module { memory, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["memory_unbounded"]);
}
