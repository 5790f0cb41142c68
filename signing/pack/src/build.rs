//! `build`: from a pack crate to a pack.
//!
//! The same sources and the same [`ToolchainId`] give the same bytes wherever
//! they lie: paths are remapped, the compiler's settings are fixed here rather than taken from the
//! environment, and nothing depends on the time.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ruvllm_host::module_features;
use ruvllm_manifest::{MANIFEST_FILE, SIGNATURE_FILE, Sha256Hex};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::module::normalise;
use crate::spec::Built;
use crate::toolchain::{StdSource, TARGET, Toolchain};
use crate::{ModuleFacts, PackSpec, Report, ToolError, ToolchainId, trial};

/// Where a build lies in its crate.
pub const DIST: &str = "dist";
/// Stack of a kernel in bytes; overflowing it runs into the start of memory and traps.
const STACK_BYTES: u32 = 16 * 1024;
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
    /// Places where it can give up with a trap.
    pub trap_sites: usize,
}

impl Report for BuildReport {}

impl fmt::Display for BuildReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.checked { "reproduced" } else { "built" };
        writeln!(f, "{what} {} with {}", self.directory.display(), self.toolchain)?;
        for kernel in &self.kernels {
            let BuiltKernel { id, size, hash, features, .. } = kernel;
            let hash: String = hash.chars().take(19).collect();
            writeln!(f, "  {id:<20} {size:>7} bytes  {hash}..  {}", features.join(", "))?;
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
    let toolchain = Toolchain::find(spec.toolchain.as_ref())?;
    let mismatch = spec.toolchain.clone().filter(|wanted| *wanted != toolchain.id);
    if let (true, Some(wanted)) = (options.check, &mismatch) {
        let (wanted, found) = (wanted.to_string(), toolchain.id.to_string());
        return Err(ToolError::ToolchainMismatch { wanted, found });
    }
    let target_dir = options.target_dir.clone().unwrap_or_else(|| directory.join("target"));
    compile(&toolchain, &spec, &directory, &target_dir)?;

    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut kernels = Vec::new();
    let mut built = Vec::new();
    for id in spec.kernel_ids() {
        let failed = |message: String| ToolError::Module { kernel: id.to_owned(), message };
        let output = target_dir.join(TARGET).join("release").join(format!("{id}.wasm"));
        let wasm = fs::read(&output).map_err(ToolError::io("read", &output))?;
        let entry = spec.entry_point(id).unwrap_or_default();
        let wasm = normalise(&wasm, entry).map_err(failed)?;
        let features = module_features(&wasm).map_err(failed)?;
        let features: Vec<String> = features.into_iter().map(str::to_owned).collect();
        let hash = Sha256Hex::from_bytes(Sha256::digest(&wasm).into());
        let path = spec.module_path(id).unwrap_or_default();
        kernels.push(BuiltKernel {
            id: id.to_owned(),
            path: path.clone(),
            size: wasm.len() as u64,
            hash: hash.to_string(),
            features: features.clone(),
            trap_sites: ModuleFacts::read(&wasm).map_err(failed)?.trap_sites,
        });
        built.push(Built { size: wasm.len() as u64, hash, features });
        files.push((path, wasm));
    }
    let manifest = spec.manifest(&built, &directory)?.to_json()?;
    files.push((MANIFEST_FILE.to_owned(), manifest.into_bytes()));
    trial::admit(files.iter().cloned())?;

    let dist = directory.join(DIST);
    let signature_removed = if options.check {
        compare(&dist, &files)?;
        false
    } else {
        write(&dist, &files)?
    };
    Ok(BuildReport {
        directory: given.join(DIST),
        toolchain: toolchain.id,
        checked: options.check,
        signature_removed,
        expected_toolchain: mismatch,
        kernels,
    })
}

/// Runs cargo for every kernel.
fn compile(
    toolchain: &Toolchain,
    spec: &PackSpec,
    directory: &Path,
    target_dir: &Path,
) -> Result<(), ToolError> {
    let mut cargo = cargo(toolchain, directory);
    cargo.args(["build", "--release", "--target", TARGET]).arg("--target-dir").arg(target_dir);
    if directory.join("Cargo.lock").is_file() {
        cargo.arg("--locked");
    }
    if toolchain.id.std == StdSource::Sources {
        // Building the core library is not a stable feature of cargo, but what it needs is fixed
        // by the compiler's version, which the pack records.
        cargo.arg("-Zbuild-std=core").env("RUSTC_BOOTSTRAP", "1");
    }
    for id in spec.kernel_ids() {
        cargo.args(["--bin", id]);
    }
    let flags = flags(toolchain, spec, directory, target_dir)?;
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join(&OsString::from("\u{1f}")));
    let status = cargo.status().map_err(ToolError::io("run", &toolchain.cargo))?;
    if status.success() {
        return Ok(());
    }
    Err(ToolError::Compile { status: status.to_string() })
}

/// Cargo with nothing inherited that could change what it makes.
fn cargo(toolchain: &Toolchain, directory: &Path) -> Command {
    let mut cargo = Command::new(&toolchain.cargo);
    let inherited =
        ["RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTUP_TOOLCHAIN"];
    for name in inherited {
        cargo.env_remove(name);
    }
    let profile = [
        ("OPT_LEVEL", "3"),
        ("LTO", "fat"),
        ("CODEGEN_UNITS", "1"),
        ("PANIC", "abort"),
        ("STRIP", "symbols"),
        ("DEBUG", "0"),
        ("DEBUG_ASSERTIONS", "false"),
        ("OVERFLOW_CHECKS", "false"),
        ("INCREMENTAL", "false"),
    ];
    for (name, value) in profile {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
    }
    cargo
        .current_dir(directory)
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "")
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", &toolchain.linker)
        .stdin(Stdio::null())
        // Standard output belongs to the report.
        .stdout(Stdio::null());
    cargo
}

/// The compiler's flags: features, the linker's options, and no path of this machine.
fn flags(
    toolchain: &Toolchain,
    spec: &PackSpec,
    directory: &Path,
    target_dir: &Path,
) -> Result<Vec<OsString>, ToolError> {
    let max_memory = u64::from(spec.memory_pages()).saturating_mul(PAGE_BYTES);
    let mut flags: Vec<OsString> = vec![
        "-Ctarget-feature=+simd128,+relaxed-simd".into(),
        "-Clink-arg=--export=__heap_base".into(),
        format!("-Clink-arg=-zstack-size={STACK_BYTES}").into(),
        "-Clink-arg=--stack-first".into(),
        format!("-Clink-arg=--max-memory={max_memory}").into(),
        "-Clink-arg=--gc-sections".into(),
        "-Clink-arg=--strip-all".into(),
    ];
    let mut remap = |from: &Path, to: &str| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flags.push(flag);
    };
    // Of several prefixes that match, the last one counts: the widest come first.
    if let Some(home) = cargo_home() {
        remap(&home, "/cargo");
    }
    remap(&toolchain.sysroot, "/rust");
    for (name, path) in path_dependencies(toolchain, directory)? {
        remap(&path, &format!("/deps/{name}"));
    }
    remap(directory, "/pack");
    remap(target_dir, "/target");
    Ok(flags)
}

fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

/// Name and directory of every package that the crate takes from this machine.
fn path_dependencies(
    toolchain: &Toolchain,
    directory: &Path,
) -> Result<Vec<(String, PathBuf)>, ToolError> {
    let mut cargo = cargo(toolchain, directory);
    cargo.args(["metadata", "--format-version", "1"]).stdout(Stdio::piped());
    let output = cargo.output().map_err(ToolError::io("run", &toolchain.cargo))?;
    if !output.status.success() {
        // Said by cargo itself, about Cargo.toml.
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ToolError::Spec { path: directory.join("Cargo.toml"), message });
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let mut found: Vec<(String, PathBuf)> = packages
        .iter()
        .filter(|package| package["source"].is_null())
        .filter_map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str()?);
            Some((package["name"].as_str()?.to_owned(), manifest.parent()?.to_owned()))
        })
        .collect();
    found.sort_by_key(|(_, path)| path.components().count());
    Ok(found)
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
    remove_stale_modules(dist, files)?;
    for (path, bytes) in files {
        let path = dist.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(ToolError::io("create", parent))?;
        }
        fs::write(&path, bytes).map_err(ToolError::io("write", &path))?;
    }
    Ok(signature_removed)
}

/// Removes modules that the earlier manifest lists and the new one does not.
fn remove_stale_modules(dist: &Path, files: &[(String, Vec<u8>)]) -> Result<(), ToolError> {
    let Ok(old) = fs::read(dist.join(MANIFEST_FILE)) else { return Ok(()) };
    let Ok(old) = ruvllm_manifest::Manifest::parse(&old) else { return Ok(()) };
    for kernel in &old.kernels {
        let path = dist.join(kernel.path.as_str());
        if !files.iter().any(|(kept, _)| kept == kernel.path.as_str()) && path.is_file() {
            fs::remove_file(&path).map_err(ToolError::io("remove", &path))?;
        }
    }
    Ok(())
}
