//! The manifest says that the kernels were built for another ABI.

use crate::good_pack;
use ruvllm_abi::ABI_VERSION;
use ruvllm_manifest::{ExecutorGate, ExecutorKind, LimitCaps, RuntimeGates, check_compatibility};
use semver::Version;
use serde_json::json;

#[test]
fn a_pack_for_another_abi_is_authentic_but_stopped_at_the_gate() {
    let pack = good_pack();
    pack.sign_edited(|m| m["abi_version"] = json!(ABI_VERSION + 1));
    let verified = pack.verify().unwrap();
    let gates = RuntimeGates {
        runtime_version: Version::new(0, 1, 0),
        abi_version: ABI_VERSION,
        executor: ExecutorGate {
            kind: ExecutorKind::Wasmtime,
            version: Version::new(48, 0, 0),
            features: Vec::new(),
            compiles: true,
        },
        caps: LimitCaps {
            max_memory_pages: 256,
            max_epoch_ticks: 1000,
            max_table_elements: 0,
            max_threads: 1,
        },
    };
    let compatibility = check_compatibility(verified.manifest(), &gates);
    let codes: Vec<_> = compatibility.pack.iter().map(|v| v.code).collect();
    assert_eq!(codes, ["abi_version_unsupported"]);
}
