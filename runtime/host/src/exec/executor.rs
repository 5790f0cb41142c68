//! What an executor does for the host: three traits, and the types that they speak of.

use crate::config::Compiler;
use crate::deadline::Deadline;
use crate::graph::PackGraphs;
use crate::trap::Trap;
use ruvllm_manifest::{ExecutorGate, ExecutorKind};
use std::ops::Range;
use std::sync::Arc;

/// Machine code of a module.
///
/// Loading it means running it without another look, so it is made only below this module: of what
/// a compiler that this host ran has returned, or of a cache entry that this host authenticated.
pub(crate) struct Artifact(pub(super) Vec<u8>);

/// Why a module was not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompileError {
    /// `kernel_compile`, `compile_limit`, `compile_timeout`, `compile_stopped` or `compiler_unavailable`.
    pub(crate) code: &'static str,
    pub(crate) detail: String,
}

/// What an instance of a kernel may use, and what the host calls in it.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpec {
    /// The export that computes.
    pub(crate) entry_point: String,
    /// Whether it has `kernel_backward`.
    pub(crate) backward: bool,
    /// How many threads it may be entered by at once.
    pub(crate) threads: u32,
    /// Pages of 64 KiB that its memory may reach.
    pub(crate) memory_pages: u32,
    /// Elements that its table may reach.
    pub(crate) table_elements: u32,
    /// Ticks that its pack asks for a call.
    pub(crate) ticks: u64,
    /// The graphs that it may compute.
    pub(crate) graphs: PackGraphs,
}

/// A page of linear memory, in bytes.
pub(crate) const WASM_PAGE: usize = 64 << 10;

/// Own pages that a kernel may have: each is copied at every change of scope.
pub(crate) const OWN_PAGES: usize = 16;

/// The memory of an instance, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    /// Linear memory that a new one has.
    pub(crate) initial: usize,
    /// Linear memory that it can have.
    pub(crate) limit: usize,
    /// Its table, and tensors of graphs that it may hold beside its memory.
    pub(crate) table: usize,
}

/// An executor, as a host has it or not.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Which one.
    pub executor: ExecutorKind,
    /// Its version and features, or why it is not there, as the end of a sentence that begins with its name.
    pub gate: Result<ExecutorGate, String>,
}

/// Turns modules into something that can be instantiated.
pub(crate) trait Executor: Send + Sync {
    /// What it offers to packs.
    fn gate(&self) -> &ExecutorGate;

    /// How many times as long as machine code its kernels may take.
    fn slowness(&self) -> f64;

    /// Stands for all that machine code depends on beside its module: engine, settings, processor.
    fn fingerprint(&self) -> &[u8; 32];

    /// Compiles a module that passed the gate; in this process `alone` on the calling thread, or
    /// with the help of others.
    ///
    /// # Errors
    /// What the engine says, or which limit of a compiler process was met.
    fn compile(
        &self,
        wasm: &[u8],
        compiler: &Compiler,
        alone: bool,
    ) -> Result<Artifact, CompileError>;

    /// Loads what this executor, or an earlier one of the same fingerprint, has compiled of a module, in
    /// which traps are placed.
    ///
    /// # Errors
    /// What the engine says.
    fn load(
        &self,
        artifact: &Artifact,
        module: &[u8],
        spec: KernelSpec,
        deadline: Deadline,
    ) -> Result<Arc<dyn CompiledModule>, String>;
}

/// A module that can be instantiated.
pub(crate) trait CompiledModule: Send + Sync {
    /// What its calls may take.
    fn deadline(&self) -> &Deadline;

    /// What its instances take of memory.
    fn footprint(&self) -> Footprint;

    /// Makes an instance, its deadline running from before the first instruction.
    ///
    /// # Errors
    /// What the engine says.
    fn instantiate(&self) -> Result<Box<dyn EngineInstance>, Trap>;
}

/// An instance of a kernel, with a memory of its own.
pub(crate) trait EngineInstance: Send {
    /// The first byte that belongs to the host.
    fn heap_base(&self) -> u32;

    /// Its linear memory. Whoever writes to a page that is protected ends the process.
    fn memory(&mut self) -> &mut [u8];

    /// Makes whole pages of its memory, in bytes, read-only, or writable again. `false` where this
    /// system or this engine cannot: then the instance is used in one scope only, and its globals are never
    /// set back.
    fn protect(&mut self, pages: Range<usize>, writable: bool) -> bool;

    /// Keeps the values of its mutable globals.
    fn keep_globals(&mut self);

    /// Sets its mutable globals back to what was kept, or else to what they were at first.
    fn reset_globals(&mut self);

    /// Grows the memory to at least `bytes`; what is added can be written. `false` where that is beyond
    /// its limit.
    fn grow_to(&mut self, bytes: usize) -> bool;

    /// Calls the entry point with the address of a descriptor, which may take so many ticks. Gives
    /// its status, and the memory as it left it.
    fn call(&mut self, descriptor: u32, ticks: u64) -> Result<(i32, &[u8]), Trap>;

    /// Enters so many of its threads in each call from now on, of those that it has; without a word it is as many
    /// as there are cores for.
    fn set_threads(&mut self, count: u32) {
        let _ = count;
    }

    /// Whether its last call, though it gave a status, has left it where it cannot go on from.
    fn is_lost(&self) -> bool {
        false
    }

    /// Calls `kernel_backward` with the address of a descriptor, as [`EngineInstance::call`] does the entry
    /// point. Gives its status.
    fn backward(&mut self, descriptor: u32, ticks: u64) -> Result<i32, Trap>;

    /// Calls `kernel_init`; `None` where there is none.
    fn init(&mut self, params: u32, len: u32) -> Result<Option<i32>, Trap>;

    /// Calls `kernel_info`; `None` where there is none.
    fn info(&mut self, out: u32) -> Result<Option<i32>, Trap>;

    /// Calls `kernel_cleanup`; `None` where there is none, or where it has no status.
    fn cleanup(&mut self) -> Result<Option<i32>, Trap>;
}

/// Why an executor is not there.
#[derive(Debug)]
pub(crate) struct Absence {
    /// The end of a sentence that begins with its name.
    pub(super) why: String,
    /// What to do about it, where that is known.
    pub(super) remedy: &'static str,
}

impl Absence {
    /// A sentence for whoever has asked for the executor.
    pub(super) fn told(&self, kind: ExecutorKind) -> String {
        let Absence { why, remedy } = self;
        let colon = if remedy.is_empty() { "" } else { ": " };
        format!("{kind} {why}{colon}{remedy}")
    }
}
