//! Figures of two generations side by side, as [`Host::compare`] begins to read them.

use super::health::{HealthCounts, Latency};
use super::paired;
use crate::code::{Code, PreparedKernel};
use crate::registry::{RegistrySnapshot, Slot};
use crate::stats::KernelStats;
use crate::stats::latency::{SIZES, Times, below};
use crate::team::ComparedProvider;
use crate::{Host, OpKey};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Calls that a mean leaves out: those that other threads happened to interrupt.
const LONGEST: u64 = 8;

/// Reads figures of two generations side by side. It holds neither of them, but the code of kernels.
pub struct Comparison {
    ops: Vec<Compared>,
    marks: Vec<(Arc<KernelStats>, HealthCounts)>,
}

/// An operation and a class of sizes.
pub(super) type OpSize = (OpKey, Option<u64>);

/// An operation that kernels of the new generation answer.
struct Compared {
    op: OpKey,
    /// Those that are asked first, in the old generation and in the new one.
    firsts: [PreparedKernel; 2],
    old: Vec<Arc<KernelStats>>,
    new: Vec<(Arc<KernelStats>, [Times; SIZES])>,
}

impl Host {
    /// Watches what a generation has in other packs than an older one, from this moment on.
    pub fn compare(&self, old: &RegistrySnapshot, new: &RegistrySnapshot) -> Comparison {
        let is_new = |stats: &Arc<KernelStats>| !old.counts_in(stats);
        let all_stats = new.kernels().map(|kernel| kernel.stats()).filter(|stats| is_new(stats));
        let is_first = |stats: &KernelStats| stats.generation.load(Relaxed) == new.generation();
        // What was published for the first time counts from its first call, whoever was faster.
        let mark = |stats: &KernelStats| {
            if is_first(stats) { HealthCounts::default() } else { count(stats) }
        };
        let marks = all_stats.map(|stats| (stats.clone(), mark(stats))).collect();
        let ops = new.slots().iter().filter_map(|slot| {
            let mine = slot.choice.chain.iter().map(|k| k.stats()).filter(|stats| is_new(stats));
            let times = |stats: &KernelStats| {
                if is_first(stats) { Default::default() } else { stats.times() }
            };
            let mine: Vec<_> = mine.map(|stats| (stats.clone(), times(stats))).collect();
            let theirs = old.slots().iter().find(|other| other.key == slot.key)?;
            let first =
                |slot: &Slot| slot.choice.chain.first().map(|kernel| PreparedKernel::clone(kernel));
            let firsts = [first(theirs)?, first(slot)?];
            let theirs = theirs.choice.chain.iter().map(|kernel| kernel.stats().clone());
            let op = slot.key.clone();
            (!mine.is_empty()).then(|| Compared { op, firsts, old: theirs.collect(), new: mine })
        });
        Comparison { ops: ops.collect(), marks }
    }
}

impl Comparison {
    /// Whether all kernels that it counts calls of are others in that generation. Never where it counts
    /// none, as over a generation that was gone back to and only has less.
    pub(super) fn is_replaced_in(&self, generation: &RegistrySnapshot) -> bool {
        let serves = self.marks.iter().any(|(stats, _)| generation.counts_in(stats));
        !self.marks.is_empty() && !serves
    }

    /// Holds what it counts against the old generation of an earlier comparison, where that one had the
    /// same operation.
    pub(super) fn succeed(&mut self, earlier: &Comparison) {
        for mine in &mut self.ops {
            if let Some(theirs) = earlier.of(&mine.op) {
                mine.firsts[0] = theirs.firsts[0].clone();
                mine.old.clone_from(&theirs.old);
            }
        }
    }

    /// Whether the kernel that is asked first for an operation is the same code in both generations: its
    /// calls may take longer, but not because of it.
    pub(super) fn is_same(&self, op: &OpKey) -> bool {
        self.of(op).is_some_and(|Compared { firsts: [old, new], .. }| old.hash() == new.hash())
    }

    fn of(&self, op: &OpKey) -> Option<&Compared> {
        self.ops.iter().find(|compared| compared.op == *op)
    }

    /// Whether an operation takes more than `ratio` times as long in the new generation, where both
    /// compute the same calls in turns, of the shapes that the host has seen. Also where that cannot
    /// be found out. Takes a second at most, and a few milliseconds mostly.
    pub fn is_slower(&self, host: &Host, op: &OpKey, ratio: f64) -> bool {
        if self.is_same(op) {
            return false;
        }
        self.compared_kernels(op).and_then(|kernels| kernels.is_slower(host, ratio)).unwrap_or(true)
    }

    /// The kernels of an operation that compute the same calls where it must be known which is slower.
    pub(super) fn compared_kernels(&self, op: &OpKey) -> Option<ComparedKernels> {
        self.of(op).map(|compared| ComparedKernels(compared.firsts.clone()))
    }

    /// What must still be seen before the new kernels count as healthy: of each operation that this
    /// host uses and that they answer, so many timed calls, and of at least one.
    pub(super) fn lacking(&self, evidence: u64) -> Vec<String> {
        if evidence == 0 || self.marks.is_empty() {
            return Vec::new();
        }
        let timed = |stats: &KernelStats| stats.times().iter().map(Times::calls).sum::<u64>();
        let mut lacking = Vec::new();
        let mut shown = false;
        for Compared { op, firsts: [before, after], old, new } in &self.ops {
            let since = |(stats, mark): &(Arc<KernelStats>, [Times; SIZES])| {
                timed(stats) - mark.iter().map(Times::calls).sum::<u64>()
            };
            let calls: u64 = new.iter().map(since).sum();
            let is_used = old.iter().chain(new.iter().map(|(l, _)| l)).any(|l| l.calls() > 0);
            if calls >= evidence {
                shown = true;
            } else if is_used && before.hash() != after.hash() {
                lacking.push(format!("{op}: {calls} of {evidence} calls timed"));
            }
        }
        // Operations that were not there before have nothing to be compared with.
        shown |= self.marks.iter().any(|(stats, _)| timed(stats) >= evidence);
        if lacking.is_empty() && !shown {
            lacking.push(format!("no operation had {evidence} calls timed"));
        }
        lacking
    }

    /// The figures of the new generation since then, and those of the old one.
    pub fn counts(&self) -> HealthCounts {
        let mut counts = HealthCounts::default();
        for (stats, mark) in &self.marks {
            let now = count(stats);
            counts.traps += now.traps - mark.traps;
            counts.deadlines += now.deadlines - mark.deadlines;
            counts.wrong_numbers += now.wrong_numbers - mark.wrong_numbers;
            counts.quarantines += now.quarantines - mark.quarantines;
        }
        for (Compared { op, .. }, below, [before, after]) in self.times() {
            let calls = before.calls().min(after.calls());
            if calls > 0 {
                counts.latencies.push(Latency {
                    op: op.clone(),
                    below,
                    calls,
                    old_nanos: before.median(),
                    new_nanos: after.median(),
                    old_mean_nanos: before.mean_but(LONGEST),
                    new_mean_nanos: after.mean_but(LONGEST),
                });
            }
        }
        counts
    }

    /// Operations and sizes of which so many calls of the new generation were timed, and how many, and fewer of
    /// the old one, which has no more to come. Not where the host's own code answered there for want of a kernel.
    pub(super) fn unmatched(&self, limit: u64) -> impl Iterator<Item = (OpSize, u64)> {
        self.times().filter_map(move |(Compared { op, firsts, .. }, below, [before, after])| {
            let (before, after) = (before.calls(), after.calls());
            let had_kernel = !matches!(firsts[0].code(), Code::Native { .. });
            let is_unmatched = had_kernel && before < limit && after >= limit;
            is_unmatched.then(|| ((op.clone(), below), after))
        })
    }

    /// Operations and classes of their sizes, with the times of calls in the old generation and in the new one.
    fn times(&self) -> impl Iterator<Item = (&Compared, Option<u64>, [Times; 2])> {
        self.ops.iter().flat_map(|compared| {
            let (mut before, mut after): ([Times; SIZES], [Times; SIZES]) = Default::default();
            for stats in &compared.old {
                before.iter_mut().zip(&stats.times()).for_each(|(sum, times)| sum.add(times));
            }
            for (stats, mark) in &compared.new {
                let since = stats.times().into_iter().zip(mark).map(|(now, mark)| now.since(mark));
                after.iter_mut().zip(since).for_each(|(sum, times)| sum.add(&times));
            }
            let both = before.into_iter().zip(after).enumerate();
            both.map(move |(size, (before, after))| (compared, below(size), [before, after]))
        })
    }
}

/// The kernels that are asked first for an operation, in the old generation and in the new one.
pub(super) struct ComparedKernels([PreparedKernel; 2]);

impl ComparedKernels {
    /// As [`Comparison::is_slower`]; `None` where that cannot be found out.
    pub(super) fn is_slower(&self, host: &Host, ratio: f64) -> Option<bool> {
        let Self([old, new]) = self;
        if let Some((old, new)) = old.team().zip(new.team()) {
            let [of_old, of_new] = self.0.each_ref().map(|one| (one.hash(), one.is_native()));
            let compared =
                |provider, (hash, is_native)| ComparedProvider { provider, hash, is_native };
            let two = [compared(old, of_old), compared(new, of_new)];
            let preparers = host.state.preparers().into_iter();
            let times: Vec<_> = preparers.flat_map(|models| models.compare(two)).collect();
            return paired::is_longer(&times, ratio);
        }
        let workers = &host.state.workers;
        let shapes = workers.profiles.of(new.key()).shapes;
        paired::is_slower(old, new, workers.config.isa.usable(), &shapes, ratio)
    }
}

/// What a kernel has done wrong so far.
fn count(stats: &KernelStats) -> HealthCounts {
    let mut counts =
        HealthCounts { quarantines: u64::from(stats.quarantined()), ..HealthCounts::default() };
    for (code, calls) in stats.failures() {
        *match code {
            "kernel_deadline" => &mut counts.deadlines,
            "kernel_mismatch" | "kernel_non_finite" | "kernel_wrote_input" => {
                &mut counts.wrong_numbers
            }
            "kernel_trap" | "kernel_status" | "kernel_instantiate" | "kernel_cleanup"
            | "provider_failed" => &mut counts.traps,
            // The call's fault, not the kernel's.
            _ => continue,
        } += calls;
    }
    counts
}
