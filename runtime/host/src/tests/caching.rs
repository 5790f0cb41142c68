//! Machine code kept between hosts, and variants of a kernel.

use super::*;
use crate::{HostLimits, InstallReport};
use std::fs;
use std::path::{Path, PathBuf};

/// In the directory of a test, which need not be closed to others.
fn place(directory: &Path) -> PathBuf {
    directory.join("cache")
}

fn with_cache(directory: &Path) -> HostConfig {
    HostConfig { cache_dir: Some(place(directory)), ..config() }
}

fn install(config: HostConfig, pack: &TestPack) -> (Host, InstallReport) {
    let host = Host::new(config).unwrap();
    let report = host.install(pack.verify().unwrap()).unwrap();
    (host, report)
}

fn works(host: &Host) {
    rmsnorm(&mut host.worker().unwrap(), &host.snapshot(), 3, 65).unwrap();
    assert_eq!(stats(host, "rmsnorm_f32").fallbacks, 0);
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(place(directory)).unwrap().map(|entry| entry.unwrap().path());
    listed.filter(|path| path.extension().is_some_and(|e| e == "aot")).collect()
}

#[test]
fn a_second_host_neither_compiles_nor_proves_again() {
    let dir = tempfile::tempdir().unwrap();
    let pack = pack(&Module::default());
    let cache = dir.path();
    let (_, first) = install(with_cache(cache), &pack);
    assert_eq!((first.cache.hits, first.cache.misses), (0, 1));
    let (host, second) = install(with_cache(cache), &pack);
    assert_eq!((second.cache.hits, second.cache.misses), (1, 0));
    works(&host);
    assert_eq!(entries(cache).len(), 1);
}

#[test]
fn whatever_changes_the_code_or_its_limits_is_another_entry() {
    let dir = tempfile::tempdir().unwrap();
    let pack = pack(&Module::default());
    let misses = |config: HostConfig| install(config, &pack).1.cache.misses;
    assert_eq!(misses(with_cache(dir.path())), 1);
    assert_eq!(misses(HostConfig { deterministic: true, ..with_cache(dir.path()) }), 1);
    assert_eq!(misses(with_cache(dir.path())), 0);
    // The host's caps are checked before anything is looked up.
    let limits = HostLimits { functions: 0, ..HostLimits::default() };
    let host = Host::new(HostConfig { limits, ..with_cache(dir.path()) }).unwrap();
    assert_eq!(host.install(pack.verify().unwrap()).unwrap_err().code(), "module_functions");
}

#[test]
fn a_poisoned_entry_is_compiled_anew_and_healed() {
    let dir = tempfile::tempdir().unwrap();
    let pack = pack(&Module::default());
    install(with_cache(dir.path()), &pack);
    let [path] = entries(dir.path()).try_into().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(&path, bytes).unwrap();
    let (host, healed) = install(with_cache(dir.path()), &pack);
    assert_eq!((healed.cache.hits, healed.cache.misses), (0, 1));
    works(&host);
    assert_eq!(install(with_cache(dir.path()), &pack).1.cache.hits, 1);
}

#[test]
fn the_entry_of_another_kernel_is_not_taken_for_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = pack(&spoiled_for(65, "(f32.store (local.get $out) (f32.const 7))"));
    let right = pack(&Module::default());
    install(with_cache(dir.path()), &right);
    let [of_right] = entries(dir.path()).try_into().unwrap();
    // 65 columns are none of the golden shapes: such a kernel is admitted, and only caught later.
    install(with_cache(dir.path()), &wrong);
    let of_wrong = entries(dir.path()).into_iter().find(|path| *path != of_right).unwrap();
    fs::copy(&of_wrong, &of_right).unwrap();
    let (host, report) = install(with_cache(dir.path()), &right);
    assert_eq!(report.cache.misses, 1);
    works(&host);
}

#[test]
fn a_refused_kernel_leaves_nothing_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = Module { prologue: "(return (i32.const 0))".into(), ..Module::default() };
    let host = Host::new(with_cache(dir.path())).unwrap();
    host.install(pack(&wrong).verify().unwrap()).unwrap_err();
    assert!(entries(dir.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn a_directory_that_the_group_can_write_is_not_used_and_costs_only_time() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(place(dir.path())).unwrap();
    fs::set_permissions(place(dir.path()), fs::Permissions::from_mode(0o770)).unwrap();
    let (host, report) = install(with_cache(dir.path()), &pack(&Module::default()));
    assert!(report.cache.unusable.is_some());
    assert_eq!(fs::read_dir(place(dir.path())).unwrap().count(), 0);
    works(&host);
}

/// A pack with a kernel that uses relaxed SIMD and one that does not.
fn variants() -> TestPack {
    let relaxed = Module {
        fields: "(func (param v128) (result v128) (f32x4.relaxed_madd
                   (local.get 0) (local.get 0) (local.get 0)))"
            .into(),
        ..Module::default()
    };
    let plain = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    let mut entry = plain.manifest.kernels[0].clone();
    entry.id = "rmsnorm_f32_plain".into();
    entry.path = "test/rmsnorm_f32_plain.wasm".parse().unwrap();
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&relaxed))
        .entry(entry, rmsnorm_f32(&Module::default()))
        .manifest(|manifest| {
            if let Some(wasmtime) = &mut manifest.kernels[0].platforms.wasmtime {
                wasmtime.features = vec!["simd".into(), "relaxed-simd".into()];
            }
        })
        .build()
}

#[test]
fn deterministic_mode_takes_the_variant_without_relaxed_simd() {
    let selected = |deterministic| {
        let config = HostConfig { deterministic, ..config() };
        let host = host(config, &variants());
        let explanation = host.explain(&OpKey::rmsnorm_f32());
        let left_out = explanation.candidates.iter().any(|candidate| {
            candidate.reasons.iter().any(|reason| reason.contains("the pack has a"))
        });
        assert!(left_out, "the other variant is explained");
        explanation.selected.unwrap()
    };
    assert_eq!(selected(false), "rmsnorm_f32");
    assert_eq!(selected(true), "rmsnorm_f32_plain");
    let config = HostConfig { all_variants: true, ..config() };
    let both = host(config, &variants()).explain(&OpKey::rmsnorm_f32());
    assert!(both.candidates.iter().all(|candidate| candidate.verdict != crate::Verdict::Rejected));
}
