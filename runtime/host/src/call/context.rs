//! What workers need of their host.

use super::profile::CallProfiles;
use crate::HostConfig;
use crate::reaper::Reaper;
use crate::stats::KernelStats;
use crate::stats::incidents::{FailureReporter, Incidents};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shared by a host and its workers.
pub(crate) struct WorkerContext {
    /// Of the host, among all of this process.
    pub(crate) id: u64,
    pub(crate) config: HostConfig,
    pub(crate) profiles: CallProfiles,
    /// Drops what workers let go of.
    pub(crate) reaper: Reaper,
    pub(crate) incidents: Arc<Incidents>,
    retired: Arc<AtomicU64>,
    /// How long native twins wait before they compute, in nanoseconds, for tests of what is learnt.
    #[cfg(test)]
    pub(crate) native_delay: AtomicU64,
}

impl WorkerContext {
    pub(crate) fn new(id: u64, config: HostConfig, retired: Arc<AtomicU64>) -> Self {
        Self {
            id,
            profiles: CallProfiles::default(),
            reaper: Reaper::default(),
            incidents: Arc::new(Incidents::new(retired.clone(), config.quarantine_after)),
            config,
            retired,
            #[cfg(test)]
            native_delay: AtomicU64::new(0),
        }
    }

    /// How many kernels are gone or out of service: where it has changed, workers look which.
    #[inline]
    pub(crate) fn retired(&self) -> u64 {
        self.retired.load(Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn delay_native(&self) {
        let (begun, delay) = (std::time::Instant::now(), self.native_delay.load(Relaxed));
        while (begun.elapsed().as_nanos() as u64) < delay {
            std::hint::spin_loop();
        }
    }

    /// Who is told of failures of a kernel where no call waits for it.
    pub(crate) fn reporter(&self, stats: &Arc<KernelStats>) -> FailureReporter {
        FailureReporter::new(stats, &self.incidents)
    }
}
