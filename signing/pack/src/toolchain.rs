//! Finding something that compiles Rust or C to wasm32.
//!
//! For Rust two kinds will do: one with the `wasm32-unknown-unknown` target installed, or one with
//! its own sources, from which the core library is then built (a distribution's package, usually).
//! For C it is any clang that knows the target. A linker goes with each. What was used is summed up
//! in a [`ToolchainId`]: builds with equal ids give equal bytes.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{Lang, ToolError};

const INSTALL_RUST: &str = "\
install one of: `rustup target add wasm32-unknown-unknown`; or a distribution's rustc and cargo \
together with its sources and a linker (Debian: `apt install rustc-web cargo-web rust-web-src lld`)";

const INSTALL_CLANG: &str = "\
install clang and its linker: Debian and Ubuntu `apt install clang lld`, Fedora `dnf install clang \
lld`, macOS `brew install llvm lld` (with its bin directory on the PATH: Apple's own clang does not \
know wasm32)";

/// The target that kernels are compiled for.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// What has to be equal for two builds to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "either `rustc`, `std` and `linker`, or `clang` and `linker`")]
pub enum ToolchainId {
    /// Of a pack in Rust.
    Rust(RustId),
    /// Of a pack in C.
    C(ClangId),
}

/// A compiler of C and its linker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClangId {
    /// Version of the compiler, such as `19.1.7`.
    pub clang: String,
    /// Version of the linker, such as `LLD 19.1.7`.
    pub linker: String,
}

/// A compiler of Rust, where its core library comes from, and its linker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RustId {
    /// Release of the compiler, such as `1.96.0`.
    pub rustc: String,
    /// Where the core library comes from.
    pub std: StdSource,
    /// Version of the linker, such as `LLD 22.1.2`.
    pub linker: String,
}

impl fmt::Display for ToolchainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToolchainId::Rust(id) => {
                let std = match id.std {
                    StdSource::Target => "its installed wasm32 target",
                    StdSource::Sources => "its own sources",
                };
                write!(f, "rustc {} with {std} and {}", id.rustc, id.linker)
            }
            ToolchainId::C(id) => write!(f, "clang {} and {}", id.clang, id.linker),
        }
    }
}

/// Where the core library for wasm32 comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StdSource {
    /// Compiled, installed beside the compiler.
    Target,
    /// Built from the sources beside the compiler.
    Sources,
}

/// What compiles and links the kernels of one language.
#[derive(Clone, Debug)]
pub struct Toolchain {
    pub(crate) compiler: Compiler,
    pub(crate) linker: PathBuf,
    /// What it is.
    pub id: ToolchainId,
}

/// The compiler of a toolchain.
#[derive(Clone, Debug)]
pub(crate) enum Compiler {
    Rust { rustc: PathBuf, cargo: PathBuf, sysroot: PathBuf, std: StdSource },
    Clang(PathBuf),
}

impl Toolchain {
    /// Finds a toolchain for a language; the wanted one if it is here, else the first that works.
    ///
    /// # Errors
    /// [`ToolError::Toolchain`] with what to install.
    pub fn find(lang: Lang, wanted: Option<&ToolchainId>) -> Result<Toolchain, ToolError> {
        let (all, message) = match lang {
            Lang::Rust => (Toolchain::rusts(), INSTALL_RUST),
            Lang::C => (Toolchain::clangs(), INSTALL_CLANG),
        };
        let exact = all.iter().find(|found| Some(&found.id) == wanted);
        exact
            .or(all.first())
            .cloned()
            .ok_or_else(|| ToolError::Toolchain { message: message.to_owned() })
    }

    /// Every usable clang with every usable linker, in order of preference.
    fn clangs() -> Vec<Toolchain> {
        let linkers = linkers();
        let mut found = Vec::new();
        for (clang, version) in clang_compilers() {
            for (linker, linker_version) in &linkers {
                let id = ClangId { clang: version.clone(), linker: linker_version.clone() };
                found.push(Toolchain {
                    compiler: Compiler::Clang(clang.clone()),
                    linker: linker.clone(),
                    id: ToolchainId::C(id),
                });
            }
        }
        found
    }

    /// Every usable Rust, in order of preference.
    fn rusts() -> Vec<Toolchain> {
        let mut sysroots: Vec<(PathBuf, PathBuf, PathBuf)> = Vec::new();
        let on_path = on_path("rustc").into_iter();
        for rustc in on_path.chain(toolchain_dirs().map(|dir| dir.join("bin/rustc"))) {
            let Some(sysroot) = output(&rustc, ["--print", "sysroot"]).map(PathBuf::from) else {
                continue;
            };
            if sysroots.iter().any(|(_, known, _)| *known == sysroot) {
                continue;
            }
            // A proxy of rustup chooses by directory; the compiler itself does not.
            let pick = |name: &str, fallback: PathBuf| {
                let own = sysroot.join("bin").join(name);
                if own.is_file() { own } else { fallback }
            };
            let (compiler, cargo) = (pick("rustc", rustc.clone()), rustc.with_file_name("cargo"));
            let cargo = pick("cargo", cargo);
            if cargo.is_file() {
                sysroots.push((compiler, sysroot, cargo));
            }
        }
        let linkers = linkers();
        let mut found = Vec::new();
        for std in [StdSource::Target, StdSource::Sources] {
            for (rustc, sysroot, cargo) in &sysroots {
                let std_is_here = match std {
                    StdSource::Target => sysroot.join("lib/rustlib").join(TARGET).join("lib"),
                    StdSource::Sources => sysroot.join("lib/rustlib/src/rust/library/core/src"),
                };
                let (Some(release), true) = (release(rustc), std_is_here.is_dir()) else {
                    continue;
                };
                // The compiler's own linker first, any other of the machine after it.
                let own = own_linker(sysroot).and_then(|path| linker_version(&path));
                for (linker, version) in own.into_iter().chain(linkers.iter().cloned()) {
                    let id = RustId { rustc: release.clone(), std, linker: version };
                    let (rustc, cargo, sysroot) = (rustc.clone(), cargo.clone(), sysroot.clone());
                    found.push(Toolchain {
                        compiler: Compiler::Rust { rustc, cargo, sysroot, std },
                        linker,
                        id: ToolchainId::Rust(id),
                    });
                }
            }
        }
        found
    }
}

/// What a program prints, trimmed, if it succeeds.
fn output<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn release(rustc: &Path) -> Option<String> {
    let text = output(rustc, ["-vV"])?;
    text.lines().find_map(|line| line.strip_prefix("release: ")).map(str::to_owned)
}

/// Every file of that name in the search path; links that lead nowhere do not count.
fn on_path(name: &str) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|dir| dir.join(name)).filter(|file| file.is_file()).collect()
}

/// Directories of the toolchains that rustup has installed.
fn toolchain_dirs() -> impl Iterator<Item = PathBuf> {
    let home = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".rustup")));
    entries(home.map(|home| home.join("toolchains")))
}

/// The entries of a directory, sorted; none where there is no directory.
fn entries(dir: Option<PathBuf>) -> impl Iterator<Item = PathBuf> {
    let read = dir.and_then(|dir| fs::read_dir(dir).ok());
    let mut all: Vec<PathBuf> = read.into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort();
    all.into_iter()
}

/// The linker that comes with a compiler.
fn own_linker(sysroot: &Path) -> Option<PathBuf> {
    entries(Some(sysroot.join("lib/rustlib")))
        .map(|host| host.join("bin/rust-lld"))
        .find(|linker| linker.is_file())
}

/// Linkers for wasm on this machine, with their versions, the newest first.
fn linkers() -> Vec<(PathBuf, String)> {
    let mut paths = on_path("rust-lld");
    paths.extend(on_path("wasm-ld"));
    let versioned = entries(Some(PathBuf::from("/usr/bin"))).filter(|path| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("wasm-ld-"))
    });
    paths.extend(versioned);
    paths.extend(toolchain_dirs().filter_map(|dir| own_linker(&dir)));
    let mut found: Vec<(PathBuf, String)> =
        paths.iter().filter_map(|path| linker_version(path)).collect();
    found.sort_by_key(|(_, version)| std::cmp::Reverse(version_number(version)));
    found
}

/// A linker with its version, such as `LLD 22.1.2`, if it runs.
fn linker_version(path: &Path) -> Option<(PathBuf, String)> {
    let text = output(path, ["-flavor", "wasm", "--version"])?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "LLD")?;
    Some((path.to_owned(), format!("LLD {}", words.get(at + 1)?)))
}

/// Compilers of C on the search path that know wasm32, with their versions: plain `clang` first,
/// then those with a version in their name, the newest first.
fn clang_compilers() -> Vec<(PathBuf, String)> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_versioned = |file: &Path| {
        let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.strip_prefix("clang-").is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit()))
    };
    let versioned = env::split_paths(&path).flat_map(|dir| entries(Some(dir)));
    let versioned = versioned.filter(|file| is_versioned(file) && file.is_file());
    let with_version = |clang: PathBuf| Some((clang.clone(), clang_version(&clang)?));
    let mut numbered: Vec<_> = versioned.filter_map(with_version).collect();
    numbered.sort_by_key(|(_, version)| std::cmp::Reverse(version_number(version)));
    let mut found: Vec<_> = on_path("clang").into_iter().filter_map(with_version).collect();
    found.extend(numbered);
    found
}

/// The version of a clang, such as `19.1.7`, if it compiles for wasm32.
fn clang_version(clang: &Path) -> Option<String> {
    let targets = output(clang, ["--print-targets"])?;
    targets.lines().find(|line| line.split_whitespace().next() == Some("wasm32"))?;
    output(clang, ["-dumpversion"])
}

fn version_number(version: &str) -> Vec<u32> {
    version.trim_start_matches("LLD ").split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linker_versions_compare_as_numbers() {
        assert!(version_number("LLD 22.1.2") > version_number("LLD 9.10.0"));
        assert!(version_number("LLD 19.1.7") < version_number("LLD 22.1.2"));
    }

    #[test]
    fn an_id_reads_back_from_toml() {
        let linker = "LLD 22.1.2".to_owned();
        let rust =
            RustId { rustc: "1.96.0".to_owned(), std: StdSource::Sources, linker: linker.clone() };
        let clang = ClangId { clang: "19.1.7".to_owned(), linker };
        for id in [ToolchainId::Rust(rust), ToolchainId::C(clang)] {
            let text = toml::to_string(&id).unwrap();
            assert_eq!(toml::from_str::<ToolchainId>(&text).unwrap(), id);
        }
        let neither = toml::from_str::<ToolchainId>("rustc = \"1.96.0\"").unwrap_err();
        assert!(neither.to_string().contains("`clang` and `linker`"), "{neither}");
    }
}
