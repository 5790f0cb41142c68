//! What was measured of candidates in live calls, when that is evidence for asking another one first, and how often to try
//! one that is not asked first. Nothing here looks at a clock or a file: see [`super::learn`].

use crate::OpKey;
use crate::stats::KernelStats;
use crate::stats::latency::{DecayedHistogram, SizeName, Times, below};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Timed calls of an operation and class after which a call counts half as much.
pub(crate) const HALF_LIFE: f64 = 32_768.0;

/// What the calls of a candidate must weigh before it is judged, or anybody by it.
pub(crate) const EVIDENCE: f64 = 128.0;

/// How many times as long as another's the median of a candidate must be before that one takes over.
const MARGIN: f64 = 1.25;

/// One call in so many goes to another candidate while too little is known of one.
pub(crate) const FIRST_RATE: u32 = 16;

/// One call in so many at most once all are known, and at least.
const RATES: [f64; 2] = [256.0, 65_536.0];

/// A change of the candidate that is asked first, and what it was made for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ChoiceChange {
    /// When, in milliseconds since 1970 by the system's clock.
    pub time: u64,
    /// The operation.
    pub op: OpKey,
    /// It is about calls that move less than so many bytes, and not less than a quarter of it; `None` is the largest.
    pub below: Option<u64>,
    /// The candidate that was asked first before.
    pub from: Measured,
    /// The one that is asked first now.
    pub to: Measured,
}

/// What was measured of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Measured {
    /// The kernel's id, with the name of its pack before it (`PACK/ID`): kernels of several packs may have one id.
    /// Native twins have theirs alone.
    pub kernel: String,
    /// What its timed calls weighed together: their number, were they all recent.
    pub calls: f64,
    /// How long half of the calls took at most, in nanoseconds, were they of the least size of their class.
    pub median_nanos: f64,
}

impl fmt::Display for ChoiceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, below, from, to, .. } = self;
        write!(
            f,
            "{op}, calls of {}: {} is asked first instead of {}: {:.2} us a call instead of {:.2} us, medians of {:.0} \
             and {:.0} calls",
            SizeName(*below),
            to.kernel,
            from.kernel,
            to.median_nanos / 1e3,
            from.median_nanos / 1e3,
            to.calls,
            from.calls
        )
    }
}

/// The candidates of an operation.
pub(super) struct Chain {
    pub(super) op: OpKey,
    /// Of their hashes.
    pub(super) id: String,
    /// Hash and figures of each, in the order of the chain.
    pub(super) candidates: Vec<(String, Arc<KernelStats>)>,
}

/// What was counted: times by kernel hash.
pub(super) type Fresh = BTreeMap<String, Times>;

/// What is known on one host.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    /// In milliseconds since 1970.
    pub(super) written: u64,
    /// By operation and class.
    pub(super) ops: BTreeMap<String, BTreeMap<usize, Class>>,
}

/// What is known of an operation's calls of a class.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Class {
    /// By hash.
    kernels: BTreeMap<String, Figures>,
    /// By candidates.
    pub(super) choices: BTreeMap<String, Chosen>,
}

/// What was measured of a kernel.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figures {
    /// Calls that were ever timed.
    pub(super) calls: u64,
    pub(super) times: DecayedHistogram,
}

/// Who is asked first of some candidates, and why.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Chosen {
    hash: String,
    pub(super) change: ChoiceChange,
}

impl Class {
    /// Lets what is known weigh less, and adds what was counted.
    fn add(&mut self, fresh: &Fresh) {
        let calls: u64 = fresh.values().map(Times::calls).sum();
        let factor = 0.5f64.powf(calls as f64 / HALF_LIFE);
        self.kernels.values_mut().for_each(|figures| figures.times.fade(factor));
        for (hash, times) in fresh {
            let figures = self.kernels.entry(hash.clone()).or_default();
            figures.calls = figures.calls.saturating_add(times.calls());
            figures.times.add(times);
        }
        // That of a kernel that is not asked any more goes after some twenty half-lives.
        self.kernels.retain(|_, figures| figures.times.weight() >= 0.01);
    }

    /// How many calls were ever timed.
    #[cfg(test)]
    pub(super) fn calls(&self) -> u64 {
        self.kernels.values().map(|figures| figures.calls).sum()
    }

    /// Of a kernel of that id, whose hash is made of it.
    #[cfg(test)]
    pub(super) fn of(&self, id: &str) -> &Figures {
        &self.kernels[&format!("hash of {id}")]
    }

    pub(super) fn measured(&self, (hash, stats): &(String, Arc<KernelStats>)) -> Option<Measured> {
        let times = &self.kernels.get(hash)?.times;
        let kernel = stats.qualified();
        Some(Measured { kernel, calls: times.weight(), median_nanos: times.median() })
    }

    /// The place of the candidate that is asked first.
    pub(super) fn first(&self, chain: &Chain) -> usize {
        let chosen = self.choices.get(&chain.id);
        let place = |chosen: &Chosen| chain.candidates.iter().position(|c| c.0 == chosen.hash);
        chosen.and_then(place).unwrap_or(0)
    }

    /// The others that are in service, with what was measured of them.
    fn rivals<'a>(
        &'a self,
        chain: &'a Chain,
        first: usize,
    ) -> impl Iterator<Item = (&'a str, Option<Measured>)> {
        let others = chain.candidates.iter().enumerate().filter(move |(at, _)| *at != first);
        let others = others.filter(|(_, (_, stats))| !stats.quarantined());
        others.map(|(_, candidate)| (candidate.0.as_str(), self.measured(candidate)))
    }

    /// Asks another first among these candidates, and measures all of them anew.
    pub(super) fn choose(&mut self, chain: &Chain, chosen: Chosen) {
        self.choices.insert(chain.id.clone(), chosen);
        self.kernels.clear();
    }

    /// Takes over a choice that was made by other figures, and those that came after it.
    pub(super) fn take_over(&mut self, other: &Class, chain_id: &str) {
        self.kernels.clone_from(&other.kernels);
        let chosen = other.choices.get(chain_id).cloned();
        self.choices.extend(chosen.map(|chosen| (chain_id.to_owned(), chosen)));
    }

    /// Who is to be asked first from now on, where that is another.
    pub(super) fn judge(&self, chain: &Chain, class: usize, now: u64) -> Option<Chosen> {
        let first = self.first(chain);
        let known = |measured: &Measured| measured.calls >= EVIDENCE;
        let from = self.measured(chain.candidates.get(first)?).filter(known)?;
        let rivals = self.rivals(chain, first);
        let rivals = rivals.filter_map(|(hash, rival)| Some((hash, rival.filter(known)?)));
        let (hash, to) = rivals.min_by(|a, b| a.1.median_nanos.total_cmp(&b.1.median_nanos))?;
        (to.median_nanos * MARGIN < from.median_nanos).then(|| Chosen {
            hash: hash.to_owned(),
            change: ChoiceChange { time: now, op: chain.op.clone(), below: below(class), from, to },
        })
    }

    /// One call in how many goes to another candidate. One that takes `r` times as long as the first is asked so seldom
    /// that this costs `(r - 1) / 256 r` of what the operation takes.
    pub(super) fn rate(&self, chain: &Chain) -> u32 {
        let first = self.first(chain);
        let enough = |figures: &Figures| figures.calls as f64 >= 2.0 * EVIDENCE;
        let new = |hash: &str| !self.kernels.get(hash).is_some_and(enough);
        let rivals: Vec<_> = self.rivals(chain, first).collect();
        if rivals.iter().any(|(hash, _)| new(hash)) {
            return FIRST_RATE;
        }
        let median = |measured: &Measured| measured.median_nanos;
        let best = rivals.iter().filter_map(|(_, rival)| rival.as_ref().map(median));
        let best = best.min_by(f64::total_cmp).unwrap_or(f64::INFINITY);
        let own = chain.candidates.get(first).and_then(|own| self.measured(own));
        let ratio = own.map_or(1.0, |own| best / own.median_nanos.max(1.0)).max(1.0);
        let [most, least] = RATES;
        (most * ratio).min(least) as u32 / rivals.len().max(1) as u32
    }
}

impl Known {
    pub(super) fn add(&mut self, fresh: &BTreeMap<(String, usize), Fresh>) {
        for ((op, class), fresh) in fresh {
            self.ops.entry(op.clone()).or_default().entry(*class).or_default().add(fresh);
        }
    }

    pub(super) fn class(&self, op: &OpKey, class: usize) -> Option<&Class> {
        self.ops.get(&op.to_string())?.get(&class)
    }

    pub(super) fn class_mut(&mut self, op: &str, class: usize) -> &mut Class {
        self.ops.entry(op.to_owned()).or_default().entry(class).or_default()
    }
}
