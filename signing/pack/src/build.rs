//! `build`: from a pack crate to a pack.
//!
//! The same sources and the same [`ToolchainId`] give the same bytes wherever
//! they lie: paths are remapped, the compiler's settings are fixed here rather than taken from the
//! environment, and nothing depends on the time.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_abi::export;
use ruvllm_host::module_features;
use ruvllm_manifest::{MANIFEST_FILE, Manifest, SIGNATURE_FILE, Sha256Hex};
use ruvllm_signing::{DIST, Sources};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::figures::Figures;
use crate::lines::Lines;
use crate::module::normalise;
use crate::sources;
use crate::spec::{Built, SPEC_FILE, Source};
use crate::toolchain::Toolchain;
use crate::{Lang, ModuleFacts, PackSpec, Report, ToolError, ToolchainId};
use crate::{compile_c, compile_rust, graph, trial};

/// Where compilers leave what they make in a crate, unless it is said otherwise.
pub(crate) const TARGET_DIR: &str = "target";
/// Stack of a kernel in bytes; overflowing it runs into the start of memory and traps.
pub(crate) const STACK_BYTES: u32 = 16 * 1024;
/// Bytes of a WebAssembly page.
const PAGE_BYTES: u64 = 64 * 1024;

/// How to build.
#[derive(Clone, Debug)]
pub struct Options {
    /// The pack crate: the directory with `pack.toml` and `Cargo.toml`.
    pub directory: PathBuf,
    /// Rebuild and compare with what is there instead of writing.
    pub check: bool,
    /// Where cargo keeps its files; `target` in the directory by default.
    pub target_dir: Option<PathBuf>,
}

/// What was built.
#[derive(Clone, Debug, Serialize)]
pub struct BuildReport {
    /// Where the pack is.
    pub directory: PathBuf,
    /// What it was built with.
    pub toolchain: ToolchainId,
    /// Whether this is a comparison with an earlier build.
    pub checked: bool,
    /// Whether a signature over an earlier manifest was removed.
    pub signature_removed: bool,
    /// Where the toolchain is another than `pack.toml` names: that one.
    pub expected_toolchain: Option<ToolchainId>,
    /// Whether `pack.toml` names no key yet, so that the manifest claims none.
    pub names_no_key: bool,
    /// The kernels.
    pub kernels: Vec<BuiltKernel>,
}

/// One kernel of a build.
#[derive(Clone, Debug, Serialize)]
pub struct BuiltKernel {
    /// Its id.
    pub id: String,
    /// Its file in the pack.
    pub path: String,
    /// Bytes of the module.
    pub size: u64,
    /// SHA-256 of the module.
    pub hash: String,
    /// WebAssembly features that it uses.
    pub features: Vec<String>,
    /// Whether it gives gradients: it exports `kernel_backward`.
    pub backward: bool,
    /// Places where it can give up with a trap.
    pub trap_sites: usize,
}

impl Report for BuildReport {}

impl fmt::Display for BuildReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.checked { "reproduced" } else { "built" };
        writeln!(f, "{what} {} with {}", self.directory.display(), self.toolchain)?;
        for kernel in &self.kernels {
            let BuiltKernel { id, size, hash, features, backward, .. } = kernel;
            let hash: String = hash.chars().take(19).collect();
            let gradients = if *backward { "  gradients" } else { "" };
            let features = features.join(", ");
            writeln!(f, "  {id:<20} {size:>7} bytes  {hash}..  {features}{gradients}")?;
        }
        for kernel in self.kernels.iter().filter(|kernel| kernel.trap_sites > 0) {
            let BuiltKernel { id, trap_sites, .. } = kernel;
            writeln!(
                f,
                "warning: {id} can give up with a trap in {trap_sites} place(s), panics mostly: \
                 use iterators, `get` and checked arithmetic instead of what can panic"
            )?;
        }
        if self.names_no_key {
            writeln!(f, "note: signing_key in pack.toml is nobody's yet; see ruvllm-pack keygen")?;
        }
        if let Some(expected) = &self.expected_toolchain {
            writeln!(f, "note: pack.toml names {expected}; these bytes may differ from its")?;
        }
        if self.signature_removed {
            writeln!(f, "note: the manifest changed, so its signature is gone: sign it again")?;
        }
        Ok(())
    }
}

/// Builds a pack, or with [`Options::check`] compares a rebuild with what is there.
///
/// The result has passed the host's gates and numeric admission.
///
/// # Errors
/// [`ToolError::Spec`], [`ToolError::Toolchain`], [`ToolError::Compile`], [`ToolError::Module`],
/// [`ToolError::Manifest`], [`ToolError::Host`] where admission refuses it, [`ToolError::Io`]; when
/// comparing, [`ToolError::ToolchainMismatch`] and [`ToolError::Differs`].
pub fn build(options: &Options) -> Result<BuildReport, ToolError> {
    let given = &options.directory;
    let directory = fs::canonicalize(given).map_err(ToolError::io("open", given))?;
    let spec = PackSpec::read(&directory)?;
    let toolchain = Toolchain::find(spec.lang(), spec.toolchain.as_ref())?;
    let mismatch = spec.toolchain.clone().filter(|wanted| *wanted != toolchain.id);
    if let (true, Some(wanted)) = (options.check, &mismatch) {
        let (wanted, found) = (wanted.to_string(), toolchain.id.to_string());
        return Err(ToolError::ToolchainMismatch { wanted, found });
    }
    let target_dir = match &options.target_dir {
        // The compilers run elsewhere, so that the path must hold from anywhere.
        Some(target) => std::path::absolute(target).map_err(ToolError::io("find", target))?,
        None => directory.join(TARGET_DIR),
    };
    let (toolchain, target_dir) = (&toolchain, target_dir.as_path());
    let job = Job { toolchain, spec: &spec, directory: &directory, target_dir };
    let packages = match spec.lang() {
        Lang::Rust => compile_rust::packages(&job)?,
        Lang::C => Vec::new(),
    };
    // As they are now: what changes while the compiler runs may not be part of what it makes.
    let mut sources = Sources::read(&directory, &packages)?;
    match spec.lang() {
        Lang::Rust => compile_rust::compile(&job)?,
        Lang::C => compile_c::compile(&job)?,
    }
    for source in spec.sources() {
        let list = compiled_file(&spec, target_dir, source).with_extension("d");
        sources.add(&directory, &sources::dependencies(&list)?, target_dir)?;
    }
    let modules = spec.sources().map(|source| job.module(source)).collect::<Result<_, _>>()?;
    let pack = assemble(&spec, &directory, target_dir, modules)?;

    let dist = directory.join(DIST);
    let signature_removed = if options.check {
        compare(&dist, &pack.files)?;
        false
    } else {
        let removed = write(&dist, &pack.files)?;
        sources::record(&directory, sources)?;
        removed
    };
    Ok(BuildReport {
        directory: given.join(DIST),
        toolchain: toolchain.id.clone(),
        checked: options.check,
        signature_removed,
        expected_toolchain: mismatch,
        names_no_key: spec.names_no_key(),
        kernels: pack.kernels,
    })
}

/// Makes the manifest of a build again, after something else than the modules has changed. Gives
/// back whether a signature had to go.
///
/// # Errors
/// As [`build`]; [`ToolError::Io`] where a module has not been built.
pub(crate) fn refresh_manifest(directory: &Path) -> Result<bool, ToolError> {
    let spec = PackSpec::read(directory)?;
    let dist = directory.join(DIST);
    let read = |id| {
        let path = dist.join(spec.module_path(id).unwrap_or_default());
        fs::read(&path).map_err(ToolError::io("read", &path))
    };
    let modules = spec.kernel_ids().map(read).collect::<Result<_, _>>()?;
    let files = assemble(&spec, directory, &directory.join(TARGET_DIR), modules)?.files;
    sources::keep_through(directory, || write(&dist, &files))
}

/// What a compiler is asked for.
pub(crate) struct Job<'a> {
    pub(crate) toolchain: &'a Toolchain,
    pub(crate) spec: &'a PackSpec,
    /// The pack crate, an absolute path.
    pub(crate) directory: &'a Path,
    /// Where files between source and pack go, an absolute path.
    pub(crate) target_dir: &'a Path,
}

impl Job<'_> {
    /// The most bytes of memory that a module may declare.
    pub(crate) fn max_memory(&self) -> u64 {
        u64::from(self.spec.memory_pages()).saturating_mul(PAGE_BYTES)
    }

    /// The module of a kernel that was compiled, in its normal form.
    fn module(&self, source: Source<'_>) -> Result<Vec<u8>, ToolError> {
        let id = source.id;
        let path = compiled_file(self.spec, self.target_dir, source);
        let wasm = fs::read(&path).map_err(ToolError::io("read", &path))?;
        let entry = self.spec.entry_point(id).unwrap_or_default();
        let failed = |message| ToolError::Module { kernel: id.to_owned(), message };
        normalise(&wasm, entry, source.threads).map_err(failed)
    }
}

/// Where a build leaves the module of a kernel as the compiler made it, with line tables.
pub(crate) fn compiled_file(spec: &PackSpec, target_dir: &Path, source: Source<'_>) -> PathBuf {
    match spec.lang() {
        Lang::Rust => compile_rust::module_file(target_dir, source),
        Lang::C => compile_c::module_file(target_dir, source.id),
    }
}

/// The files of a pack, the manifest last, and what is to be said about its kernels.
struct Assembled {
    files: Vec<(String, Vec<u8>)>,
    kernels: Vec<BuiltKernel>,
}

/// Measures the modules, makes the manifest and takes the pack through admission.
fn assemble(
    spec: &PackSpec,
    directory: &Path,
    target_dir: &Path,
    modules: Vec<Vec<u8>>,
) -> Result<Assembled, ToolError> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut kernels = Vec::new();
    let mut built = Vec::new();
    for (id, wasm) in spec.kernel_ids().zip(modules) {
        let failed = |message: String| ToolError::Module { kernel: id.to_owned(), message };
        let features = module_features(&wasm).map_err(failed)?;
        let features: Vec<String> = features.into_iter().map(str::to_owned).collect();
        let hash = Sha256Hex::from_bytes(Sha256::digest(&wasm).into());
        let path = spec.module_path(id).unwrap_or_default();
        let facts = ModuleFacts::read(&wasm).map_err(failed)?;
        let backward = facts.exports.iter().any(|name| name == export::BACKWARD);
        kernels.push(BuiltKernel {
            id: id.to_owned(),
            path: path.clone(),
            size: wasm.len() as u64,
            hash: hash.to_string(),
            features: features.clone(),
            backward,
            trap_sites: facts.trap_sites,
        });
        built.push(Built { size: wasm.len() as u64, hash, features, backward });
        files.push((path, wasm));
    }
    let figures = Figures::read(directory)?;
    let mut manifest = spec.manifest(&built, &figures, directory)?;
    let graphs = graph::read_all(&spec.graphs, &directory.join(SPEC_FILE))?;
    manifest.graphs = graphs.entries;
    files.extend(graphs.files);
    let file = |path: &str| files.iter().find(|(own, _)| own == path).map(|(_, bytes)| &bytes[..]);
    let lines = Lines::of(&manifest, file, Some((spec, target_dir)));
    files.push((MANIFEST_FILE.to_owned(), manifest.to_json()?.into_bytes()));
    trial::admit(files.iter().cloned(), None, &lines, trial::Which::All)?;
    Ok(Assembled { files, kernels })
}

/// Names the files that differ from those of an earlier build.
fn compare(dist: &Path, files: &[(String, Vec<u8>)]) -> Result<(), ToolError> {
    let differs =
        |(path, bytes): &&(String, Vec<u8>)| fs::read(dist.join(path)).ok().as_ref() != Some(bytes);
    let files: Vec<String> = files.iter().filter(differs).map(|(path, _)| path.clone()).collect();
    if files.is_empty() { Ok(()) } else { Err(ToolError::Differs { files }) }
}

/// Writes the pack, without the files of an earlier one that are no longer part of it. Gives back
/// whether a signature had to go.
fn write(dist: &Path, files: &[(String, Vec<u8>)]) -> Result<bool, ToolError> {
    let signature = dist.join(SIGNATURE_FILE);
    let manifest = dist.join(MANIFEST_FILE);
    let same = files.last().is_some_and(|(_, new)| fs::read(&manifest).ok().as_ref() == Some(new));
    let signature_removed = !same && signature.is_file();
    if signature_removed {
        fs::remove_file(&signature).map_err(ToolError::io("remove", &signature))?;
    }
    remove_stale_files(dist, files)?;
    for (path, bytes) in files {
        let path = dist.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(ToolError::io("create", parent))?;
        }
        fs::write(&path, bytes).map_err(ToolError::io("write", &path))?;
    }
    Ok(signature_removed)
}

/// Removes files that the earlier manifest lists and the new one does not.
fn remove_stale_files(dist: &Path, files: &[(String, Vec<u8>)]) -> Result<(), ToolError> {
    let Ok(old) = fs::read(dist.join(MANIFEST_FILE)) else { return Ok(()) };
    let Ok(old) = Manifest::parse(&old) else { return Ok(()) };
    for old in old.files() {
        let path = dist.join(old.path.as_str());
        if !files.iter().any(|(kept, _)| kept == old.path.as_str()) && path.is_file() {
            fs::remove_file(&path).map_err(ToolError::io("remove", &path))?;
        }
    }
    Ok(())
}
