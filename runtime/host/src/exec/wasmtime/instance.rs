//! Instances of kernels: each has a store of its own, with its deadline and its limits.

use super::member::{End, Look, Member};
#[cfg(feature = "wasi-nn")]
use super::nn::{self, Nn};
use super::trap::trap;
use crate::deadline::{Deadline, UsedTime, thread_time};
use crate::exec::executor::{EngineInstance, Footprint, KernelSpec, WASM_PAGE};
use crate::exec::{fence, isolate};
use crate::ticker::Ticker;
use crate::trap::{Trap, TrapKind};
use ruvllm_abi::export;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{
    Extern, Global, Memory, Module, Mutability, ResourceLimiter, SharedMemory, Store, TypedFunc,
    UpdateDeadline, Val, WasmParams, WasmResults,
};

/// A module of a kernel, and what its instances are made with.
pub(super) struct LoadedModule {
    pub(super) module: Module,
    /// The pack's own module.
    pub(super) own: Arc<[u8]>,
    pub(super) spec: KernelSpec,
    /// Threads that enter it at once, without another word.
    pub(super) threads: u32,
    pub(super) stack: usize,
    pub(super) footprint: Footprint,
    pub(super) deadline: Deadline,
    #[cfg(feature = "wasi-nn")]
    pub(super) nn: Option<nn::Imports<Limits>>,
    /// Deadlines hold only while the clock ticks: it must outlive everything that can run.
    pub(super) ticker: Arc<Ticker>,
}

impl LoadedModule {
    /// An instance with a memory of its own, or one of those that share a memory.
    pub(super) fn new_instance(
        &self,
        shared: Option<(&SharedMemory, Member)>,
    ) -> Result<WasmtimeInstance, Trap> {
        let (shared, member) = shared.unzip();
        let limits = Limits {
            memory: self.spec.memory_pages as usize * WASM_PAGE,
            table: self.spec.table_elements as usize,
            spent: UsedTime::default(),
            member,
            #[cfg(feature = "wasi-nn")]
            nn: self.nn.as_ref().map(|_| Box::new(Nn::new(&self.spec.graphs))),
        };
        let mut store = Store::new(self.module.engine(), limits);
        store.limiter(|limits| limits);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().look()));
        let Deadline { tick, aside, .. } = self.deadline;
        begin(&mut store, aside, tick);
        let imports = shared.into_iter().map(|memory| memory.clone().into());
        #[cfg(feature = "wasi-nn")]
        let imports =
            imports.chain(self.nn.iter().flat_map(|nn| nn.functions(&mut store, &self.module)));
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
        if let (Some(nn), Linear::Own(memory)) = (&self.nn, &memory) {
            nn.connect(&mut store, *memory)
                .map_err(|error| trap(&error, &self.own, "its start", 0))?;
        }
        let heap_base = match instance.get_export(&mut store, export::HEAP_BASE) {
            Some(Extern::Global(global)) => global.get(&mut store).i32(),
            _ => None,
        };
        let heap_base = heap_base.ok_or_else(|| missing(export::HEAP_BASE))? as u32;
        let name = &self.spec.entry_point;
        let entry = match memory {
            Linear::Own(_) => instance.get_typed_func(&mut store, name).map(EntryPoint::Alone),
            Linear::Shared(_) => {
                instance.get_typed_func(&mut store, name).map(EntryPoint::Together)
            }
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
            _ticker: self.ticker.clone(),
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
    spent: UsedTime,
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
fn run<P: WasmParams, R: WasmResults>(
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
        // With what stands between a kernel and WASI-NN, where it computes graphs.
        #[cfg(feature = "wasi-nn")]
        if self.nn.is_some() {
            return 2;
        }
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
    /// In that of a [`Group`](super::threads::Group), whose it is to hand out.
    Shared(SharedMemory),
}

/// The two types that an entry point may have.
enum EntryPoint {
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
    entry: EntryPoint,
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

impl WasmtimeInstance {
    #[cold]
    fn trap(&self, error: &wasmtime::Error, called: &str) -> Trap {
        trap(error, &self.own, called, self.size() as u64)
    }

    /// Enters the kernel as one of `count` threads, and says in `end` what it ended by, where that ends them all.
    pub(super) fn enter(
        &mut self,
        descriptor: u32,
        [index, count]: [u32; 2],
        ticks: u64,
        end: &End,
    ) {
        let EntryPoint::Together(entry) = &self.entry else {
            return end.by(Err(missing(&self.entry_point)));
        };
        match run(&mut self.store, entry, (descriptor, index, count), (ticks, self.tick)) {
            Ok(0) => {}
            Ok(status) => end.by(Ok(status)),
            Err(error) => end.by(Err(self.trap(&error, &self.entry_point))),
        }
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
        let (EntryPoint::Alone(entry), Linear::Own(memory)) = (&self.entry, &self.memory) else {
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

#[cfg(feature = "wasi-nn")]
impl nn::StoreData for Limits {
    fn nn(&mut self) -> &mut Option<Box<Nn>> {
        &mut self.nn
    }
}
