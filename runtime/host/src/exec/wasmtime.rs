//! Wasmtime as the executor.
//!
//! Every instance has a store of its own: an engine gives an instance's memory back only when its
//! store goes, and a kernel that misbehaves, or whose generation has drained, must leave nothing
//! behind. The store lives as long as the worker keeps the instance, so a call pays nothing for
//! it. Functions are looked up once. Bounds checks are page faults: the engine reserves 4 GiB of
//! addresses for a memory and guards beyond, which is its default.

use super::compile::{compile_alone, settings};
use super::executor::{
    Artifact, CompileError, CompiledModule, EngineInstance, Executor, Footprint, KernelSpec, Trap,
    WASM_PAGE,
};
use super::{aot, child, fence, isolate};
use crate::HostConfig;
use crate::config::Compiler;
use crate::deadline::{Deadline, Spent, thread_time};
use crate::error::TrapKind;
use crate::ticker::Ticker;
use ruvllm_abi::export;
use ruvllm_manifest::escape_untrusted;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{
    Engine, Extern, ExternType, Global, Memory, MemoryType, Module, Mutability, ResourceLimiter,
    Store, TypedFunc, UpdateDeadline, Val, WasmBacktrace,
};

/// The version of the engine, which a manifest's `min_version` is held against.
pub(crate) const VERSION: semver::Version = semver::Version::new(48, 0, 8);

/// Compiles and loads kernels for one host.
pub(crate) struct WasmtimeExecutor {
    engine: Engine,
    ticker: Arc<Ticker>,
    deterministic: bool,
    fingerprint: [u8; 32],
}

impl WasmtimeExecutor {
    /// Sets an engine up.
    ///
    /// # Errors
    /// What the engine says, such as a machine that it does not compile for.
    pub(crate) fn new(config: &HostConfig) -> Result<Self, String> {
        let engine = Engine::new(&settings(config.deterministic)).map_err(|e| format!("{e:#}"))?;
        let mut fingerprint = Fingerprint::default();
        VERSION.hash(&mut fingerprint);
        isolate::REVISION.hash(&mut fingerprint);
        engine.precompile_compatibility_hash().hash(&mut fingerprint);
        Ok(Self {
            engine,
            ticker: Arc::new(Ticker::new("ruvllm-ticker", config.tick)),
            deterministic: config.deterministic,
            fingerprint: fingerprint.0.finalize().into(),
        })
    }
}

/// A [`Hasher`] that keeps all that it is fed instead of 64 bits.
#[derive(Default)]
struct Fingerprint(blake3::Hasher);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Never asked for: the digest is taken whole.
    fn finish(&self) -> u64 {
        0
    }
}

impl Executor for WasmtimeExecutor {
    fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    fn compile(
        &self,
        wasm: &[u8],
        compiler: &Compiler,
        alone: bool,
    ) -> Result<Artifact, CompileError> {
        let failed = |detail| CompileError { code: "kernel_compile", detail };
        let wasm = isolate::isolated(wasm).map_err(failed)?;
        match compiler {
            Compiler::InProcess if alone => {
                compile_alone(&wasm, self.deterministic).map(Artifact).map_err(failed)
            }
            Compiler::InProcess => self
                .engine
                .precompile_module(&wasm)
                .map(Artifact)
                .map_err(|e| failed(format!("{e:#}"))),
            Compiler::Process(process) => child::compile(process, self.deterministic, &wasm),
        }
    }

    fn load(
        &self,
        artifact: &Artifact,
        spec: KernelSpec,
        deadline: Deadline,
    ) -> Result<Arc<dyn CompiledModule>, String> {
        let engine = self.engine.clone();
        self.ticker
            .start(move || engine.increment_epoch())
            .map_err(|e| format!("cannot start the deadline clock: {e}"))?;
        let module = aot::load(&self.engine, artifact)?;
        let memory = module.get_export(export::MEMORY);
        let memory = memory.as_ref().and_then(ExternType::memory);
        let bytes = |pages: u64| pages.min(u64::from(spec.memory_pages)) as usize * WASM_PAGE;
        let elements = module.resources_required().max_initial_table_size.unwrap_or(0);
        let footprint = Footprint {
            initial: memory.map_or(0, |memory| bytes(memory.minimum())),
            limit: bytes(memory.and_then(MemoryType::maximum).unwrap_or(u64::MAX)),
            table: elements as usize * size_of::<usize>(),
        };
        let _ticker = self.ticker.clone();
        Ok(Arc::new(Prepared { module, spec, footprint, deadline, _ticker }))
    }
}

struct Prepared {
    module: Module,
    spec: KernelSpec,
    footprint: Footprint,
    deadline: Deadline,
    /// Deadlines hold only while the clock ticks: it must outlive everything that can run.
    _ticker: Arc<Ticker>,
}

impl CompiledModule for Prepared {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn instantiate(&self) -> Result<Box<dyn EngineInstance>, Trap> {
        let limits = Limits {
            memory: self.spec.memory_pages as usize * WASM_PAGE,
            table: self.spec.table_elements as usize,
            spent: Spent::default(),
        };
        let mut store = Store::new(self.module.engine(), limits);
        store.limiter(|limits| limits);
        store.epoch_deadline_callback(|mut store| {
            Ok(match store.data_mut().spent.overrun(thread_time()) {
                Some(ticks) => UpdateDeadline::Continue(ticks),
                None => UpdateDeadline::Interrupt,
            })
        });
        let Deadline { tick, aside, .. } = self.deadline;
        begin(&mut store, aside, tick);
        let instance = wasmtime::Instance::new(&mut store, &self.module, &[])
            .map_err(|error| trap(error, "its start"))?;
        let missing =
            |name: &str| other(format!("the export {name} is missing or has another type"));
        let memory = instance
            .get_memory(&mut store, export::MEMORY)
            .ok_or_else(|| missing(export::MEMORY))?;
        let heap_base = match instance.get_export(&mut store, export::HEAP_BASE) {
            Some(Extern::Global(global)) => global.get(&mut store).i32(),
            _ => None,
        };
        let heap_base = heap_base.ok_or_else(|| missing(export::HEAP_BASE))? as u32;
        let entry = instance
            .get_typed_func::<u32, i32>(&mut store, &self.spec.entry_point)
            .map_err(|_| missing(&self.spec.entry_point))?;
        let init = instance.get_typed_func(&mut store, export::INIT).ok();
        let info = instance.get_typed_func(&mut store, export::INFO).ok();
        let cleanup = instance.get_typed_func(&mut store, export::CLEANUP).ok();
        let mut globals = Vec::new();
        while let Some(global) =
            instance.get_global(&mut store, &isolate::global_name(globals.len()))
        {
            if global.ty(&store).mutability() != Mutability::Var {
                break;
            }
            let value = global.get(&mut store);
            globals.push((global, value));
        }
        Ok(Box::new(Running {
            store,
            memory,
            globals,
            entry,
            entry_point: self.spec.entry_point.as_str().into(),
            init,
            info,
            cleanup,
            heap_base,
            tick,
            aside,
            limit: self.footprint.limit,
            _ticker: self._ticker.clone(),
        }))
    }
}

/// What the store of one instance may hold, and what its call has used of its deadline.
struct Limits {
    memory: usize,
    table: usize,
    spent: Spent,
}

/// Starts the deadline of a call of so many ticks.
#[inline]
fn begin(store: &mut Store<Limits>, ticks: u64, tick: Duration) {
    // A deadline of n ticks expires between n - 1 and n ticks from now: one more is fair.
    store.set_epoch_deadline(ticks + 1);
    store.data_mut().spent.begin(ticks, tick);
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= self.memory)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= self.table)
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }
}

struct Running {
    store: Store<Limits>,
    memory: Memory,
    /// The mutable globals, and the values that they are set back to.
    globals: Vec<(Global, Val)>,
    entry: TypedFunc<u32, i32>,
    entry_point: Box<str>,
    init: Option<TypedFunc<(u32, u32), i32>>,
    info: Option<TypedFunc<u32, i32>>,
    cleanup: Option<TypedFunc<(), ()>>,
    heap_base: u32,
    tick: Duration,
    aside: u64,
    limit: usize,
    _ticker: Arc<Ticker>,
}

impl EngineInstance for Running {
    fn heap_base(&self) -> u32 {
        self.heap_base
    }

    fn memory(&mut self) -> &mut [u8] {
        self.memory.data_mut(&mut self.store)
    }

    fn protect(&mut self, pages: Range<usize>, writable: bool) -> bool {
        fence::protect(self.memory.data_mut(&mut self.store), pages, writable)
    }

    fn keep_globals(&mut self) {
        for (global, value) in &mut self.globals {
            *value = global.get(&mut self.store);
        }
    }

    #[inline]
    fn reset_globals(&mut self) {
        for (global, value) in &self.globals {
            // Of the type that was read, and of a global that is mutable: it cannot be refused.
            let _ = global.set(&mut self.store, *value);
        }
    }

    fn grow_to(&mut self, bytes: usize) -> bool {
        let have = self.memory.data_size(&self.store);
        if bytes <= have {
            return true;
        }
        let pages = (bytes - have).div_ceil(WASM_PAGE) as u64;
        bytes <= self.limit && self.memory.grow(&mut self.store, pages).is_ok()
    }

    fn call(&mut self, descriptor: u32, ticks: u64) -> Result<(i32, &[u8]), Trap> {
        begin(&mut self.store, ticks, self.tick);
        let status = match self.entry.call(&mut self.store, descriptor) {
            Ok(status) => status,
            Err(error) => return Err(trap(error, &self.entry_point)),
        };
        Ok((status, self.memory.data(&self.store)))
    }

    fn init(&mut self, params: u32, len: u32) -> Result<Option<i32>, Trap> {
        let Some(init) = &self.init else { return Ok(None) };
        begin(&mut self.store, self.aside, self.tick);
        let status = init.call(&mut self.store, (params, len));
        status.map(Some).map_err(|error| trap(error, export::INIT))
    }

    fn info(&mut self, out: u32) -> Result<Option<i32>, Trap> {
        let Some(info) = &self.info else { return Ok(None) };
        begin(&mut self.store, self.aside, self.tick);
        info.call(&mut self.store, out).map(Some).map_err(|error| trap(error, export::INFO))
    }

    fn cleanup(&mut self) -> Result<(), Trap> {
        let Some(cleanup) = &self.cleanup else { return Ok(()) };
        begin(&mut self.store, self.aside, self.tick);
        cleanup.call(&mut self.store, ()).map_err(|error| trap(error, export::CLEANUP))
    }
}

fn other(detail: String) -> Trap {
    Trap { kind: TrapKind::Other, detail }
}

/// What a trap is to the host, in a call of the function that is exported under a name.
#[cold]
fn trap(error: wasmtime::Error, called: &str) -> Trap {
    use wasmtime::Trap as T;
    let kind = match error.downcast_ref::<T>() {
        Some(T::Interrupt) => TrapKind::Deadline,
        Some(T::MemoryOutOfBounds | T::TableOutOfBounds | T::HeapMisaligned) => {
            TrapKind::OutOfBounds
        }
        Some(T::UnreachableCodeReached) => TrapKind::Unreachable,
        Some(T::StackOverflow) => TrapKind::StackOverflow,
        Some(T::IntegerOverflow | T::IntegerDivisionByZero | T::BadConversionToInteger) => {
            TrapKind::Arithmetic
        }
        Some(T::IndirectCallToNull | T::BadSignature) => TrapKind::IndirectCall,
        _ => TrapKind::Other,
    };
    let detail = match error.downcast_ref::<T>() {
        Some(trap) => format!("{trap}{}", place(&error, called)),
        None => format!("{error:#}"),
    };
    Trap { kind, detail }
}

/// The function that trapped, by its name in the module or by that of its export, and the one that was
/// called where that is another.
fn place(error: &wasmtime::Error, called: &str) -> String {
    let frames = error.downcast_ref::<WasmBacktrace>().map_or(&[][..], WasmBacktrace::frames);
    let called = escape_untrusted(called);
    match frames {
        [] => String::new(),
        // The whole of the stack: this is the function that was called.
        [_] => format!(", in {called}"),
        [last, ..] => {
            let last = match last.func_name() {
                Some(name) => escape_untrusted(&name.chars().take(128).collect::<String>()),
                None => format!("function {}", last.func_index()),
            };
            format!(", in {last}, called by {called}")
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_stated_version_is_the_one_that_is_linked() {
        let lock = include_str!("../../../../Cargo.lock");
        let stated = format!("name = \"wasmtime\"\nversion = \"{}\"\n", super::VERSION);
        assert!(lock.contains(&stated));
    }
}
