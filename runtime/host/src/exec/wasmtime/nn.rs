//! WASI-NN for kernels: the functions of `wasi_ephemeral_nn` as `wasmtime-wasi-nn` has them, over the graphs of a
//! kernel's own pack ([`provider`]).
//!
//! That crate has no answer where an address, the alignment of one or a name is wrong: most make it panic. Its write to
//! a page that is read-only ([`fence`](super::super::fence)) would end the process. So a kernel imports functions of
//! the host, which check what they are given ([`Nn::check`]) and then call the crate's through an adapter: the crate
//! uses the memory that its caller exports, and only a module exports one. The adapter imports the kernel's memory and
//! the crate's functions, and exports all of them again.
//!
//! A kernel asks for a graph by its id (`load_by_name`), which was admitted with its pack. `load`, which brings the
//! bytes of a graph, is an unsupported operation.
//!
//! Invariants:
//!
//! - The crate is called with addresses alone that the kernel could use itself. Elsewhere the call traps as a load or a
//!   store would; the trap of a page that the host may open to the kernel has its address.
//! - Handles of graphs and contexts end with the call of the kernel that made them, so a scope never finds another's:
//!   the crate's tables, which only grow, are made anew then.

use self::provider::{Call, Errno, PackRegistry, Stop, TENSOR_BYTES};
use crate::exec::fence::page_size;
use crate::graph::{NN_FUNCTIONS, NN_MODULE, PackGraphs};
use crate::threads::lock;
use ruvllm_abi::export;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemoryType, TypeSection,
};
use wasmtime::{
    Caller, Engine, Extern, Func, FuncType, Instance, Linker, Memory, Module, Store, Trap, Val,
    ValType,
};
use wasmtime_wasi_nn::witx::{self, WasiNnCtx};

mod provider;

/// Dimensions of a tensor; manifests allow fewer.
const RANK: u32 = 16;
/// How many types of elements WASI-NN has.
const TYPES: u32 = 6;
/// Bytes of a word.
const WORD: u32 = 4;
/// Graphs that a call may load, each time counted.
const GRAPHS: u32 = 256;
/// Contexts that a call may have.
const CONTEXTS: u32 = 16;

/// What the store of an instance keeps.
pub(super) trait StoreData: 'static {
    /// The graphs that it computes, where its module does.
    fn nn(&mut self) -> &mut Option<Box<Nn>>;
}

/// What instances of a module that imports functions of WASI-NN are made with.
pub(super) struct Imports<T: 'static> {
    adapter: Module,
    library: Linker<T>,
}

impl<T: StoreData> Imports<T> {
    /// For a module, where it imports any: the gate has let none through but those that there are.
    ///
    /// # Errors
    /// What the engine says.
    pub(super) fn of(engine: &Engine, module: &Module) -> wasmtime::Result<Option<Self>> {
        if !module.imports().any(|import| import.module() == NN_MODULE) {
            return Ok(None);
        }
        let mut library = Linker::new(engine);
        witx::add_to_linker(&mut library, |data: &mut T| {
            &mut data.nn().get_or_insert_default().library
        })?;
        Ok(Some(Self { adapter: Module::new(engine, adapter())?, library }))
    }

    /// What an instance of the module is given for what it imports of WASI-NN, in its order.
    pub(super) fn functions(&self, store: &mut Store<T>, module: &Module) -> Vec<Extern> {
        let places = module
            .imports()
            .filter_map(|import| NN_FUNCTIONS.iter().position(|(name, _)| *name == import.name()));
        places.map(|place| function(store, place).into()).collect()
    }

    /// Puts the crate's functions behind those of an instance that has this memory.
    ///
    /// # Errors
    /// What the engine says.
    pub(super) fn connect(&self, store: &mut Store<T>, memory: Memory) -> wasmtime::Result<()> {
        let mut imports = vec![memory.into()];
        for (name, _) in NN_FUNCTIONS {
            imports.push(self.library.get(&mut *store, NN_MODULE, name)?);
        }
        let adapter = Instance::new(&mut *store, &self.adapter, &imports)?;
        let functions = NN_FUNCTIONS
            .iter()
            .filter_map(|(name, _)| adapter.get_func(&mut *store, name))
            .collect();
        if let Some(nn) = store.data_mut().nn() {
            nn.guest = Some(Guest { memory, functions });
        }
        Ok(())
    }
}

/// Bytes that such an instance may hold beside its memory: those of tensors in contexts, and while one is on its way
/// there two copies more.
pub(super) const HELD_BYTES: usize = 3 * TENSOR_BYTES;

/// The module that hands a memory on with each call of the crate's functions.
fn adapter() -> Vec<u8> {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    let (mut functions, mut exports) = (FunctionSection::new(), ExportSection::new());
    let mut code = CodeSection::new();
    let any = MemoryType {
        minimum: 0,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    };
    imports.import("kernel", export::MEMORY, any);
    exports.export(export::MEMORY, ExportKind::Memory, 0);
    for (place, (name, params)) in (0..).zip(NN_FUNCTIONS) {
        types.ty().function(vec![wasm_encoder::ValType::I32; params], [wasm_encoder::ValType::I32]);
        imports.import(NN_MODULE, name, EntityType::Function(place));
        functions.function(place);
        exports.export(name, ExportKind::Func, NN_FUNCTIONS.len() as u32 + place);
        let mut body = Function::new([]);
        let mut instructions = body.instructions();
        for param in 0..params as u32 {
            instructions.local_get(param);
        }
        instructions.call(place).end();
        code.function(&body);
    }
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&imports).section(&functions).section(&exports).section(&code);
    module.finish()
}

/// The function at a place of [`NN_FUNCTIONS`], for a kernel.
fn function<T: StoreData>(store: &mut Store<T>, place: usize) -> Func {
    let (_, params) = NN_FUNCTIONS[place];
    let ty = FuncType::new(store.engine(), vec![ValType::I32; params], [ValType::I32]);
    Func::new(store, ty, move |mut guest, args, results| {
        let status = answer(&mut guest, place, args)?;
        results.fill(Val::I32(status));
        Ok(())
    })
}

/// The status of a function for the kernel, or the trap that its call ends with.
fn answer<T: StoreData>(
    guest: &mut Caller<'_, T>,
    place: usize,
    args: &[Val],
) -> wasmtime::Result<i32> {
    let Some(Guest { memory, functions }) =
        guest.data_mut().nn().as_ref().and_then(|nn| nn.guest.as_ref())
    else {
        return Ok(Errno::RuntimeError as i32);
    };
    let (memory, function) = (*memory, functions[place]);
    let (bytes, data) = memory.data_and_store_mut(&mut *guest);
    let Some(nn) = data.nn() else { return Ok(Errno::RuntimeError as i32) };
    let (name, _) = NN_FUNCTIONS[place];
    let words: Vec<u32> = args.iter().filter_map(Val::i32).map(|word| word as u32).collect();
    if let Err(stop) = nn.check(bytes, name, &words) {
        return stop.status();
    }
    let call = nn.call.clone();
    let mut status = [Val::I32(0)];
    let called = function.call(&mut *guest, args, &mut status);
    // What the provider has to say is more than what the crate makes of it.
    if let Some(stop) = lock(&call).stop.take() {
        return stop.status();
    }
    match called {
        Ok(()) => Ok(status[0].i32().unwrap_or(Errno::RuntimeError as i32)),
        // Of the deadline or the stack: without the adapter's place, which is none of the kernel's.
        Err(error) => match error.downcast_ref::<Trap>() {
            Some(trap) => Err((*trap).into()),
            None => Err(error),
        },
    }
}

/// What an instance holds of graphs.
pub(super) struct Nn {
    library: WasiNnCtx,
    /// What the crate's state begins with in each call.
    registry: PackRegistry,
    call: Arc<Mutex<Call>>,
    guest: Option<Guest>,
    /// Whether a page of the memory is read-only; those behind the last one are not.
    read_only: Vec<bool>,
}

/// The instance itself, once it is made.
struct Guest {
    memory: Memory,
    /// Those of the adapter, in the order of [`NN_FUNCTIONS`].
    functions: Vec<Func>,
}

impl Default for Nn {
    fn default() -> Self {
        Self::new(&PackGraphs::default())
    }
}

impl Nn {
    pub(super) fn new(graphs: &PackGraphs) -> Self {
        let call = Arc::default();
        let registry = PackRegistry::new(graphs, &call);
        Self { library: registry.library(), registry, call, guest: None, read_only: Vec::new() }
    }

    /// A call begins that may take so many ticks.
    pub(super) fn begin(&mut self, ticks: u64, tick: Duration) {
        self.end();
        let time = tick.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        let now = Instant::now();
        lock(&self.call).until = Some(now.checked_add(time).unwrap_or(now));
    }

    /// The call has ended.
    pub(super) fn end(&mut self) {
        let ended = std::mem::take(&mut *lock(&self.call));
        // Contexts are of graphs, and graphs are loaded in the same call.
        if ended.graphs > 0 {
            self.library = self.registry.library();
        }
    }

    /// Notes the protection of pages, in bytes, that was asked for, and whether it was done. Where it was not,
    /// some of them may have become read-only all the same, on systems that can do it.
    pub(super) fn protected(&mut self, pages: Range<usize>, writable: bool, done: bool) {
        let pages = pages.start / page_size()..pages.end / page_size();
        if pages.end > self.read_only.len() {
            self.read_only.resize(pages.end, false);
        }
        if done || (cfg!(unix) && !writable) {
            self.read_only[pages].fill(!writable);
        }
    }

    /// Whether the crate may be called with these arguments of a function: addresses that the kernel could use itself,
    /// handles and a name that there are.
    fn check(&self, memory: &[u8], function: &str, args: &[u32]) -> Result<(), Stop> {
        let Call { graphs, contexts, .. } = *lock(&self.call);
        let among = |number: u32, count: u32| match number < count {
            true => Ok(()),
            false => Err(Errno::InvalidArgument),
        };
        let room = |count: u32, most: u32| match count < most {
            true => Ok(()),
            false => Err(Errno::MissingMemory),
        };
        match *args {
            [name, len, graph] if function == "load_by_name" => {
                let name = read(memory, name, len)?;
                self.word(memory, graph)?;
                self.registry.has(name).then_some(()).ok_or(Errno::NotFound)?;
                Ok(room(graphs, GRAPHS)?)
            }
            [graph, context] if function == "init_execution_context" => {
                self.word(memory, context)?;
                among(graph, graphs)?;
                Ok(room(contexts, CONTEXTS)?)
            }
            [context, _, tensor] if function == "set_input" => {
                // Extents and their count, the type in the lowest byte, elements and their bytes.
                let [extents, rank, ty, elements, len] = words(memory, tensor)?;
                among(context, contexts)?;
                among(u32::from(ty as u8), TYPES)?;
                among(rank, RANK + 1)?;
                read(memory, extents, rank * WORD)?;
                read(memory, elements, len)?;
                aligned(extents)?;
                match len as usize > TENSOR_BYTES {
                    true => Err(Errno::MissingMemory.into()),
                    false => Ok(()),
                }
            }
            [context] if function == "compute" => Ok(among(context, contexts)?),
            [context, _, to, room, len] if function == "get_output" => {
                self.writable(memory, to, room)?;
                self.word(memory, len)?;
                Ok(among(context, contexts)?)
            }
            // Nothing vouches for the bytes of a graph that `load` is given.
            _ => Err(Errno::UnsupportedOperation.into()),
        }
    }

    /// Whether the kernel could write so many bytes there.
    fn writable(&self, memory: &[u8], at: u32, len: u32) -> Result<(), Stop> {
        read(memory, at, len)?;
        let (at, end) = (at as usize, at as usize + len as usize);
        let pages = at / page_size()..end.div_ceil(page_size());
        let mut protected = self.read_only.iter().enumerate().take(pages.end).skip(pages.start);
        match protected.find(|(_, read_only)| **read_only) {
            Some((page, _)) if len > 0 => Err(Stop::ReadOnly(at.max(page * page_size()) as u64)),
            _ => Ok(()),
        }
    }

    /// Whether the kernel could write a word there.
    fn word(&self, memory: &[u8], at: u32) -> Result<(), Stop> {
        self.writable(memory, at, WORD)?;
        aligned(at)
    }
}

fn read(memory: &[u8], at: u32, len: u32) -> Result<&[u8], Stop> {
    let behind = memory.get(at as usize..);
    let bytes = behind.and_then(|behind| behind.get(..len as usize));
    bytes.ok_or(Stop::Trap(Trap::MemoryOutOfBounds))
}

/// The words of a record at an address.
fn words<const N: usize>(memory: &[u8], at: u32) -> Result<[u32; N], Stop> {
    let bytes = read(memory, at, N as u32 * WORD)?;
    aligned(at)?;
    let (words, _) = bytes.as_chunks();
    Ok(std::array::from_fn(|i| u32::from_le_bytes(words[i])))
}

/// Words are aligned in WASI-NN.
fn aligned(at: u32) -> Result<(), Stop> {
    match at % WORD {
        0 => Ok(()),
        _ => Err(Errno::InvalidArgument.into()),
    }
}
