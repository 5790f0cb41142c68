//! Staging: a pack is gated, compiled, proved and rehearsed beside those that run.

use super::generations::Generations;
use crate::admit::{self, Admission, AdmittedKernel, Pace};
use crate::config::Compiler;
use crate::error::{HostError, Refusal};
use crate::gate::{self, GatedKernel, Skipped};
use crate::host::{Host, Shared, lock};
use crate::kernel::PreparedKernel;
use crate::registry::{PackId, PreparedPack};
use ruvllm_signing::VerifiedPack;
use serde::{Deserialize, Serialize};
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

/// A pack that is ready to be published.
#[derive(Clone)]
pub(crate) struct Staged {
    pub(crate) code: Arc<PreparedPack>,
    pub(crate) report: StageReport,
}

/// A pack that is staged: compiled, proved and rehearsed, and published by nobody yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageReport {
    /// The number under which it can be activated or discarded.
    pub id: u64,
    /// Which pack.
    #[serde(flatten)]
    pub pack: PackId,
    /// Kernels that were admitted.
    pub kernels: Vec<String>,
    /// Kernels that this host cannot run, with the reasons.
    pub skipped: Vec<(String, Vec<String>)>,
    /// What the cache of machine code did for it.
    pub cache: CacheUse,
    /// Calls that its kernels computed in shapes that this host has seen, each held against the f64
    /// oracle.
    pub rehearsed: usize,
}

/// What became of a pack that was installed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstallReport {
    /// Its name.
    pub pack: String,
    /// Its version.
    pub version: String,
    /// `sha256:` and the hexadecimal hash of its manifest.
    pub digest: String,
    /// The generation that it opened.
    pub generation: u64,
    /// Kernels that were admitted.
    pub kernels: Vec<String>,
    /// Kernels that this host cannot run, with the reasons: made for another executor, mostly.
    pub skipped: Vec<(String, Vec<String>)>,
    /// The version that it replaced.
    pub replaced: Option<String>,
    /// What the cache of machine code did for it.
    pub cache: CacheUse,
    /// Calls that its kernels computed in shapes that this host has seen.
    pub rehearsed: usize,
}

/// What the cache of machine code did for a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CacheUse {
    /// Kernels that were compiled and admitted at an earlier time.
    pub hits: usize,
    /// Kernels that were compiled and admitted now.
    pub misses: usize,
    /// Why the configured cache is not used.
    pub unusable: Option<String>,
}

impl StageReport {
    pub(super) fn installed(self, generation: u64, replaced: Option<String>) -> InstallReport {
        let Self { pack, kernels, skipped, cache, rehearsed, .. } = self;
        let PackId { name, version, digest } = pack;
        let pack = name;
        InstallReport {
            pack,
            version,
            digest,
            generation,
            kernels,
            skipped,
            replaced,
            cache,
            rehearsed,
        }
    }
}

impl Generations {
    /// # Errors
    /// [`HostError::NotStaged`].
    pub(super) fn staged(&self, id: u64) -> Result<&Staged, HostError> {
        self.staged.iter().find(|s| s.report.id == id).ok_or(HostError::NotStaged { id })
    }

    /// # Errors
    /// [`HostError::StageFull`].
    fn has_room(&self, limit: usize) -> Result<(), HostError> {
        if self.staged.len() < limit { Ok(()) } else { Err(HostError::StageFull { limit }) }
    }
}

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
        self.install_with(pack, &self.shared.config.compiler)
    }

    /// Takes a pack in that is part of the program itself: as [`Host::install`], but compiled in
    /// this process whatever the configuration says.
    ///
    /// # Errors
    /// As for [`Host::install`].
    pub fn install_embedded(&self, pack: VerifiedPack) -> Result<InstallReport, HostError> {
        self.install_with(pack, &Compiler::InProcess)
    }

    fn install_with(
        &self,
        pack: VerifiedPack,
        compiler: &Compiler,
    ) -> Result<InstallReport, HostError> {
        let shared = &self.shared;
        shared.no_canary()?;
        lock(&shared.generations).admits(&PackId::of(&pack))?;
        let staged = shared.prepare(&pack, compiler, at_once())?;
        shared.activate_pack(&mut lock(&shared.generations), staged)
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
        let shared = &self.shared;
        let id = PackId::of(&pack);
        {
            let book = lock(&shared.generations);
            book.admits(&id)?;
            if let Some(staged) = book.staged.iter().find(|staged| *staged.code.id() == id) {
                return Ok(staged.report.clone());
            }
            book.has_room(shared.config.staged)?;
        }
        let threads = shared.config.staging_threads.max(1);
        let pace = Pace { threads, rest: REST };
        let prepare = || shared.prepare(&pack, &shared.config.compiler, pace);
        let mut staged = shared.backstage.run(threads, prepare)?;
        let mut book = lock(&shared.generations);
        book.admits(&id)?;
        book.has_room(shared.config.staged)?;
        book.last_staged += 1;
        staged.report.id = book.last_staged;
        let report = staged.report.clone();
        book.staged.push(staged);
        Ok(report)
    }

    /// The packs that are staged, oldest first.
    pub fn staged(&self) -> Vec<StageReport> {
        let book = lock(&self.shared.generations);
        book.staged.iter().map(|staged| staged.report.clone()).collect()
    }

    /// Lets go of a staged pack. `false` where none has that number.
    pub fn discard(&self, id: u64) -> bool {
        let mut book = lock(&self.shared.generations);
        let before = book.staged.len();
        book.staged.retain(|staged| staged.report.id != id);
        book.staged.len() < before
    }
}

#[cfg(feature = "supervisor")]
impl Host {
    /// Publishes these packs, newest first, and behind them those that are active now and have none of
    /// their names. What is not active is loaded; an active pack of the same name that is newer, or
    /// where there is nothing to load, stands in. Gives the packs that could not be brought back, with
    /// the reasons; barred ones are among them.
    pub(super) fn restore(
        &self,
        packs: &[PackId],
        load: impl Fn(&PackId) -> Result<Option<VerifiedPack>, String>,
    ) -> Vec<(PackId, String)> {
        let shared = &self.shared;
        let active = shared.active_packs();
        let mut left_out = Vec::new();
        let mut restored: Vec<Arc<PreparedPack>> = Vec::new();
        for id in packs {
            let admits =
                |id: &PackId| lock(&shared.generations).admits(id).map_err(|e| e.to_string());
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
                    let staged = shared.prepare(&pack, &shared.config.compiler, at_once());
                    staged.map(|staged| staged.code).map_err(|e| e.to_string())
                }),
            };
            match code {
                Ok(code) => restored.push(code),
                Err(reason) => left_out.push((id.clone(), reason)),
            }
        }
        for code in &active {
            if !restored.iter().any(|other| other.id().name == code.id().name) {
                restored.push(code.clone());
            }
        }
        if !restored.iter().map(|code| code.id()).eq(active.iter().map(|code| code.id())) {
            shared.publish(&mut lock(&shared.generations), restored, None);
        }
        left_out
    }
}

impl Shared {
    /// Gates, compiles, admits and rehearses a pack.
    pub(super) fn prepare(
        &self,
        pack: &VerifiedPack,
        compiler: &Compiler,
        pace: Pace,
    ) -> Result<Staged, HostError> {
        let manifest = pack.manifest();
        let id = PackId::of(pack);
        let refused = |refusals| HostError::Refused {
            pack: id.name.clone(),
            version: id.version.clone(),
            refusals,
        };
        let executor = self.executor()?;
        let (cache, unusable) = match &self.cache {
            None => (None, None),
            Some(Ok(cache)) => (Some(cache), None),
            Some(Err(why)) => (None, Some(why.clone())),
        };
        let memory = self.memory.of_pack();
        let gated = gate::pass(pack, &self.config, memory.share()).map_err(refused)?;
        let admission = Admission::new(&*executor, &self.config, compiler, cache, pace, memory);
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
            kernels: kernels.iter().map(|kernel| kernel.ledger().kernel.clone()).collect(),
            skipped: gated.skipped.iter().map(skips).collect(),
            cache: cache_use,
            rehearsed,
            pack: id.clone(),
        };
        let fallbacks = manifest.fallbacks.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let code = Arc::new(PreparedPack::new(id, kernels, gated.skipped, fallbacks));
        Ok(Staged { code, report })
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
                        let shapes = self.seen.of(kernel.gated().key()).shapes;
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

impl PackId {
    pub(crate) fn of(pack: &VerifiedPack) -> Self {
        let manifest = pack.manifest();
        Self {
            name: manifest.name.to_string(),
            version: manifest.version.to_string(),
            digest: pack.digest().to_string(),
        }
    }

    /// Whether its version comes after that of another.
    #[cfg(feature = "supervisor")]
    fn is_newer(&self, other: &Self) -> bool {
        let version = |pack: &Self| semver::Version::parse(&pack.version).ok();
        let versions = version(self).zip(version(other));
        versions.is_some_and(|(mine, theirs)| mine.cmp_precedence(&theirs).is_gt())
    }
}

/// On every core, without a rest.
fn at_once() -> Pace {
    Pace { threads: std::thread::available_parallelism().map_or(1, usize::from), rest: 0 }
}
