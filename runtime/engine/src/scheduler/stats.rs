//! Figures of a scheduler.

use std::time::{Duration, Instant};

use serde::Serialize;

/// What a scheduler does, and has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SchedulerStats {
    /// Requests that wait for their first step.
    pub waiting: usize,
    /// Requests that are computed.
    pub running: usize,
    /// Requests that were interrupted or found no room, and will go on.
    pub resting: usize,
    /// Sequences in the last step.
    pub batch_sequences: usize,
    /// Tokens in the last step.
    pub batch_tokens: usize,
    /// Steps.
    pub steps: u64,
    /// Computed steps by their sequences.
    pub step_sequences: StepSizes,
    /// Computed steps by their tokens.
    pub step_tokens: StepSizes,
    /// Tokens of prompts that were computed, and of texts that were computed again.
    pub prompt_tokens: u64,
    /// Tokens of prompts that others had computed.
    pub cached_tokens: u64,
    /// Tokens that were chosen.
    pub generated_tokens: u64,
    /// Requests that were made to rest because the memory was full.
    pub preempted_for_memory: u64,
    /// Requests that were made to rest for those of a higher priority.
    pub preempted_for_priority: u64,
    /// Tokens that had to be computed again because their blocks were given up.
    pub recomputed_tokens: u64,
    /// Requests that ended as they should.
    pub finished: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that found the queue full.
    pub rejected: u64,
    /// Steps that failed, whether or not a second try did.
    pub failed_steps: u64,
}

/// How many steps had which size, in classes up to powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepSizes {
    /// Steps of each class: at 0 those of size 1, at `i` those above `2^(i - 1)` and up to `2^i`, at the
    /// last those above [`StepSizes::LARGEST`].
    pub counts: [u64; 15],
    /// All sizes, added up.
    pub sum: u64,
}

impl StepSizes {
    /// The largest bound of a class.
    pub const LARGEST: usize = 1 << 13;

    pub(super) fn record(&mut self, size: usize) {
        let class = size.max(1).next_power_of_two().trailing_zeros() as usize;
        self.counts[class.min(self.counts.len() - 1)] += 1;
        self.sum += size as u64;
    }

    /// The classes in rising order: the largest size, `None` for the last, and the number of steps.
    pub fn classes(&self) -> impl Iterator<Item = (Option<usize>, u64)> {
        let bound = |class: usize| Some(1 << class).filter(|&bound| bound <= Self::LARGEST);
        self.counts.iter().enumerate().map(move |(class, &count)| (bound(class), count))
    }
}

/// How fast requests begin.
#[derive(Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// Seconds between two beginnings, on average over the recent ones.
    interval: Option<f64>,
}

/// How much the newest interval counts in the average.
const NEWEST: f64 = 0.2;

impl Pace {
    /// Notes that a request begins.
    pub(super) fn note(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let interval = (now - last).as_secs_f64();
            let mean = self.interval.unwrap_or(interval);
            self.interval = Some(mean + NEWEST * (interval - mean));
        }
    }

    /// Notes that there is nothing to do: the time until the next request says nothing.
    pub(super) fn pause(&mut self) {
        self.last = None;
    }

    /// How long `waiting` requests take to begin, from a second to a minute.
    pub(super) fn time_for(&self, waiting: usize) -> Duration {
        let seconds = self.interval.unwrap_or(0.0) * waiting as f64;
        Duration::from_secs_f64(seconds.clamp(1.0, 60.0).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_up_to_the_bound_of_their_class() {
        let mut sizes = StepSizes::default();
        for size in [1, 2, 3, 4, 5, StepSizes::LARGEST, StepSizes::LARGEST + 1, 1 << 20] {
            sizes.record(size);
        }
        let counted: Vec<_> = sizes.classes().filter(|&(_, count)| count > 0).collect();
        let expected = [(1, 1), (2, 1), (4, 2), (8, 1), (StepSizes::LARGEST, 1)];
        let expected = expected.map(|(bound, count)| (Some(bound), count));
        assert_eq!(counted, [&expected[..], &[(None, 2)]].concat());
        assert_eq!(sizes.sum as usize, 15 + 2 * StepSizes::LARGEST + 1 + (1 << 20));
    }

    #[test]
    fn the_wait_follows_the_recent_pace() {
        let mut pace = Pace::default();
        assert_eq!(pace.time_for(100), Duration::from_secs(1));
        let start = Instant::now();
        for second in 0..10 {
            pace.note(start + Duration::from_secs(second));
        }
        assert_eq!(pace.time_for(12), Duration::from_secs(12));
        assert_eq!(pace.time_for(100), Duration::from_secs(60));
        // An hour without requests is no slow request.
        pace.pause();
        pace.note(start + Duration::from_secs(3600));
        assert_eq!(pace.time_for(12), Duration::from_secs(12));
    }
}
