//! Counting calls without slowing them.
//!
//! Each worker writes counters of its own, so a count is a plain load and store; a report sums
//! them. Reading the clock takes longer than a brief call, so of those some are timed and stand for
//! the others. A kernel's [`KernelStats`] outlives the kernel, so that a swap loses no figures.

pub(crate) mod incidents;
pub(crate) mod latency;

use crate::OpKey;
use crate::error::Failure;
use crate::trap::TrapKind;
use latency::{Histogram, SIZES, Times, scaled};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What one worker counts of one kernel. Only that worker writes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    /// Time of the calls that were timed each.
    nanos: AtomicU64,
    /// Brief calls, which are among `calls` too; how many of them were timed, and their time.
    brief: AtomicU64,
    timed: AtomicU64,
    timed_nanos: AtomicU64,
    /// Every time that was taken, by class of sizes.
    times: [Histogram; SIZES],
    /// Calls for gradients, which are not among `calls`, and their time: generations are compared by the
    /// others alone.
    backward: AtomicU64,
    backward_nanos: AtomicU64,
}

/// How long a call took.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timing {
    /// As measured.
    Each(Duration),
    /// A brief call: as measured, or as long as the mean of those that were.
    Sampled(Option<Duration>),
    /// As measured, which says nothing of other calls.
    Unusual(Duration),
}

impl Timing {
    /// Of a call that was timed, or of a brief one that was not.
    #[inline]
    pub(crate) fn of(took: Option<Duration>, brief: bool) -> Self {
        match took {
            Some(took) if !brief => Timing::Each(took),
            took => Timing::Sampled(took),
        }
    }
}

impl Counters {
    #[inline]
    pub(crate) fn answered(&self, bytes: usize, timing: Timing) {
        // One thread writes, so nothing is lost between load and store.
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.calls, 1);
        let tally = |nanos: u64| {
            let (class, nanos) = scaled(bytes, nanos);
            self.times[class].add(nanos);
        };
        match timing {
            Timing::Each(took) => {
                let nanos = took.as_nanos() as u64;
                add(&self.nanos, nanos);
                tally(nanos);
            }
            Timing::Unusual(took) => add(&self.nanos, took.as_nanos() as u64),
            Timing::Sampled(took) => {
                add(&self.brief, 1);
                if let Some(took) = took {
                    let nanos = took.as_nanos() as u64;
                    add(&self.timed, 1);
                    add(&self.timed_nanos, nanos);
                    tally(nanos);
                }
            }
        }
    }

    /// Counts a call for gradients.
    pub(crate) fn differentiated(&self, took: Duration) {
        // One thread writes, as in `answered`.
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Relaxed) + n, Relaxed);
        add(&self.backward, 1);
        add(&self.backward_nanos, took.as_nanos() as u64);
    }

    /// Time of all calls.
    fn nanos(&self) -> u64 {
        let [brief, timed, nanos] =
            [&self.brief, &self.timed, &self.timed_nanos].map(|c| c.load(Relaxed));
        let brief = u128::from(nanos) * u128::from(brief) / u128::from(timed.max(1));
        self.nanos.load(Relaxed) + brief as u64
    }
}

/// What is known of one kernel, summed over workers, and whether it is in service.
#[derive(Debug)]
pub(crate) struct KernelStats {
    pub(crate) key: OpKey,
    pub(crate) kernel: String,
    pub(crate) pack: String,
    pub(crate) pack_version: String,
    pub(crate) executor: &'static str,
    pub(crate) generation: AtomicU64,
    counted: AtomicU32,
    quarantined: AtomicBool,
    /// Whether its `kernel_cleanup` failed.
    untidy: AtomicBool,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    workers: Vec<Arc<Counters>>,
    /// Sums of workers that are gone.
    calls: u64,
    nanos: u64,
    backward: u64,
    backward_nanos: u64,
    times: [Times; SIZES],
    failures: BTreeMap<&'static str, u64>,
    traps: BTreeMap<TrapKind, u64>,
    /// Of the failures that counted, those that are no traps.
    others: BTreeMap<&'static str, u64>,
    /// The last failure that counted.
    last: Option<Failure>,
}

/// Failures of one kernel that count towards its quarantine.
pub(crate) struct CountedFailures {
    pub(crate) traps: BTreeMap<TrapKind, u64>,
    /// Those that are no traps, by [`Failure::code`].
    pub(crate) others: BTreeMap<&'static str, u64>,
    pub(crate) last: Option<Failure>,
}

impl KernelStats {
    pub(crate) fn new(
        key: OpKey,
        kernel: String,
        pack: (String, String),
        executor: &'static str,
    ) -> Self {
        let (pack, pack_version) = pack;
        Self {
            key,
            kernel,
            pack,
            pack_version,
            executor,
            generation: AtomicU64::new(0),
            counted: AtomicU32::new(0),
            quarantined: AtomicBool::new(false),
            untidy: AtomicBool::new(false),
            open: Mutex::default(),
        }
    }

    /// Its id, which is no other kernel's: with the name of its pack before it, but for native twins.
    pub(crate) fn qualified(&self) -> String {
        match self.executor {
            "native" => self.kernel.clone(),
            _ => format!("{}/{}", self.pack, self.kernel),
        }
    }

    /// Books the generation that publishes the kernel first. `false` where one has before.
    pub(crate) fn published_in(&self, generation: u64) -> bool {
        self.generation.compare_exchange(0, generation, Relaxed, Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn quarantined(&self) -> bool {
        self.quarantined.load(Relaxed)
    }

    /// Whether an instance's `kernel_cleanup` has failed.
    pub(crate) fn untidy(&self) -> bool {
        self.untidy.load(Relaxed)
    }

    /// Failures that counted towards quarantine.
    pub(crate) fn counted(&self) -> u32 {
        self.counted.load(Relaxed)
    }

    /// Counters for one more worker.
    pub(crate) fn open(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.lock().workers.push(counters.clone());
        counters
    }

    /// Takes over what a worker has counted.
    pub(crate) fn close(&self, counters: &Arc<Counters>) {
        let mut open = self.lock();
        if let Some(at) = open.workers.iter().position(|c| Arc::ptr_eq(c, counters)) {
            open.workers.swap_remove(at);
            open.calls += counters.calls.load(Relaxed);
            open.nanos += counters.nanos();
            open.backward += counters.backward.load(Relaxed);
            open.backward_nanos += counters.backward_nanos.load(Relaxed);
            open.times.iter_mut().zip(&counters.times).for_each(|(sum, tally)| sum.take(tally));
        }
    }

    /// Books a failed call. `true` where this one takes the kernel out of service.
    pub(crate) fn failed(&self, failure: &Failure, quarantine_after: u32) -> bool {
        let mut open = self.lock();
        *open.failures.entry(failure.code()).or_default() += 1;
        if !failure.counts() {
            return false;
        }
        match failure.trap() {
            Some(trap) => *open.traps.entry(trap.kind).or_default() += 1,
            None => *open.others.entry(failure.code()).or_default() += 1,
        }
        open.last = Some(failure.clone());
        drop(open);
        if matches!(failure, Failure::Cleanup { .. } | Failure::CleanupStatus { .. }) {
            self.untidy.store(true, Relaxed);
        }
        let count = self.counted.fetch_add(1, Relaxed) + 1;
        count >= quarantine_after.max(1) && !self.quarantined.swap(true, Relaxed)
    }

    /// The times that were taken, by class of sizes.
    pub(crate) fn times(&self) -> [Times; SIZES] {
        let open = self.lock();
        let mut times = open.times.clone();
        for worker in &open.workers {
            times.iter_mut().zip(&worker.times).for_each(|(sum, tally)| sum.take(tally));
        }
        times
    }

    /// Calls that it answered.
    #[cfg_attr(not(feature = "supervisor"), allow(dead_code))]
    pub(crate) fn calls(&self) -> u64 {
        let open = self.lock();
        open.calls + open.workers.iter().map(|worker| worker.calls.load(Relaxed)).sum::<u64>()
    }

    /// Failed calls by [`Failure::code`].
    pub(crate) fn failures(&self) -> BTreeMap<&'static str, u64> {
        self.lock().failures.clone()
    }

    /// Of the failures that counted, the traps by kind, the others by [`Failure::code`], and the last one.
    pub(crate) fn counted_failures(&self) -> CountedFailures {
        let open = self.lock();
        CountedFailures {
            traps: open.traps.clone(),
            others: open.others.clone(),
            last: open.last.clone(),
        }
    }

    pub(crate) fn report(&self, current: bool) -> OpStats {
        let open = self.lock();
        let sum = |of: fn(&Counters) -> u64| -> u64 {
            open.workers.iter().map(|worker| of(worker)).sum()
        };
        let failures = open.failures.clone();
        let of = |code: &str| failures.get(code).copied().unwrap_or(0);
        OpStats {
            op: self.key.clone(),
            kernel: self.kernel.clone(),
            pack: self.pack.clone(),
            pack_version: self.pack_version.clone(),
            executor: self.executor,
            generation: self.generation.load(Relaxed),
            current,
            calls: open.calls + sum(|worker| worker.calls.load(Relaxed)),
            nanos: open.nanos + sum(Counters::nanos),
            backward_calls: open.backward + sum(|worker| worker.backward.load(Relaxed)),
            backward_nanos: open.backward_nanos + sum(|worker| worker.backward_nanos.load(Relaxed)),
            // When its instances end, nobody waits for an answer.
            fallbacks: failures.values().sum::<u64>() - of("kernel_cleanup"),
            traps: of("kernel_trap") + of("kernel_deadline"),
            trap_kinds: open.traps.iter().map(|(kind, count)| (kind.name(), *count)).collect(),
            quarantined: self.quarantined(),
            failures,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Figures of one kernel, summed over all workers since it was published.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct OpStats {
    /// The operation.
    pub op: OpKey,
    /// The kernel's id; `native:` and the catalogue's id for a native twin.
    pub kernel: String,
    /// Its pack, or `native`.
    pub pack: String,
    /// Version of the pack, or of this host for a native twin.
    pub pack_version: String,
    /// What runs it: `wasmtime` or `native`.
    pub executor: &'static str,
    /// The generation that published it.
    pub generation: u64,
    /// Whether the newest generation still has it.
    pub current: bool,
    /// Calls that it answered.
    pub calls: u64,
    /// Time that those took, in nanoseconds, copies, readers and cross-checks included. Of calls that
    /// move less than 4 KiB one in 64 is timed, drawn by chance, and stands for the others; all others
    /// are timed.
    pub nanos: u64,
    /// Calls for gradients that it answered, which are not among `calls`.
    pub backward_calls: u64,
    /// Time that those took, in nanoseconds.
    pub backward_nanos: u64,
    /// Calls of either kind that it failed, and that went to the next candidate unless strict.
    pub fallbacks: u64,
    /// Those of them that ended in a trap or at the deadline.
    pub traps: u64,
    /// Traps by [`TrapKind::name`], those of `kernel_cleanup` among them.
    pub trap_kinds: BTreeMap<&'static str, u64>,
    /// Failed calls by [`Failure::code`].
    pub failures: BTreeMap<&'static str, u64>,
    /// Whether it is out of service.
    pub quarantined: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trap::Trap;

    fn stats() -> KernelStats {
        let pack = ("pack".to_owned(), "1.0.0".to_owned());
        KernelStats::new(OpKey::rmsnorm_f32(), "k".to_owned(), pack, "wasmtime")
    }

    #[test]
    fn sums_keep_what_closed_workers_counted() {
        let stats = stats();
        let (one, two) = (stats.open(), stats.open());
        one.answered(0, Timing::Each(Duration::from_nanos(5)));
        two.answered(0, Timing::Each(Duration::from_nanos(7)));
        stats.close(&one);
        drop(one);
        let report = stats.report(true);
        assert_eq!((report.calls, report.nanos), (2, 12));
    }

    #[test]
    fn timed_brief_calls_stand_for_the_others() {
        let stats = stats();
        let counters = stats.open();
        counters.answered(0, Timing::Each(Duration::from_nanos(1000)));
        for took in [Some(4), None, None, Some(8), None, None] {
            counters.answered(0, Timing::Sampled(took.map(Duration::from_nanos)));
        }
        let report = stats.report(true);
        assert_eq!((report.calls, report.nanos), (7, 1000 + 6 * 6));
    }

    #[test]
    fn only_faults_of_the_kernel_lead_to_quarantine_and_only_once() {
        let stats = stats();
        assert!(!stats.failed(&Failure::TooLarge { needed: 2, limit: 1 }, 1));
        let trap = Failure::Trap { trap: Box::new(Trap::new(TrapKind::OutOfBounds, "")) };
        assert!(!stats.failed(&trap, 2));
        assert!(stats.failed(&trap, 2));
        assert!(!stats.failed(&trap, 2));
        let report = stats.report(true);
        assert_eq!((report.fallbacks, report.traps, report.quarantined), (4, 3, true));
        assert_eq!(report.trap_kinds, BTreeMap::from([("out_of_bounds", 3)]));
    }
}
