//! Packs in their health window: what is known of them, and what only computing can tell.

use super::comparison::{ComparedKernels, Comparison, OpSize};
use super::health::{Health, HealthCounts, HealthWindow, Latency, Losses};
use crate::OpKey;
use crate::pack::PackId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Packs that are being watched.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HealthReport {
    /// The generation that brought them.
    pub generation: u64,
    /// Which packs: none where a generation was gone back to that has less.
    pub packs: Vec<PackId>,
    /// Whether they are on trial.
    pub canary: bool,
    /// What was said of them last.
    pub health: Health,
    /// Their figures now.
    pub vitals: HealthCounts,
    /// How many times as long as before the median call of an operation may take.
    pub latency_ratio: f64,
    /// By how much the loss on the probe text may be higher.
    pub loss_margin: f64,
    /// Operations that take longer than that and are not too slow all the same.
    pub excused: Vec<IgnoredLatency>,
}

/// An operation whose calls take longer than they may, which does not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoredLatency {
    /// The operation.
    pub op: OpKey,
    /// Why it does not count.
    pub reason: String,
}

/// Packs in their health window.
pub(super) struct Watched {
    pub(super) generation: u64,
    pub(super) canary: bool,
    /// What was new in that generation, and is barred if it fails.
    pub(super) packs: Vec<PackId>,
    pub(super) comparison: Comparison,
    pub(super) window: HealthWindow,
    /// The loss on the probe text before, where there is a probe.
    pub(super) loss: Option<f64>,
    pub(super) losses: Option<Losses>,
    /// How many calls of an operation and a class of sizes had been timed when it was found not to be
    /// slow after all.
    pub(super) cleared: BTreeMap<OpSize, u64>,
    /// The same of those that nothing was suspected of, for want of times from before.
    pub(super) unmatched: BTreeMap<OpSize, u64>,
    /// Those that were found to be slow.
    pub(super) confirmed: BTreeSet<OpSize>,
}

/// What only computing can tell of a pack that is watched.
pub(super) enum Question {
    /// The loss on the probe text, and what it was before.
    Loss(f64),
    /// Whether an operation is slower than before.
    Slower(SlowerQuestion),
}

/// Whether an operation is slower than before, where times alone do not say.
pub(super) struct SlowerQuestion {
    pub(super) op_size: OpSize,
    /// How many calls were timed.
    pub(super) calls: u64,
    /// Whether it seems so. Otherwise too few calls were timed before.
    pub(super) suspected: bool,
    pub(super) kernels: Option<Box<ComparedKernels>>,
}

impl Watched {
    /// Goes on for an earlier window, none of whose kernels serves any more though its packs do: with what
    /// they are held against, and with what is barred if they fail.
    pub(super) fn succeed(&mut self, earlier: Watched) {
        let packs = earlier.packs.into_iter().filter(|pack| !self.packs.contains(pack));
        self.packs.extend(packs.collect::<Vec<_>>());
        self.loss = earlier.loss.or(self.loss);
        self.comparison.succeed(&earlier.comparison);
    }

    /// Takes the answer to a question: a loss, or 1 for an operation that is slower and 0 for one
    /// that is not.
    pub(super) fn note(&mut self, question: Question, answer: f64) {
        match question {
            Question::Loss(old) => self.losses = Some(Losses { old, new: answer }),
            Question::Slower(asked) if answer > 0.0 => {
                self.confirmed.insert(asked.op_size);
            }
            Question::Slower(asked) => {
                let cleared = if asked.suspected { &mut self.cleared } else { &mut self.unmatched };
                cleared.insert(asked.op_size, asked.calls);
            }
        }
    }
}

pub(super) fn op_size(latency: &Latency) -> OpSize {
    (latency.op.clone(), latency.below)
}
