//! Staging: a pack is gated, compiled, proved and rehearsed beside those that run.

use super::book::{CacheUse, InstallReport, StageReport, Staged};
use super::host::{Host, HostState};
use crate::admit::{self, Admission, AdmittedKernel, Pace};
use crate::code::PreparedKernel;
use crate::config::Compiler;
use crate::error::{HostError, Refusal};
use crate::gate::{self, GatedKernel, Skipped};
use crate::graph::PackGraphs;
use crate::pack::PackId;
use crate::registry::PreparedPack;
use crate::team::{Provider, ProviderPack};
use crate::threads::lock;
use crate::{HostConfig, OpKey};
use ruvllm_signing::VerifiedPack;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// How long a staging thread rests after a kernel, in times of what that took. Priority alone does not
/// keep it off the cores: calls are computed by threads that wait for each other very often and very
/// briefly, and a system that wakes one of them may first let what runs there use up its slice. While
/// one compiles, serving at full load was measured to lose 30 to 44 % of its speed; so it may for an
/// eighth of the time.
const REST: u32 = 7;

/// Bytes that a kernel's instances take while it proves itself, amply for one of small memory: those of
/// the core pack take 2 MiB.
const PROOF_BYTES: usize = 4 << 20;

impl Host {
    /// Takes a pack in: gates it, compiles and admits its kernels, publishes a new generation in
    /// which it stands in place of any pack of its name.
    ///
    /// Takes as long as compiling does, on every core; calls go on meanwhile. A live server stages
    /// instead: see [`Host::stage`].
    ///
    /// # Errors
    /// [`HostError::Refused`] with everything that speaks against it: nothing was published then,
    /// and unless all gates were passed, nothing compiled. [`HostError::Executor`] where the
    /// sandbox cannot be set up here; [`HostError::CanaryRunning`] and [`HostError::Barred`].
    pub fn install(&self, pack: VerifiedPack) -> Result<InstallReport, HostError> {
        self.install_with(pack, &self.state.config().compiler, None)
    }

    /// Takes a pack in that is part of the program itself: as [`Host::install`], but compiled in
    /// this process whatever the configuration says, and without the kernels of operations that are
    /// not `called`, where that is given: preparing them would delay the first call.
    ///
    /// # Errors
    /// As for [`Host::install`].
    pub fn install_embedded(
        &self,
        pack: VerifiedPack,
        called: Option<&[OpKey]>,
    ) -> Result<InstallReport, HostError> {
        self.install_with(pack, &Compiler::InProcess, called)
    }

    fn install_with(
        &self,
        pack: VerifiedPack,
        compiler: &Compiler,
        called: Option<&[OpKey]>,
    ) -> Result<InstallReport, HostError> {
        let state = &self.state;
        state.no_canary()?;
        lock(&state.generations).admits(&PackId::of(&pack))?;
        let staged = state.prepare(&pack, compiler, at_once(state.config()), called)?;
        state.publish_new(&state.turn(), staged, None)
    }

    /// Makes a pack ready to be activated: gates it, compiles and admits its kernels, and lets them
    /// compute calls of the shapes that this host has seen, against the f64 oracle.
    ///
    /// Works on [`crate::HostConfig::staging_threads`] threads of a low priority, which rest between
    /// kernels, and returns when it is done. A pack that is staged already is not staged again.
    ///
    /// # Errors
    /// As for [`Host::install`], and [`HostError::StageFull`]. Nothing was staged then.
    pub fn stage(&self, pack: VerifiedPack) -> Result<StageReport, HostError> {
        let state = &self.state;
        let id = PackId::of(&pack);
        {
            let book = lock(&state.generations);
            book.admits(&id)?;
            if let Some(staged) = book.staged.iter().find(|staged| *staged.pack.id() == id) {
                return Ok(staged.report.clone());
            }
            book.has_room(state.config().staged)?;
        }
        let threads = state.config().staging_threads.max(1);
        let pace = Pace { threads, rest: REST };
        let prepare = || state.prepare(&pack, &state.config().compiler, pace, None);
        let mut staged = state.staging.run(threads, prepare)?;
        let mut book = lock(&state.generations);
        book.admits(&id)?;
        book.has_room(state.config().staged)?;
        book.last_staged += 1;
        staged.report.id = book.last_staged;
        let active = state.active_packs();
        staged.report.changed = active.iter().find_map(|old| id.changed_from(old.id()));
        let report = staged.report.clone();
        book.staged.push(staged);
        Ok(report)
    }

    /// Makes providers of team operations that the host application brings ready to be activated, like a
    /// pack. What they prepare of the weights of a model, they prepare when they are activated or put on trial.
    ///
    /// # Errors
    /// [`HostError::StageFull`] and [`HostError::Barred`]. Nothing was staged then.
    pub fn stage_providers(&self, pack: &ProviderPack) -> Result<StageReport, HostError> {
        let id = PackId::of_providers(pack);
        let kernel = |(kernel, provider): &(String, Provider)| {
            PreparedKernel::provider(kernel.clone(), provider.clone(), &id)
        };
        let kernels: Vec<PreparedKernel> = pack.providers.iter().map(kernel).collect();
        let state = &self.state;
        let mut book = lock(&state.generations);
        book.admits(&id)?;
        if let Some(staged) = book.staged.iter().find(|staged| *staged.pack.id() == id) {
            return Ok(staged.report.clone());
        }
        book.has_room(state.config().staged)?;
        book.last_staged += 1;
        let report = StageReport {
            id: book.last_staged,
            pack: id.clone(),
            kernels: kernels.iter().map(|kernel| kernel.id().to_owned()).collect(),
            graphs: Vec::new(),
            skipped: Vec::new(),
            cache: CacheUse::default(),
            rehearsed: 0,
            changed: None,
        };
        let pack = Arc::new(PreparedPack::new(id, kernels, Vec::new(), HashMap::new()));
        book.staged.push(Staged { pack, report: report.clone() });
        Ok(report)
    }

    /// The packs that are staged, oldest first.
    pub fn staged(&self) -> Vec<StageReport> {
        let book = lock(&self.state.generations);
        book.staged.iter().map(|staged| staged.report.clone()).collect()
    }

    /// Lets go of a staged pack. `false` where none has that number.
    pub fn discard(&self, id: u64) -> bool {
        let mut book = lock(&self.state.generations);
        let before = book.staged.len();
        book.staged.retain(|staged| staged.report.id != id);
        book.staged.len() < before
    }
}

#[cfg(feature = "supervisor")]
impl Host {
    /// Publishes these packs, newest first, and those that are active now and have none of their names: each before
    /// those that it is asked before now, and so behind these packs where it is before none of them. What is not active
    /// is loaded; an active pack of the same name that is newer, or
    /// where there is nothing to load, stands in. Gives the packs that could not be brought back, with
    /// the reasons; barred ones are among them.
    pub(crate) fn restore(
        &self,
        packs: &[PackId],
        load: impl Fn(&PackId) -> Result<Option<VerifiedPack>, String>,
    ) -> Vec<(PackId, String)> {
        let state = &self.state;
        let active = state.active_packs();
        let mut left_out = Vec::new();
        let mut restored: Vec<Arc<PreparedPack>> = Vec::new();
        for id in packs {
            let admits =
                |id: &PackId| lock(&state.generations).admits(id).map_err(|e| e.to_string());
            let own = active.iter().find(|code| code.id().name == id.name);
            let newer =
                |own: &&Arc<PreparedPack>| own.id().is_newer(id) && admits(own.id()).is_ok();
            let code = match own.filter(|own| own.id() == id || newer(own)) {
                Some(own) => Ok(own.clone()),
                None => load(id).and_then(|pack| {
                    let Some(pack) = pack else {
                        return own.cloned().ok_or_else(|| "its bytes are not kept".to_owned());
                    };
                    admits(id)?;
                    let staged = state.prepare(
                        &pack,
                        &state.config().compiler,
                        at_once(state.config()),
                        None,
                    );
                    staged.map(|staged| staged.pack).map_err(|e| e.to_string())
                }),
            };
            match code {
                Ok(code) => restored.push(code),
                Err(reason) => left_out.push((id.clone(), reason)),
            }
        }
        let is_in = |codes: &[Arc<PreparedPack>], of: &PreparedPack| {
            codes.iter().any(|other| other.id().name == of.id().name)
        };
        for (at, code) in active.iter().enumerate().rev() {
            if !is_in(&restored, code) {
                let behind = restored.iter().position(|other| is_in(&active[at..], other));
                restored.insert(behind.unwrap_or(restored.len()), code.clone());
            }
        }
        if !restored.iter().map(|code| code.id()).eq(active.iter().map(|code| code.id())) {
            state.publish(&state.turn(), restored, None);
        }
        left_out
    }
}

impl HostState {
    /// Gates, compiles, admits and rehearses a pack.
    pub(super) fn prepare(
        &self,
        pack: &VerifiedPack,
        compiler: &Compiler,
        pace: Pace,
        called: Option<&[OpKey]>,
    ) -> Result<Staged, HostError> {
        let manifest = pack.manifest();
        let id = PackId::of(pack);
        let refused = |refusals| HostError::Refused {
            pack: id.name.clone(),
            version: id.version.clone(),
            refusals,
        };
        let executors = self.executors()?;
        let (cache, unusable) = match &self.cache {
            None => (None, None),
            Some(Ok(cache)) => (Some(cache), None),
            Some(Err(why)) => (None, Some(why.clone())),
        };
        let memory = self.memory.of_pack();
        let offers = executors.offers();
        let gated = gate::pass(pack, self.config(), &offers, memory.share(), called);
        let gated = gated.map_err(refused)?;
        let graphs = self.graphs(pack, &gated.kernels).map_err(refused)?;
        let admission =
            Admission::new(executors, self.config(), compiler, cache, pace, memory, graphs);
        let admitted = self.admit_all(gated.kernels, &admission).map_err(refused)?;
        let hits = admitted.iter().filter(|admitted| admitted.cached).count();
        let rehearsed = admitted.iter().map(|admitted| admitted.rehearsed).sum();
        let cache_use = CacheUse { hits, misses: admitted.len() - hits, unusable };
        if let Some(cache) = cache
            && cache_use.misses > 0
        {
            cache.trim();
        }
        let kernel = |admitted: &Admitted<'_>| {
            PreparedKernel::sandboxed(&admitted.kernel, (id.name.clone(), id.version.clone()))
        };
        let kernels: Vec<PreparedKernel> = admitted.iter().map(kernel).collect();
        let skips = |s: &Skipped| (s.kernel.clone(), s.reasons.clone());
        let report = StageReport {
            id: 0,
            kernels: kernels.iter().map(|kernel| kernel.stats().kernel.clone()).collect(),
            graphs: manifest.graphs.iter().map(|graph| graph.id.clone()).collect(),
            skipped: gated.skipped.iter().map(skips).collect(),
            cache: cache_use,
            rehearsed,
            pack: id.clone(),
            changed: None,
        };
        let fallbacks = manifest.fallbacks.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let code = Arc::new(PreparedPack::new(id, kernels, gated.skipped, fallbacks));
        Ok(Staged { pack: code, report })
    }

    /// The graphs of a pack, admitted, where kernels of it compute them.
    fn graphs(
        &self,
        pack: &VerifiedPack,
        kernels: &[GatedKernel<'_>],
    ) -> Result<PackGraphs, Vec<Refusal>> {
        let Some(kernel) = kernels.iter().find(|kernel| kernel.computes_graphs()) else {
            return Ok(PackGraphs::default());
        };
        let Some(admission) = &self.config().graphs else {
            let what =
                "it computes graphs, and nothing on this host admits any: set HostConfig::graphs";
            return Err(vec![Refusal::new(kernel.id(), "graphs_unavailable", what)]);
        };
        Ok(PackGraphs::new(pack.digest().to_string(), admission.admit(pack)?))
    }

    /// Compiles, admits and rehearses: nearly all the time of an installation goes here.
    fn admit_all<'a>(
        &self,
        gated: Vec<GatedKernel<'a>>,
        admission: &Admission<'_>,
    ) -> Result<Vec<Admitted<'a>>, Vec<Refusal>> {
        // The largest first: it would keep one core busy when the others are done.
        let mut order: Vec<usize> = (0..gated.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(gated[i].module().len()));
        let jobs: Vec<Mutex<Option<GatedKernel<'a>>>> =
            gated.into_iter().map(|kernel| Mutex::new(Some(kernel))).collect();
        let done: Vec<OnceLock<Result<Admitted<'a>, Refusal>>> =
            jobs.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                // Taken before the work begins, so that no lock is held meanwhile.
                let taken = lock(&jobs[i]).take();
                if let Some(kernel) = taken {
                    let begun = Instant::now();
                    let admitted = admit::admit(kernel, admission).and_then(|(kernel, cached)| {
                        let shapes = self.workers.profiles.of(kernel.gated().key()).shapes;
                        let rehearsed = admit::rehearse(&kernel, &shapes, admission)?;
                        Ok(Admitted { kernel, cached, rehearsed })
                    });
                    // What comes out of the cache is there at once.
                    let compiled = admitted.as_ref().is_ok_and(|admitted| !admitted.cached);
                    let _ = done[i].set(admitted);
                    if compiled && next.load(Ordering::Relaxed) < order.len() {
                        std::thread::sleep(begun.elapsed() * admission.pace().rest);
                    }
                }
            }
        };
        // No more at once than there is memory for the instances that kernels prove themselves in.
        let proofs = (admission.memory() / PROOF_BYTES).max(1);
        let helpers = 1..admission.pace().threads.min(jobs.len()).min(proofs);
        if rayon::current_thread_index().is_some() {
            // The others of those threads that this one belongs to.
            rayon::scope(|scope| {
                helpers.for_each(|_| scope.spawn(|_| work()));
                work();
            });
        } else {
            std::thread::scope(|scope| {
                helpers.for_each(|_| drop(scope.spawn(work)));
                work();
            });
        }
        let (mut admitted, mut refusals) = (Vec::new(), Vec::new());
        for result in done.into_iter().filter_map(OnceLock::into_inner) {
            match result {
                Ok(kernel) => admitted.push(kernel),
                Err(refusal) => refusals.push(refusal),
            }
        }
        if refusals.is_empty() { Ok(admitted) } else { Err(refusals) }
    }
}

/// A kernel that was admitted, and what that took.
struct Admitted<'a> {
    kernel: AdmittedKernel<'a>,
    /// Whether it was compiled and proved at an earlier time.
    cached: bool,
    /// Calls of live shapes that it computed.
    rehearsed: usize,
}

/// On every core that the host may use, without a rest.
fn at_once(config: &HostConfig) -> Pace {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    Pace { threads: config.threads.unwrap_or_else(cores).max(1), rest: 0 }
}
