//! ONNX: what a file may hold (`walk`), and what computes it (`provider`, the feature `onnx`).

#[cfg(feature = "onnx")]
mod provider;
mod tensor;
mod walk;
mod wire;

#[cfg(feature = "onnx")]
pub use provider::OnnxProvider;
pub use walk::{OnnxDim, OnnxFacts, OnnxTensor, walk};
