//! Generations, side by side and one after the other.

use super::*;
use crate::{GenerationState, Resident};
use ruvllm_tests::wat::lora_apply_f32;
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

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
fn instances_are_ready_when_a_generation_is_published() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let ready = || {
        let snapshot = host.snapshot();
        let kernel = snapshot.kernels().find(|kernel| kernel.id() == "rmsnorm_f32");
        kernel.map_or(0, |kernel| kernel.pool().len())
    };
    let (x, weight) = input(3, 48);
    let (constant, gone) = (Resident::from_f32(&weight), Resident::from_f32(&weight));
    let call = |worker: &mut Worker, weight: Operand| {
        let snapshot = host.snapshot();
        rmsnorm_with(worker, &snapshot, 3, 48, Operand::f32(&x), weight).unwrap();
    };
    let mut workers = [host.worker().unwrap(), host.worker().unwrap(), host.worker().unwrap()];
    let install = |n: u64| {
        host.install(version(n, &Module::default()).verify().unwrap()).unwrap();
    };
    assert_eq!(ready(), 0, "nobody has called anything");
    for worker in &mut workers[..2] {
        call(worker, constant.all());
        call(worker, gone.all());
    }
    drop(gone);
    install(2);
    assert_eq!(ready(), 2, "one for each that called");
    call(&mut workers[0], Operand::f32(&weight));
    assert_eq!(ready(), 1);
    assert_eq!((workers[0].instances(), workers[0].uploaded()), (1, 1), "what lives is there");
    // Nor are those forgotten that call nothing between two publications.
    install(3);
    assert_eq!(ready(), 2);
    host.roll_back(3).unwrap();
    assert_eq!(ready(), 2);
    for worker in &mut workers {
        call(worker, constant.all());
    }
    assert_eq!(ready(), 0);
    assert_eq!(workers.each_ref().map(Worker::instances), [1; 3]);
    assert_eq!(stats(&host, "rmsnorm_f32").fallbacks, 0);
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

/// Stages a pack and activates it.
fn swap(host: &Host, pack: &TestPack) -> crate::InstallReport {
    let staged = host.stage(pack.verify().unwrap()).unwrap();
    host.activate(staged.id).unwrap()
}

fn states(host: &Host) -> Vec<(u64, GenerationState, usize)> {
    let generations = host.generations().into_iter();
    generations.map(|report| (report.generation, report.state, report.holders)).collect()
}

#[test]
fn a_staged_pack_serves_nobody_until_it_is_activated_and_only_once() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let two = version(2, &Module::default());
    let staged = host.stage(two.verify().unwrap()).unwrap();
    assert_eq!((host.generation(), staged.pack.version.as_str()), (2, "2.0.0"));
    assert_eq!(host.stage(two.verify().unwrap()).unwrap().id, staged.id, "it is staged already");
    assert_eq!(host.staged().len(), 1);
    let report = host.activate(staged.id).unwrap();
    assert_eq!((report.generation, report.replaced.as_deref()), (3, Some("1.0.0")));
    assert_eq!(report.digest, two.verify().unwrap().digest().to_string());
    assert_eq!(host.activate(staged.id).unwrap_err().code(), "not_staged");
    let staged = host.stage(version(3, &Module::default()).verify().unwrap()).unwrap();
    assert!(host.discard(staged.id));
    assert!(!host.discard(staged.id));
    assert!(host.staged().is_empty());
}

#[test]
fn no_more_packs_are_staged_than_the_configuration_allows() {
    let host = Host::new(HostConfig { staged: 2, ..HostConfig::default() }).unwrap();
    let stage = |n| host.stage(version(n, &Module::default()).verify().unwrap());
    stage(1).unwrap();
    let second = stage(2).unwrap();
    assert_eq!(stage(3).unwrap_err().code(), "stage_full");
    host.discard(second.id);
    stage(3).unwrap();
}

#[test]
fn packs_that_are_staged_at_the_same_time_share_the_threads() {
    let host = Host::new(HostConfig { staging_threads: 2, ..HostConfig::default() }).unwrap();
    // Two kernels each, so that there is work for both.
    let pack = |n: u64| {
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
            .kernel("lora_apply_f32", lora_apply_f32(&Module::default()))
            .manifest(|m| m.version = semver::Version::new(n, 0, 0))
            .build()
    };
    let packs = [pack(1), pack(2), pack(3)];
    thread::scope(|scope| {
        for pack in &packs {
            let host = host.clone();
            scope.spawn(move || host.stage(pack.verify().unwrap()).unwrap());
        }
    });
    assert!(host.staged().iter().all(|staged| staged.kernels.len() == 2));
    let mut ids: Vec<u64> = host.staged().iter().map(|staged| staged.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn a_staged_pack_computes_the_shapes_that_the_host_has_seen() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let mut worker = host.worker().unwrap();
    for dim in [100, 300] {
        rmsnorm(&mut worker, &host.snapshot(), 1, dim).unwrap();
    }
    rmsnorm(&mut worker, &host.snapshot(), 500, 100).unwrap();
    let stage = |module: &Module| host.stage(version(2, module).verify().unwrap());
    assert_eq!(stage(&Module::default()).unwrap().rehearsed, 3);
    // Golden inputs have no rows of 100 columns: only live ones show it.
    let refused = stage(&but_for(100, "(unreachable)")).unwrap_err();
    assert_eq!(refused.code(), "kernel_trap");
    assert!(refused.to_string().contains("live shape [[1, 100], [100]]"), "{refused}");
    let wrong = spoiled_for(100, "(f32.store (local.get $out) (f32.const 7))");
    assert_eq!(stage(&wrong).unwrap_err().code(), "kernel_mismatch");
    assert_eq!(host.generation(), 2);
}

#[test]
fn the_old_generation_is_seen_to_drain() {
    use GenerationState::{Active, Drained, Draining};
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let old = host.pin();
    assert_eq!(states(&host), [(2, Active, 1), (1, Drained, 0)]);
    swap(&host, &version(2, &Module::default()));
    assert_eq!(states(&host)[..2], [(3, Active, 0), (2, Draining, 1)]);
    assert!(host.serves(3) && !host.serves(2));
    drop(old);
    assert_eq!(states(&host)[..2], [(3, Active, 0), (2, Drained, 0)]);
}

#[test]
fn what_held_a_generation_is_dropped_on_another_thread() {
    struct Holder(#[expect(dead_code)] Arc<RegistrySnapshot>, mpsc::Sender<ThreadId>);
    impl Drop for Holder {
        fn drop(&mut self) {
            self.1.send(thread::current().id()).unwrap();
        }
    }
    let (gone, goes) = mpsc::channel();
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    // At once where it follows a publication, and long after one, when the thread sleeps.
    for (n, pause) in [(2, Duration::ZERO), (3, Duration::from_millis(1500))] {
        let holder = Holder(host.pin(), gone.clone());
        swap(&host, &version(n, &Module::default()));
        thread::sleep(pause);
        host.let_go(holder);
        let by = goes.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_ne!(by, thread::current().id());
        // It has gone with its holder.
        while states(&host)[1].1 != GenerationState::Drained {
            thread::yield_now();
        }
    }
}

#[test]
fn a_fingerprint_tells_who_answers_and_in_which_order() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let fingerprint = || {
        let snapshot = host.snapshot();
        let slots = [OpKey::rmsnorm_f32(), OpKey::swiglu_f32()].map(|key| snapshot.slot(&key));
        snapshot.fingerprint(slots.into_iter().flatten()).unwrap()
    };
    let first = fingerprint();
    swap(&host, &version(2, &but_for(100, "(unreachable)")));
    let second = fingerprint();
    assert_ne!(first, second);
    host.roll_back(2).unwrap();
    assert_eq!(fingerprint(), first, "another generation of the same kernels");
    host.roll_back(1).unwrap();
    let natives = fingerprint();
    assert!(natives != first && natives != second);
    let old = host.snapshot();
    let slot = old.slot(&OpKey::rmsnorm_f32()).unwrap();
    host.roll_back(2).unwrap();
    assert!(matches!(host.snapshot().fingerprint([slot]), Err(CallError::StaleSlot { .. })));
}

#[test]
fn going_back_compiles_nothing_and_keeps_what_is_known_of_the_kernels() {
    let config = HostConfig { quarantine_after: 1, ..HostConfig::default() };
    let host = host(config, &version(1, &but_for(100, "(unreachable)")));
    let mut worker = host.worker().unwrap();
    rmsnorm(&mut worker, &host.pin(), 1, 64).unwrap();
    swap(&host, &version(2, &Module::default()));
    assert_eq!(host.previous_generation(), Some(2));
    let report = host.roll_back(2).unwrap();
    assert_eq!((report.generation, report.restores), (4, Some(2)));
    assert_eq!(report.packs[0].version, "1.0.0");
    assert_eq!(host.previous_generation(), Some(1), "not the one that was left");
    rmsnorm(&mut worker, &host.pin(), 1, 100).unwrap();
    let of_one = |host: &Host| {
        let mut stats = host.stats().into_iter();
        stats.find(|stats| stats.pack_version == "1.0.0").unwrap()
    };
    let figures = of_one(&host);
    assert_eq!((figures.calls, figures.fallbacks, figures.quarantined), (1, 1, true));
    assert!(figures.current);
    host.roll_back(3).unwrap();
    host.roll_back(4).unwrap();
    rmsnorm(&mut worker, &host.pin(), 1, 64).unwrap();
    assert_eq!(of_one(&host).calls, 1, "it stays out of service");
    for (generation, code) in [(6, "generation_not_kept"), (99, "generation_not_kept")] {
        assert_eq!(host.roll_back(generation).unwrap_err().code(), code);
    }
}

#[test]
fn generations_are_kept_up_to_a_number() {
    let host = Host::new(HostConfig { kept_generations: 2, ..HostConfig::default() }).unwrap();
    for n in 1..=4 {
        swap(&host, &version(n, &Module::default()));
    }
    let kept: Vec<u64> = states(&host).iter().map(|state| state.0).collect();
    assert_eq!(kept, [5, 4, 3]);
    assert_eq!(host.roll_back(2).unwrap_err().code(), "generation_not_kept");
    assert_eq!(host.roll_back(3).unwrap().packs[0].version, "2.0.0");
}

#[test]
fn a_barred_pack_enters_by_no_way_until_it_is_cleared() {
    let (one, two) = (version(1, &Module::default()), version(2, &Module::default()));
    let host = host(HostConfig::default(), &one);
    let digest = one.verify().unwrap().digest().to_string();
    let staged = host.stage(two.verify().unwrap()).unwrap();
    host.activate(staged.id).unwrap();
    host.bar(&digest, "it was slow");
    for refused in [
        host.stage(one.verify().unwrap()).unwrap_err(),
        host.install(one.verify().unwrap()).unwrap_err(),
        host.roll_back(2).unwrap_err(),
    ] {
        assert_eq!(refused.code(), "pack_barred");
        assert!(refused.to_string().contains("it was slow"), "{refused}");
    }
    assert_eq!(host.barred(), [(digest.clone(), "it was slow".to_owned())]);
    assert!(host.clear(&digest));
    assert!(!host.clear(&digest));
    host.roll_back(2).unwrap();
}

#[test]
fn a_trial_has_its_share_of_the_steps_and_can_be_promoted() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let staged = host.stage(version(2, &Module::default()).verify().unwrap()).unwrap();
    assert_eq!(host.start_canary(staged.id, 0.0).unwrap_err().code(), "canary_share");
    let canary = host.start_canary(staged.id, 0.05).unwrap().generation;
    let mut worker = host.worker().unwrap();
    for _ in 0..200 {
        rmsnorm(&mut worker, &host.pin(), 1, 64).unwrap();
    }
    let calls = |version: &str| {
        let stats = host.stats();
        stats.iter().find(|stats| stats.pack_version == version).unwrap().calls
    };
    assert_eq!((calls("1.0.0"), calls("2.0.0")), (190, 10));
    assert_eq!((host.generation(), host.serves(canary)), (2, true));
    assert_eq!(states(&host)[0], (3, GenerationState::Canary { share: 0.05 }, 0));
    let other = version(3, &Module::default());
    let staged = host.stage(other.verify().unwrap()).unwrap();
    assert_eq!(host.activate(staged.id).unwrap_err().code(), "canary_running");
    assert_eq!(host.install(other.verify().unwrap()).unwrap_err().code(), "canary_running");
    assert_eq!(host.promote_canary().unwrap(), canary);
    assert_eq!((host.generation(), host.serves(2)), (canary, false));
    assert_eq!(worker.instances(), 2);
    rmsnorm(&mut worker, &host.pin(), 1, 64).unwrap();
    assert_eq!(worker.instances(), 1);
    assert_eq!(host.end_canary().unwrap_err().code(), "no_canary");
    host.roll_back(2).unwrap();
}

#[test]
fn a_trial_that_ended_leaves_nothing_to_go_back_to() {
    let host = host(HostConfig::default(), &version(1, &Module::default()));
    let staged = host.stage(version(2, &Module::default()).verify().unwrap()).unwrap();
    let canary = host.start_canary(staged.id, 1.0).unwrap().generation;
    let step = host.pin();
    assert_eq!(step.generation(), canary);
    assert_eq!(host.end_canary().unwrap(), canary);
    assert_eq!(host.pin().generation(), 2);
    assert_eq!(states(&host)[0], (canary, GenerationState::Draining, 1));
    assert_eq!(host.roll_back(canary).unwrap_err().code(), "generation_not_kept");
    drop(step);
    assert_eq!(states(&host).len(), 2, "it is forgotten when it has drained");
}

#[test]
fn calls_of_a_trial_are_checked_more_often() {
    let config = HostConfig {
        cross_check_every: u32::MAX,
        canary_check_every: 4,
        quarantine_after: u32::MAX,
        ..HostConfig::default()
    };
    let wrong = spoiled_for(100, "(f32.store (local.get $out) (f32.const 7))");
    let failures = |on_trial: bool| {
        let host = host(config.clone(), &version(1, &wrong));
        if on_trial {
            let staged = host.stage(version(2, &wrong).verify().unwrap()).unwrap();
            host.start_canary(staged.id, 1.0).unwrap();
        }
        let mut worker = host.worker().unwrap();
        rmsnorm(&mut worker, &host.pin(), 1, 96).unwrap();
        let (x, weight) = input(1, 100);
        for _ in 0..400 {
            let snap = host.pin();
            let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
            let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 1, 100, 1e-5);
            worker.call(&snap, slot, &call, &mut [0; 400]).unwrap();
        }
        host.stats().iter().flat_map(|stats| stats.failures.values()).sum::<u64>()
    };
    assert_eq!(failures(false), 0);
    // A failure costs the instance, and the first run of the next one is checked too.
    assert!(failures(true) > 100);
}

#[test]
fn a_thousand_swaps_under_load_fail_no_call_and_leave_nothing_behind() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    let cache = tempfile::tempdir().unwrap();
    let cache_dir = Some(cache.path().join("cache"));
    let packs = [version(1, &Module::default()), version(2, &Module::default())];
    let host = host(HostConfig { cache_dir, ..HostConfig::default() }, &packs[1]);
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let all_done = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        // One calls without a pause. The others leave time to the thread of low priority that admits kernels, or it takes
        // minutes.
        let serve = |pause: Duration| {
            let mut worker = host.worker().unwrap();
            while !done.load(Relaxed) {
                rmsnorm(&mut worker, &host.pin(), 1, 64).unwrap();
                calls.fetch_add(1, Relaxed);
                thread::sleep(pause);
            }
            // Nobody holds an old generation any more.
            all_done.wait();
            rmsnorm(&mut worker, &host.pin(), 1, 64).unwrap();
            assert_eq!(worker.instances(), 1);
            assert!(worker.kernels() < 200, "{} kernels", worker.kernels());
        };
        for millis in 0..3 {
            scope.spawn(move || serve(Duration::from_millis(millis)));
        }
        for n in 0..1000 {
            let seen = calls.load(Relaxed);
            swap(&host, &packs[n % 2]);
            // Some calls on every generation, so that instances come and go.
            while n % 10 == 0 && calls.load(Relaxed) < seen + 3 {
                std::thread::yield_now();
            }
        }
        done.store(true, Relaxed);
    });
    let stats = host.stats();
    let mine = || stats.iter().filter(|stats| stats.kernel == "rmsnorm_f32");
    assert_eq!(mine().map(|stats| stats.fallbacks).sum::<u64>(), 0);
    assert_eq!(host.generation(), 1002);
    assert!(mine().count() < 600, "{} all_stats", mine().count());
    assert_eq!(host.generations().len(), 9);
}
