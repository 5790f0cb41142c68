//! The generation that is being watched: booked as healthy when its window is over, taken back where
//! it does harm.

use super::health::{Comparison, Health, HealthWindow, Losses, Sickness, Vitals};
use super::history::{HistoryEvent, Record};
use super::supervisor::{LOG, State, Supervisor};
use crate::host::lock;
use crate::registry::{PackId, RegistrySnapshot};
use crate::ticker::Ticker;
use ruvllm_signing::escape_untrusted;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The generation that is being watched.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HealthReport {
    /// Its number.
    pub generation: u64,
    /// What was said of it last.
    pub health: Health,
    /// Its figures now.
    pub vitals: Vitals,
}

/// A generation in its health window.
pub(super) struct Watched {
    pub(super) generation: u64,
    pub(super) canary: bool,
    /// What is new in it, and barred if it is sick.
    packs: Vec<PackId>,
    comparison: Comparison,
    window: HealthWindow,
    /// The loss on the probe text before, where there is a probe.
    loss: Option<f64>,
    losses: Option<Losses>,
}

/// Ticks a supervisor on a thread of its own until it is dropped.
pub struct Watchdog {
    _ticker: Ticker,
}

impl Supervisor {
    /// The generation that is being watched, if any is.
    pub fn health(&self) -> Option<HealthReport> {
        let state = lock(&self.state);
        let watched = state.watched.as_ref()?;
        Some(HealthReport {
            generation: watched.generation,
            health: watched.window.health().clone(),
            vitals: watched.vitals(),
        })
    }

    /// Looks at the generation that is being watched: books it as healthy when its window is over,
    /// takes it back where it does harm. To be called every second or so; see [`Supervisor::watch`].
    pub fn tick(&self) {
        let state = &mut *lock(&self.state);
        let Some(watched) = &mut state.watched else { return };
        if !self.host.serves(watched.generation) {
            // Changed through the host itself.
            state.watched = None;
            return;
        }
        if let (Some(old), Some(probe), None, false) =
            (watched.loss, &self.config.probe, watched.losses, watched.canary)
        {
            watched.losses = Some(Losses { old, new: probe().unwrap_or(f64::NAN) });
        }
        let vitals = watched.vitals();
        match watched.window.observe((self.config.clock)(), &vitals).clone() {
            Health::Watching { .. } => {}
            Health::Healthy => self.confirm(state),
            Health::Sick(sickness) => self.take_back(state, &sickness),
        }
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
        }
    }

    /// Books the watched generation as healthy.
    fn confirm(&self, state: &mut State) {
        let Some(watched) = &state.watched else { return };
        let (number, canary) = (watched.generation, watched.canary);
        let active = self.host.snapshot().pack_ids();
        let record = Record {
            pack: watched.packs.first().cloned(),
            generation: Some(number),
            healthy: (!canary).then_some(&active),
            ..Record::new(HistoryEvent::Healthy, "")
        };
        if let Err(error) = self.history.write(record) {
            // Asked again at the next tick.
            tracing::error!(target: LOG, "{error}");
            return;
        }
        tracing::info!(target: LOG, generation = number, "found healthy");
        if !canary {
            state.healthy = number;
            state.confirmed.insert(number);
            self.raise_floor(&watched.packs);
        }
        state.watched = None;
        self.prune();
    }

    /// Bars what is new in the watched generation, and goes back to the last healthy one.
    fn take_back(&self, state: &mut State, sickness: &Sickness) {
        let Some(watched) = state.watched.take() else { return };
        *lock(&self.counters).taken_back.entry(sickness.code).or_default() += 1;
        let reason = sickness.to_string();
        tracing::error!(
            target: LOG,
            generation = watched.generation,
            code = sickness.code,
            "taken back: {}",
            escape_untrusted(&reason)
        );
        // A history that cannot be written must not keep a sick generation active.
        let write = |record: Record<'_>| {
            let written = self.history.write(Record { reason: &reason, ..record });
            written.inspect_err(|error| tracing::error!(target: LOG, "{error}")).is_ok()
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
            let healthy = self.host.roll_back(state.healthy);
            let earlier = || self.host.previous_generation().map(|g| self.host.roll_back(g));
            healthy.or_else(|e| earlier().unwrap_or(Err(e))).map(|report| report.generation)
        };
        match back {
            Ok(generation) => {
                state.healthy = generation;
                state.confirmed.insert(generation);
                let generation = Some(generation);
                write(Record { pack, generation, ..Record::new(HistoryEvent::RolledBack, "") });
            }
            Err(error) => tracing::error!(target: LOG, "{error}"),
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
    fn vitals(&self) -> Vitals {
        Vitals { losses: self.losses, ..self.comparison.vitals() }
    }
}
