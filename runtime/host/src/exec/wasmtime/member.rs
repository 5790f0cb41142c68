//! What each of the threads that compute a call together knows of the others.

use crate::threads::lock;
use crate::trap::Trap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How the call of a group ends before all of its threads have left with `OK`.
#[derive(Default)]
pub(super) struct End {
    has_come: AtomicBool,
    /// What the first of them ended by.
    first: Mutex<Option<Result<i32, Trap>>>,
}

impl End {
    /// One of the threads ended the call.
    pub(super) fn by(&self, outcome: Result<i32, Trap>) {
        lock(&self.first).get_or_insert(outcome);
        self.has_come.store(true, Ordering::Release);
    }

    /// What the call ended by, if all have left; a new one begins.
    pub(super) fn take(&self) -> Option<Result<i32, Trap>> {
        self.has_come.store(false, Ordering::Relaxed);
        lock(&self.first).take()
    }
}

/// What the store of a member knows of its call.
pub(super) struct Member {
    end: Arc<End>,
    /// Ticks until it has used its own.
    left: u64,
}

/// What a member sees when a tick has passed.
pub(super) enum Look {
    /// Its call has ended.
    Ended,
    /// It goes on.
    InTime,
    /// Its ticks are over.
    Late,
}

impl Member {
    /// One whose call ends by `end`.
    pub(super) fn new(end: &Arc<End>) -> Self {
        Self { end: end.clone(), left: 0 }
    }

    /// It may run for so many ticks. Gives after how many it looks: every one.
    pub(super) fn begin(&mut self, ticks: u64) -> u64 {
        self.left = ticks;
        1
    }

    pub(super) fn look(&mut self) -> Look {
        self.left = self.left.saturating_sub(1);
        match (self.end.has_come.load(Ordering::Acquire), self.left) {
            (true, _) => Look::Ended,
            (false, 0) => Look::Late,
            (false, _) => Look::InTime,
        }
    }
}
