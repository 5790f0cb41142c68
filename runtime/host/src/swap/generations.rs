//! Publishing: activation, going back, trials, and the book that is kept of them.

use super::canary::{Canary, Published};
use super::stage::{InstallReport, Staged};
use crate::error::HostError;
use crate::host::{Host, Shared, lock, log};
use crate::registry::{PackId, PreparedPack, RegistrySnapshot};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// What publishers know. Readers of snapshots never look here.
pub(crate) struct Generations {
    /// The highest number that was given.
    last: u64,
    pub(super) staged: Vec<Staged>,
    pub(super) last_staged: u64,
    /// In the order of their numbers.
    kept: VecDeque<Kept>,
    /// The number of one that is kept however old it grows.
    refuge: Option<u64>,
    /// Reasons by digest.
    barred: BTreeMap<String, String>,
}

/// A generation, for as long as one can go back to it or somebody holds it.
struct Kept {
    number: u64,
    /// Newest first.
    packs: Vec<Arc<PreparedPack>>,
    snapshot: Weak<RegistrySnapshot>,
    /// Whether it was ever the active one.
    activated: bool,
    /// The generation whose packs these are: itself, or an earlier one that was gone back to.
    origin: u64,
}

/// One generation, as [`Host::generations`] lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GenerationReport {
    /// Its number.
    pub generation: u64,
    /// What it is doing.
    pub state: GenerationState,
    /// Its packs, newest first.
    pub packs: Vec<PackId>,
    /// How many hold it beside the host: steps that run on it, mostly.
    pub holders: usize,
    /// The earlier generation whose packs these are, where it was published by going back.
    pub restores: Option<u64>,
}

/// What a generation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerationState {
    /// Steps run on it.
    Active,
    /// A share of the steps runs on it, on trial.
    Canary {
        /// The share.
        share: f64,
    },
    /// No step is given to it any more, and some still hold it.
    Draining,
    /// Nobody holds it. Its packs are kept for going back.
    Drained,
}

impl Generations {
    pub(crate) fn new(first: &Arc<RegistrySnapshot>) -> Self {
        let number = first.generation();
        let first = Kept {
            number,
            packs: Vec::new(),
            snapshot: Arc::downgrade(first),
            activated: true,
            origin: number,
        };
        Self {
            last: number,
            staged: Vec::new(),
            last_staged: 0,
            kept: [first].into(),
            refuge: None,
            barred: BTreeMap::new(),
        }
    }

    /// # Errors
    /// [`HostError::Barred`].
    pub(super) fn admits(&self, pack: &PackId) -> Result<(), HostError> {
        match self.barred.get(&pack.digest) {
            None => Ok(()),
            Some(reason) => Err(HostError::Barred {
                pack: format!("{} {}", pack.name, pack.version),
                digest: pack.digest.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Forgets generations that nobody holds and that are too old to go back to.
    fn trim(&mut self, keep: usize) {
        let activated = self.kept.iter().filter(|kept| kept.activated).count();
        // The active one is among them, and comes beside those that are kept.
        let mut surplus = activated.saturating_sub(keep + 1);
        let refuge = self.refuge;
        self.kept.retain(|kept| {
            let old = kept.activated && surplus > 0;
            surplus -= usize::from(old);
            let held = kept.snapshot.strong_count() > 0 || refuge == Some(kept.number);
            held || kept.activated && !old
        });
    }
}

impl Shared {
    /// Builds the next generation, of these packs, newest first, and notes it.
    fn build(
        &self,
        book: &mut Generations,
        packs: Vec<Arc<PreparedPack>>,
        origin: Option<u64>,
        check_every: u32,
    ) -> Arc<RegistrySnapshot> {
        book.last += 1;
        let number = book.last;
        let records = packs.iter().map(|pack| pack.publish(&self.uids)).collect();
        let snapshot = self.published.load().active.next(number, records, check_every);
        let snapshot = Arc::new(snapshot);
        self.make_ready(&snapshot);
        self.keep_ledgers(number, packs.iter().flat_map(|pack| pack.kernels()));
        book.kept.push_back(Kept {
            number,
            packs,
            snapshot: Arc::downgrade(&snapshot),
            activated: false,
            origin: origin.unwrap_or(number),
        });
        log(&snapshot);
        snapshot
    }

    /// Makes a generation that was built the active one. This store is the activation.
    fn activate(&self, book: &mut Generations, snapshot: Arc<RegistrySnapshot>) {
        let number = snapshot.generation();
        self.published.store(Arc::new(Published { active: snapshot, canary: None }));
        if let Some(kept) = book.kept.iter_mut().find(|kept| kept.number == number) {
            kept.activated = true;
        }
        book.trim(self.config.kept_generations);
    }

    /// Publishes these packs, newest first.
    pub(super) fn publish(
        &self,
        book: &mut Generations,
        packs: Vec<Arc<PreparedPack>>,
        origin: Option<u64>,
    ) -> u64 {
        let snapshot = self.build(book, packs, origin, self.config.cross_check_every);
        let number = snapshot.generation();
        self.activate(book, snapshot);
        number
    }

    /// The active packs with one in place of any of its name.
    fn with(&self, pack: &Arc<PreparedPack>) -> (Vec<Arc<PreparedPack>>, Option<String>) {
        let active = self.active_packs();
        let replaced = active.iter().find(|old| old.id().name == pack.id().name);
        let replaced = replaced.map(|old| old.id().version.clone());
        let others = active.into_iter().filter(|old| old.id().name != pack.id().name);
        ([pack.clone()].into_iter().chain(others).collect(), replaced)
    }

    pub(super) fn active_packs(&self) -> Vec<Arc<PreparedPack>> {
        let published = self.published.load();
        published.active.pack_records().iter().map(|record| record.prepared().clone()).collect()
    }

    /// Publishes a pack that was prepared, where nothing stands against it.
    pub(super) fn activate_pack(
        &self,
        book: &mut Generations,
        staged: Staged,
    ) -> Result<InstallReport, HostError> {
        book.admits(staged.code.id())?;
        self.no_canary()?;
        let (packs, replaced) = self.with(&staged.code);
        let generation = self.publish(book, packs, None);
        Ok(staged.report.installed(generation, replaced))
    }

    pub(super) fn no_canary(&self) -> Result<(), HostError> {
        match &self.published.load().canary {
            None => Ok(()),
            Some(canary) => {
                Err(HostError::CanaryRunning { generation: canary.snapshot.generation() })
            }
        }
    }

    fn canary(&self) -> Result<Arc<RegistrySnapshot>, HostError> {
        let published = self.published.load();
        published.canary.as_ref().map(|canary| canary.snapshot.clone()).ok_or(HostError::NoCanary)
    }
}

impl Host {
    /// Makes a staged pack active, in place of any of its name: the next step of every sequence runs
    /// on the new generation, and steps that have begun end on the old one.
    ///
    /// # Errors
    /// [`HostError::NotStaged`], [`HostError::CanaryRunning`] and [`HostError::Barred`]: nothing has
    /// changed then.
    pub fn activate(&self, id: u64) -> Result<InstallReport, HostError> {
        let mut book = lock(&self.shared.generations);
        let staged = book.staged(id)?.clone();
        let report = self.shared.activate_pack(&mut book, staged)?;
        book.staged.retain(|staged| staged.report.id != id);
        Ok(report)
    }

    /// Publishes the packs of an earlier generation again, under a new number, and ends any trial.
    /// Nothing is compiled. Kernels that were taken out of service stay so.
    ///
    /// # Errors
    /// [`HostError::NotKept`] where that generation was never active, is the active one, or is older
    /// than [`crate::HostConfig::kept_generations`]; [`HostError::Barred`].
    pub fn roll_back(&self, generation: u64) -> Result<GenerationReport, HostError> {
        let mut book = lock(&self.shared.generations);
        let active = self.generation();
        let kept = book.kept.iter().find(|kept| kept.number == generation);
        let kept = kept.filter(|kept| kept.activated && kept.number != active);
        let Some(Kept { packs, origin, .. }) = kept else {
            return Err(HostError::NotKept { generation });
        };
        let (packs, origin) = (packs.clone(), *origin);
        packs.iter().try_for_each(|pack| book.admits(pack.id()))?;
        let number = self.shared.publish(&mut book, packs, Some(origin));
        drop(book);
        let report = self.generations().into_iter().find(|report| report.generation == number);
        report.ok_or(HostError::NotKept { generation: number })
    }

    /// The generation that was active before the active one; where that was published by going back,
    /// before the one that was gone back to.
    pub fn previous_generation(&self) -> Option<u64> {
        let book = lock(&self.shared.generations);
        let number = self.generation();
        let origin = book.kept.iter().find(|kept| kept.number == number)?.origin;
        let earlier = book.kept.iter().filter(|kept| kept.activated && kept.origin < origin);
        earlier.map(|kept| kept.number).max()
    }

    /// Takes a pack out again: the next generation goes without it, and any trial ends. `false` where
    /// there is none of that name.
    pub fn remove(&self, pack: &str) -> bool {
        let mut book = lock(&self.shared.generations);
        let mut packs = self.shared.active_packs();
        let before = packs.len();
        packs.retain(|other| other.id().name != pack);
        let found = packs.len() < before;
        if found {
            self.shared.publish(&mut book, packs, None);
        }
        found
    }

    /// Puts a staged pack on trial: a `share` of the steps runs on a generation with it, and its calls
    /// are cross-checked every [`crate::HostConfig::canary_check_every`] runs.
    ///
    /// # Errors
    /// As for [`Host::activate`], and [`HostError::CanaryShare`] unless `0 < share <= 1`.
    pub fn start_canary(&self, id: u64, share: f64) -> Result<InstallReport, HostError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(HostError::CanaryShare { share });
        }
        let shared = &self.shared;
        let mut book = lock(&shared.generations);
        let Staged { code, report } = book.staged(id)?.clone();
        book.admits(code.id())?;
        shared.no_canary()?;
        let (packs, replaced) = shared.with(&code);
        let every = shared.config.canary_check_every;
        let snapshot = shared.build(&mut book, packs, None, every);
        let generation = snapshot.generation();
        let canary = Some(Canary::new(snapshot, share));
        shared.published.store(Arc::new(Published { active: self.snapshot(), canary }));
        book.staged.retain(|staged| staged.report.id != id);
        Ok(report.installed(generation, replaced))
    }

    /// Makes the generation on trial the active one, and gives its number.
    ///
    /// # Errors
    /// [`HostError::NoCanary`].
    pub fn promote_canary(&self) -> Result<u64, HostError> {
        let mut book = lock(&self.shared.generations);
        let snapshot = self.shared.canary()?;
        let number = snapshot.generation();
        snapshot.set_check_every(self.shared.config.cross_check_every);
        self.shared.activate(&mut book, snapshot);
        Ok(number)
    }

    /// Ends the trial: all steps run on the active generation again. Gives the number of the
    /// generation that was on trial.
    ///
    /// # Errors
    /// [`HostError::NoCanary`].
    pub fn end_canary(&self) -> Result<u64, HostError> {
        // Held while the pointer changes, as by everyone who publishes.
        let _book = lock(&self.shared.generations);
        let number = self.shared.canary()?.generation();
        self.shared.published.store(Arc::new(Published { active: self.snapshot(), canary: None }));
        Ok(number)
    }

    /// The generation that the next step is to run on: the active one, or the one on trial where this
    /// step falls to its share. To be asked once for each step.
    #[inline]
    pub fn pin(&self) -> Arc<RegistrySnapshot> {
        self.shared.published.load().pin().clone()
    }

    /// Whether [`Host::pin`] may give this generation out again: whoever keeps slots of others may let
    /// go of them.
    pub fn serves(&self, generation: u64) -> bool {
        self.shared.published.load().serves(generation)
    }

    /// Drops what holds snapshots, once packs were published on a thread of the host's own and some
    /// milliseconds later: with the last holder of a snapshot its kernels and their code go, which takes
    /// as long as a small model's step.
    pub fn let_go(&self, holder: impl Send + 'static) {
        self.shared.reaper.take(holder);
    }

    /// Keeps a generation for going back to, however old it grows, in place of any named before.
    #[cfg(feature = "supervisor")]
    pub(super) fn set_refuge(&self, generation: u64) {
        lock(&self.shared.generations).refuge = Some(generation);
    }

    /// The generation of that number, where steps may be given to it.
    #[cfg(feature = "supervisor")]
    pub(super) fn serving(&self, generation: u64) -> Option<Arc<RegistrySnapshot>> {
        let published = self.shared.published.load();
        let canary = published.canary.as_ref().map(|canary| &canary.snapshot);
        let mut serving = [&published.active].into_iter().chain(canary);
        serving.find(|snapshot| snapshot.generation() == generation).cloned()
    }

    /// The generations that are active, on trial, held by somebody, or kept for going back, newest
    /// first.
    pub fn generations(&self) -> Vec<GenerationReport> {
        let mut book = lock(&self.shared.generations);
        book.trim(self.shared.config.kept_generations);
        let published = self.shared.published.load_full();
        let canary = published.canary.as_ref();
        let report = |kept: &Kept| {
            let mut holders = kept.snapshot.strong_count();
            let state = if kept.number == published.active.generation() {
                holders = holders.saturating_sub(1);
                GenerationState::Active
            } else if let Some(canary) = canary.filter(|c| c.snapshot.generation() == kept.number) {
                holders = holders.saturating_sub(1);
                GenerationState::Canary { share: canary.share }
            } else if holders > 0 {
                GenerationState::Draining
            } else {
                GenerationState::Drained
            };
            GenerationReport {
                generation: kept.number,
                state,
                packs: kept.packs.iter().map(|pack| pack.id().clone()).collect(),
                holders,
                restores: (kept.origin != kept.number).then_some(kept.origin),
            }
        };
        book.kept.iter().rev().map(report).collect()
    }

    /// Bars a pack, by its digest: it is neither staged nor published until it is cleared. It goes on
    /// serving where it is active.
    pub fn bar(&self, digest: &str, reason: &str) {
        let mut book = lock(&self.shared.generations);
        book.barred.insert(digest.to_owned(), reason.to_owned());
    }

    /// Lets a barred pack in again. `false` where none of that digest was barred.
    pub fn clear(&self, digest: &str) -> bool {
        lock(&self.shared.generations).barred.remove(digest).is_some()
    }

    /// Digests of barred packs, with the reasons.
    pub fn barred(&self) -> Vec<(String, String)> {
        let book = lock(&self.shared.generations);
        book.barred.iter().map(|(digest, reason)| (digest.clone(), reason.clone())).collect()
    }
}
