//! WASI-NN for kernels: the functions of `wasi_ephemeral_nn` over the graphs of a kernel's own pack.
//!
//! Names, signatures, layouts and error codes are those of the proposal's WITX text. A kernel asks for a graph
//! by its id (`load_by_name`), which was admitted with its pack. `load`, which brings the bytes of a graph,
//! is an unsupported operation: nothing would vouch for them.
//!
//! Invariants:
//!
//! - The host writes to a kernel's memory where the kernel can write itself. Elsewhere the call traps, as a store
//!   would: a page that is read-only ([`fence`](super::super::fence)) would end the process.
//! - A context ends with the call of the kernel that made it, so a scope never finds another's. The handle of
//!   a graph is its place in the manifest, so it stays good.
//! - Contexts of a call are counted, and so are the bytes of the tensors in them.
//! - A computation ends at the deadline of the kernel's call, which is one of the clock here: the thread waits
//!   while the graph computes, so what it used of its processor says nothing. A call whose time is up traps.
//!
//! What this does not bound is what a graph takes while it computes: its provider does, by a process.

use crate::exec::fence::page_size;
use crate::graph::{GraphError, GraphValue, PackGraphs};
use ruvllm_manifest::GraphType;
use std::ops::Range;
use std::time::{Duration, Instant};
use wasmtime::{Caller, Extern, Func, Memory, Module, Store, Trap};

/// Contexts that a call may have.
const CONTEXTS: usize = 16;
/// Bytes of all tensors in the contexts of a call.
const TENSOR_BYTES: usize = 4 << 20;
/// Dimensions of a tensor; manifests allow fewer.
const RANK: u32 = 16;

/// What an instance holds of graphs.
pub(super) struct Nn {
    graphs: PackGraphs,
    memory: Option<Memory>,
    contexts: Vec<Context>,
    /// Of the tensors in `contexts`.
    bytes: usize,
    /// When the call ends that runs.
    until: Instant,
    /// Whether a page of the memory is read-only; those behind the last one are not.
    read_only: Vec<bool>,
}

/// A computation of a graph, by its place in the manifest.
struct Context {
    graph: usize,
    inputs: Vec<Option<GraphValue>>,
    outputs: Vec<GraphValue>,
}

/// The errors of WASI-NN that come up here, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Errno {
    InvalidArgument = 1,
    MissingMemory = 3,
    Busy = 4,
    RuntimeError = 5,
    UnsupportedOperation = 6,
    TooLarge = 7,
    NotFound = 8,
}

/// Why a function does not do what it was asked for.
enum Stop {
    Errno(Errno),
    Trap(Trap),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Errno(errno)
    }
}

/// What the store of an instance keeps.
pub(super) trait StoreData: 'static {
    /// The graphs that it computes, where its module imports anything.
    fn nn(&mut self) -> Option<&mut Nn>;
}

/// Bytes that contexts of a module's instance may hold.
pub(super) fn holds(module: &Module) -> usize {
    if module.imports().len() == 0 { 0 } else { TENSOR_BYTES }
}

/// What a module imports, in its order; the gate has let nothing else through.
pub(super) fn imports<T: StoreData>(store: &mut Store<T>, module: &Module) -> Vec<Extern> {
    let names = module.imports().filter_map(|import| function(store, import.name()));
    names.map(Extern::from).collect()
}

fn function<T: StoreData>(store: &mut Store<T>, name: &str) -> Option<Func> {
    Some(match name {
        "load" => Func::wrap(store, |_: u32, _: u32, _: u32, _: u32, _: u32| {
            Errno::UnsupportedOperation as i32
        }),
        "load_by_name" => {
            Func::wrap(store, |mut guest: Caller<'_, T>, name: u32, len: u32, graph: u32| {
                answer(&mut guest, |nn, memory| nn.load_by_name(memory, name, len, graph))
            })
        }
        "init_execution_context" => {
            Func::wrap(store, |mut guest: Caller<'_, T>, graph: u32, context: u32| {
                answer(&mut guest, |nn, memory| nn.begin_context(memory, graph, context))
            })
        }
        "set_input" => {
            Func::wrap(store, |mut guest: Caller<'_, T>, context: u32, index: u32, tensor: u32| {
                answer(&mut guest, |nn, memory| nn.set_input(memory, context, index, tensor))
            })
        }
        "compute" => Func::wrap(store, |mut guest: Caller<'_, T>, context: u32| {
            answer(&mut guest, |nn, _| nn.compute(context))
        }),
        "get_output" => Func::wrap(
            store,
            |mut guest: Caller<'_, T>, context: u32, index: u32, to: u32, room: u32, len: u32| {
                answer(&mut guest, |nn, memory| nn.output(memory, context, index, (to, room), len))
            },
        ),
        _ => return None,
    })
}

/// The status of a function for the kernel, or the trap that its call ends with.
fn answer<T: StoreData>(
    guest: &mut Caller<'_, T>,
    work: impl FnOnce(&mut Nn, &mut [u8]) -> Result<(), Stop>,
) -> wasmtime::Result<i32> {
    let memory = guest.data_mut().nn().and_then(|nn| nn.memory);
    let done = match memory {
        None => Err(Errno::RuntimeError.into()),
        Some(memory) => {
            let (memory, data) = memory.data_and_store_mut(guest);
            match data.nn() {
                None => Err(Errno::RuntimeError.into()),
                Some(nn) => work(nn, memory),
            }
        }
    };
    match done {
        Ok(()) => Ok(0),
        Err(Stop::Errno(errno)) => Ok(errno as i32),
        Err(Stop::Trap(trap)) => Err(trap.into()),
    }
}

impl Nn {
    /// That of an instance of a module, where it imports anything.
    pub(super) fn of(module: &Module, graphs: &PackGraphs) -> Option<Box<Self>> {
        (module.imports().len() > 0).then(|| {
            Box::new(Self {
                graphs: graphs.clone(),
                memory: None,
                contexts: Vec::new(),
                bytes: 0,
                until: Instant::now(),
                read_only: Vec::new(),
            })
        })
    }

    /// The memory of the instance, once it is made.
    pub(super) fn uses(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// A call begins that may take so many ticks.
    pub(super) fn begin(&mut self, ticks: u64, tick: Duration) {
        self.end();
        let time = tick.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
        let now = Instant::now();
        self.until = now.checked_add(time).unwrap_or(now);
    }

    /// The call has ended.
    pub(super) fn end(&mut self) {
        self.contexts.clear();
        self.bytes = 0;
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

    fn load_by_name(&self, memory: &mut [u8], name: u32, len: u32, graph: u32) -> Result<(), Stop> {
        let name = read(memory, name, len)?;
        let mut graphs = self.graphs.all().iter();
        let place = graphs.position(|graph| graph.entry.id.as_bytes() == name);
        self.write_word(memory, graph, place.ok_or(Errno::NotFound)?)
    }

    fn begin_context(&mut self, memory: &mut [u8], graph: u32, context: u32) -> Result<(), Stop> {
        let graph = graph as usize;
        let found = self.graphs.all().get(graph).ok_or(Errno::InvalidArgument)?;
        if self.contexts.len() == CONTEXTS {
            return Err(Errno::MissingMemory.into());
        }
        let inputs = vec![None; found.entry.inputs.len()];
        self.write_word(memory, context, self.contexts.len())?;
        self.contexts.push(Context { graph, inputs, outputs: Vec::new() });
        Ok(())
    }

    fn set_input(
        &mut self,
        memory: &[u8],
        context: u32,
        index: u32,
        tensor: u32,
    ) -> Result<(), Stop> {
        // Extents and their count, the type in the lowest byte, elements and their bytes.
        let tensor: Vec<u32> = words(read(memory, tensor, 20)?).collect();
        let [extents, rank, ty, elements, len] = tensor[..] else {
            return Err(Errno::InvalidArgument.into());
        };
        let ty = graph_type(ty as u8).ok_or(Errno::InvalidArgument)?;
        let context = self.contexts.get_mut(context as usize).ok_or(Errno::InvalidArgument)?;
        let entry = &self.graphs.all()[context.graph].entry;
        let input = entry.inputs.get(index as usize).filter(|_| rank <= RANK);
        let input = input.ok_or(Errno::InvalidArgument)?;
        let shape = words(read(memory, extents, rank * 4)?).map(|n| n as usize).collect();
        let elements = read(memory, elements, len)?;
        let place = &mut context.inputs[index as usize];
        let others = self.bytes - place.as_ref().map_or(0, |value| value.bytes().len());
        if others + elements.len() > TENSOR_BYTES {
            return Err(Errno::MissingMemory.into());
        }
        let value = GraphValue::new(ty, shape, elements.to_vec()).ok_or(Errno::InvalidArgument)?;
        value.check(input, entry).map_err(|_| Errno::InvalidArgument)?;
        self.bytes = others + elements.len();
        *place = Some(value);
        Ok(())
    }

    fn compute(&mut self, context: u32) -> Result<(), Stop> {
        let context = self.contexts.get_mut(context as usize).ok_or(Errno::InvalidArgument)?;
        if context.inputs.iter().any(Option::is_none) {
            return Err(Errno::InvalidArgument.into());
        }
        let inputs: Vec<GraphValue> = context.inputs.iter_mut().filter_map(Option::take).collect();
        let outputs = std::mem::take(&mut context.outputs);
        let gone = inputs.iter().chain(&outputs).map(|value| value.bytes().len());
        self.bytes -= gone.sum::<usize>();
        drop(outputs);
        let graph = &self.graphs.all()[context.graph];
        let most = TENSOR_BYTES.saturating_sub(self.bytes);
        let waited_for = || Instant::now() < self.until;
        let compute = || -> Result<Vec<GraphValue>, GraphError> {
            let mut computing = graph.graph.context()?;
            for (index, value) in inputs.into_iter().enumerate() {
                computing.set_input(index, value)?;
            }
            computing.compute_within(most, &waited_for)?;
            let mut left = most;
            let outputs = (0..graph.entry.outputs.len()).map(|index| {
                let output = computing.output(index)?;
                // A provider that holds to the bound leaves nothing to refuse here.
                left = (left.checked_sub(output.bytes().len()))
                    .ok_or(GraphError::TooLarge { bytes: most })?;
                Ok(output.clone())
            });
            outputs.collect()
        };
        let computed = compute();
        if !waited_for() {
            return Err(Stop::Trap(Trap::Interrupt));
        }
        let outputs = computed.map_err(errno)?;
        self.bytes += outputs.iter().map(|value| value.bytes().len()).sum::<usize>();
        context.outputs = outputs;
        Ok(())
    }

    fn output(
        &self,
        memory: &mut [u8],
        context: u32,
        index: u32,
        (to, room): (u32, u32),
        len: u32,
    ) -> Result<(), Stop> {
        let context = self.contexts.get(context as usize).ok_or(Errno::InvalidArgument)?;
        let output = context.outputs.get(index as usize).ok_or(Errno::InvalidArgument)?;
        let bytes = output.bytes();
        if bytes.len() > room as usize {
            return Err(Errno::TooLarge.into());
        }
        self.write(memory, to, bytes)?;
        self.write_word(memory, len, bytes.len())
    }

    /// Writes where the kernel could.
    fn write(&self, memory: &mut [u8], at: u32, bytes: &[u8]) -> Result<(), Stop> {
        let at = at as usize;
        let place = memory.get_mut(at..).and_then(|behind| behind.get_mut(..bytes.len()));
        let place = place.ok_or(Stop::Trap(Trap::MemoryOutOfBounds))?;
        let pages = at / page_size()..(at + bytes.len()).div_ceil(page_size());
        let mut protected = self.read_only.iter().take(pages.end).skip(pages.start);
        if protected.any(|read_only| *read_only) {
            return Err(Stop::Trap(Trap::MemoryOutOfBounds));
        }
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn write_word(&self, memory: &mut [u8], at: u32, word: usize) -> Result<(), Stop> {
        // Places of graphs and contexts, and lengths within the memory: all of 32 bits.
        self.write(memory, at, &(word as u32).to_le_bytes())
    }
}

fn read(memory: &[u8], at: u32, len: u32) -> Result<&[u8], Stop> {
    let behind = memory.get(at as usize..);
    let bytes = behind.and_then(|behind| behind.get(..len as usize));
    bytes.ok_or(Stop::Trap(Trap::MemoryOutOfBounds))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
}

/// The element type of that number in WASI-NN, where graphs of packs have it.
fn graph_type(number: u8) -> Option<GraphType> {
    Some(match number {
        1 => GraphType::F32,
        3 => GraphType::U8,
        4 => GraphType::I32,
        5 => GraphType::I64,
        _ => return None,
    })
}

fn errno(error: GraphError) -> Errno {
    match error {
        GraphError::Input { .. } | GraphError::Output { .. } => Errno::InvalidArgument,
        GraphError::Memory { .. } | GraphError::TooLarge { .. } => Errno::MissingMemory,
        GraphError::Unavailable { .. } => Errno::Busy,
        _ => Errno::RuntimeError,
    }
}
