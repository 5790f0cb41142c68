//! ONNX graphs computed by tract.
//!
//! A graph is walked over before tract sees it, and tract reads nothing but the bytes: what it would take
//! from another file is an error. Between the nodes of a computation the clock is read, somebody is asked
//! whether the outputs are still wanted, and what a node is about to make is counted where its shape can be
//! known. A single node that takes long, or memory that tract takes for itself, is bounded by the process
//! that this runs in (`process`), not here.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_host::graph::{Graph, GraphContext, GraphError, GraphProvider, GraphValue};
use ruvllm_manifest::{Dim, GraphEntry, GraphFormat, GraphType};
use tract_onnx::Onnx;
use tract_onnx::data_resolver::ModelDataResolver;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::model::typed::TypedSimplePlan;
use tract_onnx::tract_core::plan;

use super::walk::{OnnxTensor, walk};
use crate::slots::{Slots, fits};

/// Computes ONNX graphs in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnnxProvider;

struct OnnxGraph {
    entry: GraphEntry,
    plan: Arc<TypedSimplePlan>,
    /// For each input of the file, which of the entry's it is.
    inputs: Vec<usize>,
    /// For each output of the entry, which of the file's it is.
    outputs: Vec<usize>,
    weight_bytes: u64,
}

/// Refuses to read files beside the graph's.
struct NoFiles;

impl ModelDataResolver for NoFiles {
    fn read_bytes_from_path(
        &self,
        _: &mut Vec<u8>,
        _: &Path,
        _: usize,
        _: Option<usize>,
    ) -> TractResult<()> {
        Err(io::Error::other("data in other files is not read").into())
    }
}

/// What tract panics with where the system gives it no memory begins with this.
const NO_MEMORY: &str = "failed to allocate";

/// Runs what may panic on an odd graph.
fn guarded<T>(work: impl FnOnce() -> TractResult<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| {
            // The chain of causes, the outermost first; the innermost says most.
            let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
            chain.join(": ").chars().take(1000).collect()
        }),
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(said) if said.starts_with(NO_MEMORY) => Err(said.clone()),
            _ => Err("the runtime for ONNX panicked".to_owned()),
        },
    }
}

/// What tract failed with: memory that the system did not give, or something else.
fn memory_or(
    reason: String,
    entry: &GraphEntry,
    other: impl FnOnce(String) -> GraphError,
) -> GraphError {
    match reason.starts_with(NO_MEMORY) {
        true => GraphError::Memory { bytes: entry.resource_limits.max_memory_bytes },
        false => other(reason),
    }
}

/// Which of the names it is.
fn position<'n>(
    mut names: impl Iterator<Item = &'n String>,
    name: &String,
) -> Result<usize, GraphError> {
    let missing = || GraphError::Refused { reason: format!("there is no tensor `{name}`") };
    names.position(|other| other == name).ok_or_else(missing)
}

fn datum_type(ty: GraphType) -> DatumType {
    match ty {
        GraphType::F32 => f32::datum_type(),
        GraphType::I32 => i32::datum_type(),
        GraphType::I64 => i64::datum_type(),
        GraphType::U8 => u8::datum_type(),
    }
}

impl GraphProvider for OnnxProvider {
    fn load(&self, entry: &GraphEntry, bytes: &[u8]) -> Result<Box<dyn Graph>, GraphError> {
        let refused = |reason| GraphError::Refused { reason };
        if entry.format != GraphFormat::Onnx {
            return Err(refused(format!("it is of the format {}, not onnx", entry.format)));
        }
        let facts = walk(bytes, entry.resource_limits.max_memory_bytes).and_then(|facts| {
            let wrong = facts.disagreements(entry);
            if wrong.is_empty() { Ok(facts) } else { Err(wrong) }
        });
        let facts = facts.map_err(|wrong| {
            refused(wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        })?;
        let of_entry = |port: &OnnxTensor| {
            position(entry.inputs.iter().map(|tensor| &tensor.name), &port.name)
        };
        let inputs = facts.inputs.iter().map(of_entry).collect::<Result<Vec<_>, _>>()?;
        let of_file = |tensor: &ruvllm_manifest::GraphTensor| {
            position(facts.outputs.iter().map(|port| &port.name), &tensor.name)
        };
        let outputs = entry.outputs.iter().map(of_file).collect::<Result<Vec<_>, _>>()?;
        let plan = guarded(|| {
            let onnx = Onnx { provider: Arc::new(NoFiles), ..tract_onnx::onnx() };
            let mut model = onnx.model_for_read(&mut &*bytes)?;
            for (index, input) in inputs.iter().enumerate() {
                let input = &entry.inputs[*input];
                let dims = input.shape.iter().map(|dim| match dim {
                    Dim::Fixed(n) => TDim::from(i64::from(*n)),
                    Dim::Symbol(name) => model.symbols.sym(name).into(),
                });
                let dims: TVec<TDim> = dims.collect();
                let fact = InferenceFact::dt_shape(datum_type(input.ty), dims);
                model.set_input_fact(index, fact)?;
            }
            model.into_optimized()?.into_runnable()
        });
        let plan = plan.map_err(|reason| memory_or(reason, entry, refused))?;
        let weight_bytes = facts.weight_bytes;
        Ok(Box::new(OnnxGraph { entry: entry.clone(), plan, inputs, outputs, weight_bytes }))
    }
}

impl fmt::Debug for OnnxGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnnxGraph").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Graph for OnnxGraph {
    fn context(&self) -> Result<Box<dyn GraphContext + '_>, GraphError> {
        Ok(Box::new(OnnxContext { graph: self, slots: Slots::new(&self.entry) }))
    }
}

struct OnnxContext<'g> {
    graph: &'g OnnxGraph,
    slots: Slots<'g>,
}

/// Why a computation is ended between two nodes.
#[derive(Clone, Copy)]
enum Stop {
    Time,
    Memory,
    Cancelled,
}

impl GraphContext for OnnxContext<'_> {
    fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError> {
        self.slots.set_input(index, value)
    }

    fn compute_within(
        &mut self,
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<(), GraphError> {
        let inputs = self.slots.take_inputs()?;
        let outputs = self.graph.run(&inputs, most, waited_for)?;
        self.slots.set_outputs(outputs, most)
    }

    fn output(&self, index: usize) -> Result<&GraphValue, GraphError> {
        self.slots.output(index)
    }
}

impl OnnxGraph {
    fn run(
        &self,
        inputs: &[GraphValue],
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<GraphValue>, GraphError> {
        let limits = self.entry.resource_limits;
        let until = Instant::now() + Duration::from_millis(limits.max_millis);
        let room = limits.max_memory_bytes.saturating_sub(self.weight_bytes);
        let stopped = Cell::new(None);
        let stop = |why| -> TractResult<TVec<TValue>> {
            stopped.set(Some(why));
            Err(io::Error::other("stopped").into())
        };
        let computed = guarded(|| {
            let tensors: TractResult<TVec<TValue>> =
                self.inputs.iter().map(|index| tensor(&inputs[*index])).collect();
            let mut state = self.plan.spawn()?;
            state.run_plan_with_eval(tensors?, |context, op_state, node, inputs| {
                if Instant::now() > until {
                    return stop(Stop::Time);
                }
                if !waited_for() {
                    return stop(Stop::Cancelled);
                }
                let made = node.outputs.iter().map(|output| {
                    let dims = output.fact.shape.iter();
                    // What cannot be known yet is counted as nothing.
                    let dims = dims.map(|dim| dim.eval(context.symbols).to_i64().unwrap_or(0));
                    let elements = dims.fold(1u64, |n, dim| n.saturating_mul(dim.max(0) as u64));
                    elements.saturating_mul(output.fact.datum_type.size_of() as u64)
                });
                let taken = inputs
                    .iter()
                    .map(|input| input.len() as u64 * input.datum_type().size_of() as u64);
                if made.chain(taken).fold(0, u64::saturating_add) > room {
                    return stop(Stop::Memory);
                }
                plan::eval(context, op_state, node, inputs)
            })
        });
        let computed = computed.map_err(|reason| match stopped.get() {
            Some(Stop::Time) => GraphError::Time { millis: limits.max_millis },
            Some(Stop::Memory) => GraphError::Memory { bytes: limits.max_memory_bytes },
            Some(Stop::Cancelled) => GraphError::Cancelled,
            None => memory_or(reason, &self.entry, |reason| GraphError::Failed { reason }),
        })?;
        if Instant::now() > until {
            return Err(GraphError::Time { millis: limits.max_millis });
        }
        let sizes = self.outputs.iter().filter_map(|index| computed.get(*index));
        fits(sizes.map(|value| value.len().saturating_mul(value.datum_type().size_of())), most)?;
        let outputs = self.outputs.iter().zip(&self.entry.outputs).map(|(index, output)| {
            let computed =
                computed.get(*index).filter(|value| value.datum_type() == datum_type(output.ty));
            let value = computed.and_then(|value| {
                GraphValue::new(output.ty, value.shape().to_vec(), value.as_bytes().to_vec())
            });
            let reason = || format!("output {} is of another type than {}", output.name, output.ty);
            value.ok_or_else(|| GraphError::Failed { reason: reason() })
        });
        outputs.collect()
    }
}

/// The value as tract holds it.
fn tensor(value: &GraphValue) -> TractResult<TValue> {
    let mut tensor = Tensor::zero_dt(datum_type(value.ty()), value.shape())?;
    tensor.as_bytes_mut().copy_from_slice(value.bytes());
    Ok(tensor.into_tvalue())
}
