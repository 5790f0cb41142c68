//! How a host is configured: policy, limits, failure handling.

use crate::class::DeviceClass;
use crate::features::{SIMD, kernel_features, wamr_features};
use crate::graph::GraphAdmission;
use ruvllm_manifest::ExecutorKind;
use ruvllm_native::Isa;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often the clock of running kernels ticks at most.
const CLOCK: Duration = Duration::from_millis(5);

/// Which candidate of an operation is asked first.
///
/// Whatever the policy, a call that its first candidate fails goes to the next one, unless
/// [`HostConfig::strict`] is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The newest admitted sandboxed kernel, then older ones, then the native twin.
    #[default]
    SandboxFirst,
    /// Whichever candidate live calls of an operation showed to be the fastest in their class of sizes, here and in
    /// earlier runs; until then as in [`Policy::SandboxFirst`]. One call in some hundreds goes to another
    /// candidate, to see what it takes. Team operations race when a model is loaded. Where
    /// [`HostConfig::deterministic`] is set, the order stays that of [`Policy::SandboxFirst`].
    Fastest,
    /// The native twin only. Operations without one are unavailable.
    NativeOnly,
    /// The named kernel first; operations that the map does not name are as in
    /// [`Policy::SandboxFirst`].
    ///
    /// A key is an operation (`rmsnorm`) or an exact [`crate::OpKey`] (`rmsnorm(f32,f32)->f32`), and
    /// the exact one wins. A value is a kernel id (`rmsnorm_f32`), one qualified by its pack
    /// (`my-pack/rmsnorm_f32`), or a native twin (`native:rmsnorm_f32`).
    Pinned(BTreeMap<String, String>),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::SandboxFirst => "sandbox-first",
            Policy::Fastest => "fastest",
            Policy::NativeOnly => "native-only",
            Policy::Pinned(_) => "pinned",
        })
    }
}

/// Caps that no pack can raise. A module or manifest beyond one of them is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Bytes of a module.
    pub module_bytes: usize,
    /// Functions that a module defines.
    pub functions: u32,
    /// Bytes of one function body.
    pub function_bytes: usize,
    /// Locals of one function, its parameters not counted.
    pub locals: u32,
    /// Depth of nested blocks in one function.
    pub nesting: u32,
    /// Types, globals, exports, element and data segments of a module, each.
    pub items: u32,
    /// Bytes of all data segments together.
    pub data_bytes: usize,
    /// Elements of the one table that a module may have.
    pub table_elements: u32,
    /// 64 KiB pages of linear memory that one instance may reach.
    pub memory_pages: u32,
    /// Ticks that a pack may ask for, for one call of a kernel. A call of a catalogue operation gets
    /// no more of them than its size takes here, many times over.
    pub epoch_ticks: u64,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self {
            module_bytes: 1 << 20,
            functions: 1024,
            function_bytes: 128 << 10,
            locals: 4096,
            nesting: 256,
            items: 1024,
            data_bytes: 512 << 10,
            table_elements: 16 << 10,
            memory_pages: 4096,
            epoch_ticks: 10_000,
        }
    }
}

/// Where modules are compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Compiler {
    /// In this process. What a module may cost is bounded by [`HostLimits`] alone.
    #[default]
    InProcess,
    /// In a process of its own for each module, which the system stops at its limits.
    Process(CompilerProcess),
}

/// A program that compiles modules, and what it may use for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerProcess {
    /// A program that calls [`crate::compiler_process`].
    pub program: PathBuf,
    /// The arguments on which it does.
    pub args: Vec<OsString>,
    /// Address space, in bytes.
    pub memory_bytes: u64,
    /// Time by the clock.
    pub time: Duration,
}

/// Where WAMR is, which runs kernels on small devices in builds with the feature `wamr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WamrConfig {
    /// The shared library, `libiwasm.so` on Linux, of any release from 2020 on. It is loaded into this
    /// process, so whoever can write to it can do what the process can. `None` is the library that comes
    /// with the feature `wamr-bundled`, and without that none.
    pub library: Option<PathBuf>,
    /// WAMR's ahead-of-time compiler `wamrc`, of the release that the library is of: kernels whose
    /// manifests allow it are compiled, and others left out. `None` interprets kernels. Each module is compiled
    /// in a process of its own, for at most the time and memory of [`CompilerProcess`]; where modules are compiled
    /// in this process, for at most a minute and 1 GiB. The memory is bounded on Linux alone.
    pub compiler: Option<PathBuf>,
}

impl WamrConfig {
    /// Whether there is a library to load: one that is named, or the one that is built in.
    pub(crate) const fn has_library(&self) -> bool {
        self.library.is_some() || cfg!(feature = "wamr-bundled")
    }
}

/// Configuration of a [`crate::Host`].
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The machine that it was made for, which also says what runs a kernel where several executors could.
    /// [`DeviceClass::config`] has the defaults of each.
    pub device_class: DeviceClass,
    /// How long any call of a kernel may take. A pack may ask for less, and a call of a catalogue operation
    /// gets as long as its size takes here, many times over.
    pub call_time: Duration,
    /// Bytes of linear memory that one instance of a kernel may have, where its manifest allows more. Calls that
    /// need more go to the next candidate.
    pub instance_memory: Option<usize>,
    /// Bytes of stack that a call of a kernel may use; on WAMR, code that was compiled ahead of time may use that of
    /// its thread.
    pub stack: usize,
    /// Bytes of addresses that are reserved for the memory of an instance: with 4 GiB no access has to be
    /// checked by instructions of its own.
    pub memory_reservation: u64,
    /// Bytes of addresses behind a memory that trap.
    pub memory_guard: u64,
    /// How many threads [`crate::Host::install`] compiles and proves kernels on, and how many an engine over
    /// the host computes with unless it is told; `None` is as many as there are cores. A kernel with threads has no
    /// more of them either.
    pub threads: Option<usize>,
    /// The version that a manifest's `min_runtime_version` and `max_runtime_version` are held
    /// against.
    pub runtime_version: semver::Version,
    /// The only executor that may run kernels of packs; `None` takes, for each kernel, the first in the order of
    /// the device class that is there and that the kernel was made for.
    pub executor: Option<ExecutorKind>,
    /// Where WAMR is.
    pub wamr: WamrConfig,
    /// Which candidate of an operation is asked first.
    pub policy: Policy,
    /// Whether a failed call is an error at once instead of going to the next candidate.
    pub strict: bool,
    /// What native twins compute with: the best that the processor has, unless one wants to know what
    /// another costs. [`Isa::narrow`] has vectors no wider than WebAssembly's.
    pub isa: Isa,
    /// Whether the host's own products rearrange the weights of a model in memory where they are faster from
    /// that. Otherwise a mapped file's weights stay where they are, shared with other processes, and each
    /// product rearranges them for itself: the same results, several times slower.
    pub repack: bool,
    /// Whether prompts meet 16-bit float weights as bf16 where the processor is faster so, on AMD's about
    /// twice as fast: activations, and f16 weights, are rounded to 8 bits of precision.
    pub bf16: bool,
    /// Caps that no pack can raise.
    pub limits: HostLimits,
    /// Bytes that the instances of all kernels may take together: their linear memory, their tables, and
    /// copies of what is set back between scopes. 1 GiB unless set; an engine lowers it to its share of
    /// its own budget. What does not fit is not made, and the next candidate answers.
    pub kernel_memory: usize,
    /// Bytes that the instances of one pack may take of those; 768 MiB unless set, and three quarters of
    /// [`HostConfig::kernel_memory`] at most, which leaves room for another pack to prove itself. A
    /// pack whose kernels begin with more, one instance of each, is refused.
    pub pack_memory: usize,
    /// The unit of `max_epoch_ticks`. On Wasmtime running kernels look at the clock every tick, and no oftener than
    /// every 5 ms, the least that a call may take.
    pub tick: Duration,
    /// How long the kernels of one pack may compute, all together, to prove themselves at admission.
    pub admission_time: Duration,
    /// The seed of the inputs that kernels are admitted on, to repeat an admission: a refusal names its
    /// own. `None` draws one for each kernel, which no kernel can foresee.
    pub admission_seed: Option<u64>,
    /// How many failures of a kernel, over all workers, take it out of service.
    pub quarantine_after: u32,
    /// How many runs of a kernel there are, on average, to one whose output is checked against the native
    /// twin; 0 checks none. A large call takes several runs, one for each tile.
    ///
    /// Which are checked is drawn, so that no kernel can tell: each with probability `1 / every`, and
    /// the first of an instance besides. That `n` wrong runs of a kernel go unseen has the probability
    /// `(1 - 1 / every)^n`.
    pub cross_check_every: u32,
    /// The same for products, embeddings and attention that the host's own code computes, unless
    /// [`cross_check_every`](Self::cross_check_every) is 0. A check reads rows of the weights from the file, most of
    /// which is in memory in another layout alone: often, it would bring all of the file back.
    pub cross_check_own_every: u32,
    /// Whether kernels' results must not depend on the CPU: of variants of a kernel, those without
    /// relaxed SIMD are taken; relaxed instructions of others get their one deterministic meaning,
    /// and NaNs are canonical. Costs speed. The native twins and the engine's own operations keep
    /// to the CPU's best instructions all the same.
    pub deterministic: bool,
    /// Whether variants of a kernel that suit the other mode are admitted too, behind those that suit
    /// this one: for tools that try a whole pack.
    pub all_variants: bool,
    /// Where machine code is kept between runs, so that a kernel is compiled and proved once;
    /// `None` keeps none. A directory that others can touch is not used.
    pub cache_dir: Option<PathBuf>,
    /// Where modules are compiled, those of [`crate::Host::install_embedded`] aside.
    pub compiler: Compiler,
    /// What admits graphs for kernels that compute those of their pack, in builds with the feature `wasi-nn`.
    /// `None` refuses such kernels.
    pub graphs: Option<Arc<dyn GraphAdmission>>,
    /// How many threads [`crate::Host::stage`] compiles and proves kernels on, at a low priority, so
    /// that calls go on undisturbed; packs that are staged at the same time share them.
    /// [`crate::Host::install`] uses every core.
    pub staging_threads: usize,
    /// How many packs may be staged at one time.
    pub staged: usize,
    /// How many generations that were active are kept, so that going back to them compiles nothing.
    pub kept_generations: usize,
    /// [`HostConfig::cross_check_every`] in a generation on trial, see [`crate::Host::start_canary`].
    pub canary_check_every: u32,
}

impl Default for HostConfig {
    /// That of [`DeviceClass::Server`].
    fn default() -> Self {
        DeviceClass::default().config()
    }
}

impl HostConfig {
    /// The defaults of [`DeviceClass::Server`].
    fn server() -> Self {
        Self {
            device_class: DeviceClass::Server,
            call_time: Duration::from_secs(10),
            instance_memory: None,
            stack: 512 << 10,
            memory_reservation: 4 << 30,
            memory_guard: 64 << 10,
            threads: None,
            runtime_version: semver::Version::new(0, 1, 0),
            executor: None,
            wamr: WamrConfig::default(),
            policy: Policy::default(),
            strict: false,
            isa: Isa::detect(),
            repack: true,
            bf16: false,
            limits: HostLimits::default(),
            kernel_memory: 1 << 30,
            pack_memory: 768 << 20,
            tick: Duration::from_millis(1),
            admission_time: Duration::from_secs(10),
            admission_seed: None,
            quarantine_after: 3,
            cross_check_every: 256,
            cross_check_own_every: 1 << 16,
            deterministic: false,
            all_variants: false,
            cache_dir: None,
            compiler: Compiler::default(),
            graphs: None,
            staging_threads: 1,
            staged: 4,
            kept_generations: 8,
            canary_check_every: 64,
        }
    }

    /// What its device class decides, as it is set: names and values for people.
    pub fn class_values(&self) -> Vec<(&'static str, String)> {
        let size = |bytes: u64| match bytes.is_multiple_of(1 << 30) {
            true => format!("{} GiB", bytes >> 30),
            false => format!("{} KiB", bytes >> 10),
        };
        let executors = self.executors().iter().map(|kind| match kind {
            ExecutorKind::Wamr if !self.wamr.has_library() => {
                format!("{kind} where a library is given")
            }
            kind => kind.to_string(),
        });
        let memory = match self.instance_memory {
            Some(bytes) => size(bytes as u64),
            None => format!("as the kernel asks, {} MiB at most", self.limits.memory_pages >> 4),
        };
        let threads = self.threads.map_or("all cores".to_owned(), |threads| threads.to_string());
        let compilation = match self.threads {
            None => "parallel, on all cores".to_owned(),
            Some(0 | 1) => "one kernel after the other".to_owned(),
            Some(threads) => format!("parallel, on {threads} threads"),
        };
        let joined = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.join(" ")
        };
        let of_wasmtime = joined(kernel_features(self.device_class).collect());
        let of_wamr = joined(wamr_features().collect());
        // Which library there is, which may have vectors or not, shows when it is loaded.
        let of_wamr = format!("{of_wamr}, {SIMD} where the library has it");
        let code = match self.wamr.compiler {
            None => "interpreted",
            Some(_) => "compiled by wamrc",
        };
        let optimised = "optimised for speed";
        // What holds on Wasmtime alone says so where WAMR may run kernels before it.
        let (code, features, then) = match self.executors() {
            [ExecutorKind::Wasmtime, ..] => (optimised.to_owned(), of_wasmtime, Some("")),
            [_, others @ ..] if others.contains(&ExecutorKind::Wasmtime) => (
                format!("{code}, on wasmtime {optimised}"),
                format!("{of_wamr}, on wasmtime as for a server"),
                Some(", on wasmtime"),
            ),
            _ => (code.to_owned(), of_wamr, None),
        };
        let mut values = vec![
            ("executors", executors.collect::<Vec<_>>().join(", then ")),
            ("code", code),
            ("compilation", compilation),
            ("features", features),
            ("threads", threads),
            ("threads of a kernel", self.kernel_threads().to_string()),
            ("stack", size(self.stack as u64)),
            ("instance memory", memory),
        ];
        if let Some(then) = then {
            values.push(("reserved addresses", size(self.memory_reservation) + then));
            values.push(("guarded addresses", size(self.memory_guard) + then));
        }
        values.push(("tick", format!("{:?}", self.tick)));
        if let Some(then) = then {
            values.push(("clock", format!("looked at every {:?}{then}", self.clock())));
        }
        let longest =
            format!("{:?}, of a known operation no longer than its size takes", self.call_time);
        values.push(("longest call", longest));
        values
    }

    /// How many threads compute a call of one kernel together at most: as many as the class gives, and no more
    /// than [`threads`](Self::threads) or the cores that there are.
    pub(crate) fn kernel_threads(&self) -> u32 {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = u32::try_from(self.threads.unwrap_or_else(cores)).unwrap_or(u32::MAX);
        threads.clamp(1, self.device_class.kernel_threads())
    }

    /// The executors that may run kernels, in the order in which they are preferred.
    pub(crate) const fn executors(&self) -> &'static [ExecutorKind] {
        match self.executor {
            None => self.device_class.executors(),
            Some(ExecutorKind::Wasmtime) => &[ExecutorKind::Wasmtime],
            Some(ExecutorKind::Wamr) => &[ExecutorKind::Wamr],
        }
    }

    /// The period of the clock that running kernels are held against: whole ticks, and one at least.
    ///
    /// Each time it ticks, that takes a processor from a thread that computes, for 50 us on a virtual machine: at one
    /// tick in a millisecond a model of 135M generated 4 % slower.
    pub(crate) fn clock(&self) -> Duration {
        let times = CLOCK.as_nanos() / self.tick.as_nanos().max(1);
        self.tick.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX).max(1))
    }

    /// Ticks that no call exceeds.
    pub(crate) fn call_ticks(&self) -> u64 {
        let ticks = self.call_time.as_nanos() / self.tick.as_nanos().max(1);
        u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
    }
}

/// Here, since a class knows nothing of what is configured.
impl DeviceClass {
    /// The defaults that it stands for.
    pub fn config(self) -> HostConfig {
        match self {
            DeviceClass::Server => HostConfig::server(),
            DeviceClass::Embedded => HostConfig {
                device_class: self,
                call_time: Duration::from_millis(100),
                instance_memory: Some(128 << 10),
                stack: 32 << 10,
                threads: Some(1),
                ..HostConfig::server()
            },
            DeviceClass::Threads => HostConfig { device_class: self, ..HostConfig::server() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_have_the_values_that_are_stated() {
        let server = DeviceClass::Server.config();
        assert_eq!((server.memory_reservation, server.memory_guard), (4 << 30, 64 << 10));
        assert!(server.tick <= Duration::from_millis(10));
        assert_eq!(server.call_time, Duration::from_millis(10) * 1000);
        let embedded = DeviceClass::Embedded.config();
        assert_eq!((embedded.stack, embedded.instance_memory), (32 << 10, Some(128 << 10)));
        assert_eq!((embedded.call_time.as_millis(), embedded.threads), (100, Some(1)));
        assert_eq!(embedded.call_ticks(), 100);
        assert_eq!(HostConfig::default().device_class, DeviceClass::Server);
        assert_eq!(DeviceClass::ALL.map(DeviceClass::kernel_threads), [1, 1, 4]);
        for class in DeviceClass::ALL {
            let config = HostConfig { threads: Some(3), ..class.config() };
            let values = config.class_values();
            assert!(values.iter().all(|(_, value)| !value.is_empty()));
            // A kernel has no more threads than the host.
            let threads = values.iter().find(|(name, _)| *name == "threads of a kernel");
            assert_eq!(threads.unwrap().1, if class == DeviceClass::Threads { "3" } else { "1" });
        }
        // On WAMR no addresses are reserved, the clock is looked at as fuel runs out, and code is compiled by
        // `wamrc` alone.
        let wamr = HostConfig { executor: Some(ExecutorKind::Wamr), ..HostConfig::default() };
        let value = |config: &HostConfig, name: &str| {
            let values = config.class_values();
            values.into_iter().find(|(other, _)| *other == name).map(|(_, value)| value)
        };
        for name in ["reserved addresses", "guarded addresses", "clock"] {
            assert_eq!(value(&wamr, name), None);
            assert!(value(&embedded, name).unwrap().ends_with(", on wasmtime"));
            assert!(!value(&server, name).unwrap().contains("wasmtime"));
        }
        let features = value(&wamr, "features").unwrap();
        assert!(features.ends_with(", simd where the library has it"), "{features}");
        assert_eq!(value(&wamr, "code").unwrap(), "interpreted");
        let compiler = Some(PathBuf::from("wamrc"));
        let wamr = WamrConfig { compiler, ..WamrConfig::default() };
        let compiled = HostConfig { wamr, ..embedded };
        let told = "compiled by wamrc, on wasmtime optimised for speed";
        assert_eq!(value(&compiled, "code").unwrap(), told);
    }
}
