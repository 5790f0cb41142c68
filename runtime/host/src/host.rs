//! The host: takes verified packs in, publishes them, hands out workers.

use crate::error::{Failure, HostError, Incident};
use crate::exec::cache::AotCache;
use crate::exec::{self, Executor};
use crate::kernel::{PreparedKernel, PublishedKernel, Uids};
use crate::memory::{HostMemory, KernelBudget, KernelMemory};
use crate::race::Records;
use crate::reaper::Reaper;
use crate::registry::RegistrySnapshot;
use crate::select::{Candidate, Explanation};
use crate::stats::{Ledger, OpStats};
use crate::swap::backstage::Backstage;
use crate::swap::canary::Published;
use crate::swap::generations::Generations;
use crate::swap::seen::AllSeen;
use crate::{HostConfig, OpKey, Policy, Worker};
use arc_swap::ArcSwap;
use ruvllm_abi::Op;
use ruvllm_native::twin;
use ruvllm_signing::escape_untrusted;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
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
    pub(crate) shared: Arc<Shared>,
}

/// What workers need of their host.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) config: HostConfig,
    pub(crate) uids: Arc<Uids>,
    /// What instances take.
    pub(crate) memory: Arc<HostMemory>,
    /// Calls that workers have seen.
    pub(crate) seen: AllSeen,
    /// Drops what they let go of.
    pub(crate) reaper: Reaper,
    /// Prepares packs that are staged.
    pub(crate) backstage: Backstage,
    executor: OnceLock<Result<Arc<dyn Executor>, String>>,
    /// `None` where the configuration wants none.
    pub(crate) cache: Option<Result<AotCache, String>>,
    pub(crate) published: ArcSwap<Published>,
    /// Held by whoever publishes, never by a reader.
    pub(crate) generations: Mutex<Generations>,
    ledgers: Mutex<Vec<Arc<Ledger>>>,
    incidents: Arc<Mutex<Incidents>>,
}

/// Who is told of failures of one kernel.
#[derive(Clone)]
pub(crate) struct Witness {
    ledger: Arc<Ledger>,
    incidents: Arc<Mutex<Incidents>>,
    uids: Arc<Uids>,
    quarantine_after: u32,
}

impl Witness {
    /// Counts a failure and reports it.
    pub(crate) fn tell(&self, failure: &Failure) {
        book(&self.incidents, &self.uids, &self.ledger, failure, self.quarantine_after);
    }

    /// Whether it was told before that the kernel does not tidy up.
    pub(crate) fn knows_better(&self) -> bool {
        self.ledger.untidy()
    }
}

#[derive(Default)]
struct Incidents {
    recent: VecDeque<Incident>,
    dropped: u64,
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
    /// What runs it: `wasmtime` or `native`.
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
        static HOSTS: AtomicU64 = AtomicU64::new(1);
        let uids = Arc::new(Uids::default());
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
        let ledgers = natives.iter().map(|kernel| kernel.ledger().clone()).collect();
        for kernel in &natives {
            kernel.ledger().published_in(1);
        }
        let id = HOSTS.fetch_add(1, Ordering::Relaxed);
        let cache = config.cache_dir.as_deref().map(AotCache::open);
        let records = (config.policy == Policy::Fastest).then(|| {
            // Results are kept only where the directory was found to be this user's own.
            let directory = config.cache_dir.as_deref().filter(|_| matches!(cache, Some(Ok(_))));
            Arc::new(Records::open(directory, &config))
        });
        let (policy, every) = (config.policy.clone(), config.cross_check_every);
        let first = RegistrySnapshot::first(id, policy, records, natives.into(), every);
        let first = Arc::new(first);
        let reaper = Reaper::default();
        let shared = Shared {
            id,
            memory: HostMemory::new(&config, reaper.remains()),
            config,
            uids,
            seen: AllSeen::default(),
            reaper,
            backstage: Backstage::default(),
            executor: OnceLock::new(),
            cache,
            generations: Mutex::new(Generations::new(&first)),
            published: ArcSwap::from_pointee(Published { active: first, canary: None }),
            ledgers: Mutex::new(ledgers),
            incidents: Arc::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// How it is configured.
    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// The active generation. Hold it for as long as a step takes, and it will not change.
    pub fn snapshot(&self) -> Arc<RegistrySnapshot> {
        self.shared.published.load().active.clone()
    }

    /// The number of the active generation, without taking hold of it.
    pub fn generation(&self) -> u64 {
        self.shared.published.load().active.generation()
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
            .filter_map(|slot| slot.choice.chain.iter().find(|k| !k.ledger().quarantined()))
            .map(|kernel| kernel.uid())
            .collect();
        snapshot
            .kernels()
            .map(|kernel| KernelSummary {
                id: kernel.id().to_owned(),
                op: kernel.key().clone(),
                pack: kernel.pack().to_owned(),
                pack_version: kernel.ledger().pack_version.clone(),
                executor: kernel.ledger().executor.to_owned(),
                generation: kernel.generation(),
                selected: selected.contains(&kernel.uid()),
                quarantined: kernel.ledger().quarantined(),
            })
            .collect()
    }

    /// Figures of every kernel since it was published, those swapped out included.
    pub fn stats(&self) -> Vec<OpStats> {
        let published = self.shared.published.load();
        let canary = published.canary.as_ref().map(|canary| &canary.snapshot);
        let serving = || [&published.active].into_iter().chain(canary);
        let ledgers = lock(&self.shared.ledgers).clone();
        ledgers
            .iter()
            .map(|ledger| {
                let current = serving().any(|snapshot| snapshot.counts_in(ledger));
                ledger.report(current)
            })
            .collect()
    }

    /// What the instances of kernels take of this process's memory.
    pub fn kernel_memory(&self) -> KernelMemory {
        self.shared.memory.report()
    }

    /// Has what the instances of kernels take come out of a budget as well, and be `limit` bytes together at
    /// most, as long as the budget lives; instances that are there stay.
    /// `false` where the budget has no room for those: nothing has changed then.
    pub fn join_budget(&self, budget: &Arc<dyn KernelBudget>, limit: usize) -> bool {
        self.shared.memory.join(budget, limit)
    }

    /// Failures since the last time they were taken, oldest first, and how many more there were
    /// than are kept.
    pub fn take_incidents(&self) -> (Vec<Incident>, u64) {
        let taken = std::mem::take(&mut *lock(&self.shared.incidents));
        (taken.recent.into(), taken.dropped)
    }
}

impl Shared {
    pub(crate) fn executor(&self) -> Result<Arc<dyn Executor>, HostError> {
        let made = self.executor.get_or_init(|| exec::executor(&self.config));
        made.clone().map_err(|detail| HostError::Executor { detail })
    }

    /// Keeps the figures of kernels that are published for the first time, in a generation.
    pub(crate) fn keep_ledgers<'a>(
        &self,
        generation: u64,
        kernels: impl Iterator<Item = &'a PreparedKernel>,
    ) {
        let mut ledgers = lock(&self.ledgers);
        let first = kernels.filter(|kernel| kernel.ledger().published_in(generation));
        ledgers.extend(first.map(|kernel| kernel.ledger().clone()));
        trim(&mut ledgers);
    }

    /// Who is told of failures of a kernel where no worker waits for it.
    pub(crate) fn witness(&self, ledger: &Arc<Ledger>) -> Witness {
        let (ledger, incidents) = (ledger.clone(), self.incidents.clone());
        let (uids, quarantine_after) = (self.uids.clone(), self.config.quarantine_after);
        Witness { ledger, incidents, uids, quarantine_after }
    }

    /// Counts a failure of a kernel and reports it.
    pub(crate) fn report(&self, ledger: &Ledger, failure: &Failure) {
        book(&self.incidents, &self.uids, ledger, failure, self.config.quarantine_after);
    }
}

fn book(
    incidents: &Mutex<Incidents>,
    uids: &Uids,
    ledger: &Ledger,
    failure: &Failure,
    quarantine_after: u32,
) {
    let quarantined = ledger.failed(failure, quarantine_after);
    if quarantined {
        // Its instances are of no more use to any worker.
        uids.retire();
    }
    let incident = Incident {
        op: ledger.key.clone(),
        kernel: ledger.kernel.clone(),
        generation: ledger.generation.load(Ordering::Relaxed),
        failure: failure.clone(),
        quarantined,
    };
    tracing::warn!(target: LOG, "{}", escape_untrusted(&incident.to_string()));
    let mut incidents = lock(incidents);
    if incidents.recent.len() == INCIDENTS {
        incidents.recent.pop_front();
        incidents.dropped += 1;
    }
    incidents.recent.push_back(incident);
}

/// Writes down who answers each operation of a new generation, and why.
pub(crate) fn log(snapshot: &RegistrySnapshot) {
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
