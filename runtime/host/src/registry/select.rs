//! Which kernel answers a call, and why: the order of a chain and its explanation.

use super::kernel::PublishedKernel;
use super::race::Raced;
use crate::code::Code;
use crate::gate::Skipped;
use crate::{OpKey, Policy};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Everything that competes for an operation.
pub(crate) struct Contenders<'a> {
    pub(crate) key: &'a OpKey,
    /// Newest pack first, in the pack's order; native twins last.
    pub(crate) kernels: Vec<&'a Arc<PublishedKernel>>,
    /// Kernels that this host cannot run, with their packs.
    pub(crate) skipped: Vec<(&'a str, &'a Skipped)>,
    /// The packs' own wishes: kernel id to the id that answers when it cannot, by pack.
    pub(crate) fallbacks: HashMap<(&'a str, &'a str), &'a str>,
}

/// The decision: who is asked, in order, and who is not.
pub(crate) struct Choice {
    pub(crate) chain: Vec<Arc<PublishedKernel>>,
    pub(crate) left_out: Vec<Candidate>,
    /// What the chain does not show, such as a pin that names no kernel.
    pub(crate) notes: Vec<String>,
    /// Why each of the chain has its place.
    pub(crate) reasons: Vec<Vec<String>>,
}

impl Choice {
    /// Whether all threads compute the operation together.
    pub(crate) fn is_team(&self) -> bool {
        self.chain.iter().any(|kernel| kernel.team().is_some())
    }

    /// Whether it was made among the host's own code alone.
    pub(crate) fn is_native(&self) -> bool {
        self.left_out.is_empty() && self.chain.iter().all(|kernel| kernel.is_native())
    }
}

/// Orders the candidates of an operation by policy.
pub(crate) fn choose(policy: &Policy, contenders: &Contenders<'_>) -> Choice {
    let mut left_out: Vec<Candidate> = contenders
        .skipped
        .iter()
        .map(|(pack, skipped)| Candidate {
            kernel: skipped.kernel.clone(),
            pack: (*pack).to_owned(),
            pack_version: String::new(),
            executor: skipped.executor.to_string(),
            generation: 0,
            verdict: Verdict::Rejected,
            reasons: skipped.reasons.clone(),
        })
        .collect();
    let mut notes = Vec::new();
    let mut order: Vec<(&Arc<PublishedKernel>, Vec<String>)> = Vec::new();
    let ranked = by_fallbacks(contenders);
    match policy {
        Policy::NativeOnly => {
            for kernel in ranked {
                if kernel.is_native() {
                    let why = "the policy native-only admits the host's own code";
                    order.push((kernel, decided(why, kernel)));
                } else {
                    let reason = "the policy native-only leaves sandboxed kernels out";
                    left_out.push(Candidate::of(kernel, Verdict::Rejected, vec![reason.into()]));
                }
            }
        }
        Policy::SandboxFirst | Policy::Fastest => {
            order.extend(ranked.into_iter().map(|k| (k, vec![reason(k)])));
        }
        Policy::Pinned(pins) => {
            order.extend(ranked.into_iter().map(|k| (k, vec![reason(k)])));
            let pin =
                pins.get(&contenders.key.to_string()).or_else(|| pins.get(&contenders.key.op));
            if let Some(pin) = pin {
                match order.iter().position(|(kernel, _)| kernel.is_named(pin)) {
                    Some(at) => {
                        let (kernel, _) = order.remove(at);
                        order.insert(0, (kernel, decided("pinned by the configuration", kernel)));
                    }
                    None => notes.push(format!(
                        "{pin:?} is pinned but no such kernel is there; the order is as without \
                         the pin"
                    )),
                }
            }
        }
    }
    // Kernels of one name may disagree on shapes where no catalogue defines them.
    if let Some((first, _)) = order.first().cloned() {
        order.retain(|(kernel, _)| {
            let fits = kernel.plan().same(first.plan());
            if !fits {
                let reason = format!("its shapes differ from those of {}", first.id());
                left_out.push(Candidate::of(kernel, Verdict::Rejected, vec![reason]));
            }
            fits
        });
    }
    let (chain, reasons) = order.into_iter().map(|(k, reason)| (k.clone(), reason)).unzip();
    Choice { chain, left_out, notes, reasons }
}

/// Why the configuration has a kernel asked; how a team operation is then computed stays to be told.
fn decided(why: &str, kernel: &PublishedKernel) -> Vec<String> {
    let how = kernel.team().map(|_| reason(kernel));
    [why.to_owned()].into_iter().chain(how).collect()
}

fn reason(kernel: &PublishedKernel) -> String {
    match kernel.code() {
        Code::Native { .. } => "native twins come last in any chain".to_owned(),
        Code::Team { native: Some(about), .. } => about.clone(),
        Code::Team { native: None, .. } => {
            "code of the host application; right on random inputs where it was prepared".to_owned()
        }
        Code::Sandboxed { verified: true, .. } => {
            "sandboxed, and right on the golden inputs of this host".to_owned()
        }
        Code::Sandboxed { verified: false, .. } => {
            "sandboxed; a custom operation, so its numbers are not verified".to_owned()
        }
    }
}

/// The candidates with each pack's wished-for fallbacks directly after the kernel they stand in
/// for, and native twins last.
fn by_fallbacks<'a>(contenders: &Contenders<'a>) -> Vec<&'a Arc<PublishedKernel>> {
    let next = |kernel: &PublishedKernel| {
        let wish = contenders.fallbacks.get(&(kernel.pack(), kernel.id()))?;
        contenders.kernels.iter().find(|k| k.pack() == kernel.pack() && k.id() == *wish).copied()
    };
    let wished: Vec<usize> =
        contenders.kernels.iter().filter_map(|k| next(k)).map(|k| k.uid()).collect();
    let mut ranked: Vec<&Arc<PublishedKernel>> = Vec::with_capacity(contenders.kernels.len());
    let heads = contenders.kernels.iter().filter(|kernel| !wished.contains(&kernel.uid()));
    // Every chain starts at a head: the manifest admits no circles. The second pass is for safety.
    for &kernel in heads.chain(&contenders.kernels) {
        let mut at = Some(kernel);
        while let Some(kernel) = at {
            if ranked.iter().any(|k| k.uid() == kernel.uid()) {
                break;
            }
            ranked.push(kernel);
            at = next(kernel);
        }
    }
    ranked.sort_by_key(|kernel| kernel.is_native());
    ranked
}

/// Why an operation is answered by the kernel that answers it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The operation.
    pub op: OpKey,
    /// The policy in force.
    pub policy: String,
    /// The generation that this is about.
    pub generation: u64,
    /// The kernel that is asked first now, of several the one for products of a row with the largest matrices;
    /// `None` where nobody can answer.
    pub selected: Option<String>,
    /// Every candidate, in the order in which they are asked, then those that never are.
    pub candidates: Vec<Candidate>,
    /// Remarks about the decision.
    pub notes: Vec<String>,
}

/// One candidate of an operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Candidate {
    /// The kernel's id.
    pub kernel: String,
    /// Its pack, or `native`.
    pub pack: String,
    /// Version of the pack; empty where the kernel was not published.
    pub pack_version: String,
    /// What runs it: `wasmtime` or `native`.
    pub executor: String,
    /// The generation that published it; 0 where none did.
    pub generation: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// Why.
    pub reasons: Vec<String>,
}

/// What became of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is asked first; where a race was won by several, for the calls that its reasons name.
    Selected,
    /// It is asked when those before it fail.
    Fallback,
    /// It failed too often and is not asked.
    Quarantined,
    /// It is never asked.
    Rejected,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Selected => "selected",
            Verdict::Fallback => "fallback",
            Verdict::Quarantined => "quarantined",
            Verdict::Rejected => "rejected",
        })
    }
}

impl Candidate {
    pub(crate) fn of(kernel: &PublishedKernel, verdict: Verdict, reasons: Vec<String>) -> Self {
        Self {
            kernel: kernel.id().to_owned(),
            pack: kernel.pack().to_owned(),
            pack_version: kernel.stats().pack_version.clone(),
            executor: kernel.stats().executor.to_owned(),
            generation: kernel.generation(),
            verdict,
            reasons,
        }
    }
}

/// What was measured of the candidates of an operation.
pub(crate) enum Evidence {
    /// Those of a team operation raced.
    Raced(Vec<Raced>),
    /// A sentence for each class of sizes of live calls.
    Learnt(Vec<String>),
}

impl Evidence {
    pub(super) fn lines(&self, chain: &[Arc<PublishedKernel>]) -> Vec<String> {
        let took = |(nanos, at): &(u64, usize)| {
            Some(format!("{} {:.2} us", chain.get(*at)?.id(), *nanos as f64 / 1e3))
        };
        let line = |Raced { what, ranked }: &Raced| {
            let ranked: Vec<String> = ranked.iter().filter_map(took).collect();
            format!("{what}: {}", ranked.join(", "))
        };
        match self {
            Evidence::Raced(races) => races.iter().map(line).collect(),
            Evidence::Learnt(lines) => lines.clone(),
        }
    }

    /// What a candidate won.
    pub(super) fn won(&self, at: usize) -> Vec<&str> {
        let Evidence::Raced(races) = self else { return Vec::new() };
        let won = |raced: &&Raced| raced.ranked.first().is_some_and(|(_, first)| *first == at);
        races.iter().filter(won).map(|raced| raced.what.as_str()).collect()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} (policy {}, generation {})", self.op, self.policy, self.generation)?;
        for candidate in &self.candidates {
            let Candidate { kernel, pack, pack_version, executor, verdict, .. } = candidate;
            let version = if pack_version.is_empty() { "" } else { " " };
            writeln!(f, "  {verdict:<11} {kernel}  [{pack}{version}{pack_version}, {executor}]")?;
            for reason in &candidate.reasons {
                writeln!(f, "              {reason}")?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))
    }
}
