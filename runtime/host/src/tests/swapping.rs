//! Generations, side by side and one after the other.

use super::*;

fn version(n: u64, module: &Module) -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(module))
        .manifest(|m| m.version = semver::Version::new(n, 0, 0))
        .build()
}

#[test]
fn a_pinned_snapshot_keeps_its_kernels_until_it_goes() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let old = host.snapshot();
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &old, 1, 64).unwrap();
    let report = host.install(version(2, &Module::default()).verify().unwrap()).unwrap();
    assert_eq!((report.generation, report.replaced.as_deref()), (3, Some("1.0.0")));
    let new = host.snapshot();
    rmsnorm(&mut worker, &old, 1, 64).unwrap();
    rmsnorm(&mut worker, &new, 1, 64).unwrap();
    let calls = || -> Vec<(String, u64)> {
        let stats = host.stats().into_iter().filter(|s| s.kernel == "rmsnorm_f32");
        stats.map(|s| (s.pack_version, s.calls)).collect()
    };
    assert_eq!(calls(), [("1.0.0".to_owned(), 2), ("2.0.0".to_owned(), 1)]);
    assert_eq!(worker.instances(), 2);
    drop(old);
    rmsnorm(&mut worker, &new, 1, 64).unwrap();
    assert_eq!(worker.instances(), 1, "the drained generation's instance is gone");
    assert_eq!(calls()[0].1, 2, "its figures are not");
}

#[test]
fn a_slot_of_another_generation_is_refused() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let slot = host.snapshot().slot(&OpKey::rmsnorm_f32()).unwrap();
    host.install(version(2, &Module::default()).verify().unwrap()).unwrap();
    let (x, weight) = input(1, 8);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, 8, 1e-5);
    let mut worker = host.worker().unwrap();
    let error = worker.call(&host.snapshot(), slot, &call, &mut [0; 32]).unwrap_err();
    assert_eq!(error.code(), "stale_slot");
}

#[test]
fn two_hosts_live_in_one_process_and_do_not_mix() {
    let config = HostConfig::default;
    let one = host(config(), &version(1, &Module::default()));
    let two = host(config(), &version(1, &but_for(100, "(unreachable)")));
    let (mut first, mut second) = (one.worker().unwrap(), two.worker().unwrap());
    rmsnorm(&mut first, &one.snapshot(), 1, 100).unwrap();
    rmsnorm(&mut second, &two.snapshot(), 1, 100).unwrap();
    assert_eq!(stats(&one, "rmsnorm_f32").fallbacks, 0);
    assert_eq!(stats(&two, "rmsnorm_f32").fallbacks, 1);
    let error = rmsnorm(&mut first, &two.snapshot(), 1, 100).unwrap_err();
    assert_eq!(error.code(), "foreign_snapshot");
    // A worker and a snapshot outlive the last handle of their host.
    let snap = one.snapshot();
    drop(one);
    rmsnorm(&mut second, &two.snapshot(), 1, 64).unwrap();
    rmsnorm(&mut first, &snap, 1, 64).unwrap();
}

#[test]
fn packs_installed_at_once_are_both_there() {
    let named = |name: &str| {
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
            .manifest(|m| m.name = name.parse().unwrap())
            .build()
    };
    let host = Host::new(HostConfig::default()).unwrap();
    let packs = [named("one"), named("two"), named("three")];
    std::thread::scope(|scope| {
        for pack in &packs {
            let host = host.clone();
            scope.spawn(move || host.install(pack.verify().unwrap()).unwrap());
        }
    });
    let snap = host.snapshot();
    assert_eq!((snap.packs().count(), snap.generation()), (3, 4));
    let generations: Vec<u64> = host.kernels().iter().map(|k| k.generation).collect();
    assert_eq!(generations[..3], [4, 3, 2]);
    let explanation = host.explain(&OpKey::rmsnorm_f32());
    let newest = snap.packs().next().unwrap().0;
    assert_eq!(explanation.candidates[0].pack, newest);
    assert!(host.remove(newest));
    assert!(!host.remove(newest));
    assert_eq!(host.snapshot().packs().count(), 2);
}

#[test]
fn a_packs_own_fallback_comes_before_native_twins() {
    let module = rmsnorm_f32(&Module::default());
    let entry = |id: &str| {
        let mut entry = pack(&Module::default()).manifest.kernels[0].clone();
        (entry.id, entry.path) = (id.to_owned(), format!("{id}.wasm").parse().unwrap());
        entry
    };
    let bad = rmsnorm_f32(&but_for(100, "(unreachable)"));
    let pack = PackBuilder::new()
        .entry(entry("plain"), module)
        .entry(entry("fast"), bad)
        .manifest(|m| drop(m.fallbacks.insert("fast".into(), "plain".into())))
        .build();
    let host = host(HostConfig::default(), &pack);
    let order: Vec<String> =
        host.explain(&OpKey::rmsnorm_f32()).candidates.into_iter().map(|c| c.kernel).collect();
    assert_eq!(order, ["fast", "plain", "native:rmsnorm_f32"]);
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &host.snapshot(), 1, 100).unwrap();
    assert_eq!(stats(&host, "plain").calls, 1);
}
