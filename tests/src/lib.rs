//! End-to-end tests; helpers shared by the test files live here.
//!
//! [`PackBuilder`] assembles a pack, good or malicious, in a temporary directory and signs it with
//! a key of its own; [`wat`] has kernels to put into it, with places to go wrong, and [`faults`] makes
//! kernels of real packs go wrong. [`onnx`] writes graphs, good and hostile; [`graphs`] has manifests for them. [`Tensor`] is for model files of any weight type. [`layers`] holds a crate's
//! modules to their order. With the feature `otel`, `collector` is where traces can be sent.
#![forbid(unsafe_code)]

#[cfg(feature = "otel")]
pub mod collector;
pub mod faults;
pub mod graphs;
pub mod layers;
pub mod onnx;
mod pack;
mod tensor;
pub mod wamr;
pub mod wat;

pub use pack::{PackBuilder, TestPack, codes, custom_entry};
pub use tensor::Tensor;
