//! The graphs of a pack as `wasmtime-wasi-nn` has graphs.
//!
//! Invariants:
//!
//! - Graphs that a call loads, its contexts and the bytes of the tensors in these are counted.
//! - A computation ends at the deadline of the kernel's call, which is one of the clock here: the thread waits
//!   while the graph computes, so what it used of its processor says nothing. A call whose time is up traps.
//!
//! What this does not bound is what a graph takes while it computes: its provider does, by a process.

use super::super::trap::ReadOnly;
use crate::graph::{GraphError, GraphValue, PackGraphs};
use crate::threads::lock;
use ruvllm_manifest::GraphType;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use wasmtime::Trap;
use wasmtime_wasi_nn::backend::{
    BackendError, BackendExecutionContext, BackendGraph, Id, NamedTensor,
};
use wasmtime_wasi_nn::wit::{Tensor, TensorType};
use wasmtime_wasi_nn::witx::WasiNnCtx;
use wasmtime_wasi_nn::{ExecutionContext, Graph, GraphRegistry, Registry};

/// Bytes of all tensors in the contexts of a call.
pub(super) const TENSOR_BYTES: usize = 4 << 20;

/// The errors of WASI-NN that come up here, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Errno {
    InvalidArgument = 1,
    MissingMemory = 3,
    Busy = 4,
    RuntimeError = 5,
    UnsupportedOperation = 6,
    NotFound = 8,
}

/// What a call of a kernel has, and how its last function ended. The crate counts handles from 0, too.
#[derive(Default)]
pub(super) struct Call {
    pub(super) graphs: u32,
    pub(super) contexts: u32,
    /// Of the tensors in the contexts.
    bytes: usize,
    /// When the call ends; `None` between calls.
    pub(super) until: Option<Instant>,
    /// What the crate has no error for.
    pub(super) stop: Option<Stop>,
}

/// Why a function does not do what it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    Errno(Errno),
    Trap(Trap),
    /// A write to this address, which the kernel may only read.
    ReadOnly(u64),
}

impl Stop {
    /// What the function gives the kernel, or its call ends with.
    pub(super) fn status(self) -> wasmtime::Result<i32> {
        match self {
            Stop::Errno(errno) => Ok(errno as i32),
            Stop::Trap(trap) => Err(trap.into()),
            Stop::ReadOnly(address) => {
                Err(wasmtime::Error::new(ReadOnly(address)).context(Trap::MemoryOutOfBounds))
            }
        }
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Errno(errno)
    }
}

impl From<GraphError> for Stop {
    fn from(error: GraphError) -> Self {
        Stop::Errno(match error {
            GraphError::Input { .. } | GraphError::Output { .. } => Errno::InvalidArgument,
            GraphError::Memory { .. } | GraphError::TooLarge { .. } => Errno::MissingMemory,
            GraphError::Unavailable { .. } => Errno::Busy,
            _ => Errno::RuntimeError,
        })
    }
}

/// Notes for the kernel why it is stopped, and says it to the crate, which logs it.
fn noted(call: &Mutex<Call>, stop: Stop) -> BackendError {
    lock(call).stop = Some(stop);
    BackendError::BackendAccess(wasmtime::Error::msg(format!("{stop:?}")))
}

/// The graphs of a pack by their ids.
#[derive(Clone)]
pub(super) struct PackRegistry {
    graphs: Vec<(String, Graph)>,
    call: Arc<Mutex<Call>>,
}

impl PackRegistry {
    pub(super) fn new(graphs: &PackGraphs, call: &Arc<Mutex<Call>>) -> Self {
        let all = graphs.all().iter().enumerate().map(|(place, graph)| {
            let one: Box<dyn BackendGraph> =
                Box::new(PackGraph { graphs: graphs.clone(), place, call: call.clone() });
            (graph.entry.id.clone(), one.into())
        });
        Self { graphs: all.collect(), call: call.clone() }
    }

    /// Whether a graph has these bytes as its id.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.graphs.iter().any(|(id, _)| id.as_bytes() == name)
    }

    /// The crate's state, without handles, over these graphs alone.
    pub(super) fn library(&self) -> WasiNnCtx {
        WasiNnCtx::new([], Registry::from(self.clone()))
    }
}

impl GraphRegistry for PackRegistry {
    fn get(&self, name: &str) -> Option<&Graph> {
        self.graphs.iter().find(|(id, _)| id == name).map(|(_, graph)| graph)
    }

    /// What the crate gives a handle for.
    fn get_mut(&mut self, name: &str) -> Option<&mut Graph> {
        let (_, graph) = self.graphs.iter_mut().find(|(id, _)| id == name)?;
        lock(&self.call).graphs += 1;
        Some(graph)
    }
}

/// A graph, by its place in the manifest.
#[derive(Clone)]
struct PackGraph {
    graphs: PackGraphs,
    place: usize,
    call: Arc<Mutex<Call>>,
}

impl BackendGraph for PackGraph {
    fn init_execution_context(&self) -> Result<ExecutionContext, BackendError> {
        lock(&self.call).contexts += 1;
        let inputs = vec![None; self.graphs.all()[self.place].entry.inputs.len()];
        let context: Box<dyn BackendExecutionContext> =
            Box::new(Context { graph: self.clone(), inputs, outputs: Vec::new() });
        Ok(context.into())
    }
}

/// A computation of a graph.
struct Context {
    graph: PackGraph,
    inputs: Vec<Option<GraphValue>>,
    outputs: Vec<GraphValue>,
}

impl BackendExecutionContext for Context {
    fn set_input(&mut self, id: Id, tensor: &Tensor) -> Result<(), BackendError> {
        self.hold(id, tensor).map_err(|stop| noted(&self.graph.call, stop))
    }

    fn compute(
        &mut self,
        _: Option<Vec<NamedTensor>>,
    ) -> Result<Option<Vec<NamedTensor>>, BackendError> {
        self.computed().map_err(|stop| noted(&self.graph.call, stop)).map(|()| None)
    }

    fn get_output(&mut self, id: Id) -> Result<Tensor, BackendError> {
        let output = id.index().and_then(|index| self.outputs.get(index as usize));
        let output =
            output.ok_or_else(|| noted(&self.graph.call, Errno::InvalidArgument.into()))?;
        let ty = match output.ty() {
            GraphType::F32 => TensorType::Fp32,
            GraphType::U8 => TensorType::U8,
            GraphType::I32 => TensorType::I32,
            GraphType::I64 => TensorType::I64,
        };
        let dimensions = output.shape().iter().map(|extent| *extent as u32).collect();
        Ok(Tensor { dimensions, ty, data: output.bytes().to_vec() })
    }
}

impl Context {
    fn hold(&mut self, id: Id, tensor: &Tensor) -> Result<(), Stop> {
        let entry = &self.graph.graphs.all()[self.graph.place].entry;
        let index = id.index().ok_or(Errno::InvalidArgument)? as usize;
        let input = entry.inputs.get(index).ok_or(Errno::InvalidArgument)?;
        let ty = match tensor.ty {
            TensorType::Fp32 => GraphType::F32,
            TensorType::U8 => GraphType::U8,
            TensorType::I32 => GraphType::I32,
            TensorType::I64 => GraphType::I64,
            _ => return Err(Errno::InvalidArgument.into()),
        };
        let mut call = lock(&self.graph.call);
        let place = &mut self.inputs[index];
        let others = call.bytes - place.as_ref().map_or(0, |value| value.bytes().len());
        if others + tensor.data.len() > TENSOR_BYTES {
            return Err(Errno::MissingMemory.into());
        }
        let shape = tensor.dimensions.iter().map(|extent| *extent as usize).collect();
        let value = GraphValue::new(ty, shape, tensor.data.clone());
        let value = value.ok_or(Errno::InvalidArgument)?;
        value.check(input, entry).map_err(|_| Errno::InvalidArgument)?;
        call.bytes = others + tensor.data.len();
        *place = Some(value);
        Ok(())
    }

    fn computed(&mut self) -> Result<(), Stop> {
        if self.inputs.iter().any(Option::is_none) {
            return Err(Errno::InvalidArgument.into());
        }
        let inputs: Vec<GraphValue> = self.inputs.iter_mut().filter_map(Option::take).collect();
        let outputs = std::mem::take(&mut self.outputs);
        let gone = inputs.iter().chain(&outputs).map(|value| value.bytes().len()).sum::<usize>();
        drop(outputs);
        let (most, until) = {
            let mut call = lock(&self.graph.call);
            call.bytes -= gone;
            (TENSOR_BYTES.saturating_sub(call.bytes), call.until)
        };
        let graph = &self.graph.graphs.all()[self.graph.place];
        let waited_for = || until.is_some_and(|until| Instant::now() < until);
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
        self.outputs = computed?;
        lock(&self.graph.call).bytes +=
            self.outputs.iter().map(|value| value.bytes().len()).sum::<usize>();
        Ok(())
    }
}
