//! Whether a host can run a pack: versions, features and limits.
//!
//! Pure comparison of what the manifest says with what the host says about itself. The module may
//! still use something that its manifest does not mention; the host looks at the module, too.

use crate::Violation;
use crate::types::{KernelEntry, Manifest};
use semver::Version;
use std::fmt;

/// What a host offers.
#[derive(Clone, Debug)]
pub struct RuntimeGates {
    /// Version of the runtime.
    pub runtime_version: Version,
    /// The kernel ABI that it speaks.
    pub abi_version: u32,
    /// What runs the modules.
    pub executor: ExecutorGate,
    /// The most that it grants a kernel.
    pub caps: LimitCaps,
}

/// An executor, its version and the WebAssembly features that it has switched on.
#[derive(Clone, Debug)]
pub struct ExecutorGate {
    /// Which one.
    pub kind: ExecutorKind,
    /// Its version.
    pub version: Version,
    /// Names as manifests write them, such as `simd`.
    pub features: Vec<String>,
    /// Whether it compiles kernels to machine code, rather than interpreting them.
    pub compiles: bool,
}

/// The executors that manifests know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutorKind {
    /// Wasmtime.
    Wasmtime,
    /// The WebAssembly Micro Runtime.
    Wamr,
}

/// The most that a host grants a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitCaps {
    /// Linear memory in pages of 64 KiB.
    pub max_memory_pages: u32,
    /// Length of one call in ticks.
    pub max_epoch_ticks: u64,
    /// Elements of all tables together.
    pub max_table_elements: u32,
    /// Threads that compute a call of a kernel together.
    pub max_threads: u32,
}

/// What stands against running a pack on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compatibility {
    /// What concerns the whole pack: no kernel of it may run unless this is empty.
    pub pack: Vec<Violation>,
    /// What concerns each kernel, in the order of the manifest.
    pub kernels: Vec<Vec<Violation>>,
}

impl Compatibility {
    /// Whether the pack and every kernel of it may run.
    pub fn is_full(&self) -> bool {
        self.pack.is_empty() && self.kernels.iter().all(Vec::is_empty)
    }

    /// Everything, pack first.
    pub fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.pack.iter().chain(self.kernels.iter().flatten())
    }
}

impl ExecutorKind {
    /// Its name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            ExecutorKind::Wasmtime => "wasmtime",
            ExecutorKind::Wamr => "wamr",
        }
    }
}

impl fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Compares a manifest with a host.
///
/// The runtime's version must be in `[min_runtime_version, max_runtime_version)`: the lower bound
/// is inclusive, the upper exclusive. Order is semver precedence, except that a pre-release of the
/// upper bound counts as the upper bound itself (`1.0.0-rc.1` is not below `1.0.0`), unless that
/// bound is a pre-release.
pub fn check_compatibility(manifest: &Manifest, gates: &RuntimeGates) -> Compatibility {
    let mut pack = Vec::new();
    let runtime = &gates.runtime_version;
    if manifest.abi_version != gates.abi_version {
        let what = format!(
            "the pack was built for kernel ABI {}, this runtime speaks {}: rebuild the pack or \
             use a runtime that speaks it",
            manifest.abi_version, gates.abi_version
        );
        pack.push(Violation::new("abi_version_unsupported", "abi_version", what));
    }
    if *runtime < manifest.min_runtime_version {
        let what = format!(
            "the pack needs ruvllm {} or newer, this is {runtime}: upgrade, or use an older pack",
            manifest.min_runtime_version
        );
        pack.push(Violation::new("runtime_too_old", "min_runtime_version", what));
    }
    if let Some(max) = &manifest.max_runtime_version
        && !is_below(runtime, max)
    {
        let what =
            format!("the pack is for ruvllm before {max}, this is {runtime}: use a newer pack");
        pack.push(Violation::new("runtime_too_new", "max_runtime_version", what));
    }
    let kernels = manifest
        .kernels
        .iter()
        .enumerate()
        .map(|(i, kernel)| check_kernel(kernel, &format!("kernels[{i}]"), gates))
        .collect();
    Compatibility { pack, kernels }
}

fn is_below(version: &Version, bound: &Version) -> bool {
    if bound.pre.is_empty() {
        (version.major, version.minor, version.patch) < (bound.major, bound.minor, bound.patch)
    } else {
        version < bound
    }
}

fn check_kernel(kernel: &KernelEntry, at: &str, gates: &RuntimeGates) -> Vec<Violation> {
    let mut found = Vec::new();
    let executor = &gates.executor;
    let at_platform = format!("{at}.platforms.{}", executor.kind);
    let needs = match executor.kind {
        ExecutorKind::Wasmtime => {
            kernel.platforms.wasmtime.as_ref().map(|p| (&p.min_version, p.features.as_slice()))
        }
        ExecutorKind::Wamr => kernel.platforms.wamr.as_ref().map(|p| (&p.min_version, &[][..])),
    };
    let granted = gates.caps.max_threads;
    if kernel.threads > granted {
        let what = format!(
            "the kernel asks for {} threads, this host enters {granted}: choose --device-class threads, or a \
             pack with a kernel for one thread",
            kernel.threads
        );
        found.push(Violation::new("threads_unsupported", format!("{at}.threads"), what));
    }
    match needs {
        None => {
            let what = format!("the kernel was not made for {}, which runs here", executor.kind);
            found.push(Violation::new("executor_unsupported", at_platform, what));
        }
        Some((min, features)) => {
            if executor.version < *min {
                let what = format!("needs {} {min}, this is {}", executor.kind, executor.version);
                found.push(Violation::new("executor_too_old", &at_platform, what));
            }
            for feature in features.iter().filter(|f| !executor.features.contains(f)) {
                let what = format!("needs the feature `{feature}`, which is off on this host");
                let at = format!("{at_platform}.features");
                found.push(Violation::new("feature_unsupported", at, what));
            }
            let wamr =
                kernel.platforms.wamr.as_ref().filter(|_| executor.kind == ExecutorKind::Wamr);
            if executor.compiles && wamr.is_some_and(|platform| !platform.aot_available) {
                let what = "the kernel may not be compiled ahead of time, as this host does: interpret kernels";
                let at = format!("{at_platform}.aot_available");
                found.push(Violation::new("aot_unavailable", at, what));
            }
        }
    }
    let limits = &kernel.resource_limits;
    let caps = &gates.caps;
    let wanted = [
        ("max_memory_pages", u64::from(limits.max_memory_pages), u64::from(caps.max_memory_pages)),
        ("max_epoch_ticks", limits.max_epoch_ticks, caps.max_epoch_ticks),
        (
            "max_table_elements",
            u64::from(limits.max_table_elements),
            u64::from(caps.max_table_elements),
        ),
    ];
    for (name, wanted, cap) in wanted {
        if wanted > cap {
            let what =
                format!("asks for {wanted}, this host grants {cap}: lower it or raise the cap");
            found.push(Violation::new(
                "limit_over_cap",
                format!("{at}.resource_limits.{name}"),
                what,
            ));
        }
    }
    found
}
