//! Packs that are being watched: booked as healthy when their windows are over, taken back where they
//! do harm.

use super::health::{Comparison, Health, HealthWindow, Latency, Losses, Sickness, Vitals};
use super::history::{HistoryEvent, Record};
use super::spans;
use super::supervisor::{LOG, State, Supervisor};
use crate::OpKey;
use crate::host::lock;
use crate::registry::{PackId, RegistrySnapshot};
use crate::ticker::Ticker;
use ruvllm_signing::escape_untrusted;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
    pub vitals: Vitals,
}

/// Packs in their health window.
pub(super) struct Watched {
    pub(super) generation: u64,
    pub(super) canary: bool,
    /// What was new in that generation, and is barred if it is sick.
    packs: Vec<PackId>,
    comparison: Comparison,
    window: HealthWindow,
    /// The loss on the probe text before, where there is a probe.
    loss: Option<f64>,
    losses: Option<Losses>,
    /// How many calls of an operation and a class of sizes had been timed when it was found not to be
    /// slow after all.
    acquitted: BTreeMap<(OpKey, Option<u64>), u64>,
}

/// How many times as long as it may an operation must take to be too slow without another proof.
const SUSPICION: f64 = 2.0;

/// Ticks a supervisor, or delivers packs, on a thread of its own until it is dropped.
pub struct Watchdog {
    pub(super) _ticker: Ticker,
}

impl Supervisor {
    /// What is being watched: packs that were activated and not found healthy yet, oldest first, then
    /// the generation on trial.
    pub fn health(&self) -> Vec<HealthReport> {
        let report = |watched: &Watched| HealthReport {
            generation: watched.generation,
            packs: watched.packs.clone(),
            canary: watched.canary,
            health: watched.window.health().clone(),
            vitals: watched.vitals(),
        };
        lock(&self.state).watched.iter().map(report).collect()
    }

    /// Looks at what is being watched: books the active generation as healthy when the last window over
    /// its packs has ended, takes it back where one of them does harm. To be called every second or so;
    /// see [`Supervisor::watch`].
    pub fn tick(&self) {
        let state = &mut *lock(&self.state);
        for mut watched in std::mem::take(&mut state.watched) {
            let serves = match watched.canary {
                true => self.host.serves(watched.generation),
                false => self.is_active(&watched),
            };
            // Otherwise it was taken back with another, or changed through the host itself.
            if serves {
                match self.judge(&mut watched) {
                    Health::Watching { .. } => state.watched.push(watched),
                    Health::Healthy => self.confirm(state, watched),
                    Health::Sick(sickness) => self.take_back(state, &watched, &sickness),
                }
            }
        }
    }

    fn judge(&self, watched: &mut Watched) -> Health {
        if let (Some(old), Some(probe), None, false) =
            (watched.loss, &self.config.probe, watched.losses, watched.canary)
        {
            watched.losses = Some(Losses { old, new: probe().unwrap_or(f64::NAN) });
        }
        let mut vitals = watched.vitals();
        vitals.latencies.retain(|latency| self.is_slow(watched, latency));
        watched.window.observe((self.config.clock)(), &vitals).clone()
    }

    /// Whether an operation is too slow beyond doubt. Who was acquitted is not asked again before
    /// twice as many calls were timed.
    fn is_slow(&self, watched: &mut Watched, latency: &Latency) -> bool {
        let limits = &self.config.limits;
        let excess = limits.excess(latency);
        let is_suspect = excess > 1.0 && !watched.comparison.is_same(&latency.op);
        if !is_suspect || excess > SUSPICION {
            return is_suspect;
        }
        let acquitted = watched.acquitted.entry((latency.op.clone(), latency.below)).or_default();
        if latency.calls < 2 * *acquitted {
            return false;
        }
        *acquitted = latency.calls;
        watched.comparison.is_slower(&self.host, &latency.op, limits.latency_ratio)
    }

    /// Whether the packs that are watched are active.
    pub(super) fn is_active(&self, watched: &Watched) -> bool {
        let active = self.host.snapshot().pack_ids();
        watched.packs.iter().all(|pack| active.contains(pack))
    }

    /// Notes a generation that is gone back to where a later one does harm.
    pub(super) fn found_healthy(&self, state: &mut State, generation: u64) {
        state.healthy = generation;
        state.confirmed.insert(generation);
        self.host.set_refuge(generation);
    }

    /// Ticks on a thread of its own.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn watch(self: &Arc<Self>, period: Duration) -> std::io::Result<Watchdog> {
        let ticker = Ticker::new("ruvllm-watchdog", period);
        let supervisor = Arc::downgrade(self);
        ticker.start(move || {
            if let Some(supervisor) = supervisor.upgrade() {
                supervisor.tick();
            }
        })?;
        Ok(Watchdog { _ticker: ticker })
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
            acquitted: BTreeMap::new(),
        }
    }

    /// Watches what was published, beside what still serves of that which was published before.
    pub(super) fn watch_too(&self, state: &mut State, mut watched: Watched) {
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
    fn confirm(&self, state: &mut State, watched: Watched) {
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
    fn take_back(&self, state: &mut State, watched: &Watched, sickness: &Sickness) {
        *lock(&self.counters).taken_back.entry(sickness.code).or_default() += 1;
        let reason = sickness.to_string();
        let span = spans::change("take back", "");
        span.record("ruvllm.reason", sickness.code);
        watched.packs.first().inspect(|pack| spans::note_pack(&span, pack));
        tracing::error!(
            target: LOG,
            generation = watched.generation,
            code = sickness.code,
            "taken back: {}",
            escape_untrusted(&reason)
        );
        // A history that cannot be written must not keep a sick generation active.
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
        for PackId { name, version, .. } in packs {
            if let (Ok(name), Ok(version)) = (name.parse(), version.parse())
                && let Err(error) = floor.raise_to(&name, &version)
            {
                tracing::error!(target: LOG, "{error}");
            }
        }
    }
}

impl Watched {
    /// Goes on for an earlier window, none of whose kernels serves any more though its packs do: with what
    /// they are held against, and with what is barred if they are sick.
    fn succeed(&mut self, earlier: Watched) {
        let packs = earlier.packs.into_iter().filter(|pack| !self.packs.contains(pack));
        self.packs.extend(packs.collect::<Vec<_>>());
        self.loss = earlier.loss.or(self.loss);
        self.comparison.succeed(&earlier.comparison);
    }

    fn vitals(&self) -> Vitals {
        Vitals { losses: self.losses, ..self.comparison.vitals() }
    }
}
