//! What a host does with generations: publishing packs, going back, trials.

use super::book::{GenerationReport, GenerationState, Generations, InstallReport, Kept, Staged};
use super::host::{Host, HostState, log};
use super::prewarm;
use super::published::{Canary, Published};
use crate::error::HostError;
use crate::pack::PackId;
use crate::registry::{PreparedPack, RegistrySnapshot};
use crate::threads::lock;
use std::sync::Arc;

impl HostState {
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
        prewarm::make_instances(self, &snapshot);
        self.keep_stats(number, packs.iter().flat_map(|pack| pack.kernels()));
        #[cfg(any(feature = "wasmtime", feature = "wamr"))]
        self.start_learning();
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
        self.serve(Published { active: snapshot, canary: None });
        if let Some(kept) = book.kept.iter_mut().find(|kept| kept.number == number) {
            kept.activated = true;
        }
        book.trim(self.config().kept_generations);
    }

    /// Publishes these packs, newest first.
    pub(super) fn publish(
        &self,
        book: &mut Generations,
        packs: Vec<Arc<PreparedPack>>,
        origin: Option<u64>,
    ) -> u64 {
        let snapshot = self.build(book, packs, origin, self.config().cross_check_every);
        let number = snapshot.generation();
        // Going back waits for nobody: what cannot be made ready, another kernel answers.
        let _ = self.make_ready(&snapshot);
        self.activate(book, snapshot);
        number
    }

    /// Builds a generation that a pack is new in, and makes ready for it.
    ///
    /// # Errors
    /// [`HostError::NotPrepared`]; the generation is then gone again.
    fn build_ready(
        &self,
        book: &mut Generations,
        packs: Vec<Arc<PreparedPack>>,
        check_every: u32,
    ) -> Result<Arc<RegistrySnapshot>, HostError> {
        let snapshot = self.build(book, packs, None, check_every);
        self.make_ready(&snapshot).inspect_err(|_| {
            book.kept.pop_back();
            self.let_go_of_others();
        })?;
        Ok(snapshot)
    }

    /// The active packs with one in place of any of its name.
    fn with(&self, pack: &Arc<PreparedPack>) -> (Vec<Arc<PreparedPack>>, Option<PackId>) {
        let active = self.active_packs();
        let replaced = active.iter().find(|old| old.id().name == pack.id().name);
        let replaced = replaced.map(|old| old.id().clone());
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
        book.admits(staged.pack.id())?;
        self.no_canary()?;
        let (packs, replaced) = self.with(&staged.pack);
        let snapshot = self.build_ready(book, packs, self.config().cross_check_every)?;
        let generation = snapshot.generation();
        self.activate(book, snapshot);
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
    /// [`HostError::NotStaged`], [`HostError::CanaryRunning`], [`HostError::Barred`] and
    /// [`HostError::NotPrepared`]: nothing has changed then.
    pub fn activate(&self, id: u64) -> Result<InstallReport, HostError> {
        let mut book = lock(&self.state.generations);
        let staged = book.staged(id)?.clone();
        let report = self.state.activate_pack(&mut book, staged)?;
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
        let mut book = lock(&self.state.generations);
        let active = self.generation();
        let kept = book.kept.iter().find(|kept| kept.number == generation);
        let kept = kept.filter(|kept| kept.activated && kept.number != active);
        let Some(Kept { packs, origin, .. }) = kept else {
            return Err(HostError::NotKept { generation });
        };
        let (packs, origin) = (packs.clone(), *origin);
        packs.iter().try_for_each(|pack| book.admits(pack.id()))?;
        let number = self.state.publish(&mut book, packs, Some(origin));
        drop(book);
        let report = self.generations().into_iter().find(|report| report.generation == number);
        report.ok_or(HostError::NotKept { generation: number })
    }

    /// Publishes the active packs under a number above `past`, where theirs is not, and forgets the generations
    /// before: in the history those numbers are of an earlier process.
    #[cfg(feature = "supervisor")]
    pub(crate) fn number_from(&self, past: u64) {
        let mut book = lock(&self.state.generations);
        if self.generation() <= past {
            book.last = book.last.max(past);
            self.state.publish(&mut book, self.state.active_packs(), None);
            book.kept.retain(|kept| kept.number > past);
        }
    }

    /// The generation that was active before the active one; where that was published by going back,
    /// before the one that was gone back to.
    pub fn previous_generation(&self) -> Option<u64> {
        let book = lock(&self.state.generations);
        let number = self.generation();
        let origin = book.kept.iter().find(|kept| kept.number == number)?.origin;
        let earlier = book.kept.iter().filter(|kept| kept.activated && kept.origin < origin);
        earlier.map(|kept| kept.number).max()
    }

    /// Takes a pack out again: the next generation goes without it, and any trial ends. `false` where
    /// there is none of that name.
    pub fn remove(&self, pack: &str) -> bool {
        let mut book = lock(&self.state.generations);
        let mut packs = self.state.active_packs();
        let before = packs.len();
        packs.retain(|other| other.id().name != pack);
        let found = packs.len() < before;
        if found {
            self.state.publish(&mut book, packs, None);
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
        let state = &self.state;
        let mut book = lock(&state.generations);
        let Staged { pack: code, report } = book.staged(id)?.clone();
        book.admits(code.id())?;
        state.no_canary()?;
        let (packs, replaced) = state.with(&code);
        let every = state.config().canary_check_every;
        let snapshot = state.build_ready(&mut book, packs, every)?;
        let generation = snapshot.generation();
        let canary = Some(Canary::new(snapshot, share));
        state.serve(Published { active: self.snapshot(), canary });
        book.staged.retain(|staged| staged.report.id != id);
        Ok(report.installed(generation, replaced))
    }

    /// Makes the generation on trial the active one, and gives its number.
    ///
    /// # Errors
    /// [`HostError::NoCanary`].
    pub fn promote_canary(&self) -> Result<u64, HostError> {
        let mut book = lock(&self.state.generations);
        let snapshot = self.state.canary()?;
        let number = snapshot.generation();
        snapshot.set_check_every(self.state.config().cross_check_every);
        self.state.activate(&mut book, snapshot);
        Ok(number)
    }

    /// Ends the trial: all steps run on the active generation again. Gives the number of the
    /// generation that was on trial.
    ///
    /// # Errors
    /// [`HostError::NoCanary`].
    pub fn end_canary(&self) -> Result<u64, HostError> {
        // Held while the pointer changes, as by everyone who publishes.
        let _book = lock(&self.state.generations);
        let number = self.state.canary()?.generation();
        self.state.serve(Published { active: self.snapshot(), canary: None });
        Ok(number)
    }

    /// The generation that the next step is to run on: the active one, or the one on trial where this
    /// step falls to its share. To be asked once for each step.
    #[inline]
    pub fn pin(&self) -> Arc<RegistrySnapshot> {
        self.state.published.load().pin().clone()
    }

    /// Whether [`Host::pin`] may give this generation out again: whoever keeps slots of others may let
    /// go of them.
    pub fn serves(&self, generation: u64) -> bool {
        self.state.published.load().serves(generation)
    }

    /// Drops what holds snapshots, once packs were published on a thread of the host's own and some
    /// milliseconds later: with the last holder of a snapshot its kernels and their code go, which takes
    /// as long as a small model's step.
    pub fn let_go(&self, holder: impl Send + 'static) {
        self.state.workers.reaper.take(holder);
    }

    /// Keeps a generation for going back to, however old it grows, in place of any named before.
    #[cfg(feature = "supervisor")]
    pub(crate) fn retain_generation(&self, generation: u64) {
        lock(&self.state.generations).retained = Some(generation);
    }

    /// The generation of that number, where steps may be given to it.
    #[cfg(feature = "supervisor")]
    pub(crate) fn serving(&self, generation: u64) -> Option<Arc<RegistrySnapshot>> {
        let published = self.state.published.load();
        let canary = published.canary.as_ref().map(|canary| &canary.snapshot);
        let mut serving = [&published.active].into_iter().chain(canary);
        serving.find(|snapshot| snapshot.generation() == generation).cloned()
    }

    /// The generations that are active, on trial, held by somebody, or kept for going back, newest
    /// first.
    pub fn generations(&self) -> Vec<GenerationReport> {
        let mut book = lock(&self.state.generations);
        book.trim(self.state.config().kept_generations);
        let published = self.state.published.load_full();
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
        let mut book = lock(&self.state.generations);
        book.barred.insert(digest.to_owned(), reason.to_owned());
    }

    /// Lets a barred pack in again. `false` where none of that digest was barred.
    pub fn clear(&self, digest: &str) -> bool {
        lock(&self.state.generations).barred.remove(digest).is_some()
    }

    /// Digests of barred packs, with the reasons.
    pub fn barred(&self) -> Vec<(String, String)> {
        let book = lock(&self.state.generations);
        book.barred.iter().map(|(digest, reason)| (digest.clone(), reason.clone())).collect()
    }
}
