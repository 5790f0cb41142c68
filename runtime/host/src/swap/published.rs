//! A generation on trial: which steps run on it.

use crate::registry::RegistrySnapshot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What steps run on. Replaced as a whole.
pub(crate) struct Published {
    pub(crate) active: Arc<RegistrySnapshot>,
    pub(crate) canary: Option<Canary>,
}

/// A generation on trial, and its share of the steps.
pub(crate) struct Canary {
    pub(crate) snapshot: Arc<RegistrySnapshot>,
    pub(crate) share: f64,
    step: AtomicU64,
}

/// 2^64 divided by the golden ratio: its multiples modulo 2^64 spread evenly, whatever their number,
/// and keep step with no rhythm that steps may have (Weyl's sequence).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Published {
    /// The generation that the next step runs on.
    #[inline]
    pub(crate) fn pin(&self) -> &Arc<RegistrySnapshot> {
        match &self.canary {
            Some(canary) if canary.takes() => &canary.snapshot,
            _ => &self.active,
        }
    }

    /// Whether steps may still be given to a generation.
    pub(crate) fn serves(&self, generation: u64) -> bool {
        let is = |snapshot: &RegistrySnapshot| snapshot.generation() == generation;
        is(&self.active) || self.canary.as_ref().is_some_and(|canary| is(&canary.snapshot))
    }
}

impl Canary {
    /// A trial of a share of the steps, above 0 and at most 1.
    pub(crate) fn new(snapshot: Arc<RegistrySnapshot>, share: f64) -> Self {
        Self { snapshot, share, step: AtomicU64::new(1) }
    }

    /// Whether the next step is one of its own.
    fn takes(&self) -> bool {
        let at = self.step.fetch_add(1, Relaxed).wrapping_mul(GOLDEN);
        // The conversion saturates, so a share of 1 takes every step.
        at <= (self.share * 2f64.powi(64)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, HostConfig};

    #[test]
    fn every_run_of_steps_has_its_share() {
        let snapshot = Host::new(HostConfig::default()).unwrap().snapshot();
        for share in [0.01, 0.05, 0.3, 0.5, 1.0] {
            let canary = Canary::new(snapshot.clone(), share);
            let taken: Vec<f64> = (0..2000).map(|_| f64::from(u8::from(canary.takes()))).collect();
            for steps in [20, 100, 500] {
                for run in taken.windows(steps) {
                    let (got, want) = (run.iter().sum::<f64>(), share * steps as f64);
                    assert!((got - want).abs() <= 3.0, "{got} of {steps} at {share}");
                }
            }
        }
    }
}
