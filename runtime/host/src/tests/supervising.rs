//! Activations that are watched, taken back, written down and brought back by a restart.

use super::*;
use crate::{
    Health, HealthLimits, HistoryEntry, HistoryEvent, Supervisor, SupervisorConfig, SupervisorError,
};
use ruvllm_signing::{PackLock, SecretKey, VersionFloor};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One publisher's packs, a directory, and a clock that stands still unless it is told.
pub(super) struct Place {
    dir: tempfile::TempDir,
    key: SecretKey,
    seconds: Arc<AtomicU64>,
}

impl Place {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, key: SecretKey::generate().unwrap(), seconds: Arc::default() }
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn build(&self, n: u64, kernel: Vec<u8>, ticks: u64) -> TestPack {
        PackBuilder::new()
            .kernel("rmsnorm_f32", kernel)
            .manifest(|m| {
                m.version = semver::Version::new(n, 0, 0);
                m.kernels[0].resource_limits.max_epoch_ticks = ticks;
            })
            .key(self.key())
            .build()
    }

    /// The publisher's key.
    fn key(&self) -> SecretKey {
        SecretKey::parse(self.key.to_pem().unwrap().as_bytes()).unwrap()
    }

    pub(super) fn pack(&self, n: u64, module: &Module) -> TestPack {
        self.build(n, rmsnorm_f32(module), 1000)
    }

    /// A pack of another name.
    pub(super) fn other(&self, module: &Module) -> TestPack {
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(module))
            .manifest(|m| m.name = "other".parse().unwrap())
            .key(self.key())
            .build()
    }

    fn config(&self, trusts: &TestPack) -> SupervisorConfig {
        let seconds = self.seconds.clone();
        SupervisorConfig {
            clock: Arc::new(move || Duration::from_secs(seconds.load(Relaxed))),
            // Most tests are of what is said of a pack, not of how often it was called.
            limits: HealthLimits { evidence_calls: 0, ..HealthLimits::default() },
            ..SupervisorConfig::new(self.dir().join("state"), trusts.policy())
        }
    }

    fn host(&self) -> Host {
        let cache_dir = Some(self.dir().join("cache"));
        let config = HostConfig { cache_dir, quarantine_after: 2, ..HostConfig::default() };
        Host::new(config).unwrap()
    }

    pub(super) fn open(&self, trusts: &TestPack) -> Supervisor {
        Supervisor::open(self.host(), self.config(trusts)).unwrap()
    }

    fn pass(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Relaxed);
    }

    /// Lets the time of a whole health window pass.
    pub(super) fn end_window(&self, supervisor: &Supervisor) {
        self.pass(300);
        supervisor.tick();
    }
}

pub(super) fn activate(supervisor: &Supervisor, pack: &TestPack) -> Result<u64, SupervisorError> {
    let staged = supervisor.stage(pack.read().unwrap(), "me")?;
    Ok(supervisor.activate(staged.id, "me")?.generation)
}

pub(super) fn active(supervisor: &Supervisor) -> Vec<String> {
    supervisor.host().snapshot().pack_ids().into_iter().map(|pack| pack.version).collect()
}

pub(super) fn events(supervisor: &Supervisor) -> Vec<HistoryEvent> {
    let mut entries = supervisor.history(100);
    entries.reverse();
    entries.into_iter().map(|entry| entry.event).collect()
}

pub(super) fn digest(pack: &TestPack) -> String {
    pack.verify().unwrap().digest().to_string()
}

/// Activates a first pack, finds it healthy, activates a second one and lets it be called; gives the
/// supervisor after a tick, the reason that the history has, and the code of the counters.
fn taken_back(
    second: &TestPack,
    place: &Place,
    calls: impl Fn(&mut Worker, &Host),
) -> (String, String) {
    let first = place.pack(1, &Module::default());
    let supervisor = place.open(&first);
    activate(&supervisor, &first).unwrap();
    place.end_window(&supervisor);
    activate(&supervisor, second).unwrap();
    supervisor.tick();
    assert_eq!(active(&supervisor), ["2.0.0"]);
    let mut worker = supervisor.host().worker().unwrap();
    calls(&mut worker, supervisor.host());
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"]);
    assert!(supervisor.health().is_empty());
    // Barred, here and after a restart, until somebody clears it.
    let refused = |supervisor: &Supervisor| {
        let error = supervisor.stage(second.read().unwrap(), "me").unwrap_err();
        assert_eq!(error.code(), "pack_barred");
        error.to_string()
    };
    let message = refused(&supervisor);
    let codes: Vec<_> = supervisor.counters().taken_back.into_iter().collect();
    assert_eq!((codes.len(), codes[0].1), (1, 1));
    let entries = supervisor.history(100);
    let entry = entries.iter().find(|e| e.event == HistoryEvent::RolledBack).unwrap();
    assert_eq!(entry.pack.as_ref().unwrap().version, "2.0.0");
    assert!(message.contains(&entry.reason), "{message}");
    drop(supervisor);
    let supervisor = place.open(&first);
    assert_eq!(active(&supervisor), ["1.0.0"]);
    refused(&supervisor);
    assert!(supervisor.clear(&digest(second), "me").unwrap());
    assert!(!supervisor.clear(&digest(second), "me").unwrap());
    (entry.reason.clone(), codes[0].0.to_owned())
}

#[test]
fn a_generation_that_does_well_for_the_window_is_what_a_restart_brings_back() {
    use HistoryEvent::{Activated, Activating, Healthy, Staged, Started};
    let place = Place::new();
    let (one, two) = (place.pack(1, &Module::default()), place.pack(2, &Module::default()));
    let supervisor = place.open(&one);
    activate(&supervisor, &one).unwrap();
    assert!(matches!(supervisor.health()[0].health, Health::Watching { .. }));
    place.pass(299);
    supervisor.tick();
    assert!(!supervisor.health().is_empty());
    place.pass(1);
    supervisor.tick();
    assert!(supervisor.health().is_empty());
    assert_eq!(events(&supervisor), [Started, Staged, Activating, Activated, Healthy]);
    let entry = &supervisor.history(2)[1];
    assert_eq!((entry.operator.as_str(), entry.generation), ("me", Some(2)));
    assert_eq!(entry.pack.as_ref().unwrap().digest, digest(&one));
    activate(&supervisor, &two).unwrap();
    assert_eq!(active(&supervisor), ["2.0.0"]);
    drop(supervisor);
    // The second one's window was not over.
    let supervisor = place.open(&one);
    assert_eq!(active(&supervisor), ["1.0.0"]);
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 64).unwrap();
    assert_eq!(stats(supervisor.host(), "rmsnorm_f32").calls, 1);
}

#[test]
fn traps_deadlines_and_wrong_numbers_take_a_generation_back() {
    let bad = |module: &Module, ticks: u64| {
        let place = Place::new();
        let pack = place.build(2, rmsnorm_f32(module), ticks);
        let call = |worker: &mut Worker, host: &Host| {
            rmsnorm(worker, &host.pin(), 1, 100).unwrap();
        };
        taken_back(&pack, &place, call)
    };
    assert_eq!(bad(&but_for(100, "(unreachable)"), 1000).1, "traps");
    assert_eq!(bad(&but_for(100, "(return (i32.const 6))"), 1000).1, "traps");
    assert_eq!(bad(&but_for(100, "(loop $l (br $l))"), 20).1, "deadlines");
    let (reason, code) = bad(&spoiled_for(100, "(f32.store (local.get $out) (f32.const 7))"), 1000);
    assert_eq!(
        (reason.as_str(), code.as_str()),
        ("1 calls gave wrong numbers; 0 may", "wrong_numbers")
    );
}

/// Does nothing some hundred thousand times first, for a size that is timed each time.
fn slow() -> Module {
    but_for(
        2000,
        "(local.set $i (i32.const 100000)) (loop $l (br_if $l (local.tee $i
           (i32.sub (local.get $i) (i32.const 1)))))",
    )
}

#[test]
fn the_same_calls_in_turns_tell_who_is_slow() {
    let place = Place::new();
    let other =
        Module { fields: "(global $unused i32 (i32.const 1))".to_owned(), ..Module::default() };
    let host = place.host();
    let key = OpKey::rmsnorm_f32();
    let install = |version, module: &Module| {
        host.install(place.pack(version, module).verify().unwrap()).unwrap();
        host.snapshot()
    };
    let [first, second] = [install(1, &Module::default()), install(2, &other)];
    let is_slower = |old, new| host.compare(old, new).is_slower(&host, &key, 3.0);
    assert!(is_slower(&first, &second), "nobody has called, so there is nothing to compute");
    rmsnorm(&mut host.worker().unwrap(), &host.pin(), 1, 2000).unwrap();
    assert!(!is_slower(&first, &second));
    let third = install(3, &slow());
    assert!(is_slower(&second, &third));
    assert!(!is_slower(&third, &second));
}

#[test]
fn a_generation_that_is_slower_is_taken_back() {
    let slow = slow();
    let place = Place::new();
    let (first, second) = (place.pack(1, &Module::default()), place.pack(2, &slow));
    let supervisor = place.open(&first);
    let mut worker = supervisor.host().worker().unwrap();
    let mut calls = |n| {
        for _ in 0..n {
            rmsnorm(&mut worker, &supervisor.host().pin(), 1, 2000).unwrap();
        }
    };
    activate(&supervisor, &first).unwrap();
    calls(600);
    place.end_window(&supervisor);
    assert_eq!(active(&supervisor), ["1.0.0"], "{:?}", supervisor.counters());
    activate(&supervisor, &second).unwrap();
    calls(500);
    supervisor.tick();
    assert_eq!(active(&supervisor), ["2.0.0"], "too few calls to tell");
    calls(20);
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"]);
    assert_eq!(supervisor.counters().taken_back["latency"], 1);
}

#[test]
fn who_is_slower_in_the_same_calls_is_taken_back_where_few_were_timed_before() {
    let place = Place::new();
    let (first, second) = (place.pack(1, &Module::default()), place.pack(2, &slow()));
    let supervisor = place.open(&first);
    activate(&supervisor, &first).unwrap();
    call_often(&supervisor, 100);
    place.end_window(&supervisor);
    activate(&supervisor, &second).unwrap();
    call_often(&supervisor, 500);
    supervisor.tick();
    assert_eq!(active(&supervisor), ["2.0.0"], "too few calls to tell");
    call_often(&supervisor, 20);
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"], "{:?}", supervisor.health());
    assert_eq!(supervisor.counters().taken_back["latency"], 1);
    let reason = supervisor.history(1)[0].reason.clone();
    assert!(reason.contains("in the same calls"), "{reason}");
}

#[test]
fn who_only_seems_slower_is_acquitted() {
    // The same code takes 1.25 or five times as long as it may.
    for latency_ratio in [0.8, 0.2] {
        let place = Place::new();
        let [first, second] = [1, 2].map(|n| place.pack(n, &Module::default()));
        let limits = HealthLimits { latency_ratio, evidence_calls: 0, ..HealthLimits::default() };
        let config = SupervisorConfig { limits, ..place.config(&first) };
        let supervisor = Supervisor::open(place.host(), config).unwrap();
        let mut worker = supervisor.host().worker().unwrap();
        for pack in [&first, &second] {
            activate(&supervisor, pack).unwrap();
            for _ in 0..600 {
                rmsnorm(&mut worker, &supervisor.host().pin(), 1, 2000).unwrap();
            }
            supervisor.tick();
            place.end_window(&supervisor);
        }
        assert_eq!(active(&supervisor), ["2.0.0"], "{:?}", supervisor.counters());
    }
}

/// A supervisor that asks for evidence, with the first pack active and called often.
fn asking(place: &Place, limits: HealthLimits) -> Supervisor {
    let first = place.pack(1, &Module::default());
    let supervisor =
        Supervisor::open(place.host(), SupervisorConfig { limits, ..place.config(&first) });
    let supervisor = supervisor.unwrap();
    activate(&supervisor, &first).unwrap();
    call_often(&supervisor, 600);
    place.end_window(&supervisor);
    assert_eq!(events(&supervisor).last(), Some(&HistoryEvent::Healthy));
    supervisor
}

fn call_often(supervisor: &Supervisor, calls: usize) {
    let mut worker = supervisor.host().worker().unwrap();
    for _ in 0..calls {
        rmsnorm(&mut worker, &supervisor.host().pin(), 1, 2000).unwrap();
    }
}

#[test]
fn a_window_without_calls_ends_unproven_and_a_restart_knows_better() {
    let place = Place::new();
    let second = place.pack(2, &spoiled_for(7, "(nop)"));
    let supervisor = asking(&place, HealthLimits::default());
    activate(&supervisor, &second).unwrap();
    call_often(&supervisor, 100);
    place.end_window(&supervisor);
    let report = &supervisor.health()[0];
    let left = Duration::from_secs(900);
    assert_eq!(report.health, Health::Watching { left }, "it is extended");
    assert!(report.vitals.lacking[0].contains("of 512 calls"), "{:?}", report.vitals.lacking);
    place.pass(900);
    supervisor.tick();
    supervisor.tick();
    assert_eq!(supervisor.health()[0].health, Health::Unproven);
    let unproven = events(&supervisor).iter().filter(|e| **e == HistoryEvent::Unproven).count();
    assert_eq!(unproven, 1);
    assert_eq!(active(&supervisor), ["2.0.0"]);
    // Whatever else is found healthy, the set with it is not.
    activate(&supervisor, &place.other(&Module::default())).unwrap();
    place.pass(1200);
    supervisor.tick();
    drop(supervisor);
    let supervisor = place.open(&second);
    assert_eq!(active(&supervisor), ["1.0.0"]);
}

#[test]
fn what_was_unproven_is_watched_on_and_healthy_once_it_was_called_often() {
    let place = Place::new();
    let supervisor = asking(&place, HealthLimits::default());
    activate(&supervisor, &place.pack(2, &Module::default())).unwrap();
    place.pass(1200);
    supervisor.tick();
    assert_eq!(supervisor.health()[0].health, Health::Unproven);
    call_often(&supervisor, 600);
    supervisor.tick();
    assert_eq!(events(&supervisor).last(), Some(&HistoryEvent::Healthy));
    let third = place.pack(3, &but_for(100, "(unreachable)"));
    activate(&supervisor, &third).unwrap();
    place.pass(1200);
    supervisor.tick();
    assert_eq!(supervisor.health()[0].health, Health::Unproven);
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    supervisor.tick();
    assert_eq!(active(&supervisor), ["2.0.0"]);
}

#[test]
fn a_kernel_that_is_slow_in_some_calls_only_is_taken_back() {
    let place = Place::new();
    // A slow call that waits for a processor runs into its deadline as well.
    let limits = HealthLimits { deadlines: u64::MAX, ..HealthLimits::default() };
    let supervisor = asking(&place, limits);
    let sometimes = Module {
        fields: "(global $calls (mut i32) (i32.const 0))".to_owned(),
        ..but_for(
            2000,
            "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
             (if (i32.eqz (i32.and (global.get $calls) (i32.const 3)))
               (then (local.set $i (i32.const 1000000))
                 (loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))))",
        )
    };
    activate(&supervisor, &place.pack(2, &sometimes)).unwrap();
    call_often(&supervisor, 700);
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"], "{:?}", supervisor.health());
    assert_eq!(supervisor.counters().taken_back["latency"], 1);
}

/// A probe that takes until it is let go, from its so many-th call on, and how often it was called.
fn endless_probe(from: u64) -> (crate::Probe, Arc<AtomicU64>, std::sync::mpsc::Sender<()>) {
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let (held, calls) = (Mutex::new(held), Arc::new(AtomicU64::new(0)));
    let count = calls.clone();
    let probe = move || {
        if count.fetch_add(1, Relaxed) + 1 >= from {
            // Ends when the sender goes.
            let _ = held.lock().unwrap().recv();
        }
        Ok(2.0)
    };
    (Arc::new(probe), calls, let_go)
}

fn until(happened: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !happened() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn going_back_does_not_wait_for_a_probe_text_that_is_being_computed() {
    let place = Place::new();
    let [one, two] = [1, 2].map(|n| place.pack(n, &Module::default()));
    let (probe, calls, let_go) = endless_probe(2);
    let config = SupervisorConfig { probe: Some(probe), ..place.config(&one) };
    let supervisor = Supervisor::open(place.host(), config).unwrap();
    activate(&supervisor, &one).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| activate(&supervisor, &two));
        until(|| calls.load(Relaxed) == 2);
        assert!(supervisor.roll_back(None, "me").unwrap().packs.is_empty());
        supervisor.health();
        assert_eq!(supervisor.end_canary("me").unwrap_err().code(), "no_canary");
        drop(let_go);
        // What was asked for before somebody went back is not done after it.
        assert_eq!(second.join().unwrap().unwrap_err().code(), "change_overtaken");
    });
    assert!(active(&supervisor).is_empty());
}

#[test]
fn a_pack_is_taken_back_while_its_probe_text_takes_for_ever() {
    let place = Place::new();
    let [one, bad] =
        [place.pack(1, &Module::default()), place.pack(2, &but_for(100, "(unreachable)"))];
    let (probe, calls, let_go) = endless_probe(2);
    let config = SupervisorConfig { probe: Some(probe), ..place.config(&one) };
    let supervisor = Arc::new(Supervisor::open(place.host(), config).unwrap());
    activate(&supervisor, &bad).unwrap();
    let watchdog = supervisor.watch(Duration::from_millis(1)).unwrap();
    until(|| calls.load(Relaxed) == 2);
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    until(|| active(&supervisor).is_empty());
    // Nor does whoever ends the process wait.
    drop(watchdog);
    drop(let_go);
}

#[test]
fn a_probe_text_that_is_told_worse_takes_a_generation_back() {
    let run = |losses: [Result<f64, String>; 2]| {
        let place = Place::new();
        let first = place.pack(1, &Module::default());
        let losses = Mutex::new(losses.to_vec());
        let probe = move || losses.lock().unwrap().remove(0);
        let config = SupervisorConfig { probe: Some(Arc::new(probe)), ..place.config(&first) };
        let supervisor = Supervisor::open(place.host(), config).unwrap();
        activate(&supervisor, &first).unwrap();
        supervisor.tick();
        supervisor.tick();
        supervisor.counters().taken_back.contains_key("quality")
    };
    assert!(!run([Ok(2.0), Ok(2.01)]));
    assert!(run([Ok(2.0), Ok(2.1)]));
    assert!(run([Ok(2.0), Err("no logits".to_owned())]));
}

#[test]
fn quarantines_alone_can_take_a_generation_back() {
    let place = Place::new();
    let (first, second) =
        (place.pack(1, &Module::default()), place.pack(2, &but_for(100, "(unreachable)")));
    let limits = HealthLimits { traps: 100, evidence_calls: 0, ..HealthLimits::default() };
    let config = SupervisorConfig { limits, ..place.config(&first) };
    let supervisor = Supervisor::open(place.host(), config).unwrap();
    activate(&supervisor, &first).unwrap();
    activate(&supervisor, &second).unwrap();
    let mut worker = supervisor.host().worker().unwrap();
    for left in [1, 0] {
        supervisor.tick();
        assert_eq!(active(&supervisor), ["2.0.0"]);
        rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
        assert_eq!(stats(supervisor.host(), "rmsnorm_f32").quarantined, left == 0);
    }
    supervisor.tick();
    // The first one's window was not over either: the last healthy generation has no pack.
    assert!(active(&supervisor).is_empty());
    assert_eq!(supervisor.counters().taken_back["quarantine"], 1);
}

#[test]
fn a_trial_that_goes_wrong_ends_by_itself_and_one_that_goes_well_is_promoted() {
    let place = Place::new();
    let bad = place.pack(2, &but_for(100, "(unreachable)"));
    let supervisor = place.open(&bad);
    let staged = supervisor.stage(bad.read().unwrap(), "me").unwrap();
    supervisor.start_canary(staged.id, 1.0, "me").unwrap();
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    supervisor.tick();
    assert_eq!(supervisor.host().pin().generation(), 1);
    assert_eq!(supervisor.stage(bad.read().unwrap(), "me").unwrap_err().code(), "pack_barred");
    let good = place.pack(3, &Module::default());
    let staged = supervisor.stage(good.read().unwrap(), "me").unwrap();
    let canary = supervisor.start_canary(staged.id, 0.5, "me").unwrap().generation;
    place.end_window(&supervisor);
    assert!(supervisor.health().is_empty() && supervisor.host().serves(canary));
    assert_eq!(supervisor.promote_canary("me").unwrap(), canary);
    assert_eq!(supervisor.health()[0].generation, canary);
    place.end_window(&supervisor);
    drop(supervisor);
    assert_eq!(active(&place.open(&good)), ["3.0.0"]);
}

#[test]
fn packs_are_watched_one_by_one_and_booked_together() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let good = place.other(&Module::default());
    let supervisor = place.open(&one);
    activate(&supervisor, &one).unwrap();
    place.pass(200);
    activate(&supervisor, &good).unwrap();
    assert_eq!(supervisor.health().len(), 2);
    place.pass(100);
    supervisor.tick();
    // The first has done well, but what is active has not been watched long enough.
    assert_eq!(supervisor.health().len(), 1);
    let bad = place.other(&but_for(100, "(unreachable)"));
    let staged = supervisor.stage(bad.read().unwrap(), "me").unwrap();
    supervisor.start_canary(staged.id, 1.0, "me").unwrap();
    assert_eq!(supervisor.health().len(), 2);
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    place.pass(200);
    supervisor.tick();
    assert!(supervisor.health().is_empty());
    assert_eq!(supervisor.counters().taken_back["traps"], 1);
    drop(supervisor);
    assert_eq!(active(&place.open(&one)).len(), 2);
}

#[test]
fn a_pack_that_is_activated_again_has_one_window_and_is_barred_all_the_same() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let bad = place.other(&but_for(100, "(unreachable)"));
    let supervisor = place.open(&one);
    activate(&supervisor, &one).unwrap();
    place.end_window(&supervisor);
    activate(&supervisor, &bad).unwrap();
    // Each time other kernels, of the same packs.
    for _ in 0..5 {
        activate(&supervisor, &one).unwrap();
        activate(&supervisor, &bad).unwrap();
        assert_eq!(supervisor.health().len(), 2);
    }
    let watched: Vec<_> = supervisor.health().into_iter().flat_map(|report| report.packs).collect();
    assert_eq!(watched.iter().map(|pack| &*pack.name).collect::<Vec<_>>(), ["other"]);
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"]);
    let refused = supervisor.stage(bad.read().unwrap(), "me").unwrap_err();
    assert_eq!(refused.code(), "pack_barred");
}

#[test]
fn a_pack_that_is_activated_again_is_held_against_what_was_before_it() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let told = Arc::new(Mutex::new(2.0));
    let tells = told.clone();
    let probe = move || Ok(*tells.lock().unwrap());
    let config = SupervisorConfig { probe: Some(Arc::new(probe)), ..place.config(&one) };
    let supervisor = Supervisor::open(place.host(), config).unwrap();
    activate(&supervisor, &one).unwrap();
    place.end_window(&supervisor);
    let two = place.pack(2, &Module::default());
    activate(&supervisor, &two).unwrap();
    // Before anybody has looked, and with its own loss already.
    *told.lock().unwrap() = 3.0;
    activate(&supervisor, &two).unwrap();
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"]);
    assert_eq!(supervisor.counters().taken_back["quality"], 1);
}

#[test]
fn a_trial_leaves_the_window_over_what_was_gone_back_to_open() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let other = place.other(&Module::default());
    let supervisor = place.open(&one);
    let first = activate(&supervisor, &one).unwrap();
    activate(&supervisor, &other).unwrap();
    // To less than there was, and before it was found healthy: a window without a pack of its own.
    supervisor.roll_back(Some(first), "me").unwrap();
    let staged = supervisor.stage(other.read().unwrap(), "me").unwrap();
    supervisor.start_canary(staged.id, 0.5, "me").unwrap();
    assert_eq!(supervisor.health().len(), 2);
    place.end_window(&supervisor);
    drop(supervisor);
    assert_eq!(active(&place.open(&one)), ["1.0.0"]);
}

#[test]
fn the_healthy_generation_is_kept_however_many_come_after_it() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let supervisor = place.open(&one);
    activate(&supervisor, &one).unwrap();
    place.end_window(&supervisor);
    for n in 2..14 {
        activate(&supervisor, &place.pack(n, &Module::default())).unwrap();
        assert_eq!(supervisor.health().len(), 1, "what was replaced is watched no longer");
    }
    activate(&supervisor, &place.pack(14, &but_for(100, "(unreachable)"))).unwrap();
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    supervisor.tick();
    assert_eq!(active(&supervisor), ["1.0.0"]);
}

#[test]
fn nobody_goes_back_to_less_than_the_program_brings_unless_he_says_so() {
    let place = Place::new();
    let (own, new) = (place.pack(1, &Module::default()), place.pack(2, &Module::default()));
    let host = place.host();
    host.install(own.verify().unwrap()).unwrap();
    let supervisor = Supervisor::open(host, place.config(&own)).unwrap();
    let back = |to| supervisor.roll_back(to, "me").map(|report| report.packs);
    assert_eq!(back(None).unwrap_err().code(), "no_earlier_generation");
    activate(&supervisor, &new).unwrap();
    assert_eq!(back(None).unwrap()[0].version, "1.0.0");
    assert_eq!(back(None).unwrap_err().code(), "no_earlier_generation");
    assert_eq!(back(Some(1)).unwrap(), []);
}

#[test]
fn an_operators_way_back_outlives_a_restart() {
    let place = Place::new();
    let (one, two) = (place.pack(1, &Module::default()), place.pack(2, &Module::default()));
    let supervisor = place.open(&one);
    for pack in [&one, &two] {
        activate(&supervisor, pack).unwrap();
        place.end_window(&supervisor);
    }
    let report = supervisor.roll_back(None, "me").unwrap();
    assert_eq!(report.packs[0].version, "1.0.0");
    assert!(supervisor.health().is_empty(), "it was found healthy before");
    for none in [77, u64::MAX] {
        let error = supervisor.roll_back(Some(none), "me").unwrap_err();
        assert_eq!(error.code(), "generation_not_kept");
    }
    drop(supervisor);
    let supervisor = place.open(&one);
    assert_eq!(active(&supervisor), ["1.0.0"]);
    // Numbers go on, and those of the earlier process are its own.
    let earlier = report.generation;
    assert!(supervisor.host().generations().iter().all(|report| report.generation > earlier));
    let error = supervisor.roll_back(Some(earlier), "me").unwrap_err();
    assert_eq!(error.code(), "generation_not_kept");
    let own = supervisor.roll_back(None, "me").unwrap();
    assert_eq!(own.packs.len(), 0, "the program's own");
    assert_eq!(supervisor.roll_back(None, "me").unwrap_err().code(), "no_earlier_generation");
    place.end_window(&supervisor);
    drop(supervisor);
    // Also where nothing is brought back.
    let supervisor = place.open(&one);
    assert!(supervisor.host().generation() > own.generation);
    assert_eq!(supervisor.previous_generation(), None);
    activate(&supervisor, &two).unwrap();
    let published = |entry: &&HistoryEntry| {
        use HistoryEvent::{Activated, RolledBack, Started};
        matches!(entry.event, Started | Activated | RolledBack)
    };
    let history = supervisor.history(100);
    let mut numbers: Vec<u64> =
        history.iter().filter(published).filter_map(|entry| entry.generation).collect();
    numbers.dedup();
    assert!(numbers.is_sorted_by(|newer, older| newer > older), "{numbers:?}");
}

#[test]
fn what_the_program_brings_along_stays_beside_what_the_history_knows() {
    let place = Place::new();
    let own = || {
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
            .manifest(|m| m.name = "own".parse().unwrap())
            .build()
    };
    let one = place.pack(1, &Module::default());
    for _ in 0..2 {
        let host = place.host();
        // Of a different key each time, as of a newer program.
        host.install(own().verify().unwrap()).unwrap();
        let supervisor = Supervisor::open(host, place.config(&one)).unwrap();
        if active(&supervisor).len() == 1 {
            activate(&supervisor, &one).unwrap();
            place.end_window(&supervisor);
        }
        let names: Vec<_> = supervisor.host().snapshot().pack_ids();
        let names: Vec<_> = names.iter().map(|pack| pack.name.as_str()).collect();
        assert_eq!(names, ["test-kernels", "own"]);
    }
}

#[test]
fn a_pack_that_the_program_loads_over_another_is_over_it_whatever_ran_before() {
    let place = Place::new();
    let named = |name: &str| {
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
            .manifest(|m| m.name = name.parse().unwrap())
            .build()
    };
    let (base, one) = (named("base"), place.pack(1, &Module::default()));
    let opened = |over: &[&str]| {
        let host = place.host();
        host.install(base.verify().unwrap()).unwrap();
        for name in over {
            host.install(named(name).verify().unwrap()).unwrap();
        }
        Supervisor::open(host, place.config(&one)).unwrap()
    };
    let names = |supervisor: &Supervisor| -> Vec<String> {
        let packs = supervisor.host().snapshot().pack_ids();
        packs.into_iter().map(|pack| pack.name.to_string()).collect()
    };
    assert_eq!(names(&opened(&[])), ["base"]);
    assert_eq!(names(&opened(&["first"])), ["first", "base"]);
    let supervisor = opened(&["other", "second"]);
    assert_eq!(names(&supervisor), ["second", "other", "base"]);
    activate(&supervisor, &one).unwrap();
    place.end_window(&supervisor);
    drop(supervisor);
    assert_eq!(names(&opened(&["third"])), ["test-kernels", "third", "base"]);
}

#[test]
fn packs_that_cannot_be_trusted_any_more_are_not_brought_back() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let supervisor = place.open(&one);
    activate(&supervisor, &one).unwrap();
    place.end_window(&supervisor);
    drop(supervisor);
    let revoked = one.policy().with_revoked([one.key().public_key()]);
    let config = SupervisorConfig { trust: revoked, ..place.config(&one) };
    let supervisor = Supervisor::open(place.host(), config).unwrap();
    assert!(active(&supervisor).is_empty());
    let entry = &supervisor.history(2)[1];
    assert_eq!(entry.event, HistoryEvent::Refused);
    assert_eq!(entry.pack.as_ref().unwrap().digest, digest(&one));
}

#[test]
fn what_is_refused_is_written_down_and_changes_nothing() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let supervisor = place.open(&one);
    let stranger = pack(&Module::default());
    let error = supervisor.stage(stranger.read().unwrap(), "me").unwrap_err();
    assert_eq!(error.code(), "pack_rejected");
    let wrong = place.pack(1, &Module { epilogue: "(unreachable)".into(), ..Module::default() });
    assert_eq!(supervisor.stage(wrong.read().unwrap(), "me").unwrap_err().code(), "kernel_trap");
    assert_eq!(supervisor.activate(1, "me").unwrap_err().code(), "not_staged");
    let refusals: Vec<_> = supervisor.history(2);
    assert!(refusals.iter().all(|entry| entry.event == HistoryEvent::Refused));
    assert!(refusals[0].reason.contains("kernel_trap"), "{}", refusals[0].reason);
    assert_eq!((supervisor.counters().refused, supervisor.counters().staged), (2, 0));
    let kept = || std::fs::read_dir(place.dir().join("state/packs")).unwrap().count();
    assert_eq!(kept(), 0);
    let staged = supervisor.stage(one.read().unwrap(), "me").unwrap();
    assert_eq!(kept(), 1);
    assert!(supervisor.discard(staged.id, "me").unwrap());
    assert!(!supervisor.discard(staged.id, "me").unwrap());
    assert_eq!(kept(), 0);
}

#[test]
fn the_floor_rises_when_a_generation_is_found_healthy_and_not_before() {
    let place = Place::new();
    let (one, two) = (place.pack(1, &Module::default()), place.pack(2, &Module::default()));
    let floor = VersionFloor::open(place.dir().join("floor")).unwrap();
    let config = SupervisorConfig { floor: Some(floor), ..place.config(&one) };
    let supervisor = Supervisor::open(place.host(), config).unwrap();
    activate(&supervisor, &two).unwrap();
    supervisor.discard(supervisor.stage(one.read().unwrap(), "me").unwrap().id, "me").unwrap();
    place.end_window(&supervisor);
    assert_eq!(supervisor.stage(one.read().unwrap(), "me").unwrap_err().code(), "pack_rejected");
}

#[test]
fn a_second_supervisor_is_told_that_the_history_is_in_use() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let _open = place.open(&one);
    let error = Supervisor::open(place.host(), place.config(&one)).err().unwrap();
    assert_eq!(error.code(), "history_locked");
}

#[test]
fn a_watchdog_ticks_by_itself() {
    let place = Place::new();
    let one = place.pack(1, &Module::default());
    let supervisor = Arc::new(place.open(&one));
    let watchdog = supervisor.watch(Duration::from_millis(1)).unwrap();
    activate(&supervisor, &one).unwrap();
    place.pass(300);
    while !supervisor.health().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(watchdog);
}

/// A supervisor over a host that the program has given this pack.
fn beside(own: &TestPack, place: &Place) -> Supervisor {
    let host = place.host();
    host.install(own.verify().unwrap()).unwrap();
    Supervisor::open(host, place.config(own)).unwrap()
}

#[test]
fn of_what_the_program_brings_along_and_what_was_healthy_the_newer_is_active() {
    let place = Place::new();
    let pack = |n| place.pack(n, &Module::default());
    let supervisor = place.open(&pack(2));
    activate(&supervisor, &pack(2)).unwrap();
    place.end_window(&supervisor);
    drop(supervisor);
    assert_eq!(active(&beside(&pack(1), &place)), ["2.0.0"]);
    let supervisor = beside(&pack(3), &place);
    assert_eq!(active(&supervisor), ["3.0.0"]);
    let entry = &supervisor.history(1)[0];
    let reason = "test-kernels 3.0.0 in place of 2.0.0";
    assert_eq!((entry.event, entry.reason.as_str()), (HistoryEvent::Started, reason));
    assert!(!events(&supervisor).contains(&HistoryEvent::Refused));
    // Not one that did harm here, however new.
    let bad = place.pack(4, &but_for(100, "(unreachable)"));
    activate(&supervisor, &bad).unwrap();
    let mut worker = supervisor.host().worker().unwrap();
    rmsnorm(&mut worker, &supervisor.host().pin(), 1, 100).unwrap();
    supervisor.tick();
    drop(supervisor);
    assert_eq!(active(&beside(&bad, &place)), ["2.0.0"]);
}

#[test]
fn a_pack_of_an_earlier_program_gives_way_to_that_of_this_one() {
    let place = Place::new();
    drop(beside(&place.pack(1, &Module::default()), &place));
    let rebuilt = place.pack(1, &spoiled_for(7, "(nop)"));
    let supervisor = beside(&rebuilt, &place);
    assert_eq!(supervisor.host().snapshot().pack_ids()[0].digest, digest(&rebuilt));
    assert_eq!(events(&supervisor), [HistoryEvent::Started; 2]);
}

#[test]
fn a_lock_holds_for_packs_that_come_later() {
    let place = Place::new();
    let (one, two) = (place.pack(1, &Module::default()), place.pack(2, &Module::default()));
    let mut lock = PackLock::new();
    lock.insert(&one.verify().unwrap());
    let config = SupervisorConfig { lock: Some(lock), ..place.config(&one) };
    let supervisor = Supervisor::open(place.host(), config).unwrap();
    let error = supervisor.stage(two.read().unwrap(), "me").unwrap_err();
    assert!(error.to_string().contains("lock_mismatch"), "{error}");
    activate(&supervisor, &one).unwrap();
}
