//! The contract between a ruvllm host and the kernels it runs, version 1.
//!
//! Everything that both sides must agree on lives here and nowhere else: the descriptor that a
//! call passes, the status a kernel returns, element types and their block layouts, the names of
//! exports, and for every operation the host knows the order of its tensors and parameters
//! ([`contract`]). The crate has no dependencies and no allocator so that a 1 KiB kernel can use it.
//!
//! Invariants: all integers are little endian; all offsets are byte offsets into the kernel's own
//! linear memory; every region the host lays out starts on a multiple of [`REGION_ALIGN`]; regions
//! never overlap, except that an absent region has offset 0 and size 0.
//!
//! # Threads
//!
//! An entry point is `fn(desc: *const KernelDescriptor) -> i32`. Where a manifest entry asks for `threads`, it is
//! `fn(desc: *const KernelDescriptor, index: u32, count: u32) -> i32`: the host enters it in `count` instances at
//! once, of up to that many, each on a thread of its own and with an `index` from 0 on. They share one memory and
//! all get the same descriptor; globals are each one's own. The call is over when all have returned: with a result
//! where all return `OK`, and otherwise as the first of them ended it, which ends the others.
//!
//! - The memory is `shared`, with a maximum. A module imports nothing; the host sees to it that its instances share
//!   what it defines.
//! - Each thread writes a part of the output of its own, whole rows say, and of scratch. The result is the same,
//!   bit for bit, whatever `count` is: admission compares it for 1, 2 and 4.
//! - Nobody waits: `memory.atomic.wait32` and `wait64` are refused, since no deadline reaches a thread that is
//!   parked. What has to be in step spins in a bounded loop, whose time counts like any other: where there are
//!   fewer cores than threads that is much, so divide the work such that no thread needs another's.
//! - Every other export is called in the first instance, while no other runs.
//! - A module with a stack exports its pointer, see [`export::STACK_POINTER`].
#![no_std]
#![forbid(unsafe_code)]

pub mod contract;
mod descriptor;
mod dtype;
mod float;
pub mod message;
mod status;
pub mod team;

pub use contract::{Op, OpContract};
pub use descriptor::{BackwardDescriptor, KernelDescriptor, KernelInfo, Region};
pub use dtype::{BlockLayout, DType, UnknownDType};
pub use float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use status::Status;
pub use team::TeamOp;

/// The version of this contract. A manifest and a module state the one they were built for.
pub const ABI_VERSION: u32 = 1;

/// Alignment in bytes of every region the host lays out for a call.
pub const REGION_ALIGN: usize = 64;

/// Bytes of scratch that every call provides; its contents are unspecified at entry.
pub const SCRATCH_BYTES: usize = 16 * 1024;

/// The largest number of words in a params block: bound shape symbols, then parameters.
pub const MAX_PARAM_WORDS: usize = 24;

/// The most inputs that a kernel may declare; the descriptor has room for two.
pub const MAX_INPUTS: usize = 2;

/// The most threads that a kernel may ask for.
pub const MAX_THREADS: u32 = 4;

/// Names of the exports that the host looks for. The entry point's name is the manifest's.
pub mod export {
    /// Required: the kernel's one linear memory.
    pub const MEMORY: &str = "memory";
    /// Required: the `i32` global above which memory belongs to the host.
    pub const HEAP_BASE: &str = "__heap_base";
    /// Optional: `fn(params: *const u8, len: u32) -> i32`, called once after instantiation.
    pub const INIT: &str = "kernel_init";
    /// Optional: `fn(desc: *const BackwardDescriptor) -> i32`, the gradient of the entry point. A manifest
    /// says `"backward": true` of a kernel that has it.
    pub const BACKWARD: &str = "kernel_backward";
    /// Optional: `fn(out: *mut KernelInfo) -> i32`.
    pub const INFO: &str = "kernel_info";
    /// Optional: `fn() -> i32`, called before the instance is dropped in good order. Modules whose function
    /// has no result are taken too, as if it returned `OK`.
    pub const CLEANUP: &str = "kernel_cleanup";
    /// Optional, and only looked for where a kernel has threads: the mutable `i32` global with the end of its
    /// stack. What lies below is divided into a stack for each thread, so the stack comes first in memory
    /// (`--stack-first`, as Rust links). A module without this export has no stack, or one that all threads use.
    pub const STACK_POINTER: &str = "__stack_pointer";
}
