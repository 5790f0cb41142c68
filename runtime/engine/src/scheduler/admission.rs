//! Who runs: sequences that rest, and go on as soon as there is room for them.

use std::cmp::Reverse;

use super::batch::Batch;
use super::sequence::{ROOM, Sequence};

/// Steps for which nobody joins after the memory was full, unless a sequence leaves before: what was
/// counted as free was not.
const COOLDOWN: u64 = 32;

impl<'a> Batch<'a> {
    /// Whether there is a slot for a request of a priority, or one that could be vacated.
    pub(super) fn may_begin(&self, priority: u8) -> bool {
        self.running.len() < self.config.running
            || self.running.iter().any(|sequence| sequence.priority() < priority)
    }

    /// Lets a resting sequence go on, if there is room for it; gives whether it does.
    pub(super) fn resume(&mut self, index: usize) -> bool {
        let mut sequence = self.resting.swap_remove(index);
        let room = self.make_room(&sequence);
        if room {
            sequence.leader = self.leader(&sequence, self.running.len());
            self.running.push(sequence);
            self.expect_parting(self.running.len() - 1);
        } else {
            self.resting.push(sequence);
        }
        room
    }

    /// Makes a slot and memory for one more sequence, for which those of lower priorities rest, the
    /// youngest of the lowest first, if that is enough; gives whether there is room.
    fn make_room(&mut self, sequence: &Sequence<'_>) -> bool {
        if self.running.is_empty() {
            // The engine makes room for one.
            return true;
        }
        let engine = &self.engine;
        let shared = engine.sequence_bytes(self.shared_tokens(sequence));
        let all = engine.sequence_bytes(sequence.tokens().count() + ROOM);
        let needed = all.saturating_sub(shared);
        let (mut slots, mut held): (usize, usize) =
            self.running.iter().fold((0, needed), |(n, sum), s| (n + 1, sum + s.bytes()));
        let budget = engine.block_budget();
        let fits = |slots: usize, held: usize| {
            slots < self.config.running && (held <= budget || slots == 0)
        };
        let mut lower: Vec<(usize, &Sequence<'_>)> = self.running.iter().enumerate().collect();
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
