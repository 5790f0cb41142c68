//! The host: takes verified packs in, publishes them, hands out workers.

use crate::admit::{self, AdmittedKernel, Means};
use crate::config::Compiler;
use crate::error::{HostError, Incident, Refusal};
use crate::exec::cache::AotCache;
use crate::exec::{self, Executor};
use crate::gate::{self, GatedKernel, Skipped};
use crate::kernel::{Identity, Kernel};
use crate::race::Records;
use crate::registry::{PackRecord, RegistrySnapshot};
use crate::select::{Candidate, Explanation};
use crate::stats::{Ledger, OpStats};
use crate::{HostConfig, OpKey, Policy, Worker};
use arc_swap::ArcSwap;
use ruvllm_abi::Op;
use ruvllm_native::twin;
use ruvllm_signing::{VerifiedPack, escape_untrusted};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Under which selections (debug) and failed calls (warn) are logged.
const LOG: &str = "ruvllm::kernels";

/// Incidents that are kept until somebody takes them; older ones go first.
const INCIDENTS: usize = 256;

/// Ledgers of kernels that were swapped out, kept for their figures; the oldest go first.
const RETIRED_LEDGERS: usize = 512;

/// Runs kernel packs. Cloning shares the host.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

/// What workers need of their host.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) config: HostConfig,
    /// Counts kernels that are gone, for workers to notice.
    pub(crate) retired: Arc<AtomicU64>,
    executor: OnceLock<Result<Arc<dyn Executor>, String>>,
    /// `None` where the configuration wants none.
    cache: Option<Result<AotCache, String>>,
    snapshot: ArcSwap<RegistrySnapshot>,
    uids: AtomicUsize,
    ledgers: Mutex<Vec<Arc<Ledger>>>,
    incidents: Mutex<Incidents>,
}

#[derive(Default)]
struct Incidents {
    recent: VecDeque<Incident>,
    dropped: u64,
}

/// What became of a pack that was installed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct InstallReport {
    /// Its name.
    pub pack: String,
    /// Its version.
    pub version: String,
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
}

/// What the cache of machine code did for a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CacheUse {
    /// Kernels that were compiled and admitted at an earlier time.
    pub hits: usize,
    /// Kernels that were compiled and admitted now.
    pub misses: usize,
    /// Why the configured cache is not used.
    pub unusable: Option<String>,
}

/// One kernel of the newest generation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct KernelSummary {
    /// Its id; `native:` and the catalogue's id for a native twin.
    pub id: String,
    /// What it computes.
    pub op: OpKey,
    /// Its pack, or `native`.
    pub pack: String,
    /// Version of the pack.
    pub pack_version: String,
    /// What runs it: `wasmtime` or `native`.
    pub executor: &'static str,
    /// The generation that published it.
    pub generation: u64,
    /// Whether it is asked first.
    pub selected: bool,
    /// Whether it is out of service.
    pub quarantined: bool,
}

impl Host {
    /// A host without packs: native twins answer.
    ///
    /// # Errors
    /// None today; setting the sandbox up is left to the first pack, so that a host on native
    /// kernels runs where the sandbox does not.
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        static HOSTS: AtomicU64 = AtomicU64::new(1);
        let retired = Arc::new(AtomicU64::new(0));
        let uids = AtomicUsize::new(0);
        let version = config.runtime_version.to_string();
        let mut natives = Vec::new();
        for op in Op::ALL {
            for variant in op.contract().variants {
                if twin::supports(op, variant.inputs, variant.output) {
                    let identity = Identity {
                        uid: uids.fetch_add(1, Ordering::Relaxed),
                        pack: ("native".to_owned(), version.clone()),
                        retired: retired.clone(),
                    };
                    natives.push(Arc::new(Kernel::native(op, variant, identity)));
                }
            }
        }
        let ledgers = natives.iter().map(|kernel| kernel.ledger.clone()).collect();
        natives.iter().for_each(|k| k.ledger.generation.store(1, Ordering::Relaxed));
        let id = HOSTS.fetch_add(1, Ordering::Relaxed);
        let cache = config.cache_dir.as_deref().map(AotCache::open);
        let records = (config.policy == Policy::Fastest).then(|| {
            // Results are kept only where the directory was found to be this user's own.
            let directory = config.cache_dir.as_deref().filter(|_| matches!(cache, Some(Ok(_))));
            Arc::new(Records::open(directory, &config))
        });
        let first = RegistrySnapshot::first(id, config.policy.clone(), records, natives.into());
        let shared = Shared {
            id,
            config,
            retired,
            executor: OnceLock::new(),
            cache,
            snapshot: ArcSwap::from_pointee(first),
            uids,
            ledgers: Mutex::new(ledgers),
            incidents: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// How it is configured.
    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// Takes a pack in: gates it, compiles and admits its kernels, publishes a new generation in
    /// which it stands in place of any pack of its name.
    ///
    /// Takes as long as compiling does; calls go on undisturbed meanwhile.
    ///
    /// # Errors
    /// [`HostError::Refused`] with everything that speaks against it: nothing was published then,
    /// and unless all gates were passed, nothing compiled. [`HostError::Executor`] where the
    /// sandbox cannot be set up here.
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
        let manifest = pack.manifest();
        let refused = |refusals| HostError::Refused {
            pack: manifest.name.to_string(),
            version: manifest.version.to_string(),
            refusals,
        };
        let shared = &self.shared;
        let executor = shared.executor()?;
        let (cache, unusable) = match &shared.cache {
            None => (None, None),
            Some(Ok(cache)) => (Some(cache), None),
            Some(Err(why)) => (None, Some(why.clone())),
        };
        let means = Means { executor: &*executor, compiler, cache };
        let bytes = |id: &str| pack.kernel_bytes(id);
        let gated = gate::pass(manifest, bytes, &shared.config, &means).map_err(refused)?;
        let admitted = admit_all(gated.kernels, &pack, &means).map_err(refused)?;
        let hits = admitted.iter().filter(|(_, cached)| *cached).count();
        let cache_use = CacheUse { hits, misses: admitted.len() - hits, unusable };
        if let Some(cache) = cache
            && cache_use.misses > 0
        {
            cache.trim();
        }
        let identity = || Identity {
            uid: shared.uids.fetch_add(1, Ordering::Relaxed),
            pack: (manifest.name.to_string(), manifest.version.to_string()),
            retired: shared.retired.clone(),
        };
        let kernels: Vec<Arc<Kernel>> = admitted
            .into_iter()
            .map(|(kernel, _)| Arc::new(Kernel::sandboxed(kernel, identity())))
            .collect();
        let fallbacks = manifest.fallbacks.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let record = Arc::new(PackRecord {
            name: manifest.name.to_string(),
            version: manifest.version.to_string(),
            kernels,
            skipped: gated.skipped,
            fallbacks,
        });
        Ok(shared.publish(record, cache_use))
    }

    /// Takes a pack out again: the next generation goes without it. `false` where there is none.
    pub fn remove(&self, pack: &str) -> bool {
        let mut current = self.shared.snapshot.load_full();
        loop {
            if !current.packs().any(|(name, _)| name == pack) {
                return false;
            }
            let next = Arc::new(current.without(pack));
            let seen = self.shared.snapshot.compare_and_swap(&current, next.clone());
            if Arc::ptr_eq(&seen, &current) {
                log(&next);
                return true;
            }
            current = Arc::clone(&seen);
        }
    }

    /// The newest generation. Hold it for as long as a step takes, and it will not change.
    pub fn snapshot(&self) -> Arc<RegistrySnapshot> {
        self.shared.snapshot.load_full()
    }

    /// The number of the newest generation, without taking hold of it.
    pub fn generation(&self) -> u64 {
        self.shared.snapshot.load().generation()
    }

    /// A worker for one thread.
    ///
    /// # Errors
    /// None today; instances are made by the calls that need them.
    pub fn worker(&self) -> Result<Worker, HostError> {
        Ok(Worker::new(self.shared.clone()))
    }

    /// Why the newest generation answers an operation as it does.
    pub fn explain(&self, key: &OpKey) -> Explanation {
        self.snapshot().explain(key)
    }

    /// Every kernel of the newest generation.
    pub fn kernels(&self) -> Vec<KernelSummary> {
        let snapshot = self.snapshot();
        let selected: Vec<usize> = snapshot
            .slots()
            .iter()
            .filter_map(|slot| slot.choice.chain.iter().find(|k| !k.ledger.quarantined()))
            .map(|kernel| kernel.uid)
            .collect();
        snapshot
            .kernels()
            .map(|kernel| KernelSummary {
                id: kernel.id().to_owned(),
                op: kernel.key.clone(),
                pack: kernel.pack().to_owned(),
                pack_version: kernel.ledger.pack_version.clone(),
                executor: kernel.ledger.executor,
                generation: kernel.generation(),
                selected: selected.contains(&kernel.uid),
                quarantined: kernel.ledger.quarantined(),
            })
            .collect()
    }

    /// Figures of every kernel since it was published, those swapped out included.
    pub fn stats(&self) -> Vec<OpStats> {
        let snapshot = self.snapshot();
        let ledgers = lock(&self.shared.ledgers).clone();
        ledgers
            .iter()
            .map(|ledger| {
                let current = snapshot.kernels().any(|k| Arc::ptr_eq(&k.ledger, ledger));
                ledger.report(current)
            })
            .collect()
    }

    /// Failures since the last time they were taken, oldest first, and how many more there were
    /// than are kept.
    pub fn take_incidents(&self) -> (Vec<Incident>, u64) {
        let taken = std::mem::take(&mut *lock(&self.shared.incidents));
        (taken.recent.into(), taken.dropped)
    }
}

impl Shared {
    fn executor(&self) -> Result<Arc<dyn Executor>, HostError> {
        let made = self.executor.get_or_init(|| exec::executor(&self.config));
        made.clone().map_err(|detail| HostError::Executor { detail })
    }

    /// Publishes by compare-and-swap: of two packs installed at once, both are in the end.
    fn publish(&self, record: Arc<PackRecord>, cache: CacheUse) -> InstallReport {
        let mut current = self.snapshot.load_full();
        let (generation, replaced) = loop {
            let next = Arc::new(current.with(record.clone()));
            let generation = next.generation();
            // Nobody sees these kernels before the swap, so the number may be put right again.
            for kernel in &record.kernels {
                kernel.ledger.generation.store(generation, Ordering::Relaxed);
            }
            let seen = self.snapshot.compare_and_swap(&current, next.clone());
            if Arc::ptr_eq(&seen, &current) {
                log(&next);
                let old = current.packs().find(|(name, _)| *name == record.name);
                break (generation, old.map(|(_, version)| version.to_owned()));
            }
            current = Arc::clone(&seen);
        };
        let mut ledgers = lock(&self.ledgers);
        ledgers.extend(record.kernels.iter().map(|kernel| kernel.ledger.clone()));
        drop(current);
        trim(&mut ledgers);
        let skips = |s: &Skipped| (s.kernel.clone(), s.reasons.clone());
        InstallReport {
            pack: record.name.clone(),
            version: record.version.clone(),
            generation,
            kernels: record.kernels.iter().map(|kernel| kernel.id().to_owned()).collect(),
            skipped: record.skipped.iter().map(skips).collect(),
            replaced,
            cache,
        }
    }

    pub(crate) fn report(&self, incident: Incident) {
        tracing::warn!(target: LOG, "{}", escape_untrusted(&incident.to_string()));
        let mut incidents = lock(&self.incidents);
        if incidents.recent.len() == INCIDENTS {
            incidents.recent.pop_front();
            incidents.dropped += 1;
        }
        incidents.recent.push_back(incident);
    }
}

/// Writes down who answers each operation of a new generation, and why.
fn log(snapshot: &RegistrySnapshot) {
    if !tracing::enabled!(target: LOG, tracing::Level::DEBUG) {
        return;
    }
    for op in snapshot.ops() {
        let Explanation { generation, candidates, .. } = snapshot.explain(op);
        for candidate in candidates {
            let Candidate { kernel, pack, verdict, reasons, .. } = candidate;
            tracing::debug!(
                target: LOG,
                generation,
                op = %escape_untrusted(&op.to_string()),
                kernel = %escape_untrusted(&kernel),
                pack = %escape_untrusted(&pack),
                verdict = %verdict,
                reasons = %escape_untrusted(&reasons.join("; ")),
            );
        }
    }
}

/// Compiles and admits on all cores: nearly all the time of an installation goes here.
fn admit_all(
    gated: Vec<GatedKernel>,
    pack: &VerifiedPack,
    means: &Means<'_>,
) -> Result<Vec<(AdmittedKernel, bool)>, Vec<Refusal>> {
    let jobs: Vec<Mutex<Option<GatedKernel>>> =
        gated.into_iter().map(|kernel| Mutex::new(Some(kernel))).collect();
    let done: Vec<OnceLock<Result<(AdmittedKernel, bool), Refusal>>> =
        jobs.iter().map(|_| OnceLock::new()).collect();
    // The largest first: it would keep one core busy when the others are done.
    let size = |id: &str| pack.kernel_bytes(id).map_or(0, <[u8]>::len);
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(lock(&jobs[i]).as_ref().map_or(0, |k| size(&k.id))));
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Taken before the work begins, so that no lock is held meanwhile.
            let taken = lock(&jobs[i]).take();
            if let Some(kernel) = taken {
                let wasm = pack.kernel_bytes(&kernel.id).unwrap_or(&[]);
                let _ = done[i].set(admit::admit(kernel, wasm, means));
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    let (mut admitted, mut refusals) = (Vec::new(), Vec::new());
    for result in done.into_iter().filter_map(OnceLock::into_inner) {
        match result {
            Ok(kernel) => admitted.push(kernel),
            Err(refusal) => refusals.push(refusal),
        }
    }
    if refusals.is_empty() { Ok(admitted) } else { Err(refusals) }
}

/// Forgets the oldest ledgers that nobody but the list holds.
fn trim(ledgers: &mut Vec<Arc<Ledger>>) {
    let retired = ledgers.iter().filter(|ledger| Arc::strong_count(ledger) == 1).count();
    let mut surplus = retired.saturating_sub(RETIRED_LEDGERS);
    ledgers.retain(|ledger| {
        let goes = surplus > 0 && Arc::strong_count(ledger) == 1;
        surplus -= usize::from(goes);
        !goes
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
