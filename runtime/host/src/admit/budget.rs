//! How long the kernels of one pack may take to prove themselves, all of them together.
//!
//! Each call of theirs has its deadline, and there are many. Counted is the processor time of the
//! threads that run them, so that a busy machine refuses nobody; where the system does not tell that, and of
//! kernels with threads, which end with their call, time by the clock.

use crate::deadline::thread_time;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time of one pack.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: Duration,
    /// Nanoseconds.
    spent: AtomicU64,
}

/// Adds to what is spent until it is dropped.
pub(crate) struct TimeGuard<'a> {
    budget: &'a Budget,
    computed: Option<Duration>,
    begun: Instant,
}

impl Budget {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, spent: AtomicU64::new(0) }
    }

    /// Begins to spend, by a kernel of so many threads.
    ///
    /// # Errors
    /// Where nothing is left: a code, and a sentence for the author.
    pub(crate) fn spend(&self, threads: u32) -> Result<TimeGuard<'_>, (&'static str, String)> {
        if Duration::from_nanos(self.spent.load(Relaxed)) < self.limit {
            let computed = thread_time().filter(|_| threads == 1);
            return Ok(TimeGuard { budget: self, computed, begun: Instant::now() });
        }
        let what = format!(
            "the pack's kernels computed for more than {} s to prove themselves: make them faster, \
             or put them into several packs",
            self.limit.as_secs_f64()
        );
        Err(("admission_timeout", what))
    }
}

impl Drop for TimeGuard<'_> {
    fn drop(&mut self) {
        let computed = thread_time().zip(self.computed).map(|(now, then)| now.saturating_sub(then));
        let took = computed.unwrap_or_else(|| self.begun.elapsed());
        self.budget.spent.fetch_add(took.as_nanos() as u64, Relaxed);
    }
}
