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
use super::threads::{Group, Look, Member};
use super::{aot, child, features, fence, isolate};
use crate::HostConfig;
use crate::config::Compiler;
use crate::deadline::{Deadline, Spent, thread_time};
use crate::ticker::Ticker;
use crate::trap::{MemoryAccess, Place, Trap, TrapKind};
#[cfg(feature = "wasi-nn")]
use nn::Nn;
use ruvllm_abi::{MAX_THREADS, export};
use ruvllm_manifest::{ExecutorGate, ExecutorKind};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{
    Engine, Extern, ExternType, FrameInfo, Global, Memory, MemoryType, Module, Mutability,
    ResourceLimiter, SharedMemory, Store, TypedFunc, UpdateDeadline, Val, WasmBacktrace,
    WasmParams, WasmResults,
};

#[cfg(feature = "wasi-nn")]
mod nn;

/// The version of the engine, which a manifest's `min_version` is held against.
const VERSION: semver::Version = semver::Version::new(48, 0, 8);

/// Compiles and loads kernels for one host.
pub(crate) struct WasmtimeExecutor {
    engine: Engine,
    ticker: Arc<Ticker>,
    code: CodeSettings,
    gate: ExecutorGate,
    /// Threads that a kernel is entered by at once, at most.
    threads: u32,
    /// Bytes of stack that a call may use.
    stack: usize,
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
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = config.threads.unwrap_or_else(cores).clamp(1, MAX_THREADS as usize) as u32;
        Ok(Self {
            engine,
            threads,
            stack: config.stack,
            ticker: Arc::new(Ticker::new("ruvllm-ticker", config.tick)),
            code,
            gate: ExecutorGate {
                kind: ExecutorKind::Wasmtime,
                version: VERSION,
                features: features::kernel_features(config.device_class)
                    .map(str::to_owned)
                    .collect(),
                compiles: true,
            },
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
    fn gate(&self) -> &ExecutorGate {
        &self.gate
    }

    fn slowness(&self) -> f64 {
        1.0
    }

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
        let instances = spec.threads as usize;
        let footprint = Footprint {
            initial: memory.map_or(0, |memory| bytes(memory.minimum())),
            limit: bytes(memory.and_then(MemoryType::maximum).unwrap_or(u64::MAX)),
            table: elements as usize * size_of::<usize>() * instances,
        };
        #[cfg(feature = "wasi-nn")]
        let footprint = Footprint { table: footprint.table + nn::holds(&module), ..footprint };
        let _ticker = self.ticker.clone();
        let (threads, stack) = (self.threads.min(spec.threads), self.stack);
        Ok(Arc::new(Prepared { module, own, spec, threads, stack, footprint, deadline, _ticker }))
    }
}

pub(super) struct Prepared {
    pub(super) module: Module,
    /// The pack's own module.
    own: Arc<[u8]>,
    pub(super) spec: KernelSpec,
    /// Threads that enter it at once, without another word.
    pub(super) threads: u32,
    pub(super) stack: usize,
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
        match self.spec.threads {
            1 => Ok(Box::new(self.running(None)?)),
            _ => Ok(Box::new(Group::new(self)?)),
        }
    }
}

impl Prepared {
    /// An instance with a memory of its own, or one of those that share a memory.
    pub(super) fn running(
        &self,
        shared: Option<(&SharedMemory, Member)>,
    ) -> Result<WasmtimeInstance, Trap> {
        let (shared, member) = shared.unzip();
        let limits = Limits {
            memory: self.spec.memory_pages as usize * WASM_PAGE,
            table: self.spec.table_elements as usize,
            spent: Spent::default(),
            member,
            #[cfg(feature = "wasi-nn")]
            nn: Nn::of(&self.module, &self.spec.graphs),
        };
        let mut store = Store::new(self.module.engine(), limits);
        store.limiter(|limits| limits);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().look()));
        let Deadline { tick, aside, .. } = self.deadline;
        begin(&mut store, aside, tick);
        let imports = shared.into_iter().map(|memory| memory.clone().into());
        #[cfg(feature = "wasi-nn")]
        let imports = imports.chain(nn::imports(&mut store, &self.module));
        let imports: Vec<Extern> = imports.collect();
        let instance = wasmtime::Instance::new(&mut store, &self.module, &imports)
            .map_err(|error| trap(&error, &self.own, "its start", 0))?;
        let memory = match shared {
            Some(shared) => Linear::Shared(shared.clone()),
            None => Linear::Own(
                instance
                    .get_memory(&mut store, export::MEMORY)
                    .ok_or_else(|| missing(export::MEMORY))?,
            ),
        };
        #[cfg(feature = "wasi-nn")]
        if let (Some(nn), Linear::Own(memory)) = (&mut store.data_mut().nn, &memory) {
            nn.uses(*memory);
        }
        let heap_base = match instance.get_export(&mut store, export::HEAP_BASE) {
            Some(Extern::Global(global)) => global.get(&mut store).i32(),
            _ => None,
        };
        let heap_base = heap_base.ok_or_else(|| missing(export::HEAP_BASE))? as u32;
        let name = &self.spec.entry_point;
        let entry = match memory {
            Linear::Own(_) => instance.get_typed_func(&mut store, name).map(Entry::Alone),
            Linear::Shared(_) => instance.get_typed_func(&mut store, name).map(Entry::Together),
        };
        let entry = entry.map_err(|_| missing(name))?;
        let stack = match instance.get_export(&mut store, export::STACK_POINTER) {
            Some(Extern::Global(global)) => Some(global),
            _ => None,
        };
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
        Ok(WasmtimeInstance {
            store,
            own: self.own.clone(),
            memory,
            globals,
            stack,
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
        })
    }
}

#[cold]
pub(super) fn missing(name: &str) -> Trap {
    Trap::new(TrapKind::Other, format!("the export {name} is missing or has another type"))
}

/// What the store of one instance may hold, what its call has used of its deadline, and the graphs that it
/// computes.
pub(super) struct Limits {
    memory: usize,
    table: usize,
    spent: Spent,
    /// Of one of several threads: what it knows of the others.
    member: Option<Member>,
    #[cfg(feature = "wasi-nn")]
    nn: Option<Box<Nn>>,
}

impl Limits {
    /// What becomes of a call whose deadline in the engine has passed.
    fn look(&mut self) -> UpdateDeadline {
        if let Some(member) = &mut self.member {
            match member.look() {
                Look::Ended => return UpdateDeadline::Interrupt,
                Look::InTime => return UpdateDeadline::Continue(1),
                Look::Late => {}
            }
        }
        match (self.spent.overrun(thread_time()), &mut self.member) {
            (None, _) => UpdateDeadline::Interrupt,
            (Some(ticks), None) => UpdateDeadline::Continue(ticks),
            (Some(ticks), Some(member)) => UpdateDeadline::Continue(member.begin(ticks)),
        }
    }
}

/// Starts the deadline of a call of so many ticks.
#[inline]
fn begin(store: &mut Store<Limits>, ticks: u64, tick: Duration) {
    let limits = store.data_mut();
    limits.spent.begin(ticks, tick);
    // A deadline of n ticks expires between n - 1 and n ticks from now: one more is fair.
    #[cfg(feature = "wasi-nn")]
    if let Some(nn) = &mut limits.nn {
        nn.begin(ticks, tick);
    }
    let ticks = match &mut limits.member {
        Some(member) => member.begin(ticks + 1),
        None => ticks + 1,
    };
    store.set_epoch_deadline(ticks);
}

/// Calls an export, which may take so many ticks.
#[inline]
pub(super) fn run<P: WasmParams, R: WasmResults>(
    store: &mut Store<Limits>,
    export: &TypedFunc<P, R>,
    params: P,
    (ticks, tick): (u64, Duration),
) -> wasmtime::Result<R> {
    begin(store, ticks, tick);
    let result = export.call(&mut *store, params);
    #[cfg(feature = "wasi-nn")]
    if let Some(nn) = &mut store.data_mut().nn {
        nn.end();
    }
    result
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

/// Where an instance keeps what it is handed.
enum Linear {
    /// In a memory of its own.
    Own(Memory),
    /// In that of a [`Group`], whose it is to hand out.
    Shared(SharedMemory),
}

/// The two types that an entry point may have.
pub(super) enum Entry {
    /// Of a descriptor.
    Alone(TypedFunc<u32, i32>),
    /// Of a descriptor, the index of the thread, and how many there are.
    Together(TypedFunc<(u32, u32, u32), i32>),
}

pub(super) struct WasmtimeInstance {
    pub(super) store: Store<Limits>,
    own: Arc<[u8]>,
    memory: Linear,
    /// The mutable globals, and the values that they are set back to.
    globals: Vec<(Global, Val)>,
    /// The pointer of its stack.
    pub(super) stack: Option<Global>,
    pub(super) entry: Entry,
    pub(super) entry_point: Box<str>,
    backward: Option<TypedFunc<u32, i32>>,
    init: Option<TypedFunc<(u32, u32), i32>>,
    info: Option<TypedFunc<u32, i32>>,
    cleanup: Option<Cleanup>,
    heap_base: u32,
    pub(super) tick: Duration,
    aside: u64,
    pub(super) limit: usize,
    _ticker: Arc<Ticker>,
}

impl WasmtimeInstance {
    #[cold]
    pub(super) fn trap(&self, error: &wasmtime::Error, called: &str) -> Trap {
        trap(error, &self.own, called, self.size() as u64)
    }

    /// Bytes of its memory.
    fn size(&self) -> usize {
        match &self.memory {
            Linear::Own(memory) => memory.data_size(&self.store),
            Linear::Shared(memory) => memory.data_size(),
        }
    }
}

impl EngineInstance for WasmtimeInstance {
    fn heap_base(&self) -> u32 {
        self.heap_base
    }

    fn memory(&mut self) -> &mut [u8] {
        match &self.memory {
            Linear::Own(memory) => memory.data_mut(&mut self.store),
            Linear::Shared(_) => &mut [],
        }
    }

    fn protect(&mut self, pages: Range<usize>, writable: bool) -> bool {
        #[cfg(feature = "wasi-nn")]
        let noted = pages.clone();
        let done = fence::protect(self.memory(), pages, writable);
        #[cfg(feature = "wasi-nn")]
        if let Some(nn) = &mut self.store.data_mut().nn {
            nn.protected(noted, writable, done);
        }
        done
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
        let have = self.size();
        if bytes <= have {
            return true;
        }
        let pages = (bytes - have).div_ceil(WASM_PAGE) as u64;
        bytes <= self.limit
            && match &self.memory {
                Linear::Own(memory) => memory.grow(&mut self.store, pages).is_ok(),
                Linear::Shared(memory) => memory.grow(pages).is_ok(),
            }
    }

    fn call(&mut self, descriptor: u32, ticks: u64) -> Result<(i32, &[u8]), Trap> {
        let (Entry::Alone(entry), Linear::Own(memory)) = (&self.entry, &self.memory) else {
            return Err(missing(&self.entry_point));
        };
        let status = match run(&mut self.store, entry, descriptor, (ticks, self.tick)) {
            Ok(status) => status,
            Err(error) => return Err(self.trap(&error, &self.entry_point)),
        };
        Ok((status, memory.data(&self.store)))
    }

    fn backward(&mut self, descriptor: u32, ticks: u64) -> Result<i32, Trap> {
        let Some(backward) = &self.backward else {
            return Err(Trap::new(TrapKind::Other, format!("there is no {}", export::BACKWARD)));
        };
        let status = run(&mut self.store, backward, descriptor, (ticks, self.tick));
        status.map_err(|error| self.trap(&error, export::BACKWARD))
    }

    fn init(&mut self, params: u32, len: u32) -> Result<Option<i32>, Trap> {
        let Some(init) = &self.init else { return Ok(None) };
        let status = run(&mut self.store, init, (params, len), (self.aside, self.tick));
        status.map(Some).map_err(|error| self.trap(&error, export::INIT))
    }

    fn info(&mut self, out: u32) -> Result<Option<i32>, Trap> {
        let Some(info) = &self.info else { return Ok(None) };
        let status = run(&mut self.store, info, out, (self.aside, self.tick));
        status.map(Some).map_err(|error| self.trap(&error, export::INFO))
    }

    fn cleanup(&mut self) -> Result<Option<i32>, Trap> {
        let Some(cleanup) = &self.cleanup else { return Ok(None) };
        let time = (self.aside, self.tick);
        let status = match cleanup {
            Cleanup::Status(cleanup) => run(&mut self.store, cleanup, (), time).map(Some),
            Cleanup::Silent(cleanup) => run(&mut self.store, cleanup, (), time).map(|()| None),
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
