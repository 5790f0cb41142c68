//! The manifest as Rust types. Field names are those of the JSON.
//!
//! They can also be built in code; [`Manifest::to_json`] then holds them to the same rules as
//! [`Manifest::parse`] does a file.

use crate::{GraphEntry, ManifestError, PackName, PackPath, Sha256Hex, Timestamp};
use indexmap::IndexMap;
pub use ruvllm_abi::contract::ParamType;
use ruvllm_abi::{DType, Op};
use semver::Version;
use serde::{Serialize, Serializer};

/// A kernel pack manifest, format 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// Where the JSON schema is; information for editors.
    #[serde(rename = "$schema", skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    /// Version of the pack.
    pub version: Version,
    /// Name of the pack; trust scopes and version floors go by it.
    pub name: PackName,
    /// One line about the pack.
    pub description: String,
    /// Version of the kernel ABI that every kernel of the pack was built for.
    pub abi_version: u32,
    /// The first runtime version that may load the pack, inclusive.
    pub min_runtime_version: Version,
    /// The first runtime version that may no longer load the pack, exclusive; `None`: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runtime_version: Option<Version>,
    /// When the pack was made.
    pub created_at: Timestamp,
    /// Who says to have made it. A claim: trust comes from signatures and policy alone.
    pub author: Author,
    /// The kernels, at least one where there is no graph.
    pub kernels: Vec<KernelEntry>,
    /// The graphs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub graphs: Vec<GraphEntry>,
    /// Kernel id to the name that answers when the kernel cannot.
    pub fallbacks: IndexMap<String, String>,
}

/// Who says to have made a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Author {
    /// A person or an organisation.
    pub name: String,
    /// Where to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// `ed25519:<base64 of the 32-byte public key>`.
    pub signing_key: String,
}

/// One kernel of a pack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelEntry {
    /// Unique in the pack, also when case is ignored.
    pub id: String,
    /// For people.
    pub name: String,
    /// The operation; one that the ABI does not name is a custom op.
    pub op: String,
    /// A free grouping, such as `normalization`.
    pub category: String,
    /// The module's file within the pack.
    pub path: PackPath,
    /// The file's length in bytes.
    pub size: u64,
    /// SHA-256 of the file.
    pub hash: Sha256Hex,
    /// The export that the host calls.
    pub entry_point: String,
    /// Whether the module exports `kernel_backward`, the gradient of its entry point.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub backward: bool,
    /// How many threads compute a call together at most; 1 unless it says more, which the trust policy must grant.
    #[serde(skip_serializing_if = "is_one")]
    pub threads: u32,
    /// The inputs in descriptor order.
    pub inputs: Vec<TensorSpec>,
    /// The outputs; the descriptor has room for one.
    pub outputs: Vec<TensorSpec>,
    /// The parameters in the order of the params block.
    pub params: IndexMap<String, ParamSpec>,
    /// What the kernel may use.
    pub resource_limits: ResourceLimits,
    /// The executors it was made for, at least one.
    pub platforms: Platforms,
    /// How far from the oracle its author lets it be; the host takes the stricter of this and its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<Tolerance>,
    /// Figures by the name of the shape; information only.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub benchmarks: IndexMap<String, Benchmark>,
}

/// One dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum Dim {
    /// A symbol `[a-z_][a-z0-9_]*`, bound by the shapes of a call.
    Symbol(String),
    /// A fixed extent, at least 1.
    Fixed(u32),
}

/// A tensor: its name, element type and shape, outermost dimension first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorSpec {
    /// Unique among the tensors of the kernel.
    pub name: String,
    /// The element type.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<Dim>,
}

/// The type of a parameter and the value it has where the caller gives none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParamSpec {
    /// The type.
    #[serde(rename = "type", serialize_with = "param_type_name")]
    pub ty: ParamType,
    /// The default, of that type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<ParamValue>,
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ParamValue {
    /// Binary32, finite.
    F32(f32),
    /// Unsigned integer.
    U32(u32),
    /// Signed integer.
    I32(i32),
}

/// What a kernel may use of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResourceLimits {
    /// Linear memory in pages of 64 KiB.
    pub max_memory_pages: u32,
    /// Length of one call in ticks of the host, 1 ms each by default.
    pub max_epoch_ticks: u64,
    /// Elements of all tables together.
    pub max_table_elements: u32,
}

/// The executors that a kernel was made for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Platforms {
    /// Wasmtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wasmtime: Option<WasmtimePlatform>,
    /// The WebAssembly Micro Runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wamr: Option<WamrPlatform>,
    /// Shared libraries that run outside of the sandbox, where the trust policy grants that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<NativePlatform>,
}

/// What a kernel needs of Wasmtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WasmtimePlatform {
    /// The oldest version, inclusive.
    pub min_version: Version,
    /// WebAssembly features in use, such as `simd`.
    pub features: Vec<String>,
}

/// What a kernel needs of WAMR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WamrPlatform {
    /// The oldest version, inclusive.
    pub min_version: Version,
    /// Whether hosts may compile the module ahead of time; those that do leave it out otherwise.
    pub aot_available: bool,
}

/// A kernel's native twins: trusted code, which only publishers with a grant may ship.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NativePlatform {
    /// The oldest runtime that may load them, inclusive; `None`: that of the pack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_runtime_version: Option<Version>,
    /// The libraries by target, such as `x86_64-linux`; at least one.
    pub targets: IndexMap<String, NativeLibrary>,
}

/// A shared library within the pack. Kernels may share one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NativeLibrary {
    /// Its file within the pack.
    pub path: PackPath,
    /// The file's length in bytes.
    pub size: u64,
    /// SHA-256 of the file.
    pub hash: Sha256Hex,
}

/// A file that a manifest lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedFile<'m> {
    /// Its path within the pack.
    pub path: &'m PackPath,
    /// Its length in bytes.
    pub size: u64,
    /// SHA-256 of it.
    pub hash: Sha256Hex,
    /// The id of the first kernel or graph that lists it.
    pub kernel: &'m str,
}

/// The distance from the oracle that counts as right: `|y - o| <= abs + rel * |o|`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// The relative part.
    pub rel: f64,
    /// The absolute part.
    pub abs: f64,
}

/// A figure that the author measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Benchmark {
    /// Microseconds of one call.
    pub latency_us: f64,
    /// 10^9 floating point operations a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_gflops: Option<f64>,
}

impl Manifest {
    /// Parses and checks the bytes of a `kernels.json`.
    ///
    /// # Errors
    /// [`ManifestError::TooLarge`] and [`ManifestError::Syntax`] where there is no JSON document to
    /// speak of; else [`ManifestError::Invalid`] with everything that is wrong: field by
    /// field in the order of the format, then what spans fields.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        crate::decode::parse(bytes)
    }

    /// The manifest as indented JSON with a final newline, as `kernels.json` is written.
    ///
    /// # Errors
    /// [`ManifestError::Invalid`] with everything that [`Manifest::parse`] would refuse.
    pub fn to_json(&self) -> Result<String, ManifestError> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|e| ManifestError::Syntax { message: e.to_string() })?;
        text.push('\n');
        // Reading back catches what the types cannot, such as a control character in a name.
        Manifest::parse(text.as_bytes())?;
        Ok(text)
    }

    /// Every file that belongs to the pack beside manifest and signatures, each once: the modules, the
    /// files of graphs, then the native libraries.
    pub fn files(&self) -> Vec<ListedFile<'_>> {
        let mut files: Vec<ListedFile<'_>> = self
            .kernels
            .iter()
            .map(|k| ListedFile { path: &k.path, size: k.size, hash: k.hash, kernel: &k.id })
            .collect();
        for graph in &self.graphs {
            let listed = |(path, size, hash)| ListedFile { path, size, hash, kernel: &graph.id };
            files.extend(graph.files().map(listed));
        }
        for kernel in &self.kernels {
            for library in kernel.platforms.native.iter().flat_map(|n| n.targets.values()) {
                if files.iter().all(|file| file.path != &library.path) {
                    let NativeLibrary { path, size, hash } = library;
                    files.push(ListedFile { path, size: *size, hash: *hash, kernel: &kernel.id });
                }
            }
        }
        files
    }

    /// The graph of that id.
    pub fn graph(&self, id: &str) -> Option<&GraphEntry> {
        self.graphs.iter().find(|graph| graph.id == id)
    }

    /// The kernel of that id.
    pub fn kernel(&self, id: &str) -> Option<&KernelEntry> {
        self.kernels.iter().find(|kernel| kernel.id == id)
    }
}

impl KernelEntry {
    /// Whether it asks to compute graphs of its pack, through the imports of WASI-NN.
    pub fn asks_for_graphs(&self) -> bool {
        let platform = self.platforms.wasmtime.as_ref();
        platform.is_some_and(|p| p.features.iter().any(|feature| feature == crate::WASI_NN))
    }

    /// The catalogue's operation, or `None` for a custom op.
    pub fn known_op(&self) -> Option<Op> {
        Op::from_name(&self.op)
    }

    /// The distinct shape symbols in order of first appearance over inputs and outputs: the first
    /// words of the params block.
    pub fn symbols(&self) -> Vec<&str> {
        let mut seen = Vec::new();
        for dim in self.inputs.iter().chain(&self.outputs).flat_map(|tensor| &tensor.shape) {
            if let Dim::Symbol(name) = dim
                && !seen.contains(&name.as_str())
            {
                seen.push(name.as_str());
            }
        }
        seen
    }
}

impl ParamValue {
    /// The word of the params block.
    pub const fn to_word(self) -> u32 {
        match self {
            ParamValue::F32(x) => x.to_bits(),
            ParamValue::U32(x) => x,
            ParamValue::I32(x) => x as u32,
        }
    }

    /// The type it has.
    pub const fn ty(self) -> ParamType {
        match self {
            ParamValue::F32(_) => ParamType::F32,
            ParamValue::U32(_) => ParamType::U32,
            ParamValue::I32(_) => ParamType::I32,
        }
    }
}

/// What is not written: one thread is what every kernel has.
fn is_one(threads: &u32) -> bool {
    *threads == 1
}

fn dtype_name<S: Serializer>(dtype: &DType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(dtype.name())
}

fn param_type_name<S: Serializer>(ty: &ParamType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(ty.name())
}
