//! `pack.toml`: what an author writes about a pack; `build` adds what it measures and gives the
//! manifest.

use std::fs;
use std::path::Path;

use indexmap::IndexMap;
use ruvllm_abi::{MAX_THREADS, Op, TeamOp};
use ruvllm_manifest::{
    Author, Dim, KernelEntry, Manifest, PackName, PackPath, ParamSpec, ParamType, ParamValue,
    Platforms, ResourceLimits, Sha256Hex, TensorSpec, Timestamp, Tolerance, WamrPlatform,
    WasmtimePlatform, escape_untrusted, similar,
};
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::figures::Figures;
use crate::graph::GraphSection;
use crate::{ToolError, ToolchainId};

/// The file's name in the directory of a pack crate.
pub(crate) const SPEC_FILE: &str = "pack.toml";

/// Where the JSON schema of the manifest is published.
const SCHEMA: &str = "https://ruvllm.dev/schemas/kernel-pack-v1.json";

/// What the fields of `pack.toml` mean, for `help build`.
pub const PACK_TOML_FIELDS: &str = "\
Fields of pack.toml; those marked ? may be left out:

  [pack]
    name                  a-z, 0-9, '.', '_' and '-'; trust policies and hosts name the pack by it
    version               such as 1.2.0; give other bytes another version
    description           one line
    lang ?                \"rust\", the default, or \"c\"
    min_runtime_version   the oldest runtime that may load the pack
    max_runtime_version ? the first runtime that may not
    created_at            such as 2026-11-20T00:00:00Z
  [pack.author]
    name                  for people
    email ?
    signing_key           the public key, as `ruvllm-pack pubkey` prints it
  [limits]                of every kernel
    max_memory_pages      the most memory of an instance, in pages of 64 KiB
    max_epoch_ticks       of a millisecond, unless a host says otherwise: how long a call may take
    max_table_elements    0 unless the kernel calls functions through a table
  [wasmtime]
    min_version           the oldest Wasmtime that may run the modules
  [wamr] ?                for packs that small devices may run, too
    min_version           the oldest WAMR; 0.0.0 for builds from before versions had numbers
    aot_available         whether hosts may compile the modules ahead of time
  [c] ?
    flags ?               arguments for clang besides those that every pack is compiled with
  [toolchain] ?           what dist/ was built with, see --check
    rustc, std, linker    for Rust
    clang, linker         for C
  [[kernel]]              one for each kernel
    id                    names the binary of the crate, or kernels/<id>.c
    name                  for people
    op                    what it computes: rmsnorm, for example
    custom ?              true for an operation of your own, which no host knows
    category              the directory of the module in the pack
    entry_point           the function that the module exports
    inputs                at most two of { name, dtype, shape }; shape holds numbers and names of extents
    output                { name, dtype, shape }
    params ?              of { name, type, default ? }; type is f32, u32 or i32
    tolerance ?           { rel, abs }, stricter than the host's own
    threads ?             up to 4 that divide the rows among them, for hosts of the device class threads
    plain_variant ?       true to build the kernel once more without relaxed SIMD, for deterministic hosts
    scalar_variant ?      true to build it once more without SIMD, for WAMR; needs [wamr]
  [[graph]] ?             one for each graph that kernels compute through WASI-NN, see help graph
  [fallbacks] ?           id = \"other id\": which kernel answers first where this one fails";

/// The language that the kernels of a pack are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lang {
    /// Rust: a crate with a binary for each kernel.
    #[default]
    Rust,
    /// C: `kernels/<id>.c` for each kernel.
    C,
}

impl Lang {
    /// The name in `pack.toml`.
    pub const fn name(self) -> &'static str {
        match self {
            Lang::Rust => "rust",
            Lang::C => "c",
        }
    }

    /// The name for people.
    pub const fn title(self) -> &'static str {
        match self {
            Lang::Rust => "Rust",
            Lang::C => "C",
        }
    }
}

/// A pack as its author describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackSpec {
    pack: PackSection,
    limits: Limits,
    wasmtime: Wasmtime,
    wamr: Option<Wamr>,
    #[serde(default)]
    c: CSection,
    /// What the committed build was made with.
    pub toolchain: Option<ToolchainId>,
    #[serde(rename = "kernel")]
    kernels: Vec<KernelSection>,
    /// What kernels of the pack compute through WASI-NN.
    #[serde(default, rename = "graph")]
    pub(crate) graphs: Vec<GraphSection>,
    #[serde(default)]
    fallbacks: IndexMap<String, String>,
}

/// What is said of a pack as a whole.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PackSection {
    name: String,
    version: String,
    description: String,
    #[serde(default)]
    lang: Lang,
    min_runtime_version: String,
    max_runtime_version: Option<String>,
    created_at: String,
    author: AuthorSection,
}

impl PackSection {
    /// A manifest that says this and lists nothing yet.
    pub(crate) fn manifest(&self) -> Result<Manifest, String> {
        let max = self.max_runtime_version.as_deref();
        let author = &self.author;
        Ok(Manifest {
            schema: Some(SCHEMA.to_owned()),
            version: version(&self.version, "pack.version")?,
            name: self.name.parse::<PackName>().map_err(at("pack.name"))?,
            description: self.description.clone(),
            abi_version: ruvllm_abi::ABI_VERSION,
            min_runtime_version: version(&self.min_runtime_version, "pack.min_runtime_version")?,
            max_runtime_version: max
                .map(|text| version(text, "pack.max_runtime_version"))
                .transpose()?,
            created_at: self.created_at.parse::<Timestamp>().map_err(at("pack.created_at"))?,
            author: Author {
                name: author.name.clone(),
                email: author.email.clone(),
                signing_key: author.signing_key.clone(),
            },
            kernels: Vec::new(),
            graphs: Vec::new(),
            fallbacks: IndexMap::new(),
        })
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorSection {
    name: String,
    email: Option<String>,
    signing_key: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    max_memory_pages: u32,
    max_epoch_ticks: u64,
    max_table_elements: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wasmtime {
    min_version: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wamr {
    min_version: String,
    aot_available: bool,
}

/// How C is compiled beyond what every pack is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CSection {
    #[serde(default)]
    flags: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelSection {
    id: String,
    name: String,
    op: String,
    /// Whether the operation is one of the author's own. Without it a name that no host knows is taken
    /// for a slip: no model would ever call such a kernel.
    #[serde(default)]
    custom: bool,
    category: String,
    entry_point: String,
    inputs: Vec<TensorSection>,
    output: TensorSection,
    #[serde(default)]
    params: Vec<ParamSection>,
    tolerance: Option<ToleranceSection>,
    /// How many threads compute a call together at most.
    #[serde(default = "one")]
    threads: u32,
    /// Whether the pack also has the kernel without relaxed SIMD, for deterministic hosts.
    #[serde(default)]
    plain_variant: bool,
    /// Whether the pack also has the kernel without SIMD, for executors that have none.
    #[serde(default)]
    scalar_variant: bool,
    /// Of such a variant: the kernel whose sources it is built from.
    #[serde(skip)]
    variant_of: Option<String>,
    #[serde(skip)]
    vectors: Vectors,
}

const fn one() -> u32 {
    1
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorSection {
    name: String,
    dtype: String,
    shape: Vec<DimSection>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum DimSection {
    Fixed(u32),
    Symbol(String),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParamSection {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    default: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToleranceSection {
    rel: f64,
    abs: f64,
}

/// Which vector instructions the module of a kernel may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Vectors {
    /// Those of relaxed SIMD as well.
    #[default]
    Relaxed,
    /// Those whose results do not depend on the processor.
    Plain,
    /// None.
    Scalar,
}

impl Vectors {
    pub(crate) const ALL: [Vectors; 3] = [Vectors::Relaxed, Vectors::Plain, Vectors::Scalar];

    /// What the id of a variant ends in, and its name for people.
    const fn suffixes(self) -> (&'static str, &'static str) {
        match self {
            Vectors::Relaxed => ("", ""),
            Vectors::Plain => ("_plain", ", without relaxed SIMD"),
            Vectors::Scalar => ("_scalar", ", without SIMD"),
        }
    }
}

/// What one module is built from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) id: &'a str,
    /// The name of the binary, or of the file, that it is in.
    pub(crate) name: &'a str,
    pub(crate) vectors: Vectors,
    /// Whether its instances share a memory.
    pub(crate) threads: bool,
}

/// What a build found out about one module.
pub(crate) struct Built {
    pub(crate) size: u64,
    pub(crate) hash: Sha256Hex,
    pub(crate) features: Vec<String>,
    /// Whether it exports `kernel_backward`.
    pub(crate) backward: bool,
}

impl PackSpec {
    /// Reads `pack.toml` of a pack crate.
    ///
    /// # Errors
    /// [`ToolError::Io`] and [`ToolError::Spec`].
    pub fn read(directory: &Path) -> Result<PackSpec, ToolError> {
        let path = directory.join(SPEC_FILE);
        let text = fs::read_to_string(&path).map_err(ToolError::io("read", &path))?;
        PackSpec::parse(&text).map_err(|message| ToolError::Spec { path, message })
    }

    fn parse(text: &str) -> Result<PackSpec, String> {
        let mut spec: PackSpec = toml::from_str(text).map_err(|e| e.to_string())?;
        if spec.wamr.is_none()
            && let Some(kernel) = spec.kernels.iter().find(|kernel| kernel.scalar_variant)
        {
            return Err(format!(
                "kernel `{}`: a scalar variant is for WAMR: add a section [wamr]",
                kernel.id
            ));
        }
        spec.add_variants();
        for (i, kernel) in spec.kernels.iter().enumerate() {
            // The id becomes a file name and an argument of cargo before the manifest's rules run.
            let ok = kernel.id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
                && kernel.id.starts_with(|c: char| c.is_ascii_alphanumeric());
            if !ok {
                return Err(format!("kernel {i}: use letters, digits, '_' and '-' for `id`"));
            }
            if spec.kernels[..i].iter().any(|other| other.id == kernel.id) {
                return Err(format!("two kernels are called `{}`; rename one", kernel.id));
            }
            kernel.check_op()?;
            kernel.check_threads()?;
        }
        Ok(spec)
    }

    /// Puts the variants behind the kernels, those without any SIMD last.
    fn add_variants(&mut self) {
        let variant = |kernel: &KernelSection, vectors: Vectors| {
            let (id, name) = vectors.suffixes();
            KernelSection {
                id: format!("{}{id}", kernel.id),
                name: format!("{}{name}", kernel.name),
                variant_of: Some(kernel.id.clone()),
                vectors,
                ..kernel.clone()
            }
        };
        let plain = self.kernels.iter().filter(|kernel| kernel.plain_variant);
        let scalar = self.kernels.iter().filter(|kernel| kernel.scalar_variant);
        let variants: Vec<KernelSection> = plain
            .map(|kernel| variant(kernel, Vectors::Plain))
            .chain(scalar.map(|kernel| variant(kernel, Vectors::Scalar)))
            .collect();
        self.kernels.extend(variants);
    }

    /// What each module is built from: its id, the name of its sources, and what it may use.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.kernels.iter().map(|kernel| Source {
            id: &kernel.id,
            name: kernel.variant_of.as_deref().unwrap_or(&kernel.id),
            vectors: kernel.vectors,
            threads: kernel.threads > 1,
        })
    }

    /// The language of the kernels.
    pub fn lang(&self) -> Lang {
        self.pack.lang
    }

    /// Arguments for the C compiler besides those that every pack has.
    pub(crate) fn c_flags(&self) -> &[String] {
        &self.c.flags
    }

    /// Whether the manifest will name a key that nobody has.
    pub(crate) fn names_no_key(&self) -> bool {
        self.pack.author.signing_key == crate::scaffold::NO_KEY
    }

    /// The ids of the kernels. Those of variants aside, they are the names of the crate's binaries.
    pub fn kernel_ids(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|kernel| kernel.id.as_str())
    }

    /// The most linear memory that a kernel may have, in pages of 64 KiB.
    pub(crate) fn memory_pages(&self) -> u32 {
        self.limits.max_memory_pages
    }

    /// Names that the module of a kernel must export beyond those of the ABI.
    pub(crate) fn entry_point(&self, id: &str) -> Option<&str> {
        self.kernels.iter().find(|kernel| kernel.id == id).map(|kernel| kernel.entry_point.as_str())
    }

    /// Where the module of a kernel lies in the pack.
    pub(crate) fn module_path(&self, id: &str) -> Option<String> {
        let kernel = self.kernels.iter().find(|kernel| kernel.id == id)?;
        Some(format!("{}/{}.wasm", kernel.category, kernel.id))
    }

    /// The manifest, given what was built, in the order of [`PackSpec::kernel_ids`], and what was
    /// measured.
    pub(crate) fn manifest(
        &self,
        built: &[Built],
        figures: &Figures,
        path: &Path,
    ) -> Result<Manifest, ToolError> {
        self.try_manifest(built, figures)
            .map_err(|message| ToolError::Spec { path: path.join(SPEC_FILE), message })
    }

    fn try_manifest(&self, built: &[Built], figures: &Figures) -> Result<Manifest, String> {
        let kernels: Result<Vec<_>, String> = self
            .kernels
            .iter()
            .zip(built)
            .map(|(kernel, built)| {
                let mut entry = self
                    .entry(kernel, built)
                    .map_err(|e| format!("kernel `{}`: {e}", kernel.id))?;
                entry.benchmarks = figures.of(&kernel.id);
                Ok(entry)
            })
            .collect();
        let manifest = self.pack.manifest()?;
        Ok(Manifest { kernels: kernels?, fallbacks: self.fallbacks.clone(), ..manifest })
    }

    /// What a module that uses these features needs of WAMR, which has neither relaxed SIMD nor threads here.
    fn wamr(&self, features: &[String]) -> Result<Option<WamrPlatform>, String> {
        let runs =
            !features.iter().any(|feature| ["relaxed-simd", "threads"].contains(&&**feature));
        let Some(wamr) = self.wamr.as_ref().filter(|_| runs) else { return Ok(None) };
        let min_version = version(&wamr.min_version, "wamr.min_version")?;
        Ok(Some(WamrPlatform { min_version, aot_available: wamr.aot_available }))
    }

    fn entry(&self, kernel: &KernelSection, built: &Built) -> Result<KernelEntry, String> {
        let path = format!("{}/{}.wasm", kernel.category, kernel.id);
        let params: Result<IndexMap<_, _>, String> = kernel.params.iter().map(param).collect();
        Ok(KernelEntry {
            id: kernel.id.clone(),
            name: kernel.name.clone(),
            op: kernel.op.clone(),
            category: kernel.category.clone(),
            path: path.parse::<PackPath>().map_err(at("category"))?,
            size: built.size,
            hash: built.hash,
            entry_point: kernel.entry_point.clone(),
            backward: built.backward,
            threads: kernel.threads,
            inputs: kernel.inputs.iter().map(tensor).collect::<Result<_, _>>()?,
            outputs: vec![tensor(&kernel.output)?],
            params: params?,
            resource_limits: ResourceLimits {
                max_memory_pages: self.limits.max_memory_pages,
                max_epoch_ticks: self.limits.max_epoch_ticks,
                max_table_elements: self.limits.max_table_elements,
            },
            platforms: Platforms {
                wasmtime: Some(WasmtimePlatform {
                    min_version: version(&self.wasmtime.min_version, "wasmtime.min_version")?,
                    features: built.features.clone(),
                }),
                wamr: self.wamr(&built.features)?,
                native: None,
            },
            tolerance: kernel.tolerance.map(|t| Tolerance { rel: t.rel, abs: t.abs }),
            benchmarks: IndexMap::new(),
        })
    }
}

impl KernelSection {
    /// Whether hosts can enter it on so many threads.
    fn check_threads(&self) -> Result<(), String> {
        let KernelSection { id, threads, scalar_variant, .. } = self;
        if !(1..=MAX_THREADS).contains(threads) {
            return Err(format!("kernel `{id}`: threads is 1 to {MAX_THREADS}, not {threads}"));
        }
        if *threads > 1 && *scalar_variant {
            return Err(format!(
                "kernel `{id}`: WAMR enters a kernel on one thread: for its scalar variant add a kernel without \
                 `threads`"
            ));
        }
        Ok(())
    }

    /// Whether the operation is one of those that hosts know exactly where it should be.
    fn check_op(&self) -> Result<(), String> {
        let KernelSection { id, op, custom, .. } = self;
        if TeamOp::from_name(op).is_some() {
            return Err(format!("kernel `{id}`: {}", unknown_op(op)));
        }
        match (Op::from_name(op), custom) {
            (Some(_), false) | (None, true) => Ok(()),
            (Some(_), true) => Err(format!(
                "kernel `{id}`: every host knows an operation `{op}` and holds kernels of it against its own \
                 reference: leave `custom` out, or give your operation another name"
            )),
            (None, false) => Err(format!(
                "kernel `{id}`: {}; for an operation of your own write `custom = true` beside `op`",
                unknown_op(op)
            )),
        }
    }
}

/// What is said of the name of an operation that no host knows.
pub fn unknown_op(name: &str) -> String {
    let known = Op::ALL.iter().map(|op| op.name());
    let shown = escape_untrusted(name);
    if TeamOp::from_name(name).is_some() {
        return format!(
            "all threads of a step compute `{shown}` together, which no kernel of a pack can yet; kernels compute {}",
            known.collect::<Vec<_>>().join(", ")
        );
    }
    match similar(name, known.clone()) {
        Some(meant) => format!("no host knows an operation `{shown}`: did you mean `{meant}`?"),
        None => {
            let known: Vec<&str> = known.collect();
            format!("no host knows an operation `{shown}`, only {}", known.join(", "))
        }
    }
}

fn at<E: std::fmt::Display>(field: &str) -> impl FnOnce(E) -> String {
    move |error| format!("{field}: {error}")
}

fn version(text: &str, field: &str) -> Result<Version, String> {
    text.parse().map_err(at(field))
}

fn tensor(section: &TensorSection) -> Result<TensorSpec, String> {
    let shape = section.shape.iter().map(|dim| match dim {
        DimSection::Fixed(n) => Dim::Fixed(*n),
        DimSection::Symbol(name) => Dim::Symbol(name.clone()),
    });
    Ok(TensorSpec {
        name: section.name.clone(),
        dtype: section.dtype.parse().map_err(at(&format!("tensor `{}`", section.name)))?,
        shape: shape.collect(),
    })
}

fn param(section: &ParamSection) -> Result<(String, ParamSpec), String> {
    let field = format!("param `{}`", section.name);
    let all = [ParamType::F32, ParamType::U32, ParamType::I32];
    let ty = all
        .into_iter()
        .find(|ty| ty.name() == section.ty)
        .ok_or_else(|| format!("{field}: type is f32, u32 or i32, not `{}`", section.ty))?;
    let whole = |x: f64, low: f64, high: f64| {
        if x.fract() == 0.0 && (low..=high).contains(&x) {
            Ok(x)
        } else {
            Err(format!("{field}: the default {x} is no {}", ty.name()))
        }
    };
    let value = |x: f64| -> Result<ParamValue, String> {
        Ok(match ty {
            ParamType::F32 => ParamValue::F32(x as f32),
            ParamType::U32 => ParamValue::U32(whole(x, 0.0, f64::from(u32::MAX))? as u32),
            ParamType::I32 => {
                ParamValue::I32(whole(x, f64::from(i32::MIN), f64::from(i32::MAX))? as i32)
            }
        })
    };
    let default = section.default.map(value).transpose()?;
    Ok((section.name.clone(), ParamSpec { ty, default }))
}

#[cfg(test)]
mod tests;
