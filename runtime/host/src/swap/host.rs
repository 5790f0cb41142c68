//! The host: takes verified packs in, publishes them, hands out workers.

use super::book::Generations;
use super::published::Published;
use super::staging_pool::StagingPool;
use crate::call::context::WorkerContext;
use crate::call::team_worker::TeamWorker;
use crate::code::PreparedKernel;
use crate::error::{HostError, Incident};
use crate::exec::Executors;
use crate::exec::cache::AotCache;
use crate::memory::{HostMemory, KernelBudget, KernelMemory};
use crate::registry::figures::ChoiceChange;
use crate::registry::kernel::{PublishedKernel, Uids};
use crate::registry::learn::Learner;
use crate::registry::race::Records;
use crate::registry::select::{Candidate, Explanation};
use crate::registry::{Fastest, RegistrySnapshot};
use crate::stats::incidents::LOG;
use crate::stats::{KernelStats, OpStats};
use crate::team::ComparedProvider;
use crate::threads::lock;
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
use crate::threads::lower_priority;
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
use crate::ticker::Ticker;
use crate::{HostConfig, OpKey, Policy, Worker, team};
use arc_swap::ArcSwap;
use ruvllm_abi::Op;
use ruvllm_native::twin;
use ruvllm_signing::escape_untrusted;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// Figures of kernels that were swapped out, kept for their figures; the oldest go first.
const RETIRED_STATS: usize = 512;

/// How often it is looked at what live calls tell of candidates.
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
const REVIEW_EVERY: Duration = Duration::from_secs(1);

/// Runs kernel packs. Cloning shares the host.
#[derive(Clone)]
pub struct Host {
    pub(crate) state: Arc<HostState>,
}

/// What all clones of a host share.
pub(crate) struct HostState {
    pub(crate) workers: Arc<WorkerContext>,
    pub(super) uids: Arc<Uids>,
    /// What instances take.
    pub(super) memory: Arc<HostMemory>,
    /// Prepares packs that are staged.
    pub(super) staging: StagingPool,
    executors: OnceLock<Result<Executors, String>>,
    /// `None` where the configuration wants none.
    pub(super) cache: Option<Result<AotCache, String>>,
    pub(super) published: ArcSwap<Published>,
    /// Locked for moments only, and never by a call.
    pub(super) generations: Mutex<Generations>,
    /// Held by whoever changes what is served, also while weights are prepared for it.
    pub(super) turn: Mutex<()>,
    all_stats: Mutex<Vec<Arc<KernelStats>>>,
    preparers: Mutex<Vec<Weak<dyn Preparer>>>,
    /// Where the fastest candidates are looked for. It belongs to snapshots too, and to no thread of its own.
    pub(crate) learner: Option<Arc<Learner>>,
    /// Has the learner look at its figures.
    #[cfg(any(feature = "wasmtime", feature = "wamr"))]
    reviews: Ticker,
}

/// Who makes ready what steps need of a generation, the weights of a model above all.
pub trait Preparer: Send + Sync {
    /// Makes ready for a generation, on the thread of whoever activates it, while steps run on.
    ///
    /// # Errors
    /// [`HostError::NotPrepared`]: who activates a pack is told, and nothing is published.
    fn prepare(&self, next: &Arc<RegistrySnapshot>) -> Result<(), HostError>;

    /// Drops what was made ready for generations that get no steps ([`Host::serves`]). Called whenever it has changed
    /// which do.
    fn let_go(&self);

    /// How long two providers of one team operation take for the same calls, computed in turns: the least times of both
    /// for each call. Empty where there are no such calls, or one of them fails.
    fn compare(&self, two: [ComparedProvider<'_>; 2]) -> Vec<[Duration; 2]>;
}

/// One kernel of the newest generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// What runs it: `wasmtime`, `wamr` or `native`.
    pub executor: String,
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
        let providers = team::natives(&config);
        Self::with_providers(config, providers)
    }

    /// As [`Host::new`], with these as the host's own providers of team operations.
    pub(crate) fn with_providers(
        config: HostConfig,
        providers: Vec<team::Native>,
    ) -> Result<Self, HostError> {
        static HOSTS: AtomicU64 = AtomicU64::new(1);
        let retired: Arc<AtomicU64> = Arc::default();
        let uids = Arc::new(Uids::new(retired.clone()));
        let version = config.runtime_version.to_string();
        let mut natives = Vec::new();
        for op in Op::ALL {
            for variant in op.contract().variants {
                if twin::supports(op, variant.inputs, variant.output) {
                    let code = PreparedKernel::native(op, variant, &version);
                    natives.push(Arc::new(PublishedKernel::new(code, &uids)));
                }
            }
        }
        for native in providers {
            let code = PreparedKernel::native_provider(native, &version);
            natives.push(Arc::new(PublishedKernel::new(code, &uids)));
        }
        let all_stats = natives.iter().map(|kernel| kernel.stats().clone()).collect();
        for kernel in &natives {
            kernel.stats().published_in(1);
        }
        let id = HOSTS.fetch_add(1, Ordering::Relaxed);
        let cache = config.cache_dir.as_deref().map(AotCache::open);
        // Whose answer is taken may depend on the clock only where answers may differ.
        let looks = config.policy == Policy::Fastest && !config.deterministic;
        let fastest = looks.then(|| {
            // Results are kept only where the directory was found to be this user's own.
            let cache = cache.as_ref().and_then(|cache| cache.as_ref().ok());
            let races =
                Records::open(config.cache_dir.as_deref().filter(|_| cache.is_some()), &config);
            let learner = Arc::new(Learner::open(cache.cloned(), &config));
            Arc::new(Fastest { races, learner })
        });
        let learner = fastest.as_ref().map(|fastest| fastest.learner.clone());
        let (policy, every) = (config.policy.clone(), config.cross_check_every);
        let first = RegistrySnapshot::first(id, policy, fastest, natives.into(), every);
        let first = Arc::new(first);
        let workers = WorkerContext::new(id, config, retired);
        let state = HostState {
            memory: HostMemory::new(&workers.config, workers.reaper.drop_queue()),
            workers: Arc::new(workers),
            uids,
            staging: StagingPool::default(),
            executors: OnceLock::new(),
            cache,
            generations: Mutex::new(Generations::new(&first)),
            turn: Mutex::default(),
            published: ArcSwap::from_pointee(Published { active: first, canary: None }),
            all_stats: Mutex::new(all_stats),
            preparers: Mutex::default(),
            learner,
            #[cfg(any(feature = "wasmtime", feature = "wamr"))]
            reviews: Ticker::new("ruvllm-learner", REVIEW_EVERY).impatient(),
        };
        Ok(Self { state: Arc::new(state) })
    }

    /// How it is configured.
    pub fn config(&self) -> &HostConfig {
        &self.state.workers.config
    }

    /// The active generation. Hold it for as long as a step takes, and it will not change.
    pub fn snapshot(&self) -> Arc<RegistrySnapshot> {
        self.state.published.load().active.clone()
    }

    /// The number of the active generation, without taking hold of it.
    pub fn generation(&self) -> u64 {
        self.state.published.load().active.generation()
    }

    /// A worker for one thread.
    ///
    /// # Errors
    /// None today; instances are made by the calls that need them.
    pub fn worker(&self) -> Result<Worker, HostError> {
        Ok(Worker::new(self.state.workers.clone()))
    }

    /// A caller of team operations, for the thread that steps run on.
    pub fn team_worker(&self) -> TeamWorker {
        TeamWorker::new(self.state.workers.clone())
    }

    /// Has every generation shown to `preparer` before any step runs on it, for as long as that lives.
    pub fn prepare_with(&self, preparer: &Arc<dyn Preparer>) {
        let mut preparers = lock(&self.state.preparers);
        preparers.retain(|other| other.strong_count() > 0);
        preparers.push(Arc::downgrade(preparer));
    }

    /// Why the newest generation answers an operation as it does.
    pub fn explain(&self, key: &OpKey) -> Explanation {
        self.snapshot().explain(key)
    }

    /// As [`Host::explain`], for every operation of this name (`rmsnorm`, or with its types
    /// `rmsnorm(f32,f32)->f32`), or for all; empty where there is none of that name.
    pub fn explain_named(&self, op: Option<&str>) -> Vec<Explanation> {
        let mut keys: Vec<OpKey> = self.kernels().into_iter().map(|kernel| kernel.op).collect();
        keys.sort();
        keys.dedup();
        keys.retain(|key| op.is_none_or(|op| key.op == op || key.to_string() == op));
        let snapshot = self.snapshot();
        keys.iter().map(|key| snapshot.explain(key)).collect()
    }

    /// Every kernel of the newest generation.
    pub fn kernels(&self) -> Vec<KernelSummary> {
        let snapshot = self.snapshot();
        let selected: Vec<usize> = snapshot
            .slots()
            .iter()
            .flat_map(|slot| slot.asked_first().into_iter().map(|at| slot.choice.chain[at].uid()))
            .collect();
        snapshot
            .kernels()
            .map(|kernel| KernelSummary {
                id: kernel.id().to_owned(),
                op: kernel.key().clone(),
                pack: kernel.pack().to_owned(),
                pack_version: kernel.stats().pack_version.clone(),
                executor: kernel.stats().executor.to_owned(),
                generation: kernel.generation(),
                selected: selected.contains(&kernel.uid()),
                quarantined: kernel.stats().quarantined(),
            })
            .collect()
    }

    /// Figures of every kernel since it was published, those swapped out included.
    pub fn stats(&self) -> Vec<OpStats> {
        let published = self.state.published.load();
        let canary = published.canary.as_ref().map(|canary| &canary.snapshot);
        let serving = || [&published.active].into_iter().chain(canary);
        let all_stats = lock(&self.state.all_stats).clone();
        all_stats
            .iter()
            .map(|stats| {
                let current = serving().any(|snapshot| snapshot.counts_in(stats));
                stats.report(current)
            })
            .collect()
    }

    /// What the instances of kernels take of this process's memory.
    pub fn kernel_memory(&self) -> KernelMemory {
        self.state.memory.report()
    }

    /// Has what the instances of kernels take come out of a budget as well, and be `limit` bytes together at
    /// most, as long as the budget lives; instances that are there stay.
    /// `false` where the budget has no room for those: nothing has changed then.
    pub fn join_budget(&self, budget: &Arc<dyn KernelBudget>, limit: usize) -> bool {
        self.state.memory.join(budget, limit)
    }

    /// Changes of the candidate that is asked first for calls of a class of sizes, where the policy is
    /// [`Policy::Fastest`]: those after the first `after`, oldest first, as far as they are kept, and how many there
    /// were.
    pub fn choice_changes(&self, after: u64) -> (Vec<ChoiceChange>, u64) {
        self.state.learner.as_ref().map(|learner| learner.changes(after)).unwrap_or_default()
    }

    /// Failures since the last time they were taken, oldest first, and how many more there were
    /// than are kept.
    pub fn take_incidents(&self) -> (Vec<Incident>, u64) {
        self.state.workers.incidents.take()
    }
}

impl HostState {
    pub(super) fn config(&self) -> &HostConfig {
        &self.workers.config
    }

    /// Shows a generation to whoever makes ready for it, and gives the first objection. All are shown it.
    pub(super) fn make_ready(&self, next: &Arc<RegistrySnapshot>) -> Result<(), HostError> {
        let preparers = self.preparers();
        let prepared: Vec<_> = preparers.iter().map(|preparer| preparer.prepare(next)).collect();
        prepared.into_iter().collect()
    }

    /// Has what was made ready for generations that get no steps dropped.
    pub(super) fn let_go_of_others(&self) {
        self.preparers().iter().for_each(|preparer| preparer.let_go());
    }

    /// Whoever makes ready for generations.
    pub(crate) fn preparers(&self) -> Vec<Arc<dyn Preparer>> {
        lock(&self.preparers).iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn executors(&self) -> Result<&Executors, HostError> {
        let made = self.executors.get_or_init(|| Executors::new(self.config()));
        made.as_ref().map_err(|detail| HostError::Executor { detail: detail.clone() })
    }

    /// Has what live calls tell of candidates looked at from now on, where the fastest are wanted.
    #[cfg(any(feature = "wasmtime", feature = "wamr"))]
    pub(super) fn start_learning(&self) {
        let Some(learner) = &self.learner else { return };
        let learner = Arc::downgrade(learner);
        let mut stands_back = false;
        let started = self.reviews.start(move || {
            if !std::mem::replace(&mut stands_back, true) {
                lower_priority();
            }
            learner.upgrade().inspect(|learner| learner.tick());
        });
        if let Err(error) = started {
            tracing::warn!(target: LOG, "nothing is learnt of kernels, for want of a thread: {error}");
        }
    }

    /// Keeps the figures of kernels that are published for the first time, in a generation.
    pub(super) fn keep_stats<'a>(
        &self,
        generation: u64,
        kernels: impl Iterator<Item = &'a PreparedKernel>,
    ) {
        let mut all_stats = lock(&self.all_stats);
        let first = kernels.filter(|kernel| kernel.stats().published_in(generation));
        all_stats.extend(first.map(|kernel| kernel.stats().clone()));
        trim(&mut all_stats);
    }
}

/// Writes down who answers each operation of a new generation, and why.
pub(super) fn log(snapshot: &RegistrySnapshot) {
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

/// Forgets the oldest figures that nobody but the list holds.
fn trim(all_stats: &mut Vec<Arc<KernelStats>>) {
    let retired = all_stats.iter().filter(|stats| Arc::strong_count(stats) == 1).count();
    let mut surplus = retired.saturating_sub(RETIRED_STATS);
    all_stats.retain(|stats| {
        let goes = surplus > 0 && Arc::strong_count(stats) == 1;
        surplus -= usize::from(goes);
        !goes
    });
}
