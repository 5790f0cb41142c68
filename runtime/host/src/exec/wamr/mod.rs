//! WAMR, the WebAssembly Micro Runtime, as an executor for small devices.
//!
//! Modules are interpreted, or compiled ahead of time by `wamrc` where the configuration names one. In both
//! cases the host rewrites them first ([`super::meter`]): WAMR has no deadlines that work in all of its
//! releases, so the module counts its own fuel and asks the host for more, who looks at the clock.
//!
//! What differs from the other executor: pages of the memory are not protected, because WAMR cannot take a
//! page fault there in all of its releases, so every scope gets an instance of its own
//! ([`crate::instance`]). A trap is told by its kind and the export that was called: WAMR keeps no address and no
//! instruction.
//!
//! What this does not protect against: faults of WAMR itself, which is written in C. The gate bounds what a
//! module may look like before WAMR reads it, and the rewrite leaves out what WAMR would act on beside code.

#![allow(unsafe_code)]

mod calls;
mod compile;
mod library;
mod signals;

use super::executor::{
    Absence, Artifact, CompileError, CompiledModule, EngineInstance, Executor, Footprint,
    KernelSpec, WASM_PAGE,
};
use super::meter::{self, GROW, HEAP_BASE, PAGES, PREFIX};
use crate::HostConfig;
use crate::config::Compiler;
use crate::deadline::Deadline;
use crate::trap::{CodeLocation, Trap, TrapKind};
use calls::Call;
use compile::COMPILED;
pub(super) use compile::stop;
use library::{Environment, Function, Instance, Library, Module};
use ruvllm_abi::export;
use ruvllm_manifest::{ExecutorGate, ExecutorKind, escape_untrusted};
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How many times as long as compiled code an interpreter may take.
const INTERPRETED: f64 = 32.0;

/// The most that the probe for SIMD may take.
const PROBE_TIME: Duration = Duration::from_millis(100);

/// Prepares and loads kernels for one host.
pub(crate) struct WamrExecutor {
    library: &'static Library,
    /// `wamrc`, where modules are compiled.
    compiler: Option<PathBuf>,
    stack: u32,
    gate: ExecutorGate,
    fingerprint: [u8; 32],
}

impl WamrExecutor {
    /// Loads the library and finds out what it can do.
    ///
    /// # Errors
    /// There is no library, or it does not work.
    pub(crate) fn new(config: &HostConfig) -> Result<Self, Absence> {
        if !config.wamr.has_library() {
            let remedy = "give the path of a libiwasm (`WamrConfig::library` in code, --wamr-lib of the program \
                          `ruvllm`), or build with the feature `wamr-bundled`";
            return Err(Absence { why: "has no library".to_owned(), remedy });
        }
        let failed = |why: String| Absence { why: format!("does not run here: {why}"), remedy: "" };
        let library = Library::open(config.wamr.library.as_deref()).map_err(failed)?;
        let compiler = config.wamr.compiler.as_deref();
        if compiler.is_some() && !library.runs_compiled() {
            let why = "runs no compiled code: its library is from before versions had numbers";
            let remedy = "leave the compiler out, or use a libiwasm of version 1.0 or later";
            return Err(Absence { why: why.to_owned(), remedy });
        }
        let mut id = blake3::Hasher::new();
        id.update(b"wamr").update(library.digest()).update(&meter::REVISION.to_le_bytes());
        // The very file whose bytes count: a name alone would be looked for where programs are.
        let compiler = compiler.map(|path| {
            let unread = |e| failed(format!("its compiler {} cannot be read: {e}", path.display()));
            let compiler = path.canonicalize().map_err(unread)?;
            let program = std::fs::read(&compiler).map_err(unread)?;
            id.update(blake3::hash(&program).as_bytes());
            id.update(compile::target().as_bytes());
            Ok(compiler)
        });
        let compiler = compiler.transpose()?;
        let compiles = compiler.is_some();
        let mut executor = Self {
            library,
            compiler,
            stack: u32::try_from(config.stack).unwrap_or(u32::MAX),
            gate: ExecutorGate {
                kind: ExecutorKind::Wamr,
                version: library.version().clone(),
                features: crate::features::wamr_features().map(str::to_owned).collect(),
                compiles,
            },
            fingerprint: id.finalize().into(),
        };
        if executor.has_simd(&config.compiler).map_err(failed)? {
            executor.gate.features.push(crate::features::SIMD.to_owned());
        }
        Ok(executor)
    }

    /// Whether a module with vectors runs and computes the right thing.
    fn has_simd(&self, limits: &Compiler) -> Result<bool, String> {
        let Ok(artifact) = self.compile(&meter::simd_probe(), limits, true) else {
            // Where there is a compiler that does not work, kernels will say so.
            return Ok(false);
        };
        let Ok(loaded) = Loaded::new(self.library, &artifact) else { return Ok(false) };
        let loaded = Arc::new(loaded);
        let mut running = WamrInstance::new(loaded, self.stack, PROBE_TIME)?;
        let Some(probe) = running.function(&format!("{PREFIX}{}", meter::PROBE)) else {
            return Ok(false);
        };
        Ok(running.invoke(probe, [], 1) == Ok(meter::PROBED))
    }
}

impl Executor for WamrExecutor {
    fn gate(&self) -> &ExecutorGate {
        &self.gate
    }

    fn slowness(&self) -> f64 {
        if self.compiler.is_some() { 1.0 } else { INTERPRETED }
    }

    fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    fn compile(
        &self,
        wasm: &[u8],
        compiler: &Compiler,
        _alone: bool,
    ) -> Result<Artifact, CompileError> {
        let failed = |detail| CompileError { code: "kernel_compile", detail };
        let metered = meter::metered(wasm).map_err(failed)?;
        match &self.compiler {
            None => Ok(Artifact(metered)),
            Some(wamrc) => compile::compile(wamrc, compiler, &metered).map(Artifact),
        }
    }

    fn load(
        &self,
        artifact: &Artifact,
        _module: &[u8],
        spec: KernelSpec,
        deadline: Deadline,
    ) -> Result<Arc<dyn CompiledModule>, String> {
        let loaded = Arc::new(Loaded::new(self.library, artifact)?);
        // What its memory begins with, an instance tells, of modules and machine code alike. One that cannot be
        // made says why when a kernel is tried.
        let first = WamrInstance::new(loaded.clone(), self.stack, deadline.tick);
        let initial = first.map_or(0, |mut first| first.memory().len());
        let pages = usize::try_from(spec.memory_pages).unwrap_or(usize::MAX);
        let footprint = Footprint {
            initial,
            limit: pages.saturating_mul(WASM_PAGE),
            table: self.stack as usize + spec.table_elements as usize * size_of::<usize>(),
        };
        Ok(Arc::new(Prepared { loaded, spec, footprint, deadline, stack: self.stack }))
    }
}

/// A module that WAMR has read.
struct Loaded {
    library: &'static Library,
    module: Module,
    compiled: bool,
    /// What the module refers to, in words because machine code has to be aligned.
    _bytes: Vec<u64>,
}

// SAFETY: a module that was loaded is only read, by instances on any thread; what loads and unloads takes
// turns.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn new(library: &'static Library, artifact: &Artifact) -> Result<Self, String> {
        let len = artifact.0.len();
        let mut words = vec![0u64; len.div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..len];
        bytes.copy_from_slice(&artifact.0);
        // SAFETY: the bytes lie on the heap, where they stay until the module is unloaded, and nobody else
        // has them.
        let module = unsafe { library.load(bytes) }?;
        let compiled = artifact.0.starts_with(COMPILED);
        Ok(Self { library, module, compiled, _bytes: words })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: instances hold on to what they are made of, so none is left.
        unsafe { self.library.unload(self.module) }
    }
}

struct Prepared {
    loaded: Arc<Loaded>,
    spec: KernelSpec,
    footprint: Footprint,
    deadline: Deadline,
    stack: u32,
}

impl CompiledModule for Prepared {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn instantiate(&self) -> Result<Box<dyn EngineInstance>, Trap> {
        let Deadline { tick, aside, .. } = self.deadline;
        let mut running =
            WamrInstance::new(self.loaded.clone(), self.stack, tick).map_err(other)?;
        let kernel = |name: &str| format!("{PREFIX}{name}");
        let missing = |name: &str| other(format!("the export {name} is missing"));
        let entry_point = &self.spec.entry_point;
        running.aside = aside;
        running.limit = self.footprint.limit;
        running.entry =
            running.function(&kernel(entry_point)).ok_or_else(|| missing(entry_point))?;
        if self.spec.backward {
            let backward = running.function(&kernel(export::BACKWARD));
            running.backward = Some(backward.ok_or_else(|| missing(export::BACKWARD))?);
        }
        running.init = running.function(&kernel(export::INIT));
        running.info = running.function(&kernel(export::INFO));
        running.cleanup = running.function(&kernel(export::CLEANUP));
        running.entry_point = entry_point.as_str().into();
        Ok(Box::new(running))
    }
}

/// An instance, and the functions of it that are called.
struct WamrInstance {
    /// Last used by the instance, so it outlives that.
    loaded: Arc<Loaded>,
    instance: Instance,
    environment: Environment,
    /// Bytes of its thread's stack that it may use, where it was compiled: others have a stack of their own.
    native_stack: Option<u32>,
    /// Where its memory is, and how many bytes: as it was after the last growth, which only the host causes.
    memory: *mut u8,
    size: usize,
    heap_base: u32,
    limit: usize,
    tick: Duration,
    aside: u64,
    grow: Function,
    pages: Function,
    entry: Function,
    entry_point: Box<str>,
    backward: Option<Function>,
    init: Option<Function>,
    info: Option<Function>,
    cleanup: Option<Function>,
}

// SAFETY: an instance is used by one thread at a time, through an exclusive reference; each that calls it
// is entered first, and nothing of WAMR's in it belongs to a thread between calls.
unsafe impl Send for WamrInstance {}

impl WamrInstance {
    /// An instance of a module that was metered.
    fn new(loaded: Arc<Loaded>, stack: u32, tick: Duration) -> Result<Self, String> {
        let library = loaded.library;
        // SAFETY: `loaded` stays with the instance.
        let (instance, environment) = unsafe { library.instantiate(loaded.module, stack) }?;
        let native_stack = loaded.compiled.then_some(stack);
        let mut running = Self {
            loaded,
            instance,
            environment,
            native_stack,
            memory: std::ptr::null_mut(),
            size: 0,
            heap_base: 0,
            limit: 0,
            tick,
            aside: 1,
            grow: std::ptr::null_mut(),
            pages: std::ptr::null_mut(),
            entry: std::ptr::null_mut(),
            entry_point: "".into(),
            backward: None,
            init: None,
            info: None,
            cleanup: None,
        };
        let added = |running: &Self, name: &str| {
            running.function(name).ok_or_else(|| format!("the module was not prepared: {name}"))
        };
        running.grow = added(&running, GROW)?;
        running.pages = added(&running, PAGES)?;
        let heap_base = added(&running, HEAP_BASE)?;
        let heap_base = running.invoke(heap_base, [], running.aside);
        running.heap_base = heap_base.map_err(|trap| trap.to_string())?.cast_unsigned();
        running.look_at_memory().map_err(|trap| trap.to_string())?;
        Ok(running)
    }

    fn function(&self, name: &str) -> Option<Function> {
        let name = CString::new(name).ok()?;
        // SAFETY: the instance lives as long as this, and so do its functions.
        unsafe { self.loaded.library.function(self.instance, &name) }
    }

    /// Calls a function that takes these arguments and gives a number; of one that gives nothing, 0.
    fn invoke<const N: usize>(
        &mut self,
        function: Function,
        args: [u32; N],
        ticks: u64,
    ) -> Result<i32, Trap> {
        let library = self.loaded.library;
        library.enter_thread().map_err(other)?;
        let mut words = [0; 3];
        words[..N].copy_from_slice(&args);
        // SAFETY: it is called while the call runs, on its thread, where the module has just called the host,
        // so the instance lives.
        let end = |why: &CStr| unsafe { library.end_call(self.instance, why) };
        let call = Call::new(&end, ticks, self.tick);
        if let Some(bytes) = self.native_stack {
            // SAFETY: the environment is this instance's, which is borrowed exclusively.
            unsafe { library.bound_stack(self.environment, bytes) };
        }
        // SAFETY: the function is one of this instance, which is borrowed exclusively; it takes `N`
        // arguments of 32 bits and gives at most one, as the gate found, or as the function was added.
        let returned =
            call.run(|| unsafe { library.call(self.environment, function, N as u32, &mut words) });
        if returned {
            return Ok(words[0].cast_signed());
        }
        // SAFETY: the instance lives and its call is over.
        let message = unsafe { library.exception(self.instance) };
        Err(trap(&message, call.is_late()))
    }

    /// Finds its memory, which lies elsewhere after it has grown.
    fn look_at_memory(&mut self) -> Result<(), Trap> {
        let pages = self.invoke(self.pages, [], self.aside)?.cast_unsigned();
        // SAFETY: the instance lives.
        self.memory = unsafe { self.loaded.library.memory(self.instance) };
        self.size = if self.memory.is_null() { 0 } else { pages as usize * WASM_PAGE };
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        if self.size == 0 {
            return &[];
        }
        // SAFETY: so many bytes begin there, all of them initialised, until the memory grows, which takes an
        // exclusive reference.
        unsafe { std::slice::from_raw_parts(self.memory, self.size) }
    }
}

impl Drop for WamrInstance {
    fn drop(&mut self) {
        // SAFETY: they were made together, and are not used again.
        unsafe { self.loaded.library.end_instance(self.instance, self.environment) }
    }
}

impl EngineInstance for WamrInstance {
    fn heap_base(&self) -> u32 {
        self.heap_base
    }

    fn memory(&mut self) -> &mut [u8] {
        if self.size == 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`; no call runs, so nothing else looks at them.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.size) }
    }

    fn protect(&mut self, _pages: Range<usize>, _writable: bool) -> bool {
        false
    }

    /// Of no use: an instance that cannot be protected never sees a second scope.
    fn keep_globals(&mut self) {}

    fn reset_globals(&mut self) {}

    fn grow_to(&mut self, bytes: usize) -> bool {
        let have = self.size;
        if bytes <= have {
            return true;
        }
        let Ok(pages) = u32::try_from((bytes - have).div_ceil(WASM_PAGE)) else { return false };
        bytes <= self.limit
            && self.invoke(self.grow, [pages], self.aside).is_ok_and(|before| before >= 0)
            && self.look_at_memory().is_ok()
            && self.size >= bytes
    }

    fn call(&mut self, descriptor: u32, ticks: u64) -> Result<(i32, &[u8]), Trap> {
        match self.invoke(self.entry, [descriptor], ticks) {
            Ok(status) => Ok((status, self.bytes())),
            Err(trap) => Err(within(trap, &self.entry_point)),
        }
    }

    fn backward(&mut self, descriptor: u32, ticks: u64) -> Result<i32, Trap> {
        let Some(backward) = self.backward else {
            return Err(other(format!("there is no {}", export::BACKWARD)));
        };
        let status = self.invoke(backward, [descriptor], ticks);
        status.map_err(|trap| within(trap, export::BACKWARD))
    }

    fn init(&mut self, params: u32, len: u32) -> Result<Option<i32>, Trap> {
        let Some(init) = self.init else { return Ok(None) };
        let status = self.invoke(init, [params, len], self.aside);
        status.map(Some).map_err(|trap| within(trap, export::INIT))
    }

    fn info(&mut self, out: u32) -> Result<Option<i32>, Trap> {
        let Some(info) = self.info else { return Ok(None) };
        let status = self.invoke(info, [out], self.aside);
        status.map(Some).map_err(|trap| within(trap, export::INFO))
    }

    /// One that gives no status leaves the 0 that it gives where all is well.
    fn cleanup(&mut self) -> Result<Option<i32>, Trap> {
        let Some(cleanup) = self.cleanup else { return Ok(None) };
        let status = self.invoke(cleanup, [], self.aside);
        status.map(Some).map_err(|trap| within(trap, export::CLEANUP))
    }
}

fn other(detail: String) -> Trap {
    Trap::new(TrapKind::Other, detail)
}

/// A trap in a call of the export of that name; WAMR does not say in which function it happened.
#[cold]
fn within(trap: Trap, called: &str) -> Trap {
    let (function, called, frames) = (String::new(), called.to_owned(), Vec::new());
    Trap { place: Some(Box::new(CodeLocation { function, called, frames, source: None })), ..trap }
}

/// What a trap is to the host, by WAMR's message, which is all that it says of one.
#[cold]
fn trap(message: &str, is_late: bool) -> Trap {
    const KINDS: [(&str, TrapKind); 11] = [
        ("out of bounds memory access", TrapKind::OutOfBounds),
        ("out of bounds table access", TrapKind::TableOutOfBounds),
        ("unaligned atomic", TrapKind::Misaligned),
        ("unreachable", TrapKind::Unreachable),
        ("stack overflow", TrapKind::StackOverflow),
        ("integer overflow", TrapKind::IntegerOverflow),
        ("integer divide by zero", TrapKind::DivisionByZero),
        ("invalid conversion to integer", TrapKind::BadConversion),
        ("indirect call type mismatch", TrapKind::IndirectCallSignature),
        ("undefined element", TrapKind::IndirectCallOutOfBounds),
        ("uninitialized element", TrapKind::IndirectCallNull),
    ];
    let known = KINDS.iter().find(|(text, _)| message.contains(text)).map(|(_, kind)| *kind);
    let kind = if is_late { TrapKind::Deadline } else { known.unwrap_or(TrapKind::Other) };
    Trap::new(kind, escape_untrusted(message))
}
