//! Ctrl-C: the first asks the command to stop after the token at hand, the second ends the process.

use super::Failure;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Whether somebody asked to stop.
#[derive(Clone)]
pub(crate) struct StopFlag {
    asked: Arc<AtomicBool>,
    /// Who installed it and may wait.
    waiter: Thread,
}

impl StopFlag {
    /// Installs the handler; once per process.
    pub(crate) fn install() -> Result<Self, Failure> {
        let flag = StopFlag { asked: Arc::default(), waiter: thread::current() };
        let asked = flag.clone();
        ctrlc::set_handler(move || {
            if asked.asked.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            asked.waiter.unpark();
        })?;
        Ok(flag)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Waits until somebody asks, and no longer than `goes_on`, which is looked at every second; for the
    /// thread that installed it. Gives whether somebody asked.
    pub(crate) fn wait_while(&self, goes_on: impl Fn() -> bool) -> bool {
        while !self.is_set() && goes_on() {
            thread::park_timeout(Duration::from_secs(1));
        }
        self.is_set()
    }

    /// Waits until somebody asks, at most for a time; for the thread that installed it. Gives whether
    /// somebody asked.
    pub(crate) fn wait_for(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_set() && Instant::now() < end {
            thread::park_timeout(end.saturating_duration_since(Instant::now()));
        }
        self.is_set()
    }

    /// Forgets an earlier request, for a command that goes on after it.
    pub(crate) fn clear(&self) {
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Break once asked to stop.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
