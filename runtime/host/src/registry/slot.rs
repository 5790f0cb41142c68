//! An operation of a snapshot, and why it is answered by whom.

use super::kernel::PublishedKernel;
use super::learn::Preference;
use super::race::Race;
use super::select::{Candidate, Choice, Evidence, Explanation, Verdict};
use crate::code::Code;
use crate::op::plan::CallPlan;
use crate::stats::CountedFailures;
use crate::{OpKey, Policy};
use std::sync::Arc;

/// An operation of a snapshot.
pub(crate) struct Slot {
    pub(crate) key: OpKey,
    pub(crate) plan: CallPlan,
    pub(crate) choice: Choice,
    /// Of a team operation, where the fastest of several candidates is wanted.
    pub(crate) race: Option<Race>,
    /// The same of any other.
    pub(crate) preference: Option<Arc<Preference>>,
    /// Of the key and who answers, for [`super::RegistrySnapshot::fingerprint`].
    pub(super) fingerprint: [u8; 32],
}

impl Slot {
    /// Where in the chain of a team operation the winner of the race is, with a matrix of this class and so
    /// many rows.
    #[inline]
    pub(crate) fn winner(&self, class: usize, rows: usize) -> Option<usize> {
        self.race.as_ref().and_then(|race| race.winner(class, rows))
    }

    /// The chain of a team operation without a matrix, for a call of a class and so many rows: the winner of the race
    /// first.
    pub(crate) fn by_rows(
        &self,
        class: usize,
        rows: usize,
    ) -> impl Iterator<Item = &Arc<PublishedKernel>> + Clone {
        with_first(&self.choice.chain, self.winner(class, rows))
    }

    /// Where in the chain those are that are asked first for some calls: what is asked first most comes first.
    pub(crate) fn asked_first(&self) -> Vec<usize> {
        let chain = &self.choice.chain;
        let serves = |at: &usize| chain.get(*at).is_some_and(|k| !k.stats().quarantined());
        let mut first: Vec<usize> = Vec::new();
        for at in self.race.iter().flat_map(Race::winners).filter(serves) {
            if !first.contains(&at) {
                first.push(at);
            }
        }
        if first.is_empty() {
            // The last of a team operation is asked whatever is known of it.
            let last = chain.len().checked_sub(1).filter(|_| self.choice.is_team());
            first.extend((0..chain.len()).find(serves).or(last));
        }
        first
    }
}

/// A chain with one of its candidates before the others.
pub(crate) fn with_first<T>(chain: &[T], first: Option<usize>) -> impl Iterator<Item = &T> + Clone {
    let rest = (0..chain.len()).filter(move |at| Some(*at) != first);
    first.into_iter().chain(rest).filter_map(|at| chain.get(at))
}

/// The codes of calls that a kernel passes on without fault, because it lacks memory for them.
const PASSED_ON: [&str; 4] =
    ["call_too_large", "kernel_memory_full", "pack_memory_full", "weight_memory_full"];

/// So many of something.
fn plural(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// Explains a chain as it stands now, quarantines included. `measured` says what was measured of its candidates; `None`
/// where nothing ever is.
pub(crate) fn explain(
    op: &OpKey,
    policy: &Policy,
    generation: u64,
    slot: Option<&Slot>,
    measured: Option<&Evidence>,
) -> Explanation {
    let mut explanation = Explanation {
        op: op.clone(),
        policy: policy.to_string(),
        generation,
        selected: None,
        candidates: Vec::new(),
        notes: Vec::new(),
    };
    let Some(slot) = slot else {
        explanation.notes.push("no kernel of this operation with these types is there".to_owned());
        return explanation;
    };
    let (choice, first) = (&slot.choice, slot.asked_first());
    explanation.selected =
        first.first().and_then(|at| choice.chain.get(*at)).map(|kernel| kernel.id().to_owned());
    for (at, (kernel, why)) in choice.chain.iter().zip(&choice.reasons).enumerate() {
        let mut reasons = why.clone();
        let won = measured.map(|measured| measured.won(at)).unwrap_or_default();
        if !won.is_empty() {
            reasons.insert(0, format!("the fastest in a race: {}", won.join(", ")));
        }
        if let Code::Sandboxed { runs, .. } = kernel.code() {
            reasons.push(runs.to_string());
        }
        let verdict = if first.contains(&at) {
            Verdict::Selected
        } else if kernel.stats().quarantined() {
            let counted = plural(u64::from(kernel.stats().counted()), "failure");
            reasons.push(format!("quarantined after {counted}"));
            Verdict::Quarantined
        } else {
            Verdict::Fallback
        };
        match kernel.stats().counted() {
            _ if verdict == Verdict::Quarantined => {}
            0 => {}
            1 => reasons.push("failed once so far".to_owned()),
            counted => reasons.push(format!("failed {counted} times so far")),
        }
        let CountedFailures { traps, others, last } = kernel.stats().counted_failures();
        let listed = |what: &str, counts: Vec<String>| {
            (!counts.is_empty()).then(|| format!("{what}: {}", counts.join(", ")))
        };
        let traps = traps.iter().map(|(kind, count)| format!("{count} {}", kind.name()));
        reasons.extend(listed("traps", traps.collect()));
        let others = others.iter().map(|(code, count)| format!("{count} {code}"));
        reasons.extend(listed("failures without a trap", others.collect()));
        if let Some(last) = last {
            reasons.push(format!("its last failure: it {last}"));
        }
        for (code, count) in kernel.stats().failures() {
            if PASSED_ON.contains(&code) {
                let calls = plural(count, "call");
                reasons.push(format!("passed {calls} on for want of memory [{code}]"));
            }
        }
        explanation.candidates.push(Candidate::of(kernel, verdict, reasons));
    }
    explanation.candidates.extend(choice.left_out.iter().cloned());
    explanation.notes.extend(choice.notes.iter().cloned());
    if *policy == Policy::Fastest && choice.chain.len() > 1 {
        let note = match (&measured, choice.is_team()) {
            (None, _) => "this order stands: a deterministic host does not look for the fastest",
            (_, true) => {
                "raced when a model is loaded, by sizes of matrices; weights are prepared by the winner with one \
                 row, so with more rows nobody else races who would hold them too"
            }
            (_, false) => {
                "calls of each class of sizes go first to whoever live calls showed to be the fastest, \
                 in this order before"
            }
        };
        explanation.notes.push(note.to_owned());
        let lines = measured.map(|measured| measured.lines(&choice.chain));
        explanation.notes.extend(lines.unwrap_or_default());
    }
    explanation
}
