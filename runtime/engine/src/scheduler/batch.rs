//! Sequences that are computed together: what they become when a step was computed, or was not.
//!
//! The scheduler's thread has one batch for the requests of all clients; `Session::generate` makes one of a
//! single sequence on the caller's thread. Its steps are those of `batch_step`.

use std::sync::Arc;

use super::config::SchedulerConfig;
use super::queue::TEXT_WEIGHT;
use super::scores::{KeptScores, Scorer};
use super::sequence::{End, Sequence};
use super::stats::SchedulerStats;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generate::FinishReason;
use crate::sampler::Candidates;
use crate::step::StepInput;

/// Sequences that are computed together.
pub(super) struct Batch<'a> {
    pub(super) engine: Engine,
    pub(super) config: SchedulerConfig,
    /// Sequences that are computed.
    pub(super) running: Vec<Sequence<'a>>,
    /// Sequences that were interrupted.
    pub(super) resting: Vec<Sequence<'a>>,
    /// The number of the step before which nobody joins.
    pub(super) full_until: u64,
    pub(super) stats: SchedulerStats,
    /// The clients of sequences that have ended, with what these cost and was not counted yet.
    pub(super) ended: Vec<(Arc<str>, i64)>,
    /// What is known of prompts, for those that begin alike.
    pub(super) kept_scores: KeptScores,
    /// Working memory of choices, for each thread.
    candidates: Vec<Candidates>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(engine: Engine, config: SchedulerConfig) -> Batch<'a> {
        let threads = engine.pool().threads();
        Batch {
            candidates: std::iter::repeat_with(Candidates::default).take(threads).collect(),
            engine,
            config,
            running: Vec::new(),
            resting: Vec::new(),
            full_until: 0,
            stats: SchedulerStats::default(),
            ended: Vec::new(),
            kept_scores: KeptScores::default(),
        }
    }

    /// Sequences that have not ended.
    pub(super) fn len(&self) -> usize {
        self.running.len() + self.resting.len()
    }

    /// Ends the sequences that nobody waits for any more, or all.
    pub(super) fn cancel(&mut self, all: bool) {
        let mut gone = Vec::new();
        for sequences in [&mut self.running, &mut self.resting] {
            gone.extend(sequences.extract_if(.., |sequence| all || sequence.is_cancelled()));
        }
        for sequence in gone {
            self.end(sequence, End::Done(FinishReason::Cancelled));
        }
    }

    /// Computes one step of all that are planned.
    pub(super) fn try_step(&mut self) -> Result<(), EngineError> {
        let (mut inputs, scored): (Vec<StepInput<'_>>, Vec<_>) =
            in_step(&mut self.running).map(Sequence::input).unzip();
        let (mut scorer, pool) = (Scorer::new(scored), self.engine.pool());
        let computed = match scorer.is_idle() {
            true => self.engine.step(&mut inputs),
            false => self.engine.step_with(&mut inputs, &mut |input, token, logits| {
                scorer.row(pool, input, token, logits);
            }),
        };
        scorer.finish(pool);
        self.stats.steps += u64::from(computed.is_ok());
        self.stats.failed_steps += u64::from(computed.is_err());
        computed
    }

    /// Computes the sequences of a step that fails each in a step of its own, so that who fails harms
    /// nobody else.
    pub(super) fn compute_alone(&mut self) {
        let takes: Vec<usize> =
            self.running.iter_mut().map(|s| std::mem::take(&mut s.take)).collect();
        let mut failed = Vec::new();
        for (index, take) in takes.into_iter().enumerate().filter(|(_, take)| *take > 0) {
            self.running[index].take = take;
            match self.try_step() {
                Ok(()) => self.advance(),
                Err(EngineError::StepInput { source, .. }) => failed.push((index, *source)),
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
    pub(super) fn advance(&mut self) {
        (self.stats.batch_sequences, self.stats.batch_tokens) = (0, 0);
        for sequence in in_step(&mut self.running) {
            self.stats.batch_sequences += 1;
            self.stats.batch_tokens += sequence.take;
            if !sequence.is_decoding() {
                self.stats.prompt_tokens += sequence.take as u64;
            }
            sequence.advance(&mut self.kept_scores);
        }
        self.stats.step_sequences.record(self.stats.batch_sequences);
        self.stats.step_tokens.record(self.stats.batch_tokens);
    }

    /// Ends the sequence of an input of the step with an error.
    pub(super) fn fail(&mut self, input: usize, error: EngineError) {
        let mut in_step = self.running.iter().enumerate().filter(|(_, s)| s.take > 0);
        let Some((index, _)) = in_step.nth(input) else { return };
        let sequence = self.running.remove(index);
        self.end(sequence, End::Failed(error));
    }

    /// Chooses the tokens of those whose logits the step gave, and tells them.
    pub(super) fn deliver(&mut self) {
        let mut ready: Vec<_> = self.running.iter_mut().filter_map(Sequence::chooser).collect();
        // A choice among 32,000 tokens takes 50 to 500 us, so all threads take a share of them.
        let pool = self.engine.pool();
        let share = ready.len().div_ceil(pool.threads()).max(1);
        let mut shares: Vec<_> = ready.chunks_mut(share).zip(&mut self.candidates).collect();
        pool.for_chunks(&mut shares, 1, &|_, shares| {
            for (choosers, candidates) in shares {
                choosers.iter_mut().for_each(|chooser| chooser.choose(candidates));
            }
        });
        let mut index = 0;
        while index < self.running.len() {
            let (end, chosen) = self.running[index].deliver();
            if chosen {
                self.stats.generated_tokens += 1;
                self.running[index].cost += TEXT_WEIGHT;
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

    /// Ends a sequence that is none of the others any more.
    pub(super) fn end(&mut self, sequence: Sequence<'a>, end: End) {
        match &end {
            End::Failed(_) => self.stats.failed += 1,
            End::Done(FinishReason::Cancelled) => self.stats.cancelled += 1,
            End::Done(_) | End::Embedding(_) => self.stats.finished += 1,
        }
        self.ended.push((Arc::clone(&sequence.client), sequence.cost));
        self.full_until = 0;
        sequence.end(end);
    }
}

/// Sequences that are in the planned step, in the order of its inputs.
pub(super) fn in_step<'b, 'a>(
    running: &'b mut [Sequence<'a>],
) -> impl Iterator<Item = &'b mut Sequence<'a>> {
    running.iter_mut().filter(|sequence| sequence.take > 0)
}
