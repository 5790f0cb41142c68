//! Attacks by a kernel in a pack that is authentic: signed by a trusted key, nothing flipped.
//!
//! An attack that shows at once is refused by the gate or by admission, and nothing of the pack is
//! published. One that waits until admission is over is answered by the native twin instead, with
//! the same bytes that a host without any pack gives.

mod another_abi;
mod branch_table_bomb;
mod cache_of_another_user;
mod cache_open_to_others;
mod data_bomb;
mod data_out_of_bounds;
mod deep_nesting;
mod deep_recursion;
mod division_by_zero;
mod endless_cleanup;
mod endless_loop;
mod feature_not_declared;
mod grows_memory;
mod imports;
mod indirect_call_mismatch;
mod locals_bomb;
mod memory_over_the_limit;
mod memory_without_maximum;
mod missing_exports;
mod module_too_large;
mod nan_output;
mod out_of_bounds;
mod output_left_unwritten;
mod output_too_small;
mod poisoned_cache_entry;
mod relaxed_simd_drift;
mod replayed_cache_entry;
mod slow_admission;
mod slow_for_its_size;
mod start_section;
mod state_between_calls;
mod status_codes;
mod table_bomb;
mod thousands_of_functions;
mod tolerance_too_loose;
mod traps;
mod writes_its_inputs;
mod writes_outside_its_output;
mod wrong_for_some_numbers;
mod wrong_number;
mod wrong_number_later;

use ruvllm_host::{Host, HostConfig, Incident, OpCall, OpKey, Operand};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};
use std::path::{Path, PathBuf};

/// Columns that no golden input has: a kernel can tell by them that admission is over.
const LATER: u32 = 100;

fn pack(module: &Module) -> TestPack {
    PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(module)).build()
}

/// A pack whose kernel may take few ticks, for attacks on time.
fn hasty_pack(module: &Module) -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(module))
        .manifest(|m| m.kernels[0].resource_limits.max_epoch_ticks = 20)
        .build()
}

/// A kernel that begins every call with these instructions.
fn begins_with(instructions: &str) -> Module {
    Module { prologue: instructions.to_owned(), ..Module::default() }
}

/// A kernel that ends every call with these instructions.
fn ends_with(instructions: &str) -> Module {
    Module { epilogue: instructions.to_owned(), ..Module::default() }
}

/// A kernel that begins calls of [`LATER`] columns with these instructions.
fn later_begins_with(instructions: &str) -> Module {
    begins_with(&format!(
        "(if (i32.eq (i32.load offset=4 (i32.load offset=32 (local.get $desc))) (i32.const {LATER}))
          (then {instructions}))"
    ))
}

/// A kernel that ends calls of [`LATER`] columns with these instructions.
fn later_ends_with(instructions: &str) -> Module {
    ends_with(&format!("(if (i32.eq (local.get $dim) (i32.const {LATER})) (then {instructions}))"))
}

/// The cache of machine code in the directory of a test.
fn cache_of(directory: &Path) -> PathBuf {
    directory.join("cache")
}

/// The entries of that cache.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(cache_of(directory)).unwrap().map(|entry| entry.unwrap().path());
    listed.filter(|path| path.extension().is_some_and(|e| e == "aot")).collect()
}

/// Installs a pack in a new host with that cache: kernels that came from it, kernels that did not.
fn cached(directory: &Path, pack: &TestPack) -> (usize, usize) {
    let config = HostConfig { cache_dir: Some(cache_of(directory)), ..HostConfig::default() };
    let host = Host::new(config).unwrap();
    let report = host.install(pack.verify().unwrap()).unwrap();
    // Whatever was in the cache, what runs is the kernel of the pack.
    let fresh = Host::new(HostConfig::default()).unwrap();
    fresh.install(pack.verify().unwrap()).unwrap();
    assert!(rmsnorm(&host, 1) == rmsnorm(&fresh, 1));
    assert!(host.take_incidents().0.is_empty());
    (report.cache.hits, report.cache.misses)
}

/// Offers the pack to a host, which must refuse it and stay as it was. Gives the codes.
fn refused(pack: &TestPack) -> Vec<&'static str> {
    let directory = tempfile::tempdir().unwrap();
    let cache_dir = Some(cache_of(directory.path()));
    let host = Host::new(HostConfig { cache_dir, ..HostConfig::default() }).unwrap();
    let before: Vec<String> = host.kernels().into_iter().map(|kernel| kernel.id).collect();
    let error = host.install(pack.verify().unwrap()).unwrap_err();
    let after: Vec<String> = host.kernels().into_iter().map(|kernel| kernel.id).collect();
    assert_eq!((host.generation(), before), (1, after), "something was published");
    assert_eq!(error.code(), error.refusals()[0].code);
    assert!(entries(directory.path()).is_empty(), "something was cached");
    error.refusals().iter().map(|refusal| refusal.code).collect()
}

/// Calls a kernel that was admitted on [`LATER`] columns, `calls` times, with a cross-check every
/// time. Each answer must be that of a host without the pack. Gives what was reported.
fn outlived(pack: &TestPack, calls: usize) -> Vec<Incident> {
    let config = HostConfig { cross_check_every: 1, ..HostConfig::default() };
    let host = Host::new(config.clone()).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    let want = rmsnorm(&Host::new(config).unwrap(), 1);
    assert_eq!(rmsnorm(&host, calls), want);
    let (incidents, dropped) = host.take_incidents();
    assert_eq!(dropped, 0);
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert_eq!((stats.calls, stats.fallbacks), (0, incidents.len() as u64));
    assert_eq!(stats.quarantined, incidents.len() >= 3);
    incidents
}

/// The last answer of so many calls.
fn rmsnorm(host: &Host, calls: usize) -> Vec<u8> {
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    let x: Vec<f32> = (0..3 * LATER).map(|i| (i % 13) as f32 - 6.0).collect();
    let weight: Vec<f32> = (0..LATER).map(|i| (i % 5) as f32 / 2.0).collect();
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 3, LATER, 1e-5);
    let mut y = vec![0; x.len() * 4];
    for _ in 0..calls {
        worker.call(&snap, slot, &call, &mut y).unwrap();
    }
    y
}

/// The code of the one incident of one call.
fn outlived_once(module: &Module) -> &'static str {
    let incidents = outlived(&pack(module), 1);
    assert_eq!(incidents.len(), 1);
    incidents[0].failure.code()
}
