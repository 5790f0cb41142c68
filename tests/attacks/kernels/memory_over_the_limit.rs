//! The memory may grow beyond what the manifest says, or the manifest beyond what the host grants.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_maximum_beyond_the_manifests_limit_is_refused() {
    let memory = r#"(memory (export "memory") 1 257)"#.to_owned();
    let module = Module { memory, ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["memory_over_limit"]);
}

#[test]
fn a_manifest_beyond_the_hosts_cap_is_refused() {
    let pack = pack(&Module::default());
    pack.sign_edited(|m| m["kernels"][0]["resource_limits"]["max_memory_pages"] = 65_536.into());
    assert_eq!(refused(&pack), ["limit_over_cap"]);
}
