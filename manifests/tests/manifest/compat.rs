//! The gates between a manifest and a host.

use crate::EXAMPLE;
use ruvllm_manifest::{
    ExecutorGate, ExecutorKind, LimitCaps, Manifest, RuntimeGates, check_compatibility,
};
use semver::Version;

fn gates() -> RuntimeGates {
    RuntimeGates {
        runtime_version: Version::new(0, 1, 0),
        abi_version: 1,
        executor: ExecutorGate {
            kind: ExecutorKind::Wasmtime,
            version: Version::new(48, 0, 8),
            features: ["simd", "bulk-memory", "threads"].map(str::to_owned).to_vec(),
            compiles: true,
        },
        caps: LimitCaps {
            max_memory_pages: 256,
            max_epoch_ticks: 1000,
            max_table_elements: 1024,
            max_threads: 4,
        },
    }
}

fn codes(change: impl FnOnce(&mut Manifest, &mut RuntimeGates)) -> Vec<&'static str> {
    let mut manifest = Manifest::parse(EXAMPLE.as_bytes()).unwrap();
    let mut gates = gates();
    change(&mut manifest, &mut gates);
    let compatibility = check_compatibility(&manifest, &gates);
    let codes: Vec<_> = compatibility.violations().map(|v| v.code).collect();
    assert_eq!(compatibility.is_full(), codes.is_empty());
    codes
}

#[test]
fn a_host_that_offers_exactly_what_is_asked_is_enough() {
    assert_eq!(codes(|_, _| ()), [""; 0]);
    assert_eq!(codes(|_, g| g.executor.version = Version::new(48, 0, 0)), [""; 0]);
}

#[test]
fn the_runtime_range_includes_its_lower_and_excludes_its_upper_bound() {
    let runtime = |text: &str| codes(|_, g| g.runtime_version = text.parse().unwrap());
    assert_eq!(runtime("0.1.0-alpha"), ["runtime_too_old"]);
    assert_eq!(runtime("0.0.9"), ["runtime_too_old"]);
    assert_eq!(runtime("0.99.0"), [""; 0]);
    assert_eq!(runtime("1.0.0-rc.1"), ["runtime_too_new"]);
    assert_eq!(runtime("1.0.0"), ["runtime_too_new"]);
    let pre = |text: &str| {
        codes(|m, g| {
            m.max_runtime_version = Some("1.0.0-rc.2".parse().unwrap());
            g.runtime_version = text.parse().unwrap();
        })
    };
    assert_eq!(pre("1.0.0-rc.1"), [""; 0]);
    assert_eq!(pre("1.0.0-rc.2"), ["runtime_too_new"]);
    let open = codes(|m, g| {
        m.max_runtime_version = None;
        g.runtime_version = Version::new(99, 0, 0);
    });
    assert_eq!(open, [""; 0]);
}

#[test]
fn another_abi_concerns_the_whole_pack() {
    assert_eq!(codes(|m, _| m.abi_version = 2), ["abi_version_unsupported"]);
}

#[test]
fn executor_features_and_limits_concern_the_kernel() {
    assert_eq!(codes(|_, g| g.executor.features.clear()), ["feature_unsupported"; 3]);
    assert_eq!(codes(|_, g| g.executor.version = Version::new(47, 9, 9)), ["executor_too_old"]);
    assert_eq!(codes(|m, _| m.kernels[0].platforms.wasmtime = None), ["executor_unsupported"]);
    assert_eq!(codes(|_, g| g.caps.max_memory_pages = 255), ["limit_over_cap"]);
    assert_eq!(codes(|_, g| g.caps.max_epoch_ticks = 1), ["limit_over_cap"]);
    assert_eq!(codes(|_, g| g.caps.max_table_elements = 0), ["limit_over_cap"]);
    assert_eq!(codes(|_, g| g.caps.max_threads = 3), ["threads_unsupported"]);
    assert_eq!(codes(|m, _| m.kernels[0].threads = 1), [""; 0]);
    let wamr = codes(|_, g| {
        g.executor = ExecutorGate {
            kind: ExecutorKind::Wamr,
            version: Version::new(1, 2, 0),
            features: Vec::new(),
            compiles: false,
        };
    });
    assert_eq!(wamr, ["executor_too_old"]);
}
