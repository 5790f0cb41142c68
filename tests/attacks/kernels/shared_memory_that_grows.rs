//! A kernel with threads grows the memory that they share, or begins without a bound that it stays within.

use super::{refused, thread_begins_with, threaded_pack};
use ruvllm_tests::wat::Module;

#[test]
fn a_shared_memory_has_the_size_that_the_host_gives_it() {
    let grows = thread_begins_with(1, "(drop (memory.grow (i32.const 1)))");
    assert_eq!(refused(&threaded_pack(&grows)), ["module_memory_grow"]);
    let memory = r#"(memory (export "memory") 1 257 shared)"#.to_owned();
    let beyond = Module { memory, ..Module::threaded() };
    assert_eq!(refused(&threaded_pack(&beyond)), ["memory_over_limit"]);
}

#[test]
fn threads_without_a_memory_to_share_are_refused() {
    let memory = Module::default().memory;
    let own = Module { memory, ..Module::threaded() };
    assert_eq!(refused(&threaded_pack(&own)), ["memory_kind"]);
}
