//! The scheduler's thread: one step after another.

use std::sync::Arc;

use super::queue::{PROMPT_WEIGHT, TEXT_WEIGHT};
use super::sequence::{End, Sequence};
use super::stats::SchedulerStats;
use super::{Phase, Shared};
use crate::error::EngineError;
use crate::generate::FinishReason;
use crate::sampler::Candidates;
use crate::step::Part;

/// What the thread owns.
pub(super) struct Runner {
    pub(super) shared: Arc<Shared>,
    /// Sequences that are computed.
    pub(super) running: Vec<Sequence>,
    /// Sequences that were interrupted.
    pub(super) resting: Vec<Sequence>,
    /// The number of the step before which nobody joins.
    pub(super) full_until: u64,
    pub(super) stats: SchedulerStats,
    /// Working memory of choices, for each thread.
    candidates: Vec<Candidates>,
    /// What clients were served since it was last counted.
    charges: Vec<(Arc<str>, i64)>,
    /// Clients of requests that have ended since.
    left: Vec<Arc<str>>,
}

/// Closes the scheduler when the thread ends, however it does: nobody may wait for what will not come.
struct Close(Arc<Shared>);

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

impl Runner {
    pub(super) fn new(shared: Arc<Shared>) -> Runner {
        let threads = shared.engine.pool().threads();
        Runner {
            candidates: std::iter::repeat_with(Candidates::default).take(threads).collect(),
            shared,
            running: Vec::new(),
            resting: Vec::new(),
            full_until: 0,
            stats: SchedulerStats::default(),
            charges: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Computes steps until the scheduler is stopped.
    pub(super) fn run(mut self) {
        let _close = Close(Arc::clone(&self.shared));
        while self.wait() {
            self.dismiss(false);
            self.admit();
            self.plan();
            self.compute();
            self.deliver();
            self.publish();
        }
        self.dismiss(true);
    }

    /// Computes the planned step. What does not succeed is planned again, or ends.
    fn compute(&mut self) {
        let count = in_step(&mut self.running).count();
        if count == 0 {
            return;
        }
        let mut computed = self.step();
        if computed.as_ref().is_err_and(|error| !has_remedy(error)) {
            computed = self.step();
        }
        match computed {
            Ok(()) => self.advance(),
            Err(EngineError::StepPart { part, source }) => self.fail(part, *source),
            Err(EngineError::MemoryExhausted { .. }) if count > 1 => self.rest_for_memory(),
            Err(_) if count > 1 => self.compute_alone(),
            Err(error) => self.fail(0, error),
        }
    }

    /// Computes one step of all that are planned.
    fn step(&mut self) -> Result<(), EngineError> {
        let mut parts: Vec<Part<'_>> = in_step(&mut self.running).map(Sequence::part).collect();
        let computed = self.shared.engine.step(&mut parts);
        self.stats.steps += u64::from(computed.is_ok());
        self.stats.failed_steps += u64::from(computed.is_err());
        computed
    }

    /// Computes the sequences of a step that fails each in a step of its own, so that who fails harms
    /// nobody else.
    fn compute_alone(&mut self) {
        let takes: Vec<usize> =
            self.running.iter_mut().map(|s| std::mem::take(&mut s.take)).collect();
        let mut failed = Vec::new();
        for (index, take) in takes.into_iter().enumerate().filter(|(_, take)| *take > 0) {
            self.running[index].take = take;
            match self.step() {
                Ok(()) => self.advance(),
                Err(EngineError::StepPart { source, .. }) => failed.push((index, *source)),
                Err(error) => failed.push((index, error)),
            }
            self.running[index].take = 0;
        }
        for (index, error) in failed.into_iter().rev() {
            let sequence = self.running.remove(index);
            self.end(sequence, End::Failed(error));
        }
    }

    /// Counts a step as computed.
    fn advance(&mut self) {
        (self.stats.batch_sequences, self.stats.batch_tokens) = (0, 0);
        for sequence in in_step(&mut self.running) {
            self.stats.batch_sequences += 1;
            self.stats.batch_tokens += sequence.take;
            if !sequence.is_decoding() {
                self.stats.prompt_tokens += sequence.take as u64;
            }
            sequence.advance();
        }
        self.stats.step_sequences.record(self.stats.batch_sequences);
        self.stats.step_tokens.record(self.stats.batch_tokens);
    }

    /// Ends the sequence of a part of the step with an error.
    fn fail(&mut self, part: usize, error: EngineError) {
        let mut in_step = self.running.iter().enumerate().filter(|(_, s)| s.take > 0);
        let Some((index, _)) = in_step.nth(part) else { return };
        let sequence = self.running.remove(index);
        self.end(sequence, End::Failed(error));
    }

    /// Chooses the tokens of those whose logits the step gave, and tells them.
    fn deliver(&mut self) {
        let mut ready: Vec<_> = self.running.iter_mut().filter(|s| s.is_ready()).collect();
        // A choice among 32,000 tokens takes 50 to 500 us, so all threads take a share of them.
        let pool = self.shared.engine.pool();
        let share = ready.len().div_ceil(pool.threads()).max(1);
        let mut shares: Vec<_> = ready.chunks_mut(share).zip(&mut self.candidates).collect();
        pool.for_chunks(&mut shares, 1, &|_, shares| {
            for (sequences, candidates) in shares {
                sequences.iter_mut().for_each(|sequence| sequence.choose(candidates));
            }
        });
        let mut index = 0;
        while index < self.running.len() {
            let (end, chosen) = self.running[index].deliver();
            if chosen {
                self.stats.generated_tokens += 1;
                self.charge(index, TEXT_WEIGHT);
            }
            match end {
                Some(end) => {
                    let sequence = self.running.remove(index);
                    self.end(sequence, end);
                }
                None => index += 1,
            }
        }
    }

    /// Counts what the client of a running sequence was served.
    fn charge(&mut self, index: usize, cost: i64) {
        self.charges.push((Arc::clone(self.running[index].client()), cost));
    }

    /// Counts tokens of a running sequence's prompt as not computed for its client.
    pub(super) fn refund(&mut self, index: usize, tokens: usize) {
        self.charge(index, -(tokens as i64) * PROMPT_WEIGHT);
    }

    /// Ends a sequence that is none of the others any more.
    pub(super) fn end(&mut self, sequence: Sequence, end: End) {
        match &end {
            End::Failed(_) => self.stats.failed += 1,
            End::Done(FinishReason::Cancelled) => self.stats.cancelled += 1,
            End::Done(_) | End::Embedding(_) => self.stats.finished += 1,
        }
        self.left.push(Arc::clone(sequence.client()));
        self.full_until = 0;
        sequence.end(end);
    }

    /// Shows the figures, and counts what clients were served.
    pub(super) fn publish(&mut self) {
        let mut state = self.shared.state();
        for (client, cost) in self.charges.drain(..) {
            state.queue.charge(&client, cost);
        }
        for client in self.left.drain(..) {
            state.queue.leave(&client);
        }
        self.stats.running = self.running.len();
        self.stats.resting = self.resting.len();
        state.stats = SchedulerStats { rejected: state.stats.rejected, ..self.stats };
    }
}

/// Sequences that are in the planned step, in the order of its parts.
fn in_step(running: &mut [Sequence]) -> impl Iterator<Item = &mut Sequence> {
    running.iter_mut().filter(|sequence| sequence.take > 0)
}

/// Whether something can be done about a failed step before it is tried again.
fn has_remedy(error: &EngineError) -> bool {
    matches!(error, EngineError::StepPart { .. } | EngineError::MemoryExhausted { .. })
}
