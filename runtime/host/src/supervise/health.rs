//! Whether a new generation does as well as the old one: figures of both, and the window in which
//! they are judged.
//!
//! A [`super::comparison`] reads figures, [`HealthWindow`] judges them. The window is a state machine without a
//! clock or threads of its own: whoever drives it says what time it is.

use crate::OpKey;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a generation is allowed before it counts as failed.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthLimits {
    /// How long it is watched.
    pub window: Duration,
    /// Calls that trap, return a status, or find no instance, and instances that do not end well.
    pub traps: u64,
    /// Calls that run into their deadline.
    pub deadlines: u64,
    /// Calls whose numbers a cross-check finds wrong.
    pub wrong_numbers: u64,
    /// Kernels that are taken out of service.
    pub quarantines: u64,
    /// How many times as long as in the old generation the median call of an operation may take, in
    /// any class of sizes; the mean may be four times as far off, since other threads disturb it. One
    /// that takes longer, and not twice as long as that, counts only if it also does where both
    /// generations' kernels compute the same calls in turns ([`crate::Comparison::is_slower`]). That alone
    /// decides where too few calls of the old one were timed, and with [`crate::Policy::Fastest`].
    pub latency_ratio: f64,
    /// Calls that must have been timed before the speed is judged, on both sides for medians to be compared.
    /// Of calls that move less than 4 KiB one in 64 is timed.
    pub latency_calls: u64,
    /// Calls that must have been timed of each changed operation that this host uses before its
    /// kernels count as healthy; 0 asks for none. A window in which they were not is extended to
    /// [`HealthWindow::EXTENDED`] times its length, and then ends unproven.
    pub evidence_calls: u64,
    /// By how much the loss on the probe text may be higher, in nats per token.
    pub loss_margin: f64,
}

impl Default for HealthLimits {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(300),
            traps: 0,
            deadlines: 0,
            wrong_numbers: 0,
            quarantines: 0,
            latency_ratio: 1.5,
            latency_calls: 512,
            evidence_calls: 512,
            loss_margin: 0.02,
        }
    }
}

/// Figures of the kernels that are new in a generation, since it was published.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HealthCounts {
    /// Calls that trapped, returned a status, or found no instance, and instances that did not end well.
    pub traps: u64,
    /// Calls that ran into their deadline.
    pub deadlines: u64,
    /// Calls whose numbers a cross-check found wrong.
    pub wrong_numbers: u64,
    /// Kernels that were taken out of service.
    pub quarantines: u64,
    /// How long calls take, beside the old generation's.
    pub latencies: Vec<Latency>,
    /// Operations that take longer than they may in the same calls, where too few were timed before for
    /// `latencies` to tell.
    #[serde(default)]
    pub slower: Vec<OpKey>,
    /// The loss on the probe text, where there is one.
    pub losses: Option<Losses>,
    /// What has not been seen yet and must be before they count as healthy.
    pub lacking: Vec<String>,
}

/// How long the median call of an operation takes in two generations, were it of the least size of its
/// class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The operation.
    pub op: OpKey,
    /// Calls that move less than so many bytes, and not less than a quarter of it; `None` for the
    /// largest.
    pub below: Option<u64>,
    /// Calls that were timed, on the side that has fewer.
    pub calls: u64,
    /// In the old generation, in nanoseconds.
    pub old_nanos: f64,
    /// In the new one.
    pub new_nanos: f64,
    /// The mean in the old generation, the eight longest left out.
    pub old_mean_nanos: f64,
    /// In the new one.
    pub new_mean_nanos: f64,
}

/// The loss on the probe text in two generations, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Losses {
    /// In the old generation.
    pub old: f64,
    /// In the new one; not a number where the probe failed.
    pub new: f64,
}

/// What a window says of its generation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing speaks against it yet.
    Watching {
        /// What is left of the window.
        left: Duration,
    },
    /// The window is over, enough was seen, and nothing spoke against it.
    Healthy,
    /// The window is over, as far as it can be extended, and too little was seen to tell. It is watched
    /// on: taken back where it does harm, and healthy once enough was seen.
    Unproven,
    /// It is to be taken back.
    #[serde(rename = "sick")]
    Failed(HealthFailure),
}

/// Why a generation is taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthFailure {
    /// One of [`HealthFailure::CODES`], which are stable.
    pub code: &'static str,
    /// What was seen.
    pub detail: String,
}

impl HealthFailure {
    /// Every code.
    pub const CODES: [&str; 6] =
        ["traps", "deadlines", "wrong_numbers", "quarantine", "latency", "quality"];
}

impl fmt::Display for HealthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// The time in which a new generation is watched.
#[derive(Clone, Debug)]
pub struct HealthWindow {
    limits: HealthLimits,
    opened: Duration,
    health: Health,
}

impl HealthWindow {
    /// How many times its length a window may last until enough was seen.
    pub const EXTENDED: u32 = 4;

    /// A window that opens at this time, by a clock that does not go backwards.
    pub fn open(limits: HealthLimits, now: Duration) -> Self {
        let health = Health::Watching { left: limits.window };
        Self { limits, opened: now, health }
    }

    /// What was said last.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Judges figures as of this time. Once healthy or failed it stays so.
    pub fn observe(&mut self, now: Duration, counts: &HealthCounts) -> &Health {
        if let Health::Watching { .. } | Health::Unproven = self.health {
            let passed = now.saturating_sub(self.opened);
            let window = self.limits.window;
            let left = window.saturating_sub(passed);
            let longest = window.saturating_mul(Self::EXTENDED);
            self.health = match self.limits.objection(counts) {
                Some(failure) => Health::Failed(failure),
                None if !left.is_zero() => Health::Watching { left },
                None if counts.lacking.is_empty() => Health::Healthy,
                None if passed >= longest => Health::Unproven,
                None => Health::Watching { left: longest - passed },
            };
        }
        &self.health
    }
}

impl HealthLimits {
    /// How many times as long as it may an operation takes; 0 where too few calls were timed.
    pub(super) fn excess(&self, latency: &Latency) -> f64 {
        if latency.calls < self.latency_calls {
            return 0.0;
        }
        let Latency { old_nanos, new_nanos, old_mean_nanos, new_mean_nanos, .. } = *latency;
        let mean = new_mean_nanos / (old_mean_nanos * MEAN_SLACK);
        (new_nanos / old_nanos).max(mean) / self.latency_ratio
    }

    /// The first limit that the figures exceed.
    fn objection(&self, counts: &HealthCounts) -> Option<HealthFailure> {
        let limited = [
            ("wrong_numbers", counts.wrong_numbers, self.wrong_numbers, "calls gave wrong numbers"),
            ("deadlines", counts.deadlines, self.deadlines, "calls ran into their deadline"),
            ("traps", counts.traps, self.traps, "calls trapped or returned a status"),
            ("quarantine", counts.quarantines, self.quarantines, "kernels went out of service"),
        ];
        let exceeded = limited.into_iter().find(|(_, seen, allowed, _)| seen > allowed);
        if let Some((code, seen, allowed, what)) = exceeded {
            return Some(HealthFailure { code, detail: format!("{seen} {what}; {allowed} may") });
        }
        let slow = counts.latencies.iter().find(|latency| self.excess(latency) > 1.0);
        if let Some(latency) = slow {
            let Latency { op, below, calls, .. } = latency;
            let (what, old_nanos, new_nanos) = latency.worse();
            let size = match below {
                Some(4096) => "of less than 4 KiB".to_owned(),
                Some(bytes) => format!("of {} KiB", bytes >> 12),
                None => "of 16 MiB".to_owned(),
            };
            let detail = format!(
                "{op} takes {new_nanos:.0} ns a call {size} instead of {old_nanos:.0} ns, in the \
                 {what} of {calls} calls; {} times as long is allowed",
                self.latency_ratio
            );
            return Some(HealthFailure { code: "latency", detail });
        }
        if let Some(op) = counts.slower.first() {
            let detail = format!(
                "{op} takes more than {} times as long as before in the same calls",
                self.latency_ratio
            );
            return Some(HealthFailure { code: "latency", detail });
        }
        let Losses { old, new } = counts.losses?;
        // A loss that is not a number is never within the margin.
        let fine = new <= old + self.loss_margin;
        (!fine).then(|| HealthFailure {
            code: "quality",
            detail: format!(
                "the loss on the probe text is {new:.4} nats a token instead of {old:.4}; {} more \
                 is allowed",
                self.loss_margin
            ),
        })
    }
}

/// How many times as far as the median the mean may be off.
const MEAN_SLACK: f64 = 4.0;

impl Latency {
    /// Median or mean, whichever says more: its name, and its value in both generations.
    fn worse(&self) -> (&'static str, f64, f64) {
        let Latency { old_nanos, new_nanos, old_mean_nanos, new_mean_nanos, .. } = *self;
        match new_nanos / old_nanos * MEAN_SLACK < new_mean_nanos / old_mean_nanos {
            true => ("mean", old_mean_nanos, new_mean_nanos),
            false => ("median", old_nanos, new_nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn window() -> HealthWindow {
        HealthWindow::open(HealthLimits::default(), 1000 * SECOND)
    }

    fn judged(counts: HealthCounts) -> Option<&'static str> {
        let mut window = window();
        match window.observe(1001 * SECOND, &counts) {
            Health::Failed(failure) => Some(failure.code),
            health => {
                assert_eq!(*health, Health::Watching { left: 299 * SECOND });
                None
            }
        }
    }

    fn latency(calls: u64, new_nanos: f64) -> HealthCounts {
        let op = OpKey::rmsnorm_f32();
        let (old_nanos, old_mean_nanos, new_mean_nanos) = (100.0, 100.0, 100.0);
        let below = Some(4096);
        let latency =
            Latency { op, below, calls, old_nanos, new_nanos, old_mean_nanos, new_mean_nanos };
        HealthCounts { latencies: vec![latency], ..HealthCounts::default() }
    }

    #[test]
    fn a_quiet_window_ends_healthy_and_stays_so() {
        let (mut window, quiet) = (window(), HealthCounts::default());
        assert_eq!(*window.observe(1299 * SECOND, &quiet), Health::Watching { left: SECOND });
        assert_eq!(*window.observe(900 * SECOND, &quiet), Health::Watching { left: 300 * SECOND });
        assert_eq!(*window.observe(1300 * SECOND, &quiet), Health::Healthy);
        let late = HealthCounts { traps: 9, ..HealthCounts::default() };
        assert_eq!(*window.observe(1301 * SECOND, &late), Health::Healthy);
    }

    #[test]
    fn a_window_without_evidence_is_extended_and_ends_unproven() {
        let mut window = window();
        let lacking = HealthCounts { lacking: vec!["calls".to_owned()], ..HealthCounts::default() };
        let left = 900 * SECOND;
        assert_eq!(*window.observe(1300 * SECOND, &lacking), Health::Watching { left });
        assert_eq!(*window.observe(2199 * SECOND, &lacking), Health::Watching { left: SECOND });
        assert_eq!(*window.observe(2200 * SECOND, &lacking), Health::Unproven);
        // It is watched on.
        let mut failed = window.clone();
        assert_eq!(*window.observe(9999 * SECOND, &lacking), Health::Unproven);
        assert_eq!(*window.observe(9999 * SECOND, &HealthCounts::default()), Health::Healthy);
        let traps = HealthCounts { traps: 1, ..lacking };
        assert!(matches!(failed.observe(9999 * SECOND, &traps), Health::Failed(_)));
    }

    #[test]
    fn each_limit_speaks_for_itself() {
        let counts = HealthCounts::default;
        assert_eq!(judged(counts()), None);
        assert_eq!(judged(HealthCounts { traps: 1, ..counts() }), Some("traps"));
        assert_eq!(judged(HealthCounts { deadlines: 1, ..counts() }), Some("deadlines"));
        assert_eq!(judged(HealthCounts { wrong_numbers: 1, ..counts() }), Some("wrong_numbers"));
        assert_eq!(judged(HealthCounts { quarantines: 1, ..counts() }), Some("quarantine"));
        assert_eq!(judged(latency(512, 151.0)), Some("latency"));
        assert_eq!(judged(latency(512, 149.0)), None);
        assert_eq!(judged(latency(511, 1e9)), None, "too few calls");
        let mean = |new_mean_nanos| {
            let mut counts = latency(512, 100.0);
            counts.latencies[0].new_mean_nanos = new_mean_nanos;
            judged(counts)
        };
        assert_eq!((mean(599.0), mean(601.0)), (None, Some("latency")));
        let slower = vec![OpKey::rmsnorm_f32()];
        assert_eq!(judged(HealthCounts { slower, ..counts() }), Some("latency"));
        let loss = |new| HealthCounts {
            losses: Some(Losses { old: 2.0, new }),
            ..HealthCounts::default()
        };
        assert_eq!(judged(loss(2.019)), None);
        assert_eq!(judged(loss(2.021)), Some("quality"));
        assert_eq!(judged(loss(f64::NAN)), Some("quality"));
    }

    #[test]
    fn a_failure_at_the_last_moment_counts_and_stays() {
        let mut window = window();
        let failed = HealthCounts { deadlines: 1, ..HealthCounts::default() };
        assert!(matches!(window.observe(1300 * SECOND, &failed), Health::Failed(_)));
        assert!(matches!(
            window.observe(9999 * SECOND, &HealthCounts::default()),
            Health::Failed(_)
        ));
    }
}
