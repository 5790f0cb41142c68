//! The policy `fastest` on a live host: what its own calls tell it, what it does with that, and what it does not.

use super::*;
use crate::registry::learn::Learner;
use crate::{ChoiceChange, Policy};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Rows and columns of the calls, of one class of sizes.
const ROWS: u32 = 80;
const DIM: u32 = 95;

fn fastest(directory: Option<&Path>) -> HostConfig {
    let cache_dir = directory.map(Path::to_owned);
    HostConfig { policy: Policy::Fastest, cache_dir, ..HostConfig::default() }
}

fn learner(host: &Host) -> Arc<Learner> {
    host.state.learner.clone().unwrap()
}

/// Calls until the choice has changed so often, with a review now and then.
fn call_until_changed(host: &Host, changes: u64) -> Vec<ChoiceChange> {
    let (mut worker, snap) = (host.worker().unwrap(), host.snapshot());
    for call in 0..400_000 {
        rmsnorm(&mut worker, &snap, ROWS, DIM).unwrap();
        if call % 256 == 0 {
            learner(host).review(SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
            let (made, numbered) = host.choice_changes(0);
            if numbered >= changes {
                return made;
            }
        }
    }
    panic!("no change: {}", host.explain(&OpKey::rmsnorm_f32()));
}

/// Which of them answers calls, but for those of a look at another.
fn answers(host: &Host) -> &'static str {
    let calls = || ["rmsnorm_f32", "native:rmsnorm_f32"].map(|kernel| stats(host, kernel).calls);
    let before = calls();
    let (mut worker, snap) = (host.worker().unwrap(), host.snapshot());
    (0..99).for_each(|_| rmsnorm(&mut worker, &snap, ROWS, DIM).unwrap());
    let after = calls();
    if after[0] - before[0] > after[1] - before[1] { "sandbox" } else { "native" }
}

#[test]
fn a_choice_follows_live_calls_and_is_kept_and_explained() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let pack = pack(&Module::default());
    let running = host(fastest(Some(&cache)), &pack);
    let explained = |host: &Host| host.explain(&OpKey::rmsnorm_f32()).notes.join("; ");
    assert!(!explained(&running).contains(" us in the median"), "{}", explained(&running));
    assert_eq!(answers(&running), "sandbox", "the order of the chain before anything is known");
    // A scalar kernel in the sandbox against vectors.
    let [change] = call_until_changed(&running, 1).try_into().unwrap();
    let [sandboxed, native] = ["test-kernels/rmsnorm_f32", "native:rmsnorm_f32"];
    assert_eq!([&*change.from.kernel, &*change.to.kernel], [sandboxed, native]);
    assert_eq!(answers(&running), "native");
    assert!(explained(&running).contains(&change.to_string()), "{}", explained(&running));
    assert!(explained(&running).contains("calls of 16 to 64 KiB: native:rmsnorm_f32 first"));
    // The native twin becomes slow.
    running.state.workers.native_delay.store(60_000, Relaxed);
    let [_, back] = call_until_changed(&running, 2).try_into().unwrap();
    assert_eq!([&*back.from.kernel, &*back.to.kernel], [native, sandboxed]);
    assert_eq!(answers(&running), "sandbox");
    running.state.workers.native_delay.store(0, Relaxed);
    let [.., last] = &call_until_changed(&running, 3)[..] else { panic!("no change") };
    assert_eq!(answers(&running), "native", "and fast again");
    drop(running);
    let restarted = host(fastest(Some(&cache)), &pack);
    assert_eq!(answers(&restarted), "native");
    assert_eq!(restarted.choice_changes(0).1, 0);
    // The change that another process made, with its evidence.
    assert!(explained(&restarted).contains(&last.to_string()), "{}", explained(&restarted));
    let another = host(fastest(Some(&cache)), &super::pack(&but_for(12345, "(nop)")));
    assert_eq!(answers(&another), "sandbox", "another kernel");
}

#[cfg(feature = "supervisor")]
#[test]
fn a_change_of_choice_is_an_entry_of_the_history_with_its_evidence() {
    use crate::{HistoryEvent, Supervisor, SupervisorConfig};
    let dir = tempfile::tempdir().unwrap();
    let host = host(fastest(None), &pack(&Module::default()));
    let trust = ruvllm_signing::TrustPolicy::builtin();
    let config = SupervisorConfig::new(dir.path().join("state"), trust);
    let supervisor = Supervisor::open(host.clone(), config).unwrap();
    let [change] = call_until_changed(&host, 1).try_into().unwrap();
    supervisor.tick();
    supervisor.tick();
    let [entry, started] = supervisor.history(9).try_into().unwrap();
    assert_eq!([started.event, entry.event], [HistoryEvent::Started, HistoryEvent::ChoiceChanged]);
    assert_eq!((entry.reason, entry.generation), (change.to_string(), Some(host.generation())));
}

#[test]
fn a_candidate_that_fails_when_it_is_looked_at_is_blamed_and_nobody_else_is_told() {
    // No other may answer for the one that is asked first, which is not the one that fails.
    let config = HostConfig { strict: true, ..fastest(None) };
    let host = host(config, &pack(&but_for(96, "(unreachable)")));
    call_until_changed(&host, 1);
    let (mut worker, snap) = (host.worker().unwrap(), host.snapshot());
    let quarantined = || stats(&host, "rmsnorm_f32").quarantined;
    let calls = (0..100_000).take_while(|_| !quarantined());
    calls.for_each(|_| rmsnorm(&mut worker, &snap, ROWS, 96).unwrap());
    assert!(quarantined());
}

/// How many calls were timed, of each candidate in the order of the chain.
fn timed(snap: &RegistrySnapshot) -> Vec<u64> {
    let slot = snap.slots().iter().find(|slot| slot.key == OpKey::rmsnorm_f32()).unwrap();
    let times = slot.choice.chain.iter().map(|kernel| kernel.stats().times());
    times.map(|times| times.iter().map(|of_class| of_class.calls()).sum()).collect()
}

#[test]
fn of_the_calls_that_another_answers_in_a_row_the_first_half_is_not_timed() {
    let host = host(fastest(None), &pack(&Module::default()));
    // So that the order stays.
    host.state.workers.native_delay.store(100_000, Relaxed);
    let (mut worker, snap) = (host.worker().unwrap(), host.snapshot());
    let mut others = Vec::new();
    for _ in 0..20_000 {
        rmsnorm(&mut worker, &snap, ROWS, DIM).unwrap();
        others.push(stats(&host, "native:rmsnorm_f32").calls);
    }
    let runs = others.chunk_by(|before, after| before < after).map(<[u64]>::len);
    let runs: Vec<_> = runs.filter(|calls| *calls > 1).map(|calls| calls - 1).collect();
    assert!((20..200).contains(&runs.len()), "of the calls one in sixteen is drawn: {runs:?}");
    // Two may follow each other, and the last one need not have ended.
    let (last, whole) = runs.split_last().unwrap();
    assert!(whole.iter().all(|calls| calls % 16 == 0), "{runs:?}");
    let expected = whole.iter().sum::<usize>() / 2 + last / 16 * 8 + (last % 16).saturating_sub(8);
    assert_eq!(timed(&snap)[1], expected as u64, "{runs:?}");
}

#[test]
fn a_deterministic_host_learns_nothing() {
    let config = HostConfig { deterministic: true, ..fastest(None) };
    let host = host(config, &pack(&Module::default()));
    let (mut worker, snap) = (host.worker().unwrap(), host.snapshot());
    (0..5000).for_each(|_| rmsnorm(&mut worker, &snap, ROWS, DIM).unwrap());
    assert_eq!(stats(&host, "native:rmsnorm_f32").calls, 0);
    assert!(host.state.learner.is_none());
    let notes = host.explain(&OpKey::rmsnorm_f32()).notes.join("; ");
    assert!(notes.contains("this order stands"), "{notes}");
}

const DIRECTORY: &str = "RUVLLM_TEST_LEARNING_DIR";
const CALLS: u64 = 2000;

/// One of several processes that count calls at the same time. It is run by the test below.
#[test]
#[ignore = "run by another test"]
fn counts_calls() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let host = host(fastest(Some(Path::new(&directory))), &pack(&Module::default()));
    // So that no choice changes, after which all is measured anew.
    host.state.workers.native_delay.store(100_000, Relaxed);
    let (mut worker, snap) = (host.worker().unwrap(), host.snapshot());
    let mut now = Duration::from_secs(1_000_000);
    for call in 1..=CALLS {
        rmsnorm(&mut worker, &snap, ROWS, DIM).unwrap();
        if call % 100 == 0 {
            now += Duration::from_secs(31);
            learner(&host).review(now);
        }
    }
    let timed: u64 = timed(&snap).iter().sum();
    let file = format!("timed-{}", std::process::id());
    std::fs::write(Path::new(&directory).with_file_name(file), timed.to_string()).unwrap();
    while learner(&host).has_unsaved() {
        std::thread::sleep(Duration::from_millis(5));
        now += Duration::from_secs(31);
        learner(&host).review(now);
    }
}

#[test]
fn processes_at_the_same_time_lose_no_call() {
    const PROCESSES: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let pack = pack(&Module::default());
    // Compiled once.
    drop(host(fastest(Some(&cache)), &pack));
    let test = "tests::learning::counts_calls";
    let start = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--ignored"]).env(DIRECTORY, &cache);
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let children: Vec<_> = (0..PROCESSES).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let host = host(fastest(Some(&cache)), &pack);
    let known = learner(&host).calls(&OpKey::rmsnorm_f32());
    let files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let timed =
        files.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with("timed-"));
    let timed: Vec<u64> =
        timed.map(|file| std::fs::read_to_string(file).unwrap().parse().unwrap()).collect();
    assert!(timed.iter().all(|calls| (CALLS / 2..=CALLS).contains(calls)), "{timed:?}");
    assert_eq!((timed.len() as u64, timed.iter().sum::<u64>()), (PROCESSES, known));
}
