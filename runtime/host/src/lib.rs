//! Runs kernels that nobody has to trust: admission, registry, selection, execution.
//!
//! A [`Host`] takes in verified packs. Each pack goes through the gates (versions, limits, the
//! structure of every module), is compiled, and must compute the right numbers on golden inputs;
//! only then is it published, as a new immutable [`RegistrySnapshot`]. A [`Worker`] per thread
//! calls operations of a snapshot; whatever a kernel does at run time (trap, a bad status, running
//! too long, a wrong number that a sampled cross-check finds), the call is answered by the next
//! candidate, the last of which is the host's own native code.
//!
//! Invariants: no kernel is compiled before its module passed the gate, and none is published
//! before it was right on this machine; a snapshot never changes; a kernel reaches no memory but
//! its own; the call path takes no lock and, warm, allocates nothing.
//!
//! What it does not protect against: side channels between kernels and the rest of the process,
//! and a kernel that is right on golden inputs and on every sampled call but wrong in between.
// The exceptions: loading machine code (`exec::aot`), protecting pages (`exec::fence`), and an engine written in C
// (`exec::wamr`).
#![deny(unsafe_code)]

mod admit;
mod call;
mod class;
mod code;
mod compare;
mod config;
// What runs kernels asks for most of it.
#[cfg_attr(not(any(feature = "wasmtime", feature = "wamr")), allow(dead_code))]
mod deadline;
mod error;
mod exec;
mod features;
mod files;
mod gate;
pub mod graph;
mod instance;
pub mod lifecycle;
mod memory;
mod op;
mod pack;
pub mod process;
mod random;
mod reaper;
mod registry;
mod stats;
// Who supervises asks for all of it.
#[cfg_attr(not(feature = "supervisor"), allow(dead_code))]
mod supervise;
mod swap;
mod team;
mod threads;
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
mod ticker;
mod trap;

#[cfg(test)]
mod tests;

pub use call::team_worker::{
    MatrixProduct, MatrixProviders, Preparation, PreparedWeights, TeamWorker,
};
pub use call::worker::Worker;
pub use class::DeviceClass;
pub use compare::{LARGEST_INPUT, host_tolerance, judge_of};
pub use config::{Compiler, CompilerProcess, HostConfig, HostLimits, Policy, WamrConfig};
pub use error::{CallError, Failure, HostError, Incident, MemoryBound, Refusal};
#[cfg(feature = "wasmtime")]
pub use exec::compiler_process;
pub use exec::stop_compilers;
pub use features::kernel_features;
pub use gate::module::{check_module, module_features};
pub use memory::{KernelBudget, KernelMemory};
pub use op::call::{
    Gradients, LoraDims, OpCall, Operand, Output, Owner, Resident, RopeDims, Scope, Words,
};
pub use op::key::OpKey;
pub use op::tensor::Tensor;
pub use pack::PackId;
pub use registry::figures::{ChoiceChange, Measured};
pub use registry::select::{Candidate, Explanation, Verdict};
pub use registry::{OpSlot, RegistrySnapshot};
pub use ruvllm_abi as abi;
pub use ruvllm_manifest::{ExecutorKind, ParamValue};
pub use ruvllm_native as native;
pub use ruvllm_signing::open_regular;
pub use semver::Version;
pub use stats::OpStats;
#[cfg(feature = "supervisor")]
pub use supervise::acceptance::Acceptance;
pub use supervise::comparison::Comparison;
#[cfg(feature = "supervisor")]
pub use supervise::delivery::Delivery;
pub use supervise::health::{
    Health, HealthCounts, HealthFailure, HealthLimits, HealthWindow, Latency, Losses,
};
#[cfg(feature = "supervisor")]
pub use supervise::history::{HistoryEntry, HistoryError, HistoryEvent};
#[cfg(feature = "supervisor")]
pub use supervise::supervisor::{
    MonotonicClock, Probe, Supervisor, SupervisorConfig, SupervisorError, SwapCounters,
};
#[cfg(feature = "supervisor")]
pub use supervise::supervisor_watch::Watchdog;
#[cfg(feature = "supervisor")]
pub use supervise::watched::{HealthReport, IgnoredLatency};
pub use swap::book::{CacheUse, GenerationReport, GenerationState, InstallReport, StageReport};
pub use swap::host::{Host, KernelSummary, Preparer};
pub use team::{
    AttentionProvider, AttentionSession, ComparedProvider, EmbedProvider, MatmulProvider,
    PreparedEmbed, PreparedMatmul, Provider, ProviderPack, Team,
};
pub use trap::{CodeLocation, MemoryAccess, Trap, TrapKind};
