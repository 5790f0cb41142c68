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
#![no_std]
#![forbid(unsafe_code)]

pub mod contract;
mod descriptor;
mod dtype;
mod float;
pub mod message;
mod status;

pub use contract::{Op, OpContract};
pub use descriptor::{BackwardDescriptor, KernelDescriptor, KernelInfo, Region};
pub use dtype::{BlockLayout, DType, UnknownDType};
pub use float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use status::Status;

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
}
