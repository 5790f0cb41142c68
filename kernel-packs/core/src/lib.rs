//! The maths of the core pack, shared by its kernels.
//!
//! One function per operation over plain slices, generic in the element type where only loads and
//! stores differ. Every result is computed in f32 and rounded once to the element type. All work
//! for any dimension, aligned or not; nothing here panics. On an ordinary target the same code runs
//! on arrays instead of vectors, which is where its tests run.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod gated_backward;
pub mod gelu;
pub mod kv;
pub mod layernorm;
pub mod lora;
pub mod norm_backward;
pub mod rmsnorm;
pub mod rope;
pub mod swiglu;

#[cfg(test)]
mod testing;
