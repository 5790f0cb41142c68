//! Wasmtime as the executor.
//!
//! Every instance has a store of its own: an engine gives an instance's memory back only when its
//! store goes, and a kernel that misbehaves, or whose generation has drained, must leave nothing
//! behind. The store lives as long as the worker keeps the instance, so a call pays nothing for
//! it. Functions are looked up once. Bounds checks are page faults where the device class reserves 4 GiB
//! of addresses for a memory and guards what lies behind.

use super::compile::{CodeSettings, compile_alone, settings};
use super::executor::{
    Artifact, CompileError, CompiledModule, EngineInstance, Executor, Footprint, KernelSpec,
    WASM_PAGE,
};
use super::place::{Instruction, instruction};
use super::{aot, child, fence, isolate};
use crate::HostConfig;
use crate::config::Compiler;
use crate::deadline::{Deadline, Spent, thread_time};
use crate::ticker::Ticker;
use crate::trap::{MemoryAccess, Place, Trap, TrapKind};
use ruvllm_abi::export;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{
    Engine, Extern, ExternType, FrameInfo, Global, Memory, MemoryType, Module, Mutability,
    ResourceLimiter, Store, TypedFunc, UpdateDeadline, Val, WasmBacktrace,
};

/// The version of the engine, which a manifest's `min_version` is held against.
pub(crate) const VERSION: semver::Version = semver::Version::new(48, 0, 8);

/// Compiles and loads kernels for one host.
pub(crate) struct WasmtimeExecutor {
    engine: Engine,
    ticker: Arc<Ticker>,
    code: CodeSettings,
    fingerprint: [u8; 32],
}

impl WasmtimeExecutor {
    /// Sets an engine up.
    ///
    /// # Errors
    /// What the engine says, such as a machine that it does not compile for.
    pub(crate) fn new(config: &HostConfig) -> Result<Self, String> {
        let code = CodeSettings::of(config);
        let mut settings = settings(code);
        settings.max_wasm_stack(config.stack);
        let engine = Engine::new(&settings).map_err(|e| format!("{e:#}"))?;
        let mut fingerprint = Fingerprint::default();
        VERSION.hash(&mut fingerprint);
        isolate::REVISION.hash(&mut fingerprint);
        engine.precompile_compatibility_hash().hash(&mut fingerprint);
        Ok(Self {
            engine,
            ticker: Arc::new(Ticker::new("ruvllm-ticker", config.tick)),
            code,
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
                compile_alone(&wasm, self.code).map(Artifact).map_err(failed)
            }
            Compiler::InProcess => self
                .engine
                .precompile_module(&wasm)
                .map(Artifact)
                .map_err(|e| failed(format!("{e:#}"))),
            Compiler::Process(process) => child::compile(process, self.code, &wasm),
        }
    }

    fn load(
        &self,
        artifact: &Artifact,
        module: &[u8],
        spec: KernelSpec,
        deadline: Deadline,
    ) -> Result<Arc<dyn CompiledModule>, String> {
        let own = Arc::from(module);
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
        Ok(Arc::new(Prepared { module, own, spec, footprint, deadline, _ticker }))
    }
}

struct Prepared {
    module: Module,
    /// The pack's own module.
    own: Arc<[u8]>,
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
            .map_err(|error| trap(&error, &self.own, "its start", 0))?;
        let missing = |name: &str| {
            Trap::new(TrapKind::Other, format!("the export {name} is missing or has another type"))
        };
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
        let backward = match self.spec.backward {
            true => Some(
                instance
                    .get_typed_func(&mut store, export::BACKWARD)
                    .map_err(|_| missing(export::BACKWARD))?,
            ),
            false => None,
        };
        let init = instance.get_typed_func(&mut store, export::INIT).ok();
        let info = instance.get_typed_func(&mut store, export::INFO).ok();
        let cleanup = match instance.get_typed_func(&mut store, export::CLEANUP) {
            Ok(cleanup) => Some(Cleanup::Status(cleanup)),
            Err(_) => {
                instance.get_typed_func(&mut store, export::CLEANUP).ok().map(Cleanup::Silent)
            }
        };
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
            own: self.own.clone(),
            memory,
            globals,
            entry,
            entry_point: self.spec.entry_point.as_str().into(),
            backward,
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

/// The two types that `kernel_cleanup` may have.
enum Cleanup {
    Status(TypedFunc<(), i32>),
    Silent(TypedFunc<(), ()>),
}

struct Running {
    store: Store<Limits>,
    own: Arc<[u8]>,
    memory: Memory,
    /// The mutable globals, and the values that they are set back to.
    globals: Vec<(Global, Val)>,
    entry: TypedFunc<u32, i32>,
    entry_point: Box<str>,
    backward: Option<TypedFunc<u32, i32>>,
    init: Option<TypedFunc<(u32, u32), i32>>,
    info: Option<TypedFunc<u32, i32>>,
    cleanup: Option<Cleanup>,
    heap_base: u32,
    tick: Duration,
    aside: u64,
    limit: usize,
    _ticker: Arc<Ticker>,
}

impl Running {
    #[cold]
    fn trap(&self, error: &wasmtime::Error, called: &str) -> Trap {
        trap(error, &self.own, called, self.memory.data_size(&self.store) as u64)
    }
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
            Err(error) => return Err(self.trap(&error, &self.entry_point)),
        };
        Ok((status, self.memory.data(&self.store)))
    }

    fn backward(&mut self, descriptor: u32, ticks: u64) -> Result<i32, Trap> {
        let Some(backward) = &self.backward else {
            return Err(Trap::new(TrapKind::Other, format!("there is no {}", export::BACKWARD)));
        };
        begin(&mut self.store, ticks, self.tick);
        let status = backward.call(&mut self.store, descriptor);
        status.map_err(|error| self.trap(&error, export::BACKWARD))
    }

    fn init(&mut self, params: u32, len: u32) -> Result<Option<i32>, Trap> {
        let Some(init) = &self.init else { return Ok(None) };
        begin(&mut self.store, self.aside, self.tick);
        let status = init.call(&mut self.store, (params, len));
        status.map(Some).map_err(|error| self.trap(&error, export::INIT))
    }

    fn info(&mut self, out: u32) -> Result<Option<i32>, Trap> {
        let Some(info) = &self.info else { return Ok(None) };
        begin(&mut self.store, self.aside, self.tick);
        let status = info.call(&mut self.store, out);
        status.map(Some).map_err(|error| self.trap(&error, export::INFO))
    }

    fn cleanup(&mut self) -> Result<Option<i32>, Trap> {
        let Some(cleanup) = &self.cleanup else { return Ok(None) };
        begin(&mut self.store, self.aside, self.tick);
        let status = match cleanup {
            Cleanup::Status(cleanup) => cleanup.call(&mut self.store, ()).map(Some),
            Cleanup::Silent(cleanup) => cleanup.call(&mut self.store, ()).map(|()| None),
        };
        status.map_err(|error| self.trap(&error, export::CLEANUP))
    }
}

/// What a trap is to the host, in a call of the function that is exported under a name, of an instance of the
/// pack's module `own` whose memory has so many bytes.
#[cold]
fn trap(error: &wasmtime::Error, own: &[u8], called: &str, memory: u64) -> Trap {
    use wasmtime::Trap as T;
    let found = place(error, own, called);
    let is_call = matches!(&found, Some((_, Some(instruction))) if instruction.is_indirect_call);
    let kind = match error.downcast_ref::<T>() {
        Some(T::Interrupt) => TrapKind::Deadline,
        Some(T::MemoryOutOfBounds) => TrapKind::OutOfBounds,
        Some(T::HeapMisaligned) => TrapKind::Misaligned,
        Some(T::TableOutOfBounds) if is_call => TrapKind::IndirectCallOutOfBounds,
        Some(T::TableOutOfBounds) => TrapKind::TableOutOfBounds,
        Some(T::UnreachableCodeReached) => TrapKind::Unreachable,
        Some(T::StackOverflow) => TrapKind::StackOverflow,
        Some(T::IntegerOverflow) => TrapKind::IntegerOverflow,
        Some(T::IntegerDivisionByZero) => TrapKind::DivisionByZero,
        Some(T::BadConversionToInteger) => TrapKind::BadConversion,
        Some(T::IndirectCallToNull) => TrapKind::IndirectCallNull,
        Some(T::BadSignature) => TrapKind::IndirectCallSignature,
        _ => TrapKind::Other,
    };
    let detail = match error.downcast_ref::<T>() {
        Some(trap) => trap.to_string(),
        None => format!("{error:#}"),
    };
    let mut trap = Trap::new(kind, detail);
    let (place, instruction) = found.unzip();
    trap.place = place.map(Box::new);
    if let (TrapKind::OutOfBounds, Some(Instruction { access: Some((size, write)), .. })) =
        (kind, instruction.flatten())
    {
        // Of bounds that are checked by instructions of their own, no address is kept.
        trap.access = Some(MemoryAccess { offset: fault(error), size, write, memory });
    }
    trap
}

/// The function and the instruction that trapped, in the pack's own module.
fn place(
    error: &wasmtime::Error,
    own: &[u8],
    called: &str,
) -> Option<(Place, Option<Instruction>)> {
    let frames = error.downcast_ref::<WasmBacktrace>()?.frames();
    let compiled = isolate::isolated(own).ok();
    let find = |frame: &FrameInfo| instruction(own, compiled.as_deref()?, frame.module_offset()?);
    // What copies and fills memory in the pack's place is none of its functions: their caller is.
    let first = frames.iter().position(|frame| find(frame).is_some());
    let frames = &frames[first.unwrap_or(0)..];
    let function = match frames {
        // The end of the stack: this is the function that was called.
        [_] => called.to_owned(),
        _ => match frames.first()?.func_name() {
            Some(name) => name.chars().take(128).collect(),
            None => format!("function {}", frames[0].func_index()),
        },
    };
    let found: Vec<Instruction> = frames.iter().map_while(find).take(Place::MAX_FRAMES).collect();
    let offsets = found.iter().map(|instruction| instruction.offset).collect();
    let place = Place { function, called: called.to_owned(), frames: offsets, source: None };
    Some((place, found.first().copied()))
}

/// The address that a kernel could not reach. The engine's type for this is its own; its text is not.
fn fault(error: &wasmtime::Error) -> Option<u64> {
    error.chain().find_map(|cause| {
        let text = cause.to_string();
        let (address, _) = text.strip_prefix("memory fault at wasm address 0x")?.split_once(' ')?;
        u64::from_str_radix(address, 16).ok()
    })
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
