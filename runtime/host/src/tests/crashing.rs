//! Processes that are killed while they change generations, and what the next one finds.
//!
//! The victim is this test binary, run again. Before it does something that may change what a restart
//! finds, it writes to a file what that would be; afterwards it writes that it is so. A kill loses
//! neither line, so the next victim knows what it may find: what was acknowledged last, or what was
//! being done.

use super::*;
use crate::{GenerationState, HealthLimits, HistoryEvent, Supervisor, SupervisorConfig};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const DIRECTORY: &str = "RUVLLM_TEST_CRASH_DIR";
const SEED: &str = "RUVLLM_TEST_CRASH_SEED";
/// What a victim prints before it does anything, when it has looked around, and after each step of its
/// work.
const BEGIN: &str = "begin";
const OPEN: &str = "open";
const STEP: &str = "step";
const KILLS: u64 = 200;
/// How many are killed before they have begun a history, or while they do.
const BEGINNERS: u64 = 80;
const LANES: u64 = 4;
/// Steps that a victim takes at most before the one in which it is killed, if that is long enough.
const STEPS: u64 = 24;

/// Columns for which the last pack traps.
const BAD: u32 = 100;

fn random(state: &mut u64) -> u64 {
    // SplitMix64 (Steele, Lea and Flood 2014).
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a restart finds: versions of the active packs, and whether the bad one is barred.
type Found = (String, bool);

/// The file in which a victim says what it does.
struct Diary {
    file: File,
    /// What the next restart may find.
    possible: BTreeSet<Found>,
}

impl Diary {
    fn open(path: &Path) -> Self {
        let mut possible = BTreeSet::new();
        let text = fs::read_to_string(path).unwrap_or_default();
        // The last line may be cut short: what it would have said had not begun.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let fields: Vec<&str> = line.trim_end().split(' ').collect();
            let found = (fields[1].to_owned(), fields[2] == "true");
            if fields[0] == "is" {
                possible.clear();
            }
            possible.insert(found);
        }
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b" cut\n").unwrap();
        }
        Self { file, possible }
    }

    fn write(&mut self, word: &str, (versions, barred): &Found) {
        self.file.write_all(format!("{word} {versions} {barred}\n").as_bytes()).unwrap();
    }
}

/// A victim at work.
struct Victim {
    supervisor: Supervisor,
    packs: Vec<UnverifiedPack>,
    bad: String,
    seconds: Arc<AtomicU64>,
    diary: Diary,
    /// What a restart finds.
    now: Found,
}

impl Victim {
    fn open(dir: &Path) -> Self {
        let limits = PackLimits::default();
        let path = |n: usize| dir.join(format!("pack-{n}"));
        let packs: Vec<_> =
            (0..3).map(|n| UnverifiedPack::read_dir(&path(n), &limits).unwrap()).collect();
        let trust = fs::read_to_string(dir.join("trust.toml")).unwrap();
        let trust = TrustPolicy::from_toml(&trust).unwrap();
        let bad = packs[2].clone().verify(&trust, None).unwrap().digest().to_string();
        let seconds = Arc::new(AtomicU64::new(0));
        let clock = seconds.clone();
        let config = SupervisorConfig {
            clock: Arc::new(move || Duration::from_secs(clock.load(Relaxed))),
            limits: HealthLimits { evidence_calls: 0, ..HealthLimits::default() },
            ..SupervisorConfig::new(dir.join("state"), trust)
        };
        let cache_dir = Some(dir.join("cache"));
        let host = Host::new(HostConfig { cache_dir, ..HostConfig::default() }).unwrap();
        let supervisor = Supervisor::open(host, config).unwrap();
        let diary = Diary::open(&dir.join("diary"));
        let now = (String::new(), false);
        let mut victim = Self { supervisor, packs, bad, seconds, diary, now };
        victim.now = (victim.active(), victim.is_barred());
        victim
    }

    fn active(&self) -> String {
        versions(&self.supervisor.host().snapshot().pack_ids())
    }

    fn is_barred(&self) -> bool {
        self.supervisor.host().barred().iter().any(|(digest, _)| *digest == self.bad)
    }

    /// Holds what it found against what earlier victims did.
    fn check(&mut self) {
        let possible = &self.diary.possible;
        assert!(
            possible.is_empty() || possible.contains(&self.now),
            "{:?} instead of {possible:?}",
            self.now
        );
        let started = &self.supervisor.history(1)[0];
        assert_eq!(started.event, HistoryEvent::Started);
        assert!(self.supervisor.health().is_empty());
        let mut worker = self.supervisor.host().worker().unwrap();
        rmsnorm(&mut worker, &self.supervisor.host().pin(), 1, 64).unwrap();
        self.diary.write("is", &self.now);
    }

    /// Does something after which a restart finds something else, if it succeeds.
    fn change(&mut self, to: Found, work: impl FnOnce(&Supervisor) -> bool) {
        self.diary.write("may", &to);
        if work(&self.supervisor) {
            self.now = to;
        }
        self.diary.write("is", &self.now);
    }

    fn step(&mut self, state: &mut u64) {
        let n = random(state);
        let staged = self.supervisor.host().staged();
        let pick = staged.get(n as usize / 16 % staged.len().max(1)).map(|staged| staged.id);
        match (n % 12, pick) {
            (0..=2, _) => {
                // Refused where it is barred or there are too many.
                let pack = self.packs[n as usize / 16 % 3].clone();
                let _ = self.supervisor.stage(pack, "test");
            }
            (3..=4, Some(id)) => drop(self.supervisor.activate(id, "test")),
            (5, Some(id)) => drop(self.supervisor.start_canary(id, 0.5, "test")),
            (6, Some(id)) if n % 32 == 6 => drop(self.supervisor.discard(id, "test")),
            (7, _) if n % 32 == 7 => drop(self.supervisor.end_canary("test")),
            (7, _) => drop(self.supervisor.promote_canary("test")),
            (8, _) => {
                // The bad pack is found out here, if it serves.
                let mut worker = self.supervisor.host().worker().unwrap();
                rmsnorm(&mut worker, &self.supervisor.host().pin(), 1, BAD).unwrap();
                let to = (self.now.0.clone(), true);
                self.change(to, |supervisor| {
                    let before = supervisor.counters().taken_back;
                    supervisor.tick();
                    supervisor.counters().taken_back != before
                });
            }
            (9, _) => {
                self.seconds.fetch_add(300, Relaxed);
                let to = (self.active(), self.now.1);
                self.change(to, |supervisor| {
                    // A trial that went well changes nothing yet.
                    let watched = supervisor.health().iter().any(|health| !health.canary);
                    let before = supervisor.counters().taken_back;
                    supervisor.tick();
                    watched && supervisor.counters().taken_back == before
                });
            }
            (10, _) => {
                let host = self.supervisor.host().clone();
                let Some(previous) = host.previous_generation() else { return };
                let packs = host.generations().into_iter().find(|g| g.generation == previous);
                let to = (versions(&packs.unwrap().packs), self.now.1);
                self.change(to, |supervisor| {
                    let done = supervisor.roll_back(None, "test").is_ok();
                    // One that was never found healthy is watched first.
                    done && supervisor.health().is_empty()
                });
            }
            (11, _) => {
                let bad = self.bad.clone();
                let to = (self.now.0.clone(), false);
                self.change(to, |supervisor| supervisor.clear(&bad, "test").unwrap());
            }
            _ => {
                let listed = self.supervisor.host().generations();
                assert!(listed.iter().any(|g| g.state == GenerationState::Active));
            }
        }
    }
}

fn versions(packs: &[crate::PackId]) -> String {
    let versions: Vec<&str> = packs.iter().map(|pack| pack.version.as_str()).collect();
    if versions.is_empty() { "none".to_owned() } else { versions.join(",") }
}

/// Works until it is killed; without a seed it only looks.
#[test]
#[ignore = "run by the test of kills"]
fn victim() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    println!("{BEGIN}");
    let mut victim = Victim::open(Path::new(&dir));
    victim.check();
    if let Some(seed) = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()) {
        let mut state: u64 = seed;
        println!("{OPEN}");
        loop {
            victim.step(&mut state);
            println!("{STEP}");
        }
    }
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "tests::crashing::victim", "--ignored", "--nocapture"])
        .env(DIRECTORY, dir)
        .stdin(Stdio::null());
    command
}

/// Kills victims over one directory, one after the other, and gives what they wrote of themselves.
fn kill(dir: PathBuf, seed: u64) -> String {
    let log = dir.join("log");
    let mut state = seed;
    for round in 0..KILLS / LANES {
        let errors = OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let mut child = command(&dir)
            .env(SEED, (seed + round).to_string())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        // Some while they start and look around, most at work: in a step of their own, however fast
        // the machine is.
        let early = random(&mut state).is_multiple_of(8);
        // Open until it is killed: who writes to nobody ends.
        let stdout = child.stdout.take().unwrap();
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        if !early {
            let opened = lines.any(|line| line.ends_with(OPEN));
            assert!(opened, "{}", fs::read_to_string(&log).unwrap());
            let steps = random(&mut state) % STEPS;
            let taken = lines.by_ref().filter(|line| line == STEP);
            taken.take(steps as usize).for_each(drop);
        }
        std::thread::sleep(Duration::from_micros(random(&mut state) % 5_000));
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(&log).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let last = command(&dir).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    fs::read_to_string(dir.join("diary")).unwrap()
}

/// A directory for each lane, with packs to choose from, the last of which is bad.
fn lanes(root: &Path) -> Vec<PathBuf> {
    let key = ruvllm_signing::SecretKey::generate().unwrap().to_pem().unwrap();
    let bad = but_for(BAD, "(unreachable)");
    let packs: Vec<TestPack> = [Module::default(), Module::default(), bad]
        .iter()
        .zip(1..)
        .map(|(module, n)| {
            PackBuilder::new()
                .kernel("rmsnorm_f32", rmsnorm_f32(module))
                .manifest(|m| m.version = semver::Version::new(n, 0, 0))
                .key(ruvllm_signing::SecretKey::parse(key.as_bytes()).unwrap())
                .build()
        })
        .collect();
    let lane = |lane: u64| {
        let dir = root.join(lane.to_string());
        fs::create_dir(&dir).unwrap();
        for (n, pack) in packs.iter().enumerate() {
            pack.read().unwrap().write_dir(&dir.join(format!("pack-{n}"))).unwrap();
        }
        fs::copy(packs[0].policy_file(), dir.join("trust.toml")).unwrap();
        dir
    };
    (0..LANES).map(lane).collect()
}

/// Kills victims that find nothing in their directory yet, each of which is followed by one that has to
/// find its way.
fn kill_beginners(dir: &Path, seed: u64) {
    let mut state = seed;
    for _ in 0..BEGINNERS / LANES {
        let mut child = command(dir).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with(BEGIN)));
        std::thread::sleep(Duration::from_micros(random(&mut state) % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let next = command(dir).output().unwrap();
        assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
        fs::remove_dir_all(dir.join("state")).unwrap();
        fs::remove_file(dir.join("diary")).unwrap();
    }
}

#[test]
fn a_kill_while_the_history_is_begun_leaves_none_or_a_whole_one() {
    let root = tempfile::tempdir().unwrap();
    let lanes = lanes(root.path());
    std::thread::scope(|scope| {
        for (dir, seed) in lanes.iter().zip(1..) {
            scope.spawn(move || kill_beginners(dir, seed));
        }
    });
}

#[test]
fn a_kill_at_any_moment_leaves_what_was_healthy_or_what_was_being_confirmed() {
    let root = tempfile::tempdir().unwrap();
    let lanes = lanes(root.path());
    let diaries: String = std::thread::scope(|scope| {
        let work = |(lane, dir)| scope.spawn(move || kill(dir, 1000 * lane));
        let lanes: Vec<_> = (0..LANES).zip(lanes).map(work).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
    });
    // They did get somewhere: packs came and went, and were barred and cleared.
    let states: BTreeSet<&str> =
        diaries.lines().filter_map(|line| line.strip_prefix("is ")).collect();
    assert!(diaries.matches("may ").count() as u64 > KILLS, "{diaries}");
    assert!(states.len() >= 4, "{states:?}");
}
