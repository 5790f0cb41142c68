//! This runtime's own models as graphs: token ids in, the mean of the final hidden states out.
//!
//! A GGUF file in any of its types of weights, computed by the engine with native kernels on one thread. It has
//! one input, `input_ids` `[1, tokens]`, and one output `[1, width]`.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use ruvllm_engine::memory::PAGE;
use ruvllm_engine::scheduler::{Kind, Request, Update};
use ruvllm_engine::{
    Engine, EngineConfig, EngineError, GenerateOptions, Model, Scheduler, SchedulerConfig,
};
use ruvllm_host::graph::{Graph, GraphContext, GraphError, GraphProvider, GraphValue};
use ruvllm_host::{Host, HostConfig, Policy};
use ruvllm_manifest::{Dim, EMBEDDING_INPUTS, GraphEntry, GraphFormat, GraphTensor, GraphType};

use crate::slots::{Slots, fits};

/// How often whoever waits for a vector is asked whether that is still so.
const LOOK: Duration = Duration::from_millis(20);

/// Computes GGUF models in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct GgufProvider;

struct GgufGraph {
    entry: GraphEntry,
    scheduler: Scheduler,
    dim: usize,
    vocab: usize,
}

impl GraphProvider for GgufProvider {
    fn load(&self, entry: &GraphEntry, bytes: &[u8]) -> Result<Box<dyn Graph>, GraphError> {
        let refused = |reason: String| GraphError::Refused { reason };
        if entry.format != GraphFormat::Gguf {
            return Err(refused(format!("it is of the format {}, not gguf", entry.format)));
        }
        let tokens = shape(entry).ok_or_else(|| {
            refused(format!(
                "a gguf graph has the input {} [1, tokens] of i32 or i64 and one output [1, width] of f32",
                EMBEDDING_INPUTS[0]
            ))
        })?;
        let room = entry.resource_limits.max_memory_bytes.saturating_sub(bytes.len() as u64);
        let model = Model::from_bytes(bytes, &entry.id).map_err(|e| refused(e.to_string()))?;
        let (dim, vocab) = (model.config().dim, model.vocab());
        if !matches!(entry.outputs[0].shape[..], [_, Dim::Fixed(width)] if width as usize == dim) {
            return Err(refused(format!("the model's vectors have {dim} numbers")));
        }
        let config = HostConfig { policy: Policy::NativeOnly, ..HostConfig::default() };
        let host = Host::new(config).map_err(|e| refused(e.to_string()))?;
        let model = Arc::new(model);
        let engine = |memory: usize| {
            let memory = Some(memory);
            let config =
                EngineConfig { threads: 1, memory, ctx: Some(tokens), ..EngineConfig::default() };
            Engine::new(model.clone(), host.clone(), config)
        };
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        // An engine reserves address space for all of its budget, which a process that is held to the limit needs
        // for the weights as they are rearranged, too. One of a single page says what a text of all tokens takes.
        let budget = match engine(PAGE) {
            Err(EngineError::MemoryTooSmall { needed, .. }) => room.min(needed.saturating_mul(2)),
            _ => room,
        };
        let engine = engine(budget).map_err(|e| refused(e.to_string()))?;
        let scheduler = Scheduler::start(engine, SchedulerConfig::default());
        let scheduler = scheduler.map_err(|e| refused(e.to_string()))?;
        Ok(Box::new(GgufGraph { entry: entry.clone(), scheduler, dim, vocab }))
    }
}

/// The most tokens, where inputs and outputs are those of a model.
fn shape(entry: &GraphEntry) -> Option<usize> {
    let ([input], [output]) = (&entry.inputs[..], &entry.outputs[..]) else { return None };
    let one = |tensor: &GraphTensor| match tensor.shape.first() {
        Some(Dim::Fixed(1)) => true,
        Some(Dim::Symbol(name)) => entry.extents.get(name) == Some(&1),
        _ => false,
    };
    let whole = matches!(input.ty, GraphType::I32 | GraphType::I64);
    let named = input.name == EMBEDDING_INPUTS[0] && input.shape.len() == 2;
    let (pooled, float) = (output.shape.len() == 2, output.ty == GraphType::F32);
    let tokens = match input.shape.get(1)? {
        Dim::Fixed(n) => *n,
        Dim::Symbol(name) => *entry.extents.get(name)?,
    };
    (whole && named && pooled && float && one(input) && one(output)).then_some(tokens as usize)
}

impl fmt::Debug for GgufGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufGraph").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Graph for GgufGraph {
    fn context(&self) -> Result<Box<dyn GraphContext + '_>, GraphError> {
        Ok(Box::new(GgufContext { graph: self, slots: Slots::new(&self.entry) }))
    }
}

struct GgufContext<'g> {
    graph: &'g GgufGraph,
    slots: Slots<'g>,
}

impl GraphContext for GgufContext<'_> {
    fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError> {
        self.slots.set_input(index, value)
    }

    fn compute_within(
        &mut self,
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<(), GraphError> {
        let inputs = self.slots.take_inputs()?;
        fits(std::iter::once(self.graph.dim * GraphType::F32.size()), most)?;
        let mean = self.graph.mean(&inputs[0], waited_for)?;
        let bytes = mean.iter().flat_map(|x| x.to_le_bytes()).collect();
        let value = GraphValue::new(GraphType::F32, vec![1, self.graph.dim], bytes);
        let broken = || GraphError::Failed { reason: "it gave a vector of another width".into() };
        self.slots.set_outputs(vec![value.ok_or_else(broken)?], most)
    }

    fn output(&self, index: usize) -> Result<&GraphValue, GraphError> {
        self.slots.output(index)
    }
}

impl GgufGraph {
    fn mean(
        &self,
        tokens: &GraphValue,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<f32>, GraphError> {
        let wrong = || GraphError::Input {
            name: EMBEDDING_INPUTS[0].to_owned(),
            reason: format!("token ids are from 0 to {}", self.vocab.saturating_sub(1)),
        };
        let known = |id: &f64| (0.0..self.vocab as f64).contains(id);
        let ids = tokens.numbers();
        let prompt: Vec<u32> = ids.iter().filter(|id| known(id)).map(|id| *id as u32).collect();
        if prompt.len() != ids.len() {
            return Err(wrong());
        }
        let millis = self.entry.resource_limits.max_millis;
        let until = Instant::now() + Duration::from_millis(millis);
        let failed = |reason: String| GraphError::Failed { reason };
        let (sender, answer) = mpsc::channel();
        let sink = Box::new(move |update| {
            let _ = match update {
                Update::Embedding(mean) => sender.send(Ok(mean)),
                Update::Failed(error) => sender.send(Err(error.to_string())),
                _ => Ok(()),
            };
            ControlFlow::Continue(())
        });
        let request =
            Request { kind: Kind::Embed, ..Request::new(prompt, GenerateOptions::default()) };
        // Dropped, it is cancelled.
        let handle = self.scheduler.submit(request, sink);
        let _handle = handle.map_err(|rejected| failed(rejected.to_string()))?;
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(mean) => return mean.map_err(failed),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("its thread ended".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) if !waited_for() => {
                    return Err(GraphError::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    return Err(GraphError::Time { millis });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}
