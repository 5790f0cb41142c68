//! Graphs of packs: models such as ONNX files, which a runtime for graphs computes.
//!
//! A graph of a verified pack passes the gate ([`GatedGraph`]: bounds, and a walk over its file before
//! anything else reads it), is admitted ([`AdmittedGraph`]: it gives, within a tolerance, what another
//! runtime computed for inputs in the manifest), and computes through the traits of `ruvllm_host::graph`:
//! in this process, or in processes with limits on time and memory ([`IsolatedProvider`]). `TextEncoder`
//! makes vectors of texts with one, and kernels compute those of their pack, which [`KernelGraphs`] admits.
//!
//! Invariants: no runtime sees bytes that were not verified and walked over; nothing is read beside them; a
//! graph that was not right on this machine computes nothing for anybody.
//!
//! What this does not protect against: a graph that is right on its checks and wrong elsewhere, and, where it
//! runs in this process, a single node of it that takes long or much memory.
#![forbid(unsafe_code)]

#[cfg(feature = "encoder")]
mod encoder;
#[cfg(feature = "encoder")]
mod gguf;
mod kernels;
pub mod onnx;
mod pack;
mod process;
mod providers;
mod slots;

#[cfg(feature = "encoder")]
pub use encoder::{EncoderError, TextEncoder};
#[cfg(feature = "encoder")]
pub use gguf::GgufProvider;
pub use kernels::KernelGraphs;
#[cfg(feature = "onnx")]
pub use onnx::OnnxProvider;
pub use pack::{AdmittedGraph, GatedGraph, GraphCaps, GraphPackError};
pub use process::{IsolatedProvider, graph_process};
