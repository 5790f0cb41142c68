//! The scheduler's thread: a batch that requests join from the queue.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::batch::Batch;
use super::queue::PROMPT_WEIGHT;
use super::sequence::{End, Sequence};
use super::state::{Phase, SchedulerInner};
use super::stats::SchedulerStats;
use crate::generate::FinishReason;

/// What the thread has.
struct Runner {
    inner: Arc<SchedulerInner>,
    batch: Batch<'static>,
}

/// Closes the scheduler when the thread ends, however it does: nobody may wait for what will not come.
struct Close(Arc<SchedulerInner>);

impl Drop for Close {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.phase = Phase::Stopped;
        let waiting = state.queue.remove(true);
        state.busy = None;
        self.0.idle.notify_all();
        drop(state);
        // Their sinks go here, outside the lock.
        drop(waiting);
    }
}

/// Computes steps until the scheduler is stopped.
pub(super) fn run(inner: Arc<SchedulerInner>) {
    let batch = Batch::new(inner.engine.clone(), inner.config.clone());
    let mut runner = Runner { inner: Arc::clone(&inner), batch };
    // Before the batch lets go of its sinks.
    let _close = Close(inner);
    while runner.wait() {
        runner.cancel(false);
        runner.admit();
        runner.batch.step();
        runner.publish();
    }
    runner.cancel(true);
}

impl Runner {
    /// Waits until there is something to do; gives whether to go on.
    fn wait(&mut self) -> bool {
        let mut state = self.inner.state();
        loop {
            if state.phase == Phase::Stopped {
                return false;
            }
            let here = self.batch.len() + state.queue.len();
            if here > 0 {
                state.busy = Some(Instant::now());
                return true;
            }
            state.busy = None;
            state.pace.pause();
            self.inner.idle.notify_all();
            state = self.inner.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the requests that nobody waits for any more, or all.
    fn cancel(&mut self, all: bool) {
        let waiting = self.inner.state().queue.remove(all);
        for queued in waiting {
            let sequence = Sequence::new(&self.batch.engine, queued);
            self.batch.end(sequence, End::Done(FinishReason::Cancelled));
        }
        self.batch.cancel(all);
    }

    /// Lets requests begin and resting sequences go on, as far as there is room.
    fn admit(&mut self) {
        loop {
            let waiting = self.inner.state().queue.priority();
            let best = self.batch.resting.iter().enumerate().max_by_key(|(_, s)| s.rank());
            let resting = best.map(|(index, s)| (index, s.priority()));
            let joined = match (resting, waiting) {
                // Who has begun goes on first.
                (Some((index, priority)), _) if Some(priority) >= waiting => {
                    self.batch.resume(index)
                }
                (_, Some(priority)) => self.batch.may_begin(priority) && self.begin(),
                (_, None) => return,
            };
            if !joined {
                return;
            }
        }
    }

    /// Lets the next request begin, if there is room for it; gives whether it did. Otherwise it rests
    /// until there is.
    fn begin(&mut self) -> bool {
        let mut state = self.inner.state();
        let Some(queued) = state.queue.take() else { return false };
        state.queue.charge(&queued.client, queued.prompt.len() as i64 * PROMPT_WEIGHT);
        state.pace.note(Instant::now());
        drop(state);
        self.batch.resting.push(Sequence::new(&self.batch.engine, queued));
        self.batch.resume(self.batch.resting.len() - 1)
    }

    /// Shows the figures, and counts what clients were served.
    fn publish(&mut self) {
        let Batch { running, resting, ended, stats, .. } = &mut self.batch;
        let mut state = self.inner.state();
        for sequence in running.iter_mut().chain(resting.iter_mut()) {
            state.queue.charge(&sequence.client, std::mem::take(&mut sequence.cost));
        }
        for (client, cost) in ended.drain(..) {
            state.queue.charge(&client, cost);
            state.queue.leave(&client);
        }
        stats.running = running.len();
        stats.resting = resting.len();
        state.stats = SchedulerStats { rejected: state.stats.rejected, ..*stats };
    }
}
