//! What the scheduler's thread and its handles share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::config::SchedulerConfig;
use super::queue::Queue;
use super::stats::{Pace, SchedulerStats};
use crate::engine::Engine;

/// What the scheduler's thread and its handles have in common.
pub(super) struct SchedulerInner {
    pub(super) engine: Engine,
    pub(super) config: SchedulerConfig,
    pub(super) state: Mutex<SchedulerState>,
    /// There is something to do.
    pub(super) work: Condvar,
    /// There is nothing to do.
    pub(super) idle: Condvar,
}

pub(super) struct SchedulerState {
    pub(super) queue: Queue,
    pub(super) phase: Phase,
    /// Since when the thread is at what it does now; `None` where no request waits, runs or rests.
    pub(super) busy: Option<Instant>,
    pub(super) pace: Pace,
    pub(super) stats: SchedulerStats,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Takes no requests.
    Draining,
    /// Computes nothing any more.
    Stopped,
}

impl SchedulerInner {
    pub(super) fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
