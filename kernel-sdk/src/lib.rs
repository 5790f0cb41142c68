//! What a kernel is written with: safe views over a call, an entry-point macro, 128-bit SIMD.
//!
//! A kernel is a function over byte ranges of its own linear memory, laid out by the host and
//! described by a [`KernelDescriptor`]. [`kernel!`] turns a declaration of shapes, tensors and
//! parameters into the exported entry point: it checks the descriptor, binds every name, and hands
//! the body views that cannot reach anything else. A call that does not hold together ends in a
//! [`Status`], never in a trap.
//!
//! There is no allocator. `unsafe` lives in two modules only: [`view`], which turns checked offsets
//! into slices, and [`simd`]. The crate also compiles for ordinary targets, where linear memory is
//! any byte slice ([`Memory::over`]) and the SIMD types are plain arrays, so that a kernel's maths
//! is tested where its author works.
//!
//! A kernel that [`kernel!`] declares computes with one thread, or with several that divide the rows of the output
//! among them; the documentation of [`abi`] says what the threads of a kernel have in common.
//!
//! It does not protect a kernel from a host that rewrites memory during a call; a host is trusted.
//!
//! # Examples
//!
//! ```
//! use ruvllm_kernel_sdk::prelude::*;
//!
//! kernel! {
//!     fn scale_forward;
//!     revision 1;
//!     shape [rows, dim];
//!     param factor: f32;
//!     input x: f32 [rows, dim];
//!     output y: f32 [rows, dim];
//!     run {
//!         for (to, from) in y.as_mut_slice().iter_mut().zip(x.as_slice()) {
//!             *to = from * factor;
//!         }
//!         Ok(())
//!     }
//! }
//! # // `kernel!` defines `main` off wasm, which stands in for the doctest's own.
//! ```
#![no_std]
#![deny(unsafe_code)]

mod element;
mod entry;
#[allow(unsafe_code)]
pub mod simd;
#[allow(unsafe_code)]
pub mod view;

pub use element::{BlockQ4_0, BlockQ8_0, F16};
#[doc(hidden)]
pub use entry::{index_of, leads};
pub use ruvllm_abi as abi;
pub use ruvllm_abi::{BackwardDescriptor, DType, KernelDescriptor, KernelInfo, Region, Status};
pub use view::{
    BackwardCall, Call, Element, GradInputs, Inputs, Memory, Param, Params, Rows, RowsMut, Scratch,
    TensorMut, TensorView, Thread,
};

/// Everything a kernel's source usually needs.
pub mod prelude {
    pub use crate::simd::{F32x4, Lanes};
    pub use crate::{
        BlockQ4_0, BlockQ8_0, Call, Element, F16, Scratch, Status, TensorMut, TensorView, kernel,
    };
}

/// A panic in a kernel is a trap, which the host answers by falling back.
#[cfg(target_family = "wasm")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
