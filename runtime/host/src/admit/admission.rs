//! What the kernels of one pack are admitted with.

use super::budget::Budget;
use crate::HostConfig;
use crate::config::Compiler;
use crate::deadline::Deadline;
use crate::error::Refusal;
use crate::exec::cache::AotCache;
use crate::exec::{CompiledModule, Executor, Executors, KernelSpec};
use crate::gate::GatedKernel;
use crate::graph::PackGraphs;
use crate::instance::InstanceTemplate;
use crate::memory::PackMemory;
use crate::random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// What the kernels of one pack are admitted with.
pub(crate) struct Admission<'a> {
    executors: &'a Executors,
    pub(super) config: &'a HostConfig,
    pub(super) compiler: &'a Compiler,
    pub(super) cache: Option<&'a AotCache>,
    pub(super) pace: Pace,
    pub(super) budget: Budget,
    memory: Arc<PackMemory>,
    graphs: PackGraphs,
}

impl<'a> Admission<'a> {
    /// Instances of the pack count in `memory`; those of its kernels that compute graphs, compute `graphs`.
    pub(crate) fn new(
        executors: &'a Executors,
        config: &'a HostConfig,
        compiler: &'a Compiler,
        cache: Option<&'a AotCache>,
        pace: Pace,
        memory: Arc<PackMemory>,
        graphs: PackGraphs,
    ) -> Self {
        let budget = Budget::new(config.admission_time);
        Self { executors, config, compiler, cache, pace, budget, memory, graphs }
    }

    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// Bytes that instances of the pack may take together.
    pub(crate) fn memory(&self) -> usize {
        self.memory.share()
    }

    pub(super) fn seed(&self) -> u64 {
        self.config.admission_seed.unwrap_or_else(random::seed)
    }

    /// What its instances may use.
    pub(super) fn spec(&self, gated: &GatedKernel<'_>) -> KernelSpec {
        let mut spec = gated.spec().clone();
        if gated.computes_graphs() {
            spec.graphs = self.graphs.clone();
        }
        spec
    }

    /// What runs a kernel.
    ///
    /// # Errors
    /// It is gone, which cannot be: the gate took it from what is there.
    pub(super) fn executor(&self, gated: &GatedKernel<'_>) -> Result<&'a dyn Executor, Refusal> {
        let kind = gated.decision().executor;
        self.executors.get(kind).ok_or_else(|| {
            Refusal::new(gated.id(), "executor_unavailable", format!("{kind} is not there"))
        })
    }

    pub(super) fn deadline(&self, gated: &GatedKernel<'_>, executor: &dyn Executor) -> Deadline {
        let spec = gated.spec();
        let deadline = Deadline::new(gated.key(), spec.ticks, spec.memory_pages, self.config.tick);
        deadline.on_executor(executor.slowness())
    }

    pub(super) fn template(
        &self,
        gated: &GatedKernel<'_>,
        module: Arc<dyn CompiledModule>,
        own_pages: Vec<u16>,
    ) -> Arc<InstanceTemplate> {
        Arc::new(InstanceTemplate {
            module,
            memory: self.memory.clone(),
            defaults: gated.defaults().to_vec(),
            own_pages,
            scratch: AtomicBool::new(false),
            heap_base: AtomicU32::new(0),
        })
    }
}

/// How hard to work on a pack.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// How many threads may compile and prove at once.
    pub(crate) threads: usize,
    /// How many times as long as a kernel took to compile and prove a thread rests before the next.
    pub(crate) rest: u32,
}
