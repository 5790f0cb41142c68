//! What a supervisor publishes, and watches from then on: packs that are activated or tried, and earlier
//! generations.

use super::history::{HistoryEvent, Record};
use super::spans::{self, LOG};
use super::supervisor::{Supervisor, SupervisorError, named};
use crate::error::HostError;
use crate::pack::PackId;
use crate::swap::book::{GenerationReport, InstallReport};
use crate::threads::lock;

impl Supervisor {
    /// Makes a staged pack active, and watches it from then on.
    ///
    /// # Errors
    /// As for [`Host::activate`](crate::Host::activate), and [`SupervisorError::History`]: where it cannot
    /// be written down, the earlier generation stays or comes back.
    pub fn activate(&self, id: u64, operator: &str) -> Result<InstallReport, SupervisorError> {
        let act = Act::activate(operator);
        let pack = self.staged_pack(id)?;
        let report = self.publish(&act, pack, || self.host.activate(id), |r| r.generation)?;
        lock(&self.counters).activated += 1;
        Ok(report)
    }

    /// Puts a staged pack on trial with a share of the steps, and watches it from then on.
    ///
    /// # Errors
    /// As for [`Host::start_canary`](crate::Host::start_canary), and [`SupervisorError::History`].
    pub fn start_canary(
        &self,
        id: u64,
        share: f64,
        operator: &str,
    ) -> Result<InstallReport, SupervisorError> {
        let act = Act::try_out(operator);
        let pack = self.staged_pack(id)?;
        let start = || self.host.start_canary(id, share);
        self.publish(&act, pack, start, |r| r.generation)
    }

    /// Makes the generation on trial the active one, and watches it anew. Gives its number.
    ///
    /// # Errors
    /// As for [`Host::promote_canary`](crate::Host::promote_canary), and [`SupervisorError::History`].
    pub fn promote_canary(&self, operator: &str) -> Result<u64, SupervisorError> {
        let act = Act::activate(operator);
        let pack = self.canary()?.packs.first().cloned().ok_or(HostError::NoCanary)?;
        let number = self.publish(&act, pack, || self.host.promote_canary(), |n| *n)?;
        lock(&self.counters).activated += 1;
        Ok(number)
    }

    /// Goes back to an earlier generation: to the one before the active one, unless another is named.
    /// One that was found healthy is what a restart publishes from then on; any other is watched.
    ///
    /// # Errors
    /// [`SupervisorError::NoEarlier`]; as for [`Host::roll_back`](crate::Host::roll_back), and
    /// [`SupervisorError::History`]: where only the last record cannot be written, the earlier generation
    /// is in use all the same.
    pub fn roll_back(
        &self,
        to: Option<u64>,
        operator: &str,
    ) -> Result<GenerationReport, SupervisorError> {
        let span = spans::change("roll back", operator);
        let state = &mut *lock(&self.state);
        let target = to.or_else(|| self.previous_generation());
        let target = target.ok_or(SupervisorError::NoEarlier)?;
        let intent =
            Record { generation: Some(target), ..Record::new(HistoryEvent::RollingBack, operator) };
        self.history.write(intent)?;
        let old = self.host.snapshot();
        let done = self.host.roll_back(target);
        let report = done.map_err(SupervisorError::from);
        let report = report.inspect_err(|error| self.refused(&span, None, operator, error))?;
        state.changes += 1;
        let generation = report.generation;
        span.record("ruvllm.generation", generation);
        let confirmed = state.confirmed.contains(&target);
        let reason = format!("to generation {target}");
        self.history.write(Record {
            generation: Some(generation),
            healthy: confirmed.then_some(&report.packs),
            reason: &reason,
            ..Record::new(HistoryEvent::RolledBack, operator)
        })?;
        lock(&self.counters).rolled_back += 1;
        state.watched.clear();
        if confirmed {
            self.found_healthy(state, generation);
        } else {
            state.watched.push(self.watch_over(&old, generation, None));
        }
        tracing::info!(target: LOG, operator, generation, restores = target, "went back");
        Ok(report)
    }

    /// Measures the probe text, writes the intent, publishes, confirms, and opens a window. Whoever
    /// changes something else does not wait for the probe text, and goes first.
    fn publish<T>(
        &self,
        act: &Act<'_>,
        pack: PackId,
        publish: impl FnOnce() -> Result<T, HostError>,
        generation: impl FnOnce(&T) -> u64,
    ) -> Result<T, SupervisorError> {
        let span = spans::change(act.name, act.operator);
        spans::note_pack(&span, &pack);
        let changes = lock(&self.state).changes;
        let loss = match self.loss() {
            Some(Err(error)) => {
                tracing::warn!(target: LOG, "the probe text cannot be computed: {error}");
                None
            }
            loss => loss.and_then(Result::ok),
        };
        let state = &mut *lock(&self.state);
        if self.config.probe.is_some() && state.changes != changes {
            let error = SupervisorError::Overtaken;
            self.refused(&span, Some(pack), act.operator, &error);
            return Err(error);
        }
        let old = self.host.snapshot();
        let (name, pack) = (named(&pack), Some(pack));
        self.history
            .write(Record { pack: pack.clone(), ..Record::new(act.intent, act.operator) })?;
        let done = publish().map_err(SupervisorError::from);
        let done =
            done.inspect_err(|error| self.refused(&span, pack.clone(), act.operator, error))?;
        state.changes += 1;
        let generation = generation(&done);
        span.record("ruvllm.generation", generation);
        let number = Some(generation);
        let confirmation =
            Record { pack, generation: number, ..Record::new(act.done, act.operator) };
        if let Err(error) = self.history.write(confirmation) {
            // What cannot be written down does not serve.
            if self.host.end_canary().is_err() {
                self.host.roll_back(old.generation())?;
            }
            return Err(error.into());
        }
        self.watch_too(state, self.watch_over(&old, generation, loss));
        let what = if act.done == HistoryEvent::OnTrial { "on trial" } else { "activated" };
        tracing::info!(target: LOG, operator = act.operator, pack = name, generation, "{what}");
        Ok(done)
    }
}

/// What is being published: the events before and after, and who asks.
struct Act<'a> {
    name: &'static str,
    intent: HistoryEvent,
    done: HistoryEvent,
    operator: &'a str,
}

impl<'a> Act<'a> {
    fn activate(operator: &'a str) -> Self {
        let (intent, done) = (HistoryEvent::Activating, HistoryEvent::Activated);
        Self { name: "activate", intent, done, operator }
    }

    fn try_out(operator: &'a str) -> Self {
        let (intent, done) = (HistoryEvent::Trying, HistoryEvent::OnTrial);
        Self { name: "try", intent, done, operator }
    }
}
