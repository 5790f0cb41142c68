//! Compiling a crate of kernels with cargo.
//!
//! Nothing of the environment may change the bytes: the profile is set here, paths are remapped,
//! flags from outside are dropped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ruvllm_abi::export;

use crate::ToolError;
use crate::build::{Job, STACK_BYTES};
use crate::lines::{CRATE_ROOT, DEPENDENCIES};
use crate::spec::{Source, Vectors};
use crate::toolchain::{Compiler, StdSource, TARGET};

/// The parts of a toolchain for Rust.
struct Rust<'a> {
    rustc: &'a Path,
    cargo: &'a Path,
    sysroot: &'a Path,
    std: StdSource,
    linker: &'a Path,
}

/// What cargo compiles in one run: kernels that may use the same instructions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Features {
    vectors: Vectors,
    threads: bool,
}

/// Runs cargo for every kernel: once for those that may use the same instructions.
///
/// # Errors
/// [`ToolError::Compile`], [`ToolError::Spec`] about `Cargo.toml`, [`ToolError::Io`].
pub(crate) fn compile(job: &Job<'_>) -> Result<(), ToolError> {
    let all = Vectors::ALL
        .into_iter()
        .flat_map(|vectors| [false, true].map(|threads| Features { vectors, threads }));
    for features in all {
        let chosen = job.spec.sources().filter(|source| Features::of(*source) == features);
        let names: Vec<&str> = chosen.map(|source| source.name).collect();
        if !names.is_empty() {
            compile_all(job, &names, features)?;
        }
    }
    Ok(())
}

/// The directories of all packages of this machine that the kernels are compiled from.
///
/// # Errors
/// [`ToolError::Spec`] about `Cargo.toml`, [`ToolError::Io`].
pub(crate) fn packages(job: &Job<'_>) -> Result<Vec<PathBuf>, ToolError> {
    let packages = Rust::of(job)?.path_dependencies(job.directory)?;
    Ok(packages.into_iter().map(|(_, directory)| directory).collect())
}

fn compile_all(job: &Job<'_>, names: &[&str], features: Features) -> Result<(), ToolError> {
    let rust = Rust::of(job)?;
    let target_dir = features.target_dir(job.target_dir);
    let mut cargo = rust.cargo(job.directory);
    cargo.args(["build", "--release", "--target", TARGET]).arg("--target-dir").arg(&target_dir);
    if job.directory.join("Cargo.lock").is_file() {
        cargo.arg("--locked");
    }
    if rust.std == StdSource::Sources {
        // Building the core library is not a stable feature of cargo, but what it needs is fixed
        // by the compiler's version, which the pack records.
        cargo.arg("-Zbuild-std=core").env("RUSTC_BOOTSTRAP", "1");
        if takes_nothing_from_a_registry(job.directory) {
            cargo.args(rust.vendored_std());
        }
    }
    for name in names {
        cargo.args(["--bin", name]);
    }
    let flags = rust.flags(job, &target_dir, features)?;
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join(&OsString::from("\u{1f}")));
    let status = cargo.status().map_err(ToolError::io("run", rust.cargo))?;
    if status.success() {
        return Ok(());
    }
    Err(ToolError::Compile { what: "cargo", status: status.to_string() })
}

/// Whether the lock file of a crate says that all of its packages lie on this machine.
fn takes_nothing_from_a_registry(directory: &Path) -> bool {
    let lock = std::fs::read_to_string(directory.join("Cargo.lock"));
    lock.is_ok_and(|lock| !lock.lines().any(|line| line.starts_with("source = ")))
}

/// Where cargo leaves a module.
pub(crate) fn module_file(dir: &Path, source: Source<'_>) -> PathBuf {
    let dir = Features::of(source).target_dir(dir);
    dir.join(TARGET).join("release").join(format!("{}.wasm", source.name))
}

impl Features {
    fn of(source: Source<'_>) -> Features {
        Features { vectors: source.vectors, threads: source.threads }
    }

    /// Cargo keeps one build of a directory: other features are built elsewhere.
    fn target_dir(self, dir: &Path) -> PathBuf {
        let dir = match self.vectors {
            Vectors::Relaxed => dir.to_owned(),
            Vectors::Plain => dir.join("plain"),
            Vectors::Scalar => dir.join("scalar"),
        };
        if self.threads { dir.join("threads") } else { dir }
    }
}

impl<'a> Rust<'a> {
    fn of(job: &Job<'a>) -> Result<Rust<'a>, ToolError> {
        let Compiler::Rust { rustc, cargo, sysroot, std } = &job.toolchain.compiler else {
            return Err(ToolError::Toolchain { message: "the pack is in Rust".to_owned() });
        };
        Ok(Rust { rustc, cargo, sysroot, std: *std, linker: &job.toolchain.linker })
    }

    /// Cargo with nothing inherited that could change what it makes.
    fn cargo(&self, directory: &Path) -> Command {
        let mut cargo = Command::new(self.cargo);
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
            // For source lines of traps. Nothing of it goes into the pack, and no code depends on it.
            ("STRIP", "none"),
            ("DEBUG", "line-tables-only"),
            ("DEBUG_ASSERTIONS", "false"),
            ("OVERFLOW_CHECKS", "false"),
            ("INCREMENTAL", "false"),
        ];
        for (name, value) in profile {
            cargo.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
        }
        cargo
            .current_dir(directory)
            .env("RUSTC", self.rustc)
            .env("RUSTC_WRAPPER", wrapper().unwrap_or_default())
            .env(WRAPS, "1")
            .env("RUSTC_WORKSPACE_WRAPPER", "")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", self.linker)
            .stdin(Stdio::null())
            // Standard output belongs to the report.
            .stdout(Stdio::null());
        cargo
    }

    /// Options that have cargo find the dependencies of the standard library beside its sources. A kernel
    /// is built with the core library alone, which has none, but cargo asks for them all the same, and
    /// would fetch a dozen crates for nothing.
    fn vendored_std(&self) -> Vec<OsString> {
        let vendor = self.sysroot.join("lib/rustlib/src/rust/library/vendor");
        // Written as TOML, which a path that is no text has no place in.
        let Some(path) = vendor.to_str().filter(|_| vendor.is_dir()) else { return Vec::new() };
        let path = toml::Value::from(path);
        let options = [
            "source.crates-io.replace-with=\"vendored-std\"".to_owned(),
            format!("source.vendored-std.directory={path}"),
        ];
        options.into_iter().flat_map(|option| ["--config".into(), option.into()]).collect()
    }

    /// The compiler's flags: features, the linker's options, and no path of this machine.
    fn flags(
        &self,
        job: &Job<'_>,
        target_dir: &Path,
        features: Features,
    ) -> Result<Vec<OsString>, ToolError> {
        let vectors = match features.vectors {
            Vectors::Relaxed => "-Ctarget-feature=+simd128,+relaxed-simd",
            Vectors::Plain => "-Ctarget-feature=+simd128",
            // The first version of WebAssembly: no copying and filling of memory either.
            Vectors::Scalar => "-Ctarget-cpu=mvp",
        };
        let mut flags: Vec<OsString> = vec![
            vectors.into(),
            "-Clink-arg=--export=__heap_base".into(),
            format!("-Clink-arg=-zstack-size={STACK_BYTES}").into(),
            "-Clink-arg=--stack-first".into(),
            format!("-Clink-arg=--max-memory={}", job.max_memory()).into(),
            "-Clink-arg=--gc-sections".into(),
        ];
        if features.threads {
            flags.push("-Ctarget-feature=+atomics".into());
            flags.push(format!("-Clink-arg=--export={}", export::STACK_POINTER).into());
        }
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
        remap(self.sysroot, "/rust");
        for (name, path) in self.path_dependencies(job.directory)? {
            remap(&path, &format!("{DEPENDENCIES}{name}"));
        }
        remap(job.directory, CRATE_ROOT.trim_end_matches('/'));
        remap(target_dir, "/target");
        Ok(flags)
    }

    /// Name and directory of every package that the crate takes from this machine.
    fn path_dependencies(&self, directory: &Path) -> Result<Vec<(String, PathBuf)>, ToolError> {
        let mut cargo = self.cargo(directory);
        cargo.args(["metadata", "--format-version", "1"]).stdout(Stdio::piped());
        let output = cargo.output().map_err(ToolError::io("run", self.cargo))?;
        if !output.status.success() {
            // Said by cargo itself, about Cargo.toml.
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(ToolError::Spec { path: directory.join("Cargo.toml"), message });
        }
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_default();
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
}

/// Says to this program that it is to be a wrapper of the compiler.
const WRAPS: &str = "RUVLLM_PACK_WRAPS_RUSTC";

/// This program, where it is the tool and not another that uses the library.
fn wrapper() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    (program.file_stem()? == "ruvllm-pack").then_some(program)
}

/// Runs the compiler as cargo asks for it, where cargo has started this program for that.
///
/// Cargo tells the compiler a hash by which it tells crates apart, and where a crate lies outside of the pack's
/// directory its path is in it. The hash is in the names of functions, and what the optimiser makes of a function
/// depends on them. Name and version of the package tell the crates of a pack apart as well.
pub fn as_compiler() -> Option<ExitCode> {
    std::env::var_os(WRAPS)?;
    let mut args = std::env::args_os().skip(1);
    let rustc = args.next()?;
    let of = |name| std::env::var(name).unwrap_or_default();
    let package = [of("CARGO_PKG_NAME"), of("CARGO_PKG_VERSION"), of("CARGO_CRATE_NAME")].join("-");
    let args = args.map(|arg| match arg.to_str() {
        Some(text) if text.starts_with("metadata=") => format!("metadata={package}").into(),
        _ => arg,
    });
    match Command::new(&rustc).args(args).status() {
        Ok(status) => Some(ExitCode::from(status.code().map_or(1, |code| code as u8))),
        Err(error) => {
            eprintln!("cannot run {}: {error}", rustc.to_string_lossy());
            Some(ExitCode::FAILURE)
        }
    }
}

fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}
