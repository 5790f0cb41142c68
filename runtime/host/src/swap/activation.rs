//! What a host does with generations: publishing packs, going back, trials.

use super::book::{GenerationReport, GenerationState, Generations, InstallReport, Kept, Staged};
use super::host::{Host, HostState, log};
use super::prewarm;
use super::published::{Canary, Published};
use crate::error::HostError;
use crate::pack::PackId;
use crate::registry::{PreparedPack, RegistrySnapshot};
use crate::threads::lock;
use std::sync::{Arc, MutexGuard};

/// A generation that nobody is served by yet.
struct Built {
    snapshot: Arc<RegistrySnapshot>,
    packs: Vec<Arc<PreparedPack>>,
    origin: u64,
}

/// The right to change what is served, which one thread has at a time.
pub(super) struct Turn<'a> {
    _held: MutexGuard<'a, ()>,
}

impl HostState {
    /// Waits for whoever changes what is served, and keeps others from it. Weights may be prepared meanwhile,
    /// for seconds; the book is locked for moments only, so that who reads it waits for nobody.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { _held: lock(&self.turn) }
    }

    /// Builds the next generation, of these packs, newest first.
    fn build(
        &self,
        _: &Turn<'_>,
        packs: Vec<Arc<PreparedPack>>,
        origin: Option<u64>,
        check_every: u32,
    ) -> Built {
        let number = lock(&self.generations).next_number();
        let records = packs.iter().map(|pack| pack.publish(&self.uids)).collect();
        let snapshot = self.published.load().active.next(number, records, check_every);
        let snapshot = Arc::new(snapshot);
        prewarm::make_instances(self, &snapshot);
        self.keep_stats(number, packs.iter().flat_map(|pack| pack.kernels()));
        #[cfg(any(feature = "wasmtime", feature = "wamr"))]
        self.start_learning();
        log(&snapshot);
        Built { snapshot, packs, origin: origin.unwrap_or(number) }
    }

    /// Has steps run on other generations, and notes it in the book. The store of the pointer is the activation.
    fn serve(&self, _: &Turn<'_>, published: Published, note: impl FnOnce(&mut Generations)) {
        let mut book = lock(&self.generations);
        note(&mut book);
        self.published.store(Arc::new(published));
        book.trim(self.config().kept_generations);
        drop(book);
        self.let_go_of_others();
    }

    /// Has steps run on a new generation: a share of them, on trial, or all.
    fn serve_new(&self, turn: &Turn<'_>, built: Built, share: Option<f64>) -> u64 {
        let Built { snapshot, packs, origin } = built;
        let number = snapshot.generation();
        let kept = Kept {
            number,
            packs,
            snapshot: Arc::downgrade(&snapshot),
            activated: share.is_none(),
            origin,
        };
        let published = match share {
            None => Published { active: snapshot, canary: None },
            Some(share) => {
                let active = self.published.load().active.clone();
                Published { active, canary: Some(Canary::new(snapshot, share)) }
            }
        };
        self.serve(turn, published, |book| book.kept.push_back(kept));
        number
    }

    /// Publishes these packs, newest first.
    pub(super) fn publish(
        &self,
        turn: &Turn<'_>,
        packs: Vec<Arc<PreparedPack>>,
        origin: Option<u64>,
    ) -> u64 {
        let built = self.build(turn, packs, origin, self.config().cross_check_every);
        // Going back waits for nobody: what cannot be made ready, another kernel answers.
        let _ = self.make_ready(&built.snapshot);
        self.serve_new(turn, built, None)
    }

    /// Publishes a pack that was prepared, in place of any of its name, where nothing stands against it:
    /// for a share of the steps, on trial, or for all.
    ///
    /// # Errors
    /// [`HostError::Barred`], also where that happened meanwhile, [`HostError::CanaryRunning`] and
    /// [`HostError::NotPrepared`]; nothing is left of the generation then.
    pub(super) fn publish_new(
        &self,
        turn: &Turn<'_>,
        staged: Staged,
        share: Option<f64>,
    ) -> Result<InstallReport, HostError> {
        let admitted = || lock(&self.generations).admits(staged.pack.id());
        admitted()?;
        self.no_canary()?;
        let (packs, replaced) = self.with(&staged.pack);
        let config = self.config();
        let check_every =
            if share.is_some() { config.canary_check_every } else { config.cross_check_every };
        let built = self.build(turn, packs, None, check_every);
        let ready = self.make_ready(&built.snapshot).and_then(|()| admitted());
        ready.inspect_err(|_| self.let_go_of_others())?;
        Ok(staged.report.installed(self.serve_new(turn, built, share), replaced))
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
        self.publish_staged(id, None)
    }

    /// Publishes the packs of an earlier generation again, under a new number, and ends any trial.
    /// Nothing is compiled. Kernels that were taken out of service stay so.
    ///
    /// # Errors
    /// [`HostError::NotKept`] where that generation was never active, is the active one, or is older
    /// than [`crate::HostConfig::kept_generations`]; [`HostError::Barred`].
    pub fn roll_back(&self, generation: u64) -> Result<GenerationReport, HostError> {
        let turn = self.state.turn();
        let active = self.generation();
        let (packs, origin) = {
            let book = lock(&self.state.generations);
            let kept = book.kept.iter().find(|kept| kept.number == generation);
            let kept = kept.filter(|kept| kept.activated && kept.number != active);
            let kept = kept.ok_or(HostError::NotKept { generation })?;
            kept.packs.iter().try_for_each(|pack| book.admits(pack.id()))?;
            (kept.packs.clone(), kept.origin)
        };
        let number = self.state.publish(&turn, packs, Some(origin));
        let report = self.generations().into_iter().find(|report| report.generation == number);
        report.ok_or(HostError::NotKept { generation: number })
    }

    /// Publishes the active packs under a number above `past`, where theirs is not, and forgets the generations
    /// before: in the history those numbers are of an earlier process.
    #[cfg(feature = "supervisor")]
    pub(crate) fn number_from(&self, past: u64) {
        let state = &self.state;
        let turn = state.turn();
        if self.generation() <= past {
            lock(&state.generations).skip_to(past);
            state.publish(&turn, state.active_packs(), None);
            lock(&state.generations).kept.retain(|kept| kept.number > past);
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
        let turn = self.state.turn();
        let mut packs = self.state.active_packs();
        let before = packs.len();
        packs.retain(|other| other.id().name != pack);
        let found = packs.len() < before;
        if found {
            self.state.publish(&turn, packs, None);
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
        self.publish_staged(id, Some(share))
    }

    fn publish_staged(&self, id: u64, share: Option<f64>) -> Result<InstallReport, HostError> {
        let turn = self.state.turn();
        let staged = lock(&self.state.generations).staged(id)?.clone();
        let report = self.state.publish_new(&turn, staged, share)?;
        self.discard(id);
        Ok(report)
    }

    /// Makes the generation on trial the active one, and gives its number.
    ///
    /// # Errors
    /// [`HostError::NoCanary`].
    pub fn promote_canary(&self) -> Result<u64, HostError> {
        let state = &self.state;
        let turn = state.turn();
        let snapshot = state.canary()?;
        let number = snapshot.generation();
        snapshot.set_check_every(state.config().cross_check_every);
        state.serve(&turn, Published { active: snapshot, canary: None }, |book| {
            book.kept.iter_mut().for_each(|kept| kept.activated |= kept.number == number);
        });
        Ok(number)
    }

    /// Ends the trial: all steps run on the active generation again. Gives the number of the
    /// generation that was on trial.
    ///
    /// # Errors
    /// [`HostError::NoCanary`].
    pub fn end_canary(&self) -> Result<u64, HostError> {
        let state = &self.state;
        let turn = state.turn();
        let number = state.canary()?.generation();
        state.serve(&turn, Published { active: self.snapshot(), canary: None }, |_| ());
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
