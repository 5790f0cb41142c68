//! Failures of kernels, as they are counted and reported.

use super::KernelStats;
use crate::error::{Failure, Incident};
use crate::threads::lock;
use ruvllm_signing::escape_untrusted;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Under which selections (debug) and failed calls (warn) are logged.
pub(crate) const LOG: &str = "ruvllm::kernels";

/// Incidents that are kept until somebody takes them; older ones go first.
const INCIDENTS: usize = 256;

/// The failures of a host's kernels.
pub(crate) struct Incidents {
    log: Mutex<Log>,
    /// How many kernels are gone or out of service.
    retired: Arc<AtomicU64>,
    /// How many failures take a kernel out of service.
    quarantine_after: u32,
}

#[derive(Default)]
struct Log {
    recent: VecDeque<Incident>,
    dropped: u64,
}

impl Incidents {
    /// Kernels that go out of service are counted in `retired`, for workers to notice.
    pub(crate) fn new(retired: Arc<AtomicU64>, quarantine_after: u32) -> Self {
        Self { log: Mutex::default(), retired, quarantine_after }
    }

    /// Counts a failure of a kernel and reports it.
    pub(crate) fn report(&self, stats: &KernelStats, failure: &Failure) {
        self.log(stats, failure, self.count(stats, failure));
    }

    /// As [`Incidents::report`], of a kernel that nobody could answer in place of: it stays in service.
    pub(crate) fn report_last(&self, stats: &KernelStats, failure: &Failure) {
        stats.failed(failure, u32::MAX);
        self.log(stats, failure, false);
    }

    fn log(&self, stats: &KernelStats, failure: &Failure, quarantined: bool) {
        if quarantined {
            // Its instances are of no more use to any worker.
            self.retired.fetch_add(1, Relaxed);
        }
        let incident = Incident {
            op: stats.key.clone(),
            kernel: stats.kernel.clone(),
            generation: stats.generation.load(Relaxed),
            failure: failure.clone(),
            quarantined,
        };
        tracing::warn!(target: LOG, "{}", escape_untrusted(&incident.to_string()));
        let mut log = lock(&self.log);
        if log.recent.len() == INCIDENTS {
            log.recent.pop_front();
            log.dropped += 1;
        }
        log.recent.push_back(incident);
    }

    /// Counts a failure that an earlier report stands for. `true` where it takes the kernel out of service.
    pub(crate) fn count(&self, stats: &KernelStats, failure: &Failure) -> bool {
        stats.failed(failure, self.quarantine_after)
    }

    /// Those since the last time they were taken, oldest first, and how many more there were than are kept.
    pub(crate) fn take(&self) -> (Vec<Incident>, u64) {
        let taken = std::mem::take(&mut *lock(&self.log));
        (taken.recent.into(), taken.dropped)
    }
}

/// Who is told of failures of one kernel where no call waits for it.
#[derive(Clone)]
pub(crate) struct FailureReporter {
    stats: Arc<KernelStats>,
    incidents: Arc<Incidents>,
}

impl FailureReporter {
    pub(crate) fn new(stats: &Arc<KernelStats>, incidents: &Arc<Incidents>) -> Self {
        Self { stats: stats.clone(), incidents: incidents.clone() }
    }

    /// Counts a failure and reports it.
    pub(crate) fn report(&self, failure: &Failure) {
        self.incidents.report(&self.stats, failure);
    }

    /// Whether the kernel is known not to tidy up.
    pub(crate) fn is_untidy(&self) -> bool {
        self.stats.untidy()
    }
}
