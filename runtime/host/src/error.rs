//! What can go wrong: with a pack at installation, with a call, with a kernel while it runs.

use crate::OpKey;
use crate::trap::{CodeLocation, Trap, TrapKind, said};
use ruvllm_abi::Status;
use ruvllm_manifest::escape_untrusted;
use serde::Serialize;
use std::fmt;
use thiserror::Error;

/// One reason why the host does not take a kernel or a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The kernel's id, or empty where the whole pack is meant.
    pub kernel: String,
    /// A stable code in snake case.
    pub code: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// Where the kernel trapped, if that is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Box<CodeLocation>>,
}

impl Refusal {
    pub(crate) fn new(kernel: &str, code: &'static str, message: impl Into<String>) -> Self {
        Self { kernel: kernel.to_owned(), code, message: message.into(), place: None }
    }

    pub(crate) fn at(mut self, place: Option<Box<CodeLocation>>) -> Self {
        self.place = place;
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.kernel.is_empty() {
            write!(f, "{}: ", self.kernel)?;
        }
        f.write_str(&self.message)?;
        if let Some(source) = self.place.as_ref().and_then(|place| place.source.as_ref()) {
            write!(f, ", at {}", escape_untrusted(source))?;
        }
        write!(f, " [{}]", self.code)
    }
}

struct Lines<'a>(&'a [Refusal]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|refusal| write!(f, "\n  {refusal}"))
    }
}

/// Why the host could not do what it was asked to, calls aside.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// The pack does not enter: nothing of it was published.
    #[error("pack {pack} {version} is refused:{}", Lines(.refusals))]
    Refused {
        /// Its name.
        pack: String,
        /// Its version.
        version: String,
        /// Everything that speaks against it.
        refusals: Vec<Refusal>,
    },
    /// A provider of team operations could not take up the weights of a model that is in use.
    #[error("{kernel} cannot be activated, it {failure}")]
    NotPrepared {
        /// The kernel.
        kernel: String,
        /// Why.
        failure: Failure,
    },
    /// The sandbox could not be set up on this machine.
    #[error("cannot set up the sandbox: {detail}; run on native kernels, or on another machine")]
    Executor {
        /// What the executor says.
        detail: String,
    },
    /// The pack misbehaved here, and stays out until somebody lets it in again.
    #[error("pack {pack} is barred: {reason}; clear {digest} to let it in again")]
    Barred {
        /// Its name and version.
        pack: String,
        /// Its digest.
        digest: String,
        /// Why it was barred.
        reason: String,
    },
    /// A kernel is pinned that is not there, or for an operation that is not.
    #[error("{pin:?} pins nothing: {reason}")]
    UnknownPin {
        /// The pin, as `OP=KERNEL`.
        pin: String,
        /// What is missing, and the nearest name.
        reason: String,
    },
    /// No more packs may be staged.
    #[error("{limit} packs are staged already: activate or discard one first")]
    StageFull {
        /// How many may be.
        limit: usize,
    },
    /// No staged pack of that number.
    #[error("no pack is staged as {id}: it was activated or discarded, or never staged")]
    NotStaged {
        /// The number.
        id: u64,
    },
    /// No earlier generation of that number to go back to.
    #[error("generation {generation} cannot be gone back to: it was never active, or too long ago")]
    NotKept {
        /// The number.
        generation: u64,
    },
    /// A generation is on trial, and nothing else may be published meanwhile.
    #[error("generation {generation} is on trial: promote it or end its trial first")]
    CanaryRunning {
        /// Its number.
        generation: u64,
    },
    /// No generation is on trial.
    #[error("no generation is on trial")]
    NoCanary,
    /// The share of a trial is none.
    #[error("the share {share} is not above 0 and at most 1")]
    CanaryShare {
        /// What was asked for.
        share: f64,
    },
}

impl HostError {
    /// A stable identifier for logs, metrics and exit codes: of the first refusal where a pack was
    /// refused.
    pub fn code(&self) -> &'static str {
        match self {
            HostError::Refused { refusals, .. } => match refusals.first() {
                Some(first) => first.code,
                None => "pack_refused",
            },
            HostError::Executor { .. } => "executor_unavailable",
            HostError::Barred { .. } => "pack_barred",
            HostError::UnknownPin { .. } => "unknown_pin",
            HostError::NotPrepared { .. } => "not_prepared",
            HostError::StageFull { .. } => "stage_full",
            HostError::NotStaged { .. } => "not_staged",
            HostError::NotKept { .. } => "generation_not_kept",
            HostError::CanaryRunning { .. } => "canary_running",
            HostError::NoCanary => "no_canary",
            HostError::CanaryShare { .. } => "canary_share",
        }
    }

    /// The refusals, where a pack was refused.
    pub fn refusals(&self) -> &[Refusal] {
        match self {
            HostError::Refused { refusals, .. } => refusals,
            _ => &[],
        }
    }
}

/// Why a call gave no result. The output holds nothing meaningful then.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The slot was taken from another snapshot.
    #[error("the slot belongs to generation {slot}, the snapshot is {snapshot}: look it up again")]
    StaleSlot {
        /// The generation of the slot.
        slot: u64,
        /// The generation of the snapshot.
        snapshot: u64,
    },
    /// Operands, words and output do not fit each other.
    #[error("call of {op}: {detail}")]
    Shape {
        /// The operation.
        op: String,
        /// Which operand, and the sizes.
        detail: String,
    },
    /// No kernel of that name or operation with those types.
    #[error("no kernel for {name}: {detail}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is instead.
        detail: String,
    },
    /// The snapshot was taken from another host than the worker.
    #[error("the snapshot belongs to another host than this worker: take both from one host")]
    ForeignSnapshot,
    /// The kernel failed, and no other may answer: in strict mode, or because it was named.
    #[error("kernel {kernel} of {op} {failure}")]
    Failed {
        /// The operation.
        op: String,
        /// The kernel.
        kernel: String,
        /// How it failed.
        failure: Failure,
    },
    /// Every candidate failed or is quarantined.
    #[error("every kernel of {op} failed or is quarantined, last: {last}")]
    Exhausted {
        /// The operation.
        op: String,
        /// How the last one failed.
        last: String,
    },
}

impl CallError {
    /// A stable identifier for logs, metrics and HTTP bodies.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::StaleSlot { .. } => "stale_slot",
            CallError::Shape { .. } => "call_shape",
            CallError::Unknown { .. } => "unknown_kernel",
            CallError::ForeignSnapshot => "foreign_snapshot",
            CallError::Failed { failure, .. } => failure.code(),
            CallError::Exhausted { .. } => "no_kernel_left",
        }
    }
}

/// Which bound on memory an instance does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryBound {
    /// [`crate::HostConfig::pack_memory`].
    Pack,
    /// [`crate::HostConfig::kernel_memory`].
    Host,
}

/// How a kernel failed a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Failure {
    /// It trapped.
    Trap {
        /// How, and where.
        trap: Box<Trap>,
    },
    /// It returned a status other than `OK`.
    Status {
        /// The number that it returned.
        status: i32,
        /// What it takes instead, or what it was given, where somebody asks who can do something about
        /// it; empty otherwise.
        #[serde(skip_serializing_if = "String::is_empty")]
        detail: String,
        /// What the kernel said, see [`ruvllm_abi::message`]; empty where it said nothing.
        #[serde(skip_serializing_if = "String::is_empty")]
        message: String,
    },
    /// It returned numbers that are not finite although its inputs are and its twin's are.
    NonFinite {
        /// Index of the first one.
        index: usize,
    },
    /// A cross-check found its output wrong.
    Mismatch {
        /// Where and by how much.
        detail: String,
    },
    /// A cross-check found that it wrote into its inputs.
    InputWritten,
    /// The call does not fit the kernel's memory. Not the kernel's fault: never quarantined for.
    TooLarge {
        /// Bytes that the call needs.
        needed: usize,
        /// Bytes that the kernel may have.
        limit: usize,
    },
    /// There is no memory for an instance. That depends on what others have, so it is not the kernel's
    /// fault, even at the bound of its own pack: never quarantined for.
    Memory {
        /// Whose memory is used up.
        bound: MemoryBound,
        /// Bytes more that the instance takes.
        needed: usize,
        /// Bytes that there may be in use.
        limit: usize,
    },
    /// There is no memory for weights in the layout of a provider. Never quarantined for.
    WeightMemory {
        /// Bytes that they take.
        needed: usize,
    },
    /// No instance could be made.
    Instantiate {
        /// Why.
        detail: String,
    },
    /// Its `kernel_cleanup` did not return, when an instance was let go.
    Cleanup {
        /// How, and where.
        trap: Box<Trap>,
    },
    /// Its `kernel_cleanup` returned a status other than `OK`, when an instance was let go.
    CleanupStatus {
        /// The number that it returned.
        status: i32,
    },
    /// A provider of a team operation refused the call, or could not take a matrix up.
    Provider {
        /// Why.
        detail: String,
    },
    /// The native twin refused the call.
    Native {
        /// Why.
        detail: String,
    },
}

impl Failure {
    /// A stable code in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            Failure::Trap { trap } if trap.kind == TrapKind::Deadline => "kernel_deadline",
            Failure::Trap { .. } => "kernel_trap",
            Failure::Status { .. } => "kernel_status",
            Failure::NonFinite { .. } => "kernel_non_finite",
            Failure::Mismatch { .. } => "kernel_mismatch",
            Failure::InputWritten => "kernel_wrote_input",
            Failure::TooLarge { .. } => "call_too_large",
            Failure::Memory { bound: MemoryBound::Pack, .. } => "pack_memory_full",
            Failure::Memory { bound: MemoryBound::Host, .. } => "kernel_memory_full",
            Failure::WeightMemory { .. } => "weight_memory_full",
            Failure::Instantiate { .. } => "kernel_instantiate",
            Failure::Cleanup { .. } | Failure::CleanupStatus { .. } => "kernel_cleanup",
            Failure::Provider { .. } => "provider_failed",
            Failure::Native { .. } => "native_refused",
        }
    }

    /// The trap that it is, if it is one.
    pub fn trap(&self) -> Option<&Trap> {
        match self {
            Failure::Trap { trap } | Failure::Cleanup { trap } => Some(trap),
            _ => None,
        }
    }

    /// Whether it says something about the kernel rather than about the call.
    pub(crate) fn counts(&self) -> bool {
        use Failure::{Memory, Native, TooLarge, WeightMemory};
        !matches!(self, TooLarge { .. } | Memory { .. } | WeightMemory { .. } | Native { .. })
    }
}

fn returned(f: &mut fmt::Formatter<'_>, status: i32, from: &str) -> fmt::Result {
    match Status::from_code(status) {
        Some(known) => write!(f, "returned status {status} ({known}){from}"),
        None => write!(f, "returned status {status}{from}, which the ABI does not define"),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Trap { trap } if trap.kind == TrapKind::Deadline => {
                f.write_str("ran longer than its deadline")?;
                trap.where_and_why(f)
            }
            Failure::Trap { trap } => write!(f, "trapped: {trap}"),
            Failure::Status { status, detail, message } => {
                returned(f, *status, "")?;
                if !detail.is_empty() {
                    write!(f, ": {detail}")?;
                }
                said(f, message)
            }
            Failure::NonFinite { index } => {
                write!(f, "returned a number that is not finite at element {index}")
            }
            Failure::Mismatch { detail } => write!(f, "returned a wrong number: {detail}"),
            Failure::InputWritten => f.write_str("wrote into its inputs"),
            Failure::TooLarge { needed, limit } => {
                write!(
                    f,
                    "lacks memory for the call, which needs {needed} bytes: it may have {limit}"
                )
            }
            Failure::Memory { bound, needed, limit } => {
                let whose = match bound {
                    MemoryBound::Pack => "those of its pack",
                    MemoryBound::Host => "those of all kernels",
                };
                write!(
                    f,
                    "has no memory for an instance: that takes {needed} bytes more, and {whose} may \
                     have {limit}; give more with --memory"
                )
            }
            Failure::WeightMemory { needed } => write!(
                f,
                "has no memory for its layout of a matrix: that takes {needed} bytes more than the budget \
                 has left; give more with --memory"
            ),
            Failure::Instantiate { detail } => write!(f, "cannot be instantiated: {detail}"),
            Failure::Cleanup { trap } if trap.kind == TrapKind::Deadline => {
                f.write_str("ran longer in kernel_cleanup than its deadline")?;
                trap.where_and_why(f)
            }
            Failure::Cleanup { trap } => write!(f, "trapped in kernel_cleanup: {trap}"),
            Failure::CleanupStatus { status } => returned(f, *status, " from kernel_cleanup"),
            Failure::Provider { detail } => write!(f, "failed: {detail}"),
            Failure::Native { detail } => write!(f, "refused the call: {detail}"),
        }
    }
}

/// A failed call of a kernel, as [`crate::Host::take_incidents`] reports it.
#[derive(Clone, Debug, Serialize)]
pub struct Incident {
    /// The operation.
    pub op: OpKey,
    /// The kernel's id.
    pub kernel: String,
    /// The generation that published it.
    pub generation: u64,
    /// How it failed.
    pub failure: Failure,
    /// Whether this failure took the kernel out of service.
    pub quarantined: bool,
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Incident { op, kernel, generation, failure, quarantined } = self;
        write!(f, "kernel {kernel} of {op} (generation {generation}) {failure}")?;
        if *quarantined {
            f.write_str("; it is quarantined now")?;
        }
        Ok(())
    }
}
