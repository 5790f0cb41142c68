//! Changing kernels of a live host: what an operator asks for is done, watched, taken back where it
//! does harm, and written down.
//!
//! A [`Supervisor`] stands between operators and a [`Host`]. It keeps the bytes of staged packs, the
//! history, and a health window over what was activated last. See [`super::history`] for the order in
//! which things are written and published. Whoever changes generations through the host itself
//! bypasses all of it.

use super::acceptance::Acceptance;
use super::health::HealthLimits;
use super::history::{History, HistoryEntry, HistoryError, HistoryEvent, Record};
use super::spans::{self, LOG};
use super::store::PackStore;
use super::watched::Watched;
use crate::error::HostError;
use crate::pack::PackId;
use crate::swap::book::{GenerationReport, GenerationState, StageReport};
use crate::swap::host::Host;
use crate::threads::lock;
use ruvllm_signing::{
    PackError, PackLock, TrustPolicy, UnverifiedPack, VerifiedPack, VersionFloor, escape_untrusted,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::Span;

/// Computes the loss on a probe text with whatever generation is active, in nats per token.
pub type Probe = Arc<dyn Fn() -> Result<f64, String> + Send + Sync>;

/// The time since some moment, which does not go backwards.
pub type MonotonicClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Configuration of a [`Supervisor`].
#[derive(Clone)]
pub struct SupervisorConfig {
    /// Where history and packs are kept; made, for this user alone, where it is missing.
    pub directory: PathBuf,
    /// The publishers that packs may come from.
    pub trust: TrustPolicy,
    /// Begins a new history where the one that is there is damaged, which is kept under another name.
    /// Which packs were barred is forgotten then.
    pub reset_history: bool,
    /// Refuses packs that are older than what was found healthy here.
    pub floor: Option<VersionFloor>,
    /// Refuses packs that it does not pin by digest.
    pub lock: Option<PackLock>,
    /// What a new generation is allowed.
    pub limits: HealthLimits,
    /// Measures the quality of text before and after an activation. It runs on the thread that
    /// activates or ticks, and no other change waits for it.
    pub probe: Option<Probe>,
    /// The clock of health windows.
    pub clock: MonotonicClock,
}

impl SupervisorConfig {
    /// The default limits and the system's clock, without a floor, a lock or a probe.
    pub fn new(directory: impl Into<PathBuf>, trust: TrustPolicy) -> Self {
        let start = Instant::now();
        Self {
            directory: directory.into(),
            trust,
            reset_history: false,
            floor: None,
            lock: None,
            limits: HealthLimits::default(),
            probe: None,
            clock: Arc::new(move || start.elapsed()),
        }
    }
}

/// Why a supervisor did not do what it was asked to. Nothing has changed then, unless it says so.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// The host refuses.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The pack cannot be read, verified or kept.
    #[error("{0}{hint}", hint = reload(.0))]
    Pack(#[from] PackError),
    /// The history cannot be read or written.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// Kernels were changed while the probe text was computed with those that were active.
    #[error(
        "kernels were changed while the probe text was computed: look at what is active, and ask again"
    )]
    Overtaken,
    /// There is no earlier generation.
    #[error("there is no earlier generation to go back to")]
    NoEarlier,
}

/// What whoever follows the advice of a refusal and widens the trust policy has to do besides, since a process
/// goes by the policy that it has read.
fn reload(error: &PackError) -> &'static str {
    const OF_POLICY: [&str; 3] =
        ["signature_unknown_key", "publisher_out_of_scope", "threshold_not_met"];
    match error {
        PackError::Rejected(violations)
            if violations.iter().any(|violation| OF_POLICY.contains(&violation.code)) =>
        {
            "; a trust policy that was changed is read again on SIGHUP or POST /admin/v1/reload"
        }
        _ => "",
    }
}

impl SupervisorError {
    /// A stable identifier for logs, metrics and HTTP bodies.
    pub fn code(&self) -> &'static str {
        match self {
            SupervisorError::Host(e) => e.code(),
            SupervisorError::Pack(e) => e.code(),
            SupervisorError::History(e) => e.code(),
            SupervisorError::Overtaken => "change_overtaken",
            SupervisorError::NoEarlier => "no_earlier_generation",
        }
    }
}

/// How often what was done, since the supervisor was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SwapCounters {
    /// Packs that were staged.
    pub staged: u64,
    /// Packs that were refused at staging or activation.
    pub refused: u64,
    /// Activations, trials aside.
    pub activated: u64,
    /// Times that an operator went back to an earlier generation.
    pub rolled_back: u64,
    /// Times that a generation was taken back by itself, by [`crate::HealthFailure::code`].
    pub taken_back: BTreeMap<&'static str, u64>,
}

/// Changes the kernels of a host as operators ask, and takes back what does harm.
pub struct Supervisor {
    pub(super) host: Host,
    /// As it was opened with; whose packs are taken by now is in `acceptance`.
    pub(super) config: SupervisorConfig,
    acceptance: RwLock<Acceptance>,
    /// Counts changes of that.
    acceptance_changes: AtomicU64,
    pub(super) history: History,
    store: PackStore,
    /// The generation of the program's own packs. Those before it were still without some of them.
    first: u64,
    pub(super) state: Mutex<SupervisorState>,
    pub(super) counters: Mutex<SwapCounters>,
}

pub(super) struct SupervisorState {
    /// Counts changes of what is active or on trial.
    pub(super) changes: u64,
    /// The generation to go back to when another is taken back.
    pub(super) healthy: u64,
    /// Every generation of this process that was found healthy.
    pub(super) confirmed: BTreeSet<u64>,
    /// Packs that were activated and not found healthy yet, each in a window of its own, and the
    /// generation on trial.
    pub(super) watched: Vec<Watched>,
    /// How many changes of the host's choices are written down.
    pub(super) choices: u64,
}

impl Supervisor {
    /// Takes charge of a host: bars what was barred, books what an earlier process left open, and
    /// publishes the packs that were last found healthy, in place of those of their names.
    ///
    /// Packs that the host has already, from the program and its options, stay where the history knows
    /// none of their name, where they are newer than the one that it knows and not barred, and where
    /// the bytes of that one were never kept, because it came with an earlier program. So a newer
    /// program is not held back by what an older one was found healthy with.
    ///
    /// # Errors
    /// [`SupervisorError::History`], where another process has the history open or it is damaged above all.
    /// A pack that cannot be brought back is left out, and the history says why.
    pub fn open(host: Host, config: SupervisorConfig) -> Result<Self, SupervisorError> {
        let not_private = |what| HistoryError::NotPrivate { what };
        crate::files::private_directory(&config.directory).map_err(not_private)?;
        let (history, damaged) = History::open(&config.directory, config.reset_history)?;
        let damaged = damaged.map(|path| {
            let what = format!("the damaged history is kept as {}", path.display());
            tracing::warn!(target: LOG, "{what}; which packs were barred is forgotten");
            what
        });
        let store = PackStore::open(config.directory.join("packs")).map_err(not_private)?;
        host.number_from(history.last_generation());
        let first = host.generation();
        for (digest, reason) in history.barred() {
            host.bar(&digest, &reason);
        }
        if let Some(intent) = history.intent() {
            let reason =
                format!("the process ended between intent and confirmation ({:?})", intent.event);
            history.write(Record {
                pack: intent.pack,
                generation: intent.generation,
                reason: &reason,
                ..Record::new(HistoryEvent::Interrupted, &intent.operator)
            })?;
        }
        let acceptance = Acceptance { trust: config.trust.clone(), lock: config.lock.clone() };
        let healthy = history.healthy();
        let load = |id: &PackId| -> Result<_, String> {
            let Some(pack) = store.get(&id.digest).map_err(|e| e.to_string())? else {
                return Ok(None);
            };
            // Not against the floor: this version was active here.
            let pack = acceptance.verify(pack, None).map_err(|e| e.to_string())?;
            match PackId::of(&pack) == *id {
                true => Ok(Some(pack)),
                false => Err("it is another pack".to_owned()),
            }
        };
        for (id, reason) in host.restore(healthy.as_deref().unwrap_or_default(), load) {
            history.write(Record {
                pack: Some(id),
                reason: &reason,
                ..Record::new(HistoryEvent::Refused, "")
            })?;
        }
        let active = host.snapshot();
        let packs = active.pack_ids();
        let instead = healthy.iter().flatten().filter_map(|old| {
            let new = packs.iter().find(|new| new.name == old.name && new.digest != old.digest)?;
            Some(format!("{} {} in place of {}", new.name, new.version, old.version))
        });
        history.write(Record {
            generation: Some(active.generation()),
            reason: &damaged.into_iter().chain(instead).collect::<Vec<_>>().join(", "),
            // What could not be brought back today may be tomorrow.
            healthy: healthy.is_none().then_some(&packs),
            ..Record::new(HistoryEvent::Started, "")
        })?;
        let state = SupervisorState {
            changes: 0,
            healthy: active.generation(),
            confirmed: [active.generation()].into(),
            watched: Vec::new(),
            choices: 0,
        };
        let (state, counters) = (Mutex::new(state), Mutex::default());
        let (acceptance, acceptance_changes) = (RwLock::new(acceptance), AtomicU64::new(0));
        let supervisor = Self {
            host,
            config,
            acceptance,
            acceptance_changes,
            history,
            store,
            first,
            state,
            counters,
        };
        supervisor.host.retain_generation(active.generation());
        supervisor.prune();
        Ok(supervisor)
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// What a new generation is allowed.
    pub fn limits(&self) -> &HealthLimits {
        &self.config.limits
    }

    /// Verifies a pack, makes it ready as [`Host::stage`] does, and keeps its bytes.
    ///
    /// # Errors
    /// [`SupervisorError::Pack`] and [`SupervisorError::Host`], and the history says so too;
    /// [`SupervisorError::History`]. Nothing stays staged then.
    pub fn stage(
        &self,
        pack: UnverifiedPack,
        operator: &str,
    ) -> Result<StageReport, SupervisorError> {
        let span = spans::change("stage", operator);
        let mut id = None;
        let mut staged = || -> Result<StageReport, SupervisorError> {
            let changes = self.acceptance_changes();
            let verified = self.verify(pack.clone(), self.config.floor.as_ref())?;
            let pack_id = id.insert(PackId::of(&verified)).clone();
            spans::note_pack(&span, &pack_id);
            let report = self.host.stage(verified)?;
            let keep = || -> Result<(), SupervisorError> {
                self.store.put(&pack_id.digest, &pack)?;
                // While it was compiled, the policy may have changed; `accept` looks for it from here on.
                if self.acceptance_changes() != changes {
                    self.verify(pack.clone(), None)?;
                }
                let record = Record::new(HistoryEvent::Staged, operator);
                self.history.write(Record { pack: Some(pack_id), ..record })?;
                Ok(())
            };
            keep().inspect_err(|_| {
                self.host.discard(report.id);
            })?;
            Ok(report)
        };
        let report = staged();
        let report = report.inspect_err(|error| self.refused(&span, id.take(), operator, error))?;
        lock(&self.counters).staged += 1;
        let pack = named(&report.pack);
        if let Some(before) = &report.changed {
            tracing::warn!(
                target: LOG,
                "{pack} has other bytes than the {pack} that is active ({}, before {before}): whoever \
                 changes a pack gives it another version",
                report.pack.digest
            );
        }
        tracing::info!(target: LOG, operator, pack, id = report.id, "staged");
        Ok(report)
    }

    /// Lets go of a staged pack. `false` where none has that number.
    ///
    /// # Errors
    /// [`SupervisorError::History`].
    pub fn discard(&self, id: u64, operator: &str) -> Result<bool, SupervisorError> {
        let pack = self.staged_pack(id).ok();
        if !self.host.discard(id) {
            return Ok(false);
        }
        self.history.write(Record { pack, ..Record::new(HistoryEvent::Discarded, operator) })?;
        self.prune();
        Ok(true)
    }

    /// Ends the trial. Gives the number of the generation that was on trial.
    ///
    /// # Errors
    /// As for [`Host::end_canary`], and [`SupervisorError::History`].
    pub fn end_canary(&self, operator: &str) -> Result<u64, SupervisorError> {
        let mut state = lock(&self.state);
        let number = self.host.end_canary()?;
        state.changes += 1;
        state.watched.retain(|watched| !watched.canary);
        let generation = Some(number);
        let ended = Record { generation, ..Record::new(HistoryEvent::TrialEnded, operator) };
        self.history.write(ended)?;
        Ok(number)
    }

    /// The generation that [`Supervisor::roll_back`] goes to where none is named.
    pub fn previous_generation(&self) -> Option<u64> {
        self.host.previous_generation().filter(|&number| number >= self.first)
    }

    /// The generation of the program's own packs. Those before it were still without some of them.
    pub fn first_generation(&self) -> u64 {
        self.first
    }

    /// Lets a barred pack in again. `false` where none of that digest was barred.
    ///
    /// # Errors
    /// [`SupervisorError::History`].
    pub fn clear(&self, digest: &str, operator: &str) -> Result<bool, SupervisorError> {
        if !self.host.barred().iter().any(|(barred, _)| barred == digest) {
            return Ok(false);
        }
        let clear = Some(digest);
        let record = Record::new(HistoryEvent::Cleared, operator);
        self.history.write(Record { clear, reason: digest, ..record })?;
        Ok(self.host.clear(digest))
    }

    /// Takes packs from here on as `new` says, and gives what of that is different, in words. What is active
    /// stays; what is staged and not accepted any more is let go. The history has one entry of it and of what
    /// else was changed together with it, `beside`; none where there is nothing of either.
    ///
    /// # Errors
    /// [`SupervisorError::History`]; nothing is changed then.
    pub fn accept(
        &self,
        new: Acceptance,
        beside: &[String],
        operator: &str,
    ) -> Result<Vec<String>, SupervisorError> {
        let mut acceptance = self.acceptance.write().unwrap_or_else(PoisonError::into_inner);
        let changes = acceptance.changes(&new);
        let all: Vec<&str> = changes.iter().chain(beside).map(String::as_str).collect();
        if all.is_empty() {
            return Ok(changes);
        }
        let reason = all.join("; ");
        let record = Record::new(HistoryEvent::Reloaded, operator);
        self.history.write(Record { reason: &reason, ..record })?;
        if changes.is_empty() {
            return Ok(changes);
        }
        *acceptance = new;
        self.acceptance_changes.fetch_add(1, Ordering::Release);
        drop(acceptance);
        for StageReport { id, pack, .. } in self.host.staged() {
            let kept = self.store.get(&pack.digest).ok().flatten();
            // One whose bytes are not kept was not staged here.
            let refused = kept.is_some_and(|kept| self.verify(kept, None).is_err());
            if refused && let Err(error) = self.discard(id, operator) {
                tracing::error!(target: LOG, "{error}");
            }
        }
        Ok(changes)
    }

    /// How often it was changed whose packs are taken.
    pub(super) fn acceptance_changes(&self) -> u64 {
        self.acceptance_changes.load(Ordering::Acquire)
    }

    /// A pack that is accepted as things are now.
    pub(super) fn verify(
        &self,
        pack: UnverifiedPack,
        floor: Option<&VersionFloor>,
    ) -> Result<VerifiedPack, PackError> {
        self.acceptance.read().unwrap_or_else(PoisonError::into_inner).verify(pack, floor)
    }

    /// Writes down that the process ends because it was asked to, where packs are watched: that it ended in their
    /// windows does not count against them then, as it does where it ends by itself. To be called last, right before
    /// the process ends: one that crashes while it finishes what was begun has ended by itself, and what is activated
    /// after this call counts again.
    pub fn stopping(&self) {
        if lock(&self.state).watched.is_empty() {
            return;
        }
        let generation = Some(self.host.generation());
        let record = Record { generation, ..Record::new(HistoryEvent::Stopped, "") };
        if let Err(error) = self.history.write(record) {
            tracing::error!(target: LOG, "{error}");
        }
    }

    /// The newest entries of the history, newest first.
    pub fn history(&self, limit: usize) -> Vec<HistoryEntry> {
        self.history.entries(limit)
    }

    /// How often what was done.
    pub fn counters(&self) -> SwapCounters {
        lock(&self.counters).clone()
    }

    /// Counts a refusal and writes it down; `span` is the change that is refused.
    pub(super) fn refused(
        &self,
        span: &Span,
        pack: Option<PackId>,
        operator: &str,
        error: &SupervisorError,
    ) {
        lock(&self.counters).refused += 1;
        spans::failed(span, error.code());
        let reason = error.to_string();
        let name = pack.as_ref().map(named);
        tracing::warn!(target: LOG, operator, pack = name, "refused: {}", escape_untrusted(&reason));
        let record = Record::new(HistoryEvent::Refused, operator);
        if let Err(error) = self.history.write(Record { pack, reason: &reason, ..record }) {
            tracing::error!(target: LOG, "{error}");
        }
    }

    pub(super) fn staged_pack(&self, id: u64) -> Result<PackId, HostError> {
        let staged = self.host.staged().into_iter().find(|staged| staged.id == id);
        staged.map(|staged| staged.pack).ok_or(HostError::NotStaged { id })
    }

    /// The generation on trial.
    pub(super) fn canary(&self) -> Result<GenerationReport, HostError> {
        let is_canary = |g: &GenerationReport| matches!(g.state, GenerationState::Canary { .. });
        self.host.generations().into_iter().find(is_canary).ok_or(HostError::NoCanary)
    }

    /// Lets go of the bytes of packs that nothing can ask for again.
    pub(super) fn prune(&self) {
        let staged = self.host.staged().into_iter().map(|staged| staged.pack.digest);
        let kept = self.host.generations().into_iter().flat_map(|generation| generation.packs);
        let healthy = self.history.healthy().unwrap_or_default();
        let kept = kept.chain(healthy).map(|pack| pack.digest);
        self.store.retain(&staged.chain(kept).collect());
    }
}

/// Name and version, for the log.
pub(super) fn named(pack: &PackId) -> String {
    escape_untrusted(&format!("{} {}", pack.name, pack.version))
}
