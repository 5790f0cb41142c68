//! The policy `fastest`: which candidate answers calls of an operation fastest is learnt from live calls, and that
//! one is asked first.
//!
//! # What is measured
//!
//! The times that workers take of live calls anyway ([`crate::stats`]), by operation, class of sizes and kernel.
//! Most calls go to whoever is asked first, so of the others a sample is needed: one call in some hundreds goes to
//! another candidate, in runs of sixteen that are drawn by chance. These are calls that somebody waits for, because only
//! such calls find caches, memory and other threads as they are in service, and because calls of custom operations
//! cannot be made up. The first eight of a run are not counted: they find the caches without what the candidate needs,
//! which would speak for whoever is asked first. What that costs is bounded ([`Class::rate`](super::figures)): once the others are known, less than half a
//! percent of what an operation takes. A candidate that fails such a call is blamed as always, and the call is
//! answered as if it had not been asked. Calls that make an instance or upload constants do not count.
//!
//! All candidates of a class are sampled evenly over time, so a machine that is busy for a while slows all of them
//! down, and what is compared is medians: neither moves a choice.
//!
//! # When a choice changes
//!
//! Workers read the choice from an atomic; nothing is compared or written on their way. A thread of low priority
//! looks at the figures each second. A candidate takes over where its median is less than 4/5 of that of the one
//! that is asked first, over at least 128 calls of either. Then all of them are measured anew, so that what is
//! compared is always of the same time, and to change back takes the same evidence the other way round: noise of
//! less than a fourth changes nothing, and no choice lasts for less than some 4,000 calls. Every change is a
//! [`ChoiceChange`]. A deterministic host has no learner: there the order of the chain stands.
//!
//! # How it is forgotten
//!
//! A call counts half as much after 32,768 further calls of its operation and class were timed, whoever answered
//! those (of calls below 4 KiB one in 64 is timed). While nothing is called nothing is forgotten, so figures
//! survive a restart at any time. They hold for kernels of the same hash on the same processor, instruction set,
//! number of cores and version of this host; those of another host are kept for [`KEPT`] in case it comes back, and
//! are not used.
//!
//! # The file
//!
//! It lies beside the cache of machine code, under the MAC of that directory's key; one that is damaged or foreign
//! is ignored, with a line in the log, and written anew. Several processes may have it: each adds what it counted
//! since it last wrote to what is there, under a lock that nobody waits for, and takes choices of others over. A
//! forged figure could cost time and nothing else, since every candidate was admitted. A process that is killed
//! loses what it counted in the last [`SAVE_EVERY`].

#[cfg(test)]
use super::figures::Class;
use super::figures::{Chain, ChoiceChange, Chosen, FIRST_RATE, Fresh, Known};
use super::kernel::PublishedKernel;
use super::race;
use crate::exec::cache::AotCache;
use crate::stats::KernelStats;
use crate::stats::incidents::LOG;
use crate::stats::latency::{SIZES, SizeName, Times, below};
use crate::threads::lock;
use crate::{HostConfig, OpKey};
use ruvllm_signing::{Timestamp, escape_untrusted};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often the file is written where no choice has changed.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// How long the figures of another host are kept after it last wrote.
const KEPT: Duration = Duration::from_secs(90 * 86_400);

/// Changes that are kept for whoever asks; older ones go.
const CHANGES: usize = 256;

/// The file and its lock, in the directory of the cache.
pub(crate) const FILE: &str = "learnt";
const LOCK: &str = "learnt.lock";
const VERSION: u32 = 1;
/// A longer file is none of ours.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Who is asked first, by class of sizes, and how often another. Workers read it, the learner writes it.
pub(crate) struct Preference {
    first: [AtomicU8; SIZES],
    rate: [AtomicU32; SIZES],
}

impl Preference {
    /// The place in the chain of the one that is asked first.
    #[inline]
    pub(crate) fn first(&self, class: usize) -> usize {
        self.first[class].load(Relaxed).into()
    }

    /// One call in so many goes to another: at least [`FIRST_RATE`].
    pub(crate) fn rate(&self, class: usize) -> u32 {
        self.rate[class].load(Relaxed)
    }
}

/// Learns which candidates are fast, for one host.
pub(crate) struct Learner {
    /// `None` where nothing is kept.
    cache: Option<AotCache>,
    host: String,
    state: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    /// What is known: what the file had when it was last read, and what was counted since.
    known: Known,
    /// What was counted since the file was last written.
    unsaved: BTreeMap<(String, usize), Fresh>,
    /// Choices that were changed since.
    changed: BTreeSet<(String, usize, String)>,
    /// When that was, in milliseconds since 1970.
    saved: u64,
    counted: Vec<Counted>,
    followed: Vec<Followed>,
    changes: VecDeque<ChoiceChange>,
    /// How many there were.
    numbered: u64,
}

/// A kernel whose calls are counted, and what of them is known already.
struct Counted {
    hash: String,
    stats: Arc<KernelStats>,
    read: [Times; SIZES],
}

/// An operation whose candidates workers choose among.
struct Followed {
    chain: Chain,
    preference: Arc<Preference>,
}

/// What the file holds.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    hosts: BTreeMap<String, Known>,
}

impl Learner {
    /// What is known of earlier runs, where there is a directory that it is kept in.
    pub(crate) fn open(cache: Option<AotCache>, config: &HostConfig) -> Self {
        let host = race::host(config);
        let known = cache.as_ref().and_then(|cache| read(cache).hosts.remove(&host));
        let state = Learned { known: known.unwrap_or_default(), ..Learned::default() };
        Self { cache, host, state: Mutex::new(state) }
    }

    /// Who is asked first among these candidates. Their calls are counted from now on.
    pub(crate) fn preference(
        &self,
        op: &OpKey,
        candidates: &[Arc<PublishedKernel>],
    ) -> Arc<Preference> {
        let candidates =
            candidates.iter().map(|kernel| (kernel.hash().to_owned(), kernel.stats().clone()));
        self.follow(op, candidates.collect())
    }

    fn follow(&self, op: &OpKey, candidates: Vec<(String, Arc<KernelStats>)>) -> Arc<Preference> {
        let state = &mut *lock(&self.state);
        let mut hasher = blake3::Hasher::new();
        for (hash, _) in &candidates {
            hasher.update(&(hash.len() as u64).to_le_bytes()).update(hash.as_bytes());
        }
        let id = hasher.finalize().to_hex()[..32].to_owned();
        let same = |Followed { chain, .. }: &&Followed| {
            let theirs = chain.candidates.iter().map(|(_, stats)| stats);
            let same = theirs.zip(&candidates).all(|(a, (_, b))| Arc::ptr_eq(a, b));
            chain.op == *op && chain.id == id && same
        };
        if let Some(followed) = state.followed.iter().find(same) {
            return followed.preference.clone();
        }
        for (hash, stats) in &candidates {
            if !state.counted.iter().any(|counted| Arc::ptr_eq(&counted.stats, stats)) {
                let (hash, stats, read) = (hash.clone(), stats.clone(), stats.times());
                state.counted.push(Counted { hash, stats, read });
            }
        }
        let preference = Arc::new(Preference {
            first: std::array::from_fn(|_| AtomicU8::new(0)),
            rate: std::array::from_fn(|_| AtomicU32::new(FIRST_RATE)),
        });
        let chain = Chain { op: op.clone(), id, candidates };
        let followed = Followed { chain, preference: preference.clone() };
        followed.publish(&state.known);
        state.followed.push(followed);
        preference
    }

    /// Looks at what was called since the last time, changes choices where there is evidence, and writes the file if
    /// it is time to. `now` is the time since 1970.
    pub(crate) fn review(&self, now: Duration) {
        let now = now.as_millis() as u64;
        let state = &mut *lock(&self.state);
        state.count();
        state.judge(now);
        let due = now.abs_diff(state.saved) >= SAVE_EVERY.as_millis() as u64;
        if !state.changed.is_empty() || due && !state.unsaved.is_empty() {
            self.save(state, now);
        }
        state.followed.iter().for_each(|followed| followed.publish(&state.known));
    }

    /// As [`Learner::review`], now; to be called every second or so.
    #[cfg_attr(not(any(feature = "wasmtime", feature = "wamr")), allow(dead_code))]
    pub(crate) fn tick(&self) {
        self.review(since_1970());
    }

    /// Adds what was counted to the file, and takes over what others have put there. Where another process is at it, the
    /// next review tries again.
    fn save(&self, state: &mut Learned, now: u64) {
        let Some(cache) = &self.cache else {
            state.unsaved.clear();
            state.changed.clear();
            return;
        };
        let Some(_lock) = cache.lock(LOCK) else { return };
        let mut document = read(cache);
        if let Some(mut theirs) = document.hosts.remove(&self.host) {
            theirs.add(&state.unsaved);
            for (op, class, id) in &state.changed {
                let ours = state.known.class_mut(op, *class);
                theirs.class_mut(op, *class).take_over(ours, id);
            }
            let before = std::mem::replace(&mut state.known, theirs);
            state.note_others(&before);
        }
        state.known.written = now;
        let oldest = now.saturating_sub(KEPT.as_millis() as u64);
        document.hosts.retain(|_, known| known.written >= oldest);
        let followed: BTreeSet<&str> = state.followed.iter().map(|f| f.chain.id.as_str()).collect();
        for class in state.known.ops.values_mut().flat_map(BTreeMap::values_mut) {
            // Those among candidates that did not come back.
            class.choices.retain(|id, chosen| {
                chosen.change.time >= oldest || followed.contains(id.as_str())
            });
        }
        document.version = VERSION;
        document.hosts.insert(self.host.clone(), state.known.clone());
        let bytes = serde_json::to_vec(&document).unwrap_or_default();
        let fits = (1..=MAX_FILE_BYTES).contains(&(bytes.len() as u64));
        let written = match fits {
            true => cache.write_sealed(FILE, &bytes).map_err(|error| error.to_string()),
            false => Err(format!("it would be longer than {} MiB", MAX_FILE_BYTES >> 20)),
        };
        // What cannot be kept is counted on, and tried again.
        state.saved = now;
        match written {
            Ok(()) => {
                state.unsaved.clear();
                state.changed.clear();
            }
            Err(why) => {
                tracing::warn!(target: LOG, "what was learnt of kernels is not kept: {why}")
            }
        }
    }

    /// Changes after the first so many, oldest first, as far as they are kept, and how many there were.
    pub(crate) fn changes(&self, after: u64) -> (Vec<ChoiceChange>, u64) {
        let state = lock(&self.state);
        let new = state.numbered.saturating_sub(after).min(state.changes.len() as u64) as usize;
        let changes = state.changes.iter().skip(state.changes.len() - new);
        (changes.cloned().collect(), state.numbered)
    }

    /// Whether there is something that the file lacks.
    #[cfg(test)]
    pub(crate) fn has_unsaved(&self) -> bool {
        !lock(&self.state).unsaved.is_empty()
    }

    /// How many calls of an operation are known to have been timed.
    #[cfg(test)]
    pub(crate) fn calls(&self, op: &OpKey) -> u64 {
        let state = lock(&self.state);
        let classes = (0..SIZES).filter_map(|class| state.known.class(op, class));
        classes.map(Class::calls).sum()
    }

    /// A sentence for each class of which something is known.
    pub(crate) fn explain(&self, op: &OpKey, candidates: &[Arc<PublishedKernel>]) -> Vec<String> {
        let state = lock(&self.state);
        let is_of = |chain: &&Chain| {
            let theirs = chain.candidates.iter().map(|(hash, _)| hash.as_str());
            chain.op == *op && theirs.eq(candidates.iter().map(|kernel| kernel.hash()))
        };
        let mut chains = state.followed.iter().map(|followed| &followed.chain);
        let Some(chain) = chains.find(is_of) else { return Vec::new() };
        let mut sentences = Vec::new();
        for class in 0..SIZES {
            let Some(known) = state.known.class(op, class) else { continue };
            let measured = chain.candidates.iter().filter_map(|one| known.measured(one));
            let measured: Vec<String> = measured
                .map(|m| {
                    let us = m.median_nanos / 1e3;
                    format!("{} {us:.2} us in the median of {:.0}", m.kernel, m.calls)
                })
                .collect();
            let chosen = known.choices.get(&chain.id);
            if measured.is_empty() && chosen.is_none() {
                continue;
            }
            let first = chain.candidates[known.first(chain)].1.qualified();
            let measured =
                if measured.is_empty() { "nothing yet".to_owned() } else { measured.join(", ") };
            sentences.push(format!(
                "calls of {}: {first} first (measured: {measured})",
                SizeName(below(class))
            ));
            if let Some(Chosen { change, .. }) = chosen {
                let when = i64::try_from(change.time / 1000).ok().and_then(Timestamp::from_unix);
                let when = when.map(|when| when.to_string()).unwrap_or_default();
                sentences.push(format!("changed {when}: {change}"));
            }
        }
        sentences
    }
}

impl Drop for Learner {
    fn drop(&mut self) {
        let state = &mut *self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut state = std::mem::take(state);
        state.count();
        if !state.unsaved.is_empty() || !state.changed.is_empty() {
            self.save(&mut state, since_1970().as_millis() as u64);
        }
    }
}

impl Learned {
    /// Takes over what workers have counted, and lets go of kernels that no snapshot asks any more.
    fn count(&mut self) {
        let mut fresh: BTreeMap<(String, usize), Fresh> = BTreeMap::new();
        for counted in &mut self.counted {
            let times = counted.stats.times();
            for (class, (now, before)) in times.iter().zip(&counted.read).enumerate() {
                let new = now.since(before);
                if new.calls() > 0 {
                    let of = (counted.stats.key.to_string(), class);
                    let sum = fresh.entry(of).or_default().entry(counted.hash.clone());
                    sum.or_default().add(&new);
                }
            }
            counted.read = times;
        }
        self.known.add(&fresh);
        for (of, kernels) in fresh {
            let unsaved = self.unsaved.entry(of).or_default();
            kernels.into_iter().for_each(|(hash, new)| unsaved.entry(hash).or_default().add(&new));
        }
        // One is this list's own.
        self.followed.retain(|followed| Arc::strong_count(&followed.preference) > 1);
        let followed = &self.followed;
        self.counted.retain(|counted| {
            let mut all = followed.iter().flat_map(|followed| &followed.chain.candidates);
            all.any(|(_, stats)| Arc::ptr_eq(stats, &counted.stats))
        });
    }

    fn judge(&mut self, now: u64) {
        for Followed { chain, .. } in &self.followed {
            let op = chain.op.to_string();
            let Some(classes) = self.known.ops.get_mut(&op) else { continue };
            for (&class, known) in classes.range_mut(..SIZES) {
                let Some(chosen) = known.judge(chain, class, now) else { continue };
                tracing::info!(target: LOG, "{}", escape_untrusted(&chosen.change.to_string()));
                note(&mut self.changes, &mut self.numbered, chosen.change.clone());
                known.choose(chain, chosen);
                self.unsaved.remove(&(op.clone(), class));
                self.changed.insert((op.clone(), class, chain.id.clone()));
            }
        }
    }

    /// Notes what other processes have chosen, beside what was known before.
    fn note_others(&mut self, before: &Known) {
        for Followed { chain, .. } in &self.followed {
            for class in 0..SIZES {
                let Some(now) = self.known.class(&chain.op, class) else { continue };
                let old = before.class(&chain.op, class).map_or(0, |known| known.first(chain));
                let Some(chosen) = now.choices.get(&chain.id) else { continue };
                if now.first(chain) != old {
                    let what = chosen.change.to_string();
                    tracing::info!(target: LOG, "another process found: {}", escape_untrusted(&what));
                    note(&mut self.changes, &mut self.numbered, chosen.change.clone());
                }
            }
        }
    }
}

fn note(changes: &mut VecDeque<ChoiceChange>, numbered: &mut u64, change: ChoiceChange) {
    if changes.len() == CHANGES {
        changes.pop_front();
    }
    changes.push_back(change);
    *numbered += 1;
}

impl Followed {
    /// Tells workers whom to ask.
    fn publish(&self, known: &Known) {
        for class in 0..SIZES {
            let Some(known) = known.class(&self.chain.op, class) else { continue };
            // Chains are shorter than 256; were one longer, its tail could not be first.
            let first = u8::try_from(known.first(&self.chain)).unwrap_or(0);
            self.preference.first[class].store(first, Relaxed);
            let rate = known.rate(&self.chain).max(FIRST_RATE);
            self.preference.rate[class].store(rate, Relaxed);
        }
    }
}

/// What the file holds; nothing where there is none, or none of this host's.
fn read(cache: &AotCache) -> Document {
    let parse = |bytes: Vec<u8>| match serde_json::from_slice::<Document>(&bytes) {
        Ok(document) if document.version == VERSION => Ok(document),
        Ok(_) => Err("it is of another version".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let document = cache.read_sealed(FILE, MAX_FILE_BYTES);
    match document.and_then(|bytes| bytes.map(parse).transpose()) {
        Ok(document) => document.unwrap_or_default(),
        Err(why) => {
            tracing::warn!(
                target: LOG,
                "what was learnt of kernels is not used, and is learnt anew: the file `{FILE}` in the cache of machine \
                 code: {}",
                escape_untrusted(&why)
            );
            Document::default()
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::figures::{EVIDENCE, HALF_LIFE};
    use super::*;
    use crate::stats::{Counters, Timing};
    use std::path::Path;

    /// Of the least size of its class, so that times are what they are.
    const BYTES: usize = 4096;
    const CLASS: usize = 1;

    /// A learner of two kernels, of which the first is asked first before anything is known.
    struct Trial {
        learner: Learner,
        preference: Arc<Preference>,
        counters: Vec<Arc<Counters>>,
        seconds: u64,
    }

    impl Trial {
        fn open(directory: Option<&Path>) -> Self {
            let config = HostConfig::default();
            let cache = directory.map(|directory| AotCache::open(directory).unwrap());
            let learner = Learner::open(cache, &config);
            let kernel = |id: &str| {
                let names = ("pack".to_owned(), "1.0.0".to_owned());
                let stats =
                    KernelStats::new(OpKey::rmsnorm_f32(), id.to_owned(), names, "wasmtime");
                (format!("hash of {id}"), Arc::new(stats))
            };
            let candidates: Vec<_> = ["old", "new"].map(kernel).into();
            let counters = candidates.iter().map(|(_, stats)| stats.open()).collect();
            let preference = learner.follow(&OpKey::rmsnorm_f32(), candidates);
            Self { learner, preference, counters, seconds: 1_000_000_000 }
        }

        fn calls(&self, candidate: usize, calls: usize, nanos: u64) {
            let timing = Timing::Each(Duration::from_nanos(nanos));
            (0..calls).for_each(|_| self.counters[candidate].answered(BYTES, timing));
        }

        /// Who is asked first after a review some seconds later.
        fn after(&mut self, seconds: u64) -> usize {
            self.seconds += seconds;
            self.learner.review(Duration::from_secs(self.seconds));
            self.preference.first(CLASS)
        }

        fn changes(&self) -> Vec<ChoiceChange> {
            self.learner.changes(0).0
        }

        fn known(&self, candidate: &str) -> (u64, f64) {
            let state = lock(&self.learner.state);
            let figures = state.known.class(&OpKey::rmsnorm_f32(), CLASS).unwrap().of(candidate);
            (figures.calls, figures.times.weight())
        }
    }

    #[test]
    fn a_choice_changes_with_enough_evidence_for_enough_of_a_difference() {
        let mut trial = Trial::open(None);
        assert_eq!((trial.preference.first(CLASS), trial.preference.rate(CLASS)), (0, FIRST_RATE));
        trial.calls(0, 1000, 1000);
        trial.calls(1, EVIDENCE as usize - 1, 100);
        assert_eq!(trial.after(1), 0, "too few calls");
        trial.calls(1, 5, 100);
        assert_eq!(trial.after(1), 1);
        let [change] = trial.changes().try_into().unwrap();
        assert_eq!((&*change.from.kernel, &*change.to.kernel), ("pack/old", "pack/new"));
        assert_eq!((change.below, change.time), (Some(16_384), 1_000_000_002_000));
        assert!((900.0..1200.0).contains(&change.from.median_nanos), "{change:?}");
        assert!((128.0..132.0).contains(&change.to.calls), "{change:?}");
        let said = change.to_string();
        let expected = "calls of 4 to 16 KiB: pack/new is asked first instead of pack/old";
        assert!(said.contains(expected), "{said}");
        assert_eq!(trial.preference.first(CLASS + 1), 0, "another class of sizes");
        assert_eq!(trial.learner.changes(1), (Vec::new(), 1));
    }

    #[test]
    fn a_difference_within_the_margin_moves_nothing_either_way() {
        let mut trial = Trial::open(None);
        trial.calls(0, 1000, 1000);
        trial.calls(1, 1000, 900);
        assert_eq!(trial.after(1), 0);
        // Each newer lot outweighs those before.
        let (mut calls, mut changes) = (2000, 0);
        for (old, new, first) in
            [(1000, 500, 1), (500, 500, 1), (470, 500, 1), (250, 500, 0), (500, 470, 0)]
        {
            trial.calls(0, calls, old);
            trial.calls(1, calls, new);
            let before = trial.preference.first(CLASS);
            assert_eq!(trial.after(1), first, "{old} and {new}");
            changes += usize::from(before != first);
            assert_eq!(trial.changes().len(), changes);
            calls *= 2;
        }
    }

    #[test]
    fn calls_count_half_as_much_after_the_half_life() {
        let mut trial = Trial::open(None);
        trial.calls(0, 10 * HALF_LIFE as usize, 500);
        trial.calls(1, 1000, 1000);
        assert_eq!(trial.after(1), 0);
        let (calls, before) = trial.known("new");
        assert_eq!((calls, before), (1000, 1000.0));
        trial.calls(0, HALF_LIFE as usize, 4000);
        trial.after(1);
        let (calls, after) = trial.known("new");
        assert!(calls == 1000 && (after - 500.0).abs() < 1e-6, "{calls} {after}");
        // By now those of before weigh five times as much. Most are to be outweighed.
        for _ in 0..3 {
            trial.calls(0, HALF_LIFE as usize, 4000);
            trial.calls(1, 1000, 1000);
            trial.after(1);
        }
        assert_eq!(trial.preference.first(CLASS), 1, "the first became slow");
    }

    #[test]
    fn looks_become_rare_and_rarer_where_another_is_slow() {
        let mut trial = Trial::open(None);
        for (candidate, nanos) in [(0, 1000), (1, 1000)] {
            trial.calls(candidate, 1000, nanos);
        }
        trial.after(1);
        let rate = trial.preference.rate(CLASS);
        assert!((200..400).contains(&rate), "{rate}");
        trial.calls(1, 10_000, 8000);
        trial.after(1);
        let rate = trial.preference.rate(CLASS);
        assert!((1600..2800).contains(&rate), "{rate}");
    }

    #[test]
    fn what_was_learnt_survives_a_restart_and_a_copy_of_it_is_not_believed_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (here, elsewhere) = (dir.path().join("here"), dir.path().join("elsewhere"));
        let mut trial = Trial::open(Some(&here));
        trial.calls(0, 1000, 1000);
        trial.calls(1, 1000, 100);
        assert_eq!(trial.after(1), 1);
        // Of which the end of the learner is told.
        trial.calls(0, 24, 1000);
        drop(trial);
        let trial = Trial::open(Some(&here));
        assert_eq!(trial.preference.first(CLASS), 1);
        assert_eq!(trial.known("old").0, 24, "of what came after the change");
        assert!(trial.changes().is_empty(), "nothing has changed in this process");
        drop(trial);
        AotCache::open(&elsewhere).unwrap();
        std::fs::copy(here.join(FILE), elsewhere.join(FILE)).unwrap();
        assert_eq!(Trial::open(Some(&elsewhere)).preference.first(CLASS), 0);
    }

    #[test]
    fn a_damaged_file_is_ignored_and_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("c");
        let learn = || {
            let mut trial = Trial::open(Some(&directory));
            let before = trial.preference.first(CLASS);
            trial.calls(0, 1000, 1000);
            trial.calls(1, 1000, 100);
            assert_eq!(trial.after(1), 1);
            before
        };
        assert_eq!((learn(), learn()), (0, 1));
        let path = directory.join(FILE);
        let good = std::fs::read(&path).unwrap();
        let cache = AotCache::open(&directory).unwrap();
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert!(cache.read_sealed(FILE, MAX_FILE_BYTES).is_err(), "byte {at}");
            std::fs::write(&path, &good[..at]).unwrap();
            assert!(cache.read_sealed(FILE, MAX_FILE_BYTES).is_err(), "cut at {at}");
        }
        assert_eq!((learn(), learn()), (0, 1));
        // Sealed, and yet none of ours.
        for text in ["", "{}", "[1]", r#"{"version":2,"hosts":{}}"#] {
            cache.write_sealed(FILE, text.as_bytes()).unwrap();
            assert_eq!((learn(), learn()), (0, 1), "{text}");
        }
        assert!(cache.read_sealed("other", 9).unwrap().is_none());
        std::fs::copy(&path, directory.join("other")).unwrap();
        assert!(cache.read_sealed("other", MAX_FILE_BYTES).is_err(), "under another's name");
    }

    #[test]
    fn processes_add_up_what_they_count_and_take_choices_over() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("c");
        let [mut one, mut two] = [(); 2].map(|()| Trial::open(Some(&directory)));
        for trial in [&mut one, &mut two] {
            trial.calls(0, 1000, 1000);
            trial.calls(1, 70, 100);
            assert_eq!(trial.after(31), 0, "neither knows enough");
        }
        assert_eq!(two.after(1), 1, "both do");
        assert_eq!(one.preference.first(CLASS), 0);
        one.calls(0, 1, 1000);
        assert_eq!(one.after(31), 1);
        assert_eq!((one.changes(), one.known("old").0), (two.changes(), 1));
        let held = one.learner.cache.as_ref().unwrap().lock(LOCK).unwrap();
        two.calls(0, 1, 1000);
        two.after(31);
        let unsaved = |trial: &Trial| lock(&trial.learner.state).unsaved.len();
        assert_eq!(unsaved(&two), 1, "another process writes");
        drop(held);
        two.after(1);
        assert_eq!(unsaved(&two), 0);
    }
}
