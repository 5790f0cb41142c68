//! The configuration of a scheduler.

use crate::error::EngineError;

/// Configuration of a [`Scheduler`](super::Scheduler).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences that are computed together at most.
    pub running: usize,
    /// Requests that wait at most; more are rejected.
    pub queue: usize,
    /// Tokens of prompts in a step beside running texts. Without a running text a step takes up to
    /// [`EngineConfig::batch`](crate::EngineConfig::batch).
    pub chunk: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { running: 32, queue: 256, chunk: 256 }
    }
}

impl SchedulerConfig {
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        let options = [("running", self.running), ("queue", self.queue), ("chunk", self.chunk)];
        match options.into_iter().find(|(_, value)| !(1..=1 << 20).contains(value)) {
            Some((option, value)) => Err(EngineError::InvalidOption {
                option,
                value: value.to_string(),
                reason: "it must be at least 1 and not absurdly large",
            }),
            None => Ok(()),
        }
    }
}
