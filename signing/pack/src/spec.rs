//! `pack.toml`: what an author writes about a pack; `build` adds what it measures and gives the
//! manifest.

use std::fs;
use std::path::Path;

use indexmap::IndexMap;
use ruvllm_abi::Op;
use ruvllm_manifest::{
    Author, Dim, KernelEntry, Manifest, PackName, PackPath, ParamSpec, ParamType, ParamValue,
    Platforms, ResourceLimits, Sha256Hex, TensorSpec, Timestamp, Tolerance, WasmtimePlatform,
    escape_untrusted, similar,
};
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::figures::Figures;
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
    plain_variant ?       true to build the kernel once more without relaxed SIMD, for deterministic hosts
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
    #[serde(default)]
    c: CSection,
    /// What the committed build was made with.
    pub toolchain: Option<ToolchainId>,
    #[serde(rename = "kernel")]
    kernels: Vec<KernelSection>,
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
    /// Whether the pack also has the kernel without relaxed SIMD, for deterministic hosts.
    #[serde(default)]
    plain_variant: bool,
    /// Of such a variant: the kernel whose sources it is built from.
    #[serde(skip)]
    variant_of: Option<String>,
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

/// What the id of a variant without relaxed SIMD ends in.
const PLAIN_SUFFIX: &str = "_plain";

/// What one module is built from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) id: &'a str,
    /// The name of the binary, or of the file, that it is in.
    pub(crate) name: &'a str,
    pub(crate) relaxed_simd: bool,
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
        }
        Ok(spec)
    }

    /// Puts the variants without relaxed SIMD behind the kernels.
    fn add_variants(&mut self) {
        let with = |kernel: &&KernelSection| kernel.plain_variant;
        let variants: Vec<KernelSection> = (self.kernels.iter().filter(with))
            .map(|kernel| KernelSection {
                id: format!("{}{PLAIN_SUFFIX}", kernel.id),
                name: format!("{}, without relaxed SIMD", kernel.name),
                plain_variant: false,
                variant_of: Some(kernel.id.clone()),
                ..kernel.clone()
            })
            .collect();
        self.kernels.extend(variants);
    }

    /// What each module is built from: its id, the name of its sources, and whether it may use
    /// relaxed SIMD.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.kernels.iter().map(|kernel| Source {
            id: &kernel.id,
            name: kernel.variant_of.as_deref().unwrap_or(&kernel.id),
            relaxed_simd: kernel.variant_of.is_none(),
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
                wamr: None,
                native: None,
            },
            tolerance: kernel.tolerance.map(|t| Tolerance { rel: t.rel, abs: t.abs }),
            benchmarks: IndexMap::new(),
        })
    }
}

impl KernelSection {
    /// Whether the operation is one of those that hosts know exactly where it should be.
    fn check_op(&self) -> Result<(), String> {
        let KernelSection { id, op, custom, .. } = self;
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
mod tests {
    use super::*;

    const MINIMAL: &str = r#"
        [pack]
        name = "p"
        version = "1.0.0"
        description = "d"
        min_runtime_version = "0.1.0"
        created_at = "2026-11-20T00:00:00Z"
        author = { name = "a", signing_key = "ed25519:AAAA" }
        [limits]
        max_memory_pages = 16
        max_epoch_ticks = 100
        max_table_elements = 0
        [wasmtime]
        min_version = "48.0.0"
        [[kernel]]
        id = "k"
        name = "K"
        op = "my_op"
        custom = true
        category = "custom"
        entry_point = "k_forward"
        inputs = [{ name = "x", dtype = "f32", shape = ["n", 2] }]
        output = { name = "y", dtype = "f16", shape = ["n"] }
        params = [{ name = "b", type = "i32", default = -1 }, { name = "a", type = "f32" }]
    "#;

    fn built() -> Vec<Built> {
        vec![Built {
            size: 9,
            hash: Sha256Hex::from_bytes([1; 32]),
            features: vec![],
            backward: false,
        }]
    }

    #[test]
    fn a_spec_becomes_a_manifest_in_its_own_order() {
        let spec = PackSpec::parse(MINIMAL).unwrap();
        let manifest = spec.try_manifest(&built(), &Figures::default()).unwrap();
        let kernel = &manifest.kernels[0];
        assert_eq!(kernel.path.as_str(), "custom/k.wasm");
        assert_eq!(kernel.params.keys().collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(kernel.params["b"].default, Some(ParamValue::I32(-1)));
        assert_eq!(kernel.inputs[0].shape[1], Dim::Fixed(2));
    }

    #[test]
    fn a_plain_variant_is_a_kernel_of_its_own_from_the_same_source() {
        let text = MINIMAL.replace("name = \"K\"", "name = \"K\"\n        plain_variant = true");
        let spec = PackSpec::parse(&text).unwrap();
        assert_eq!(spec.kernel_ids().collect::<Vec<_>>(), ["k", "k_plain"]);
        let sources: Vec<_> = spec.sources().map(|s| (s.name, s.relaxed_simd)).collect();
        assert_eq!(sources, [("k", true), ("k", false)]);
        assert_eq!(spec.module_path("k_plain").unwrap(), "custom/k_plain.wasm");
        let c = text.replace("description = \"d\"", "description = \"d\"\n        lang = \"c\"");
        assert_eq!(PackSpec::parse(&c).unwrap().kernel_ids().count(), 2);
    }

    #[test]
    fn mistakes_are_named() {
        let with = |from: &str, to: &str| {
            let spec = PackSpec::parse(&MINIMAL.replace(from, to));
            spec.and_then(|spec| spec.try_manifest(&built(), &Figures::default())).unwrap_err()
        };
        assert!(with("id = \"k\"", "id = \"../k\"").contains("`id`"));
        assert!(with("= -1", "= 0.5").contains("param `b`"));
        assert!(with("\"i32\"", "\"f64\"").contains("f32, u32 or i32"));
        assert!(with("dtype = \"f16\"", "dtype = \"f17\"").contains("tensor `y`"));
        assert!(with("name = \"K\"", "nam = \"K\"").contains("nam"));
        assert!(with("2026-11-20T00:00:00Z", "yesterday").contains("created_at"));
    }

    #[test]
    fn the_help_names_every_field() {
        // The reader lists the fields that it knows where it meets another.
        let sections = ["[pack]", "[limits]", "[wasmtime]", "[[kernel]]", "[c]", "inputs = [{"];
        let with_author = MINIMAL.replace("author = {", "author = { zzz = 1,");
        let text = format!("{MINIMAL}\n[c]\n");
        let spoilt = sections.map(|section| {
            let end = if section.ends_with('{') { " zzz = 1," } else { "\nzzz = 1\n" };
            text.replacen(section, &format!("{section}{end}"), 1)
        });
        let top = format!("zzz = 1\n{MINIMAL}");
        for text in spoilt.into_iter().chain([with_author, top]) {
            let error = toml::from_str::<PackSpec>(&text).unwrap_err().to_string();
            let (_, expected) = error.split_once("expected ").unwrap_or_else(|| panic!("{error}"));
            for field in expected.split('`').skip(1).step_by(2) {
                assert!(PACK_TOML_FIELDS.contains(field), "{field} is missing");
            }
        }
    }

    #[test]
    fn a_misspelt_operation_is_an_error_with_the_right_name_and_not_a_custom_one() {
        let with = |op: &str, custom: &str| {
            let text = MINIMAL.replace("\"my_op\"", &format!("\"{op}\""));
            PackSpec::parse(&text.replace("custom = true", custom)).map(drop)
        };
        let slip = with("rmsnrom", "").unwrap_err();
        assert!(
            slip.contains("did you mean `rmsnorm`?") && slip.contains("`custom = true`"),
            "{slip}"
        );
        let other = with("softmax", "custom = false").unwrap_err();
        assert!(other.contains("only rope, rmsnorm") && !other.contains("did you mean"), "{other}");
        assert!(with("rmsnorm", "custom = true").unwrap_err().contains("leave `custom` out"));
        assert_eq!(with("rmsnorm", ""), Ok(()));
        assert_eq!(with("rmsnrom", "custom = true"), Ok(()));
    }
}
