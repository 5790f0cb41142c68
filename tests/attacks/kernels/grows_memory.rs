//! The kernel grows its memory in a loop.

use super::{begins_with, pack, refused};
use ruvllm_host::{Host, HostConfig};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};

/// Grows until it gets no more.
const GROW: &str = "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))";

#[test]
fn growth_ends_at_the_limit_and_a_kernel_that_insists_is_refused() {
    let insists = format!("{GROW} (unreachable)");
    assert_eq!(refused(&pack(&begins_with(&insists))), ["kernel_trap"]);
}

#[test]
fn a_kernel_gets_its_limit_and_not_a_page_more() {
    let exceeds =
        format!("{GROW} (if (i32.ne (memory.size) (i32.const 4)) (then (return (i32.const 6))))");
    let memory = r#"(memory (export "memory") 1 4)"#.to_owned();
    let module = Module { memory, ..begins_with(&exceeds) };
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| m.kernels[0].resource_limits.max_memory_pages = 4)
        .build();
    let host = Host::new(HostConfig::default()).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
}
