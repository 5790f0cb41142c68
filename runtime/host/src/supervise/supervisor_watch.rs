//! What a supervisor does with packs that are being watched: they are booked as healthy when their windows
//! are over, and taken back where they do harm.

use super::comparison::OpSize;
use super::health::{Health, HealthCounts, HealthFailure, HealthWindow, Latency};
use super::history::{HistoryEvent, Record};
use super::spans::{self, LOG};
use super::supervisor::{Supervisor, SupervisorState};
use super::watched::{HealthReport, IgnoredLatency, Question, SlowerQuestion, Watched, op_size};
use crate::pack::PackId;
use crate::registry::RegistrySnapshot;
use crate::threads::lock;
use crate::ticker::Ticker;
use ruvllm_signing::escape_untrusted;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How many times as long as it may an operation must take to be too slow without another proof.
const SUSPICION: f64 = 2.0;

/// Ticks a supervisor, or delivers packs, on threads of its own until it is dropped. That ends what
/// they do next; it waits for what they are doing for a second at most.
pub struct Watchdog {
    pub(super) _tickers: Vec<Ticker>,
}

impl Supervisor {
    /// What is being watched: packs that were activated and not found healthy yet, oldest first, then
    /// the generation on trial.
    pub fn health(&self) -> Vec<HealthReport> {
        let report = |watched: &Watched| {
            let vitals = self.vitals(watched);
            HealthReport {
                generation: watched.generation,
                packs: watched.packs.clone(),
                canary: watched.canary,
                health: watched.window.health().clone(),
                latency_ratio: self.config.limits.latency_ratio,
                loss_margin: self.config.limits.loss_margin,
                excused: self.excused(watched, &vitals),
                vitals,
            }
        };
        lock(&self.state).watched.iter().map(report).collect()
    }

    /// Looks at what is being watched: books the active generation as healthy when the last window over
    /// its packs has ended, takes it back where one of them does harm. To be called every second or so;
    /// see [`Supervisor::watch`], which keeps what has to be computed for it apart.
    pub fn tick(&self) {
        self.examine();
        self.look();
    }

    /// Computes what has to be computed to judge: the probe text, and calls of kernels that seem slow.
    /// Nobody waits for it: changes go on meanwhile, and what they leave behind is not judged by it.
    fn examine(&self) {
        let questions: Vec<(u64, Question)> = {
            let state = lock(&self.state);
            let of = |watched: &Watched| {
                let generation = watched.generation;
                self.questions(watched).into_iter().map(move |question| (generation, question))
            };
            state.watched.iter().filter(|watched| self.serves(watched)).flat_map(of).collect()
        };
        for (generation, question) in questions {
            let changes = lock(&self.state).changes;
            let answer = match &question {
                Question::Loss(_) => self.loss().map_or(f64::NAN, |loss| loss.unwrap_or(f64::NAN)),
                Question::Slower(SlowerQuestion { suspected, kernels, .. }) => {
                    let ratio = self.config.limits.latency_ratio;
                    let slower = kernels.as_ref().and_then(|two| two.is_slower(&self.host, ratio));
                    f64::from(u8::from(slower.unwrap_or(*suspected)))
                }
            };
            let state = &mut *lock(&self.state);
            if state.changes != changes {
                // It may be of other kernels; asked again where it still matters.
                return;
            }
            let watched = state.watched.iter_mut().find(|watched| watched.generation == generation);
            if let Some(watched) = watched {
                watched.note(question, answer);
            }
        }
    }

    /// Judges by what is known.
    fn look(&self) {
        let state = &mut *lock(&self.state);
        self.note_choices(state);
        for mut watched in std::mem::take(&mut state.watched) {
            // Otherwise it was taken back with another, or changed through the host itself.
            if !self.serves(&watched) {
                continue;
            }
            let before = watched.window.health().clone();
            let mut vitals = self.vitals(&watched);
            vitals.latencies.retain(|latency| self.is_slow(&watched, latency));
            match watched.window.observe((self.config.clock)(), &vitals).clone() {
                Health::Watching { .. } => state.watched.push(watched),
                Health::Unproven => {
                    if before != Health::Unproven {
                        self.unproven(&watched, &vitals.lacking);
                    }
                    state.watched.push(watched);
                }
                Health::Healthy => self.confirm(state, watched),
                Health::Failed(failure) => self.take_back(state, &watched, &failure),
            }
        }
    }

    /// Writes down what the host has learnt of the speed of its kernels.
    fn note_choices(&self, state: &mut SupervisorState) {
        let (changes, numbered) = self.host.choice_changes(state.choices);
        state.choices = numbered;
        for change in changes {
            let reason = change.to_string();
            let record = Record {
                generation: Some(self.host.generation()),
                reason: &reason,
                ..Record::new(HistoryEvent::ChoiceChanged, "")
            };
            if let Err(error) = self.history.write(record) {
                tracing::error!(target: LOG, "{error}");
            }
        }
    }

    /// Whether steps may be given to what is watched.
    fn serves(&self, watched: &Watched) -> bool {
        match watched.canary {
            true => self.host.serves(watched.generation),
            false => self.is_active(watched),
        }
    }

    /// The loss on the probe text with the active generation, where there is a probe.
    pub(super) fn loss(&self) -> Option<Result<f64, String>> {
        self.config.probe.as_ref().map(|probe| probe())
    }

    /// What only computing can tell of a pack.
    fn questions(&self, watched: &Watched) -> Vec<Question> {
        let loss = watched.loss.filter(|_| watched.losses.is_none() && !watched.canary);
        let loss = loss.filter(|_| self.config.probe.is_some()).map(Question::Loss);
        let vitals = watched.comparison.counts();
        let suspects = vitals
            .latencies
            .iter()
            .filter(|latency| self.is_suspect(watched, latency) && !self.is_slow(watched, latency));
        let suspects = suspects.map(|latency| (op_size(latency), latency.calls, true));
        let unmatched = self.unmatched(watched);
        let unmatched = unmatched.filter(|(op_size, _)| !watched.confirmed.contains(op_size));
        let unmatched = unmatched.map(|(op_size, calls)| (op_size, calls, false));
        let slower = suspects.chain(unmatched).filter(|(op_size, calls, suspected)| {
            // Who was cleared is not asked again before twice as many calls were timed.
            let cleared = if *suspected { &watched.cleared } else { &watched.unmatched };
            *calls >= 2 * cleared.get(op_size).copied().unwrap_or_default()
        });
        let slower = slower.map(|(op_size, calls, suspected)| {
            let kernels = watched.comparison.compared_kernels(&op_size.0).map(Box::new);
            Question::Slower(SlowerQuestion { op_size, calls, suspected, kernels })
        });
        loss.into_iter().chain(slower).collect()
    }

    /// Operations of other code than before, with the calls that were timed, whose times from before are too few.
    fn unmatched<'a>(&self, watched: &'a Watched) -> impl Iterator<Item = (OpSize, u64)> + 'a {
        let unmatched = watched.comparison.unmatched(self.config.limits.latency_calls);
        unmatched.filter(|((op, _), _)| !watched.comparison.is_same(op))
    }

    /// Figures of a pack, and what has not been seen of it.
    fn vitals(&self, watched: &Watched) -> HealthCounts {
        let mut lacking = watched.comparison.lacking(self.config.limits.evidence_calls);
        for question in self.questions(watched) {
            lacking.push(match question {
                Question::Loss(_) => "the loss on the probe text".to_owned(),
                Question::Slower(asked) => format!("{}: whether it is slower", asked.op_size.0),
            });
        }
        let slower = self.unmatched(watched).map(|(op_size, _)| op_size);
        let slower = slower.filter(|op_size| watched.confirmed.contains(op_size));
        let slower = slower.map(|(op, _)| op).collect();
        HealthCounts { losses: watched.losses, slower, lacking, ..watched.comparison.counts() }
    }

    /// Operations that exceed the limit and are not too slow.
    fn excused(&self, watched: &Watched, vitals: &HealthCounts) -> Vec<IgnoredLatency> {
        let mut excused: Vec<IgnoredLatency> = Vec::new();
        for latency in &vitals.latencies {
            let known = excused.iter().any(|other| other.op == latency.op);
            if known || self.config.limits.excess(latency) <= 1.0 {
                continue;
            }
            let reason = if watched.comparison.is_same(&latency.op) {
                "the same code as before"
            } else if watched.cleared.contains_key(&op_size(latency)) {
                "not slower in the same calls"
            } else {
                continue;
            };
            excused.push(IgnoredLatency { op: latency.op.clone(), reason: reason.to_owned() });
        }
        excused
    }

    /// Whether an operation seems too slow.
    fn is_suspect(&self, watched: &Watched, latency: &Latency) -> bool {
        self.config.limits.excess(latency) > 1.0 && !watched.comparison.is_same(&latency.op)
    }

    /// Whether an operation is too slow beyond doubt. Where it is learnt who is fast, calls of two generations may have
    /// gone to kernels that neither asks first, so that only calls of both in turns prove it.
    fn is_slow(&self, watched: &Watched, latency: &Latency) -> bool {
        let learns = self.host.state.learner.is_some();
        self.is_suspect(watched, latency)
            && (!learns && self.config.limits.excess(latency) > SUSPICION
                || watched.confirmed.contains(&op_size(latency)))
    }

    /// Books that a window ended without evidence.
    fn unproven(&self, watched: &Watched, lacking: &[String]) {
        let (generation, reason) = (watched.generation, lacking.join("; "));
        tracing::warn!(target: LOG, generation, "not proven: {}", escape_untrusted(&reason));
        let record = Record {
            pack: watched.packs.first().cloned(),
            generation: Some(generation),
            reason: &reason,
            ..Record::new(HistoryEvent::Unproven, "")
        };
        if let Err(error) = self.history.write(record) {
            tracing::error!(target: LOG, "{error}");
        }
    }

    /// Whether the packs that are watched are active.
    pub(super) fn is_active(&self, watched: &Watched) -> bool {
        let active = self.host.snapshot().pack_ids();
        watched.packs.iter().all(|pack| active.contains(pack))
    }

    /// Notes a generation that is gone back to where a later one does harm.
    pub(super) fn found_healthy(&self, state: &mut SupervisorState, generation: u64) {
        state.healthy = generation;
        state.confirmed.insert(generation);
        self.host.retain_generation(generation);
    }

    /// Ticks on two threads: one computes what has to be computed, the other judges and waits for
    /// nothing.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn watch(self: &Arc<Self>, period: Duration) -> std::io::Result<Watchdog> {
        let tasks: [(_, fn(&Self)); 2] =
            [("ruvllm-examiner", Self::examine), ("ruvllm-watchdog", Self::look)];
        let start = |(name, task): (_, fn(&Self))| {
            let ticker = Ticker::new(name, period).impatient();
            let supervisor = Arc::downgrade(self);
            ticker.start(move || {
                if let Some(supervisor) = supervisor.upgrade() {
                    task(&supervisor);
                }
            })?;
            Ok(ticker)
        };
        let tickers = tasks.into_iter().map(start).collect::<std::io::Result<_>>()?;
        Ok(Watchdog { _tickers: tickers })
    }

    /// A window over a generation, beside the one that was active before.
    pub(super) fn watch_over(
        &self,
        old: &RegistrySnapshot,
        generation: u64,
        loss: Option<f64>,
    ) -> Watched {
        let new = self.host.serving(generation).unwrap_or_else(|| self.host.snapshot());
        let (before, mut packs) = (old.pack_ids(), new.pack_ids());
        packs.retain(|pack| !before.contains(pack));
        Watched {
            generation,
            canary: generation != self.host.generation(),
            packs,
            comparison: self.host.compare(old, &new),
            window: HealthWindow::open(self.config.limits.clone(), (self.config.clock)()),
            loss,
            losses: None,
            cleared: BTreeMap::new(),
            unmatched: BTreeMap::new(),
            confirmed: BTreeSet::new(),
        }
    }

    /// Watches what was published, beside what still serves of that which was published before.
    pub(super) fn watch_too(&self, state: &mut SupervisorState, mut watched: Watched) {
        // What was on trial is either active or not on trial any more.
        state.watched.retain(|earlier| !earlier.canary && self.is_active(earlier));
        // Packs that are activated anew are other kernels from then on.
        let active = self.host.snapshot();
        let is_over = |earlier: &mut Watched| earlier.comparison.is_replaced_in(&active);
        for earlier in state.watched.extract_if(.., is_over) {
            watched.succeed(earlier);
        }
        state.watched.push(watched);
    }

    /// Ends a window, and books the active generation as healthy unless others are open over it.
    fn confirm(&self, state: &mut SupervisorState, watched: Watched) {
        let number = if watched.canary { watched.generation } else { self.host.generation() };
        let active = self.host.snapshot().pack_ids();
        let whole = !watched.canary && state.watched.iter().all(|other| other.canary);
        let record = Record {
            pack: watched.packs.first().cloned(),
            generation: Some(number),
            healthy: whole.then_some(&active),
            ..Record::new(HistoryEvent::Healthy, "")
        };
        if let Err(error) = self.history.write(record) {
            // Asked again at the next tick.
            tracing::error!(target: LOG, "{error}");
            state.watched.push(watched);
            return;
        }
        tracing::info!(target: LOG, generation = number, "found healthy");
        if whole {
            self.found_healthy(state, number);
        }
        if !watched.canary {
            self.raise_floor(&watched.packs);
        }
        self.prune();
    }

    /// Bars packs that do harm, and goes back to the last healthy generation, or ends their trial.
    fn take_back(&self, state: &mut SupervisorState, watched: &Watched, failure: &HealthFailure) {
        *lock(&self.counters).taken_back.entry(failure.code).or_default() += 1;
        let reason = failure.to_string();
        let span = spans::change("take back", "");
        span.record("ruvllm.reason", failure.code);
        watched.packs.first().inspect(|pack| spans::note_pack(&span, pack));
        tracing::error!(
            target: LOG,
            generation = watched.generation,
            code = failure.code,
            "taken back: {}",
            escape_untrusted(&reason)
        );
        // A history that cannot be written must not keep a failed generation active.
        let write = |record: Record<'_>| {
            if let Err(error) = self.history.write(Record { reason: &reason, ..record }) {
                tracing::error!(target: LOG, "{error}");
            }
        };
        let pack = watched.packs.first().cloned();
        write(Record {
            pack: pack.clone(),
            generation: Some(watched.generation),
            bar: &watched.packs,
            ..Record::new(HistoryEvent::RollingBack, "")
        });
        for pack in &watched.packs {
            self.host.bar(&pack.digest, &reason);
        }
        state.changes += 1;
        let back = if watched.canary {
            self.host.end_canary().map(|_| self.host.generation())
        } else {
            self.host.roll_back(state.healthy).map(|report| report.generation)
        };
        match back {
            Ok(generation) => {
                span.record("ruvllm.generation", generation);
                if !watched.canary {
                    self.found_healthy(state, generation);
                }
                let generation = Some(generation);
                write(Record { pack, generation, ..Record::new(HistoryEvent::RolledBack, "") });
            }
            Err(error) => {
                spans::failed(&span, error.code());
                tracing::error!(target: LOG, "{error}");
            }
        }
    }

    fn raise_floor(&self, packs: &[PackId]) {
        let Some(floor) = &self.config.floor else { return };
        for PackId { name, version, digest } in packs {
            let (Ok(pack), Ok(number)) = (name.parse(), version.parse()) else { continue };
            if let Err(error) = floor.raise_to(&pack, &number) {
                tracing::error!(target: LOG, "{error}");
            }
            // What was built into the host application has a digest of another kind, and no other version.
            let Ok(bytes) = digest.parse() else { continue };
            match floor.note_digest(&pack, &number, &bytes) {
                Ok(None) => {}
                Ok(Some(before)) => tracing::warn!(
                    target: LOG,
                    "{name} {version} has other bytes than the {name} {version} that ran here before \
                     ({digest}, before {before})"
                ),
                Err(error) => tracing::error!(target: LOG, "{error}"),
            }
        }
    }
}
