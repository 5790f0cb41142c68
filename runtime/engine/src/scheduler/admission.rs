//! Who runs: requests that begin, and sequences that rest and go on.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use super::Phase;
use super::queue::PROMPT_WEIGHT;
use super::runner::Runner;
use super::sequence::{End, ROOM, Sequence};
use crate::generate::FinishReason;

/// Steps for which nobody joins after the memory was full, unless a sequence leaves before: what was
/// counted as free was not.
const COOLDOWN: u64 = 32;

impl Runner {
    /// Waits until there is something to do; gives whether to go on.
    pub(super) fn wait(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        loop {
            if state.phase == Phase::Stopped {
                return false;
            }
            let here = self.running.len() + self.resting.len() + state.queue.len();
            if here > 0 {
                state.busy = Some(Instant::now());
                return true;
            }
            state.busy = None;
            state.pace.pause();
            shared.idle.notify_all();
            state = shared.work.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Ends the requests that nobody waits for any more, or all.
    pub(super) fn dismiss(&mut self, all: bool) {
        let waiting = self.shared.state().queue.remove(all);
        let waiting = waiting.into_iter().map(|job| Sequence::new(&self.shared.engine, job));
        let mut gone: Vec<Sequence> = waiting.collect();
        for sequences in [&mut self.running, &mut self.resting] {
            gone.extend(sequences.extract_if(.., |s| all || s.job.is_cancelled()));
        }
        for sequence in gone {
            self.end(sequence, End::Done(FinishReason::Cancelled));
        }
    }

    /// Lets requests begin and resting sequences go on, as far as there is room.
    pub(super) fn admit(&mut self) {
        loop {
            let waiting = self.shared.state().queue.priority();
            let best = self.resting.iter().enumerate().max_by_key(|(_, s)| s.rank());
            let resting = best.map(|(index, s)| (index, s.priority()));
            let joined = match (resting, waiting) {
                // Who has begun goes on first.
                (Some((index, priority)), _) if Some(priority) >= waiting => self.resume(index),
                (_, Some(priority)) => self.may_begin(priority) && self.begin(),
                (_, None) => return,
            };
            if !joined {
                return;
            }
        }
    }

    /// Whether there is a slot for a request of a priority, or one that could be vacated.
    fn may_begin(&self, priority: u8) -> bool {
        self.running.len() < self.shared.config.running
            || self.running.iter().any(|sequence| sequence.priority() < priority)
    }

    /// Lets the next request begin, if there is room for it; gives whether it did. Otherwise it rests
    /// until there is.
    fn begin(&mut self) -> bool {
        let mut state = self.shared.state();
        let Some(job) = state.queue.take() else { return false };
        state.queue.charge(&job.client, job.prompt.len() as i64 * PROMPT_WEIGHT);
        state.pace.note(Instant::now());
        drop(state);
        self.resting.push(Sequence::new(&self.shared.engine, job));
        self.resume(self.resting.len() - 1)
    }

    /// Lets a resting sequence go on, if there is room for it; gives whether it does.
    fn resume(&mut self, index: usize) -> bool {
        let mut sequence = self.resting.swap_remove(index);
        let room = self.make_room(&sequence);
        if room {
            sequence.leader = self.leader(&sequence, self.running.len());
            self.running.push(sequence);
        } else {
            self.resting.push(sequence);
        }
        room
    }

    /// Makes a slot and memory for one more sequence, for which those of lower priorities rest, the
    /// youngest of the lowest first, if that is enough; gives whether there is room.
    fn make_room(&mut self, sequence: &Sequence) -> bool {
        if self.running.is_empty() {
            // The engine makes room for one.
            return true;
        }
        let engine = &self.shared.engine;
        let shared = engine.sequence_bytes(self.shared_tokens(sequence));
        let all = engine.sequence_bytes(sequence.tokens().count() + ROOM);
        let needed = all.saturating_sub(shared);
        let (mut slots, mut held): (usize, usize) =
            self.running.iter().fold((0, needed), |(n, sum), s| (n + 1, sum + s.bytes()));
        let budget = engine.block_budget();
        let fits = |slots: usize, held: usize| {
            slots < self.shared.config.running && (held <= budget || slots == 0)
        };
        let mut lower: Vec<(usize, &Sequence)> = self.running.iter().enumerate().collect();
        lower.retain(|(_, other)| other.priority() < sequence.priority());
        lower.sort_by_key(|(_, other)| other.rank());
        let mut vacate: Vec<usize> = Vec::new();
        for (index, other) in lower {
            if fits(slots, held) {
                break;
            }
            vacate.push(index);
            slots -= 1;
            held -= other.bytes();
        }
        if !fits(slots, held) || (vacate.is_empty() && self.stats.steps < self.full_until) {
            return false;
        }
        vacate.sort_by_key(|&index| Reverse(index));
        for index in vacate {
            self.rest(index);
            self.stats.preempted_for_priority += 1;
        }
        true
    }

    /// Makes a running sequence rest.
    pub(super) fn rest(&mut self, index: usize) {
        let mut sequence = self.running.remove(index);
        sequence.idle = true;
        sequence.take = 0;
        self.resting.push(sequence);
    }

    /// Makes the youngest of the lowest priority in the step rest, since the memory is full.
    pub(super) fn rest_for_memory(&mut self) {
        let in_step = self.running.iter().enumerate().filter(|(_, s)| s.take > 0);
        let Some((index, _)) = in_step.min_by_key(|(_, s)| s.rank()) else { return };
        self.rest(index);
        self.stats.preempted_for_memory += 1;
        self.full_until = self.stats.steps + COOLDOWN;
    }
}
