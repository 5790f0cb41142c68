//! The manifest of a kernel pack, `kernels.json`: its types, its rules, its compatibility gates.
//!
//! [`Manifest::parse`] is strict: an unknown field, a duplicate key, a path that could leave the
//! pack or a kernel that disagrees with the contract of its op is refused, and everything wrong is
//! reported at once, in a fixed order, each with a stable code. The JSON schema of the same
//! format is in `schema/kernel-pack-v1.json`.
//!
//! Nothing here does I/O or cryptography. A parsed manifest says nothing about who wrote it or
//! whether the files it lists exist: that is the business of `ruvllm-signing`.
#![forbid(unsafe_code)]

mod check;
mod compat;
mod contract;
mod decode;
mod error;
mod escape;
mod graph;
mod json;
mod nearest;
mod reader;
mod text;
mod timestamp;
mod types;

pub use check::{MAX_FILE_BYTES, MAX_GRAPH_FILE_BYTES, MAX_KERNELS, MAX_MANIFEST_BYTES};
pub use compat::{
    Compatibility, ExecutorGate, ExecutorKind, LimitCaps, RuntimeGates, check_compatibility,
};
pub use contract::check_contract;
pub use error::{ManifestError, Violation};
pub use escape::escape_untrusted;
pub use graph::{
    EMBEDDING_INPUTS, GraphCheck, GraphEmbedding, GraphEntry, GraphFile, GraphFormat, GraphLimits,
    GraphTensor, GraphType, GraphValues, Pooling, UnknownName,
};
pub use nearest::{nearest, similar};
pub use text::{InvalidPackName, InvalidPath, InvalidSha256, PackName, PackPath, Sha256Hex};
pub use timestamp::{ParseTimestampError, Timestamp};
pub use types::{
    Author, Benchmark, Dim, KernelEntry, ListedFile, Manifest, NativeLibrary, NativePlatform,
    ParamSpec, ParamType, ParamValue, Platforms, ResourceLimits, TensorSpec, Tolerance,
    WamrPlatform, WasmtimePlatform,
};

/// The name of the manifest in a pack.
pub const MANIFEST_FILE: &str = "kernels.json";

/// The feature of an executor that kernels declare which compute graphs of their pack, through the imports of
/// WASI-NN.
pub const WASI_NN: &str = "wasi-nn";

/// The name of the signature envelope in a pack.
pub const SIGNATURE_FILE: &str = "kernels.json.sig";
