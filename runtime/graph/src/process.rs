//! Graphs in processes of their own, which the system stops at their limits.
//!
//! A provider bounds what it can see: the clock between two nodes, shapes that it knows. What a single node
//! takes, what loading takes, a crash, and memory that a runtime asks for itself are bounded by the process:
//! its address space, and its parent's clock. A process that meets a limit is ended, the computation fails,
//! and another process takes its place, which loads the graph while nobody has to wait for it.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ruvllm_host::graph::{Graph, GraphContext, GraphError, GraphProvider, GraphValue};
use ruvllm_host::process::{Failure, HelperProcess, Limits, Pool, answer_requests};
use ruvllm_manifest::{GraphEntry, GraphType};

use crate::providers;
use crate::slots::Slots;

/// Address space of a process beside its graph until it has read that: the program itself and its stacks.
const PROGRAM_BYTES: u64 = 512 << 20;
/// Address space beside what the graph may take once it is read: stacks of threads that are started then, what the
/// allocator rounds up to, and what a runtime needs for any graph.
const ROOM_BYTES: u64 = 32 << 20;
/// Time for loading a graph and for the runtime's own preparations.
const LOAD_TIME: Duration = Duration::from_secs(60);
/// The longest message about a failure.
const MAX_REASON: usize = 64 << 10;

/// Computes graphs of every format that this build knows in processes of their own.
#[derive(Clone, Debug)]
pub struct IsolatedProvider {
    process: HelperProcess,
}

impl IsolatedProvider {
    /// The argument on which a program that computes its own graphs calls [`graph_process`].
    pub const COMMAND: &str = "run-graph";

    /// Processes of this program, started with [`IsolatedProvider::COMMAND`], so many for each graph.
    pub fn this_program(processes: usize) -> Self {
        Self::new(HelperProcess { processes, ..HelperProcess::this_program(Self::COMMAND) })
    }

    /// Processes of a program that calls [`graph_process`]. Their memory and time are those of the graph.
    pub fn new(process: HelperProcess) -> Self {
        Self { process }
    }
}

#[derive(Debug)]
struct IsolatedGraph {
    entry: GraphEntry,
    pool: Arc<Pool>,
}

impl GraphProvider for IsolatedProvider {
    fn load(&self, entry: &GraphEntry, bytes: &[u8]) -> Result<Box<dyn Graph>, GraphError> {
        let unwritable =
            |e: ruvllm_manifest::ManifestError| GraphError::Failed { reason: e.to_string() };
        // The process needs no checks: they are computed by whoever admits the graph.
        let described = entry.to_json().map_err(unwritable)?;
        let limits = entry.resource_limits;
        let process = HelperProcess {
            memory_bytes: until_read(entry, described.len() + bytes.len()),
            // What a provider sees itself it says better.
            time: Duration::from_millis(limits.max_millis.saturating_add(500)),
            ..self.process.clone()
        };
        let mut setup = Vec::with_capacity(8 + described.len() + bytes.len());
        setup.extend((described.len() as u64).to_le_bytes());
        setup.extend(described.as_bytes());
        setup.extend(bytes);
        let pool = Pool::new(process, setup, MAX_REASON).setup_within(LOAD_TIME);
        pool.warm().map_err(|failure| match failure {
            Failure::Late => GraphError::Refused {
                reason: format!("loading it takes longer than {LOAD_TIME:?}"),
            },
            failure => explain(failure, entry),
        })?;
        Ok(Box::new(IsolatedGraph { entry: entry.clone(), pool: Arc::new(pool) }))
    }
}

impl Graph for IsolatedGraph {
    fn context(&self) -> Result<Box<dyn GraphContext + '_>, GraphError> {
        Ok(Box::new(IsolatedContext { graph: self, slots: Slots::new(&self.entry) }))
    }
}

struct IsolatedContext<'g> {
    graph: &'g IsolatedGraph,
    slots: Slots<'g>,
}

impl GraphContext for IsolatedContext<'_> {
    fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError> {
        self.slots.set_input(index, value)
    }

    fn compute_within(
        &mut self,
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<(), GraphError> {
        let IsolatedGraph { entry, pool } = self.graph;
        let mut request = (most as u64).to_le_bytes().to_vec();
        encode(&self.slots.take_inputs()?, &mut request);
        let answer = pool.ask(&request, longest_answer(entry, most), waited_for);
        if matches!(answer, Err(Failure::Ended | Failure::Late | Failure::Cancelled)) {
            let pool = pool.clone();
            // Without a thread, the next computation loads the graph.
            let _ = thread::Builder::new().spawn(move || pool.restart());
        }
        let answer = answer.map_err(|failure| explain(failure, entry))?;
        let broken = || GraphError::Failed { reason: "its process gave no outputs".to_owned() };
        self.slots.set_outputs(decode(&answer).ok_or_else(broken)?, most)
    }

    fn output(&self, index: usize) -> Result<&GraphValue, GraphError> {
        self.slots.output(index)
    }
}

/// The longest answer that is read where the outputs may have so many bytes: the elements that the manifest's
/// extents allow, where those are fewer, and what precedes them; or a message about a failure.
fn longest_answer(entry: &GraphEntry, most: usize) -> usize {
    let elements = entry.outputs.iter().map(|output| {
        let bytes = entry.largest(output).saturating_mul(output.ty.size() as u64);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    });
    let elements = elements.fold(0, usize::saturating_add).min(most);
    let extents = entry.outputs.iter().map(|output| 2 + 8 * output.shape.len());
    elements.saturating_add(extents.sum::<usize>()).max(MAX_REASON)
}

/// Address space of a process that reads a setup of this length for the graph.
fn until_read(entry: &GraphEntry, setup: usize) -> u64 {
    let limit = entry.resource_limits.max_memory_bytes;
    PROGRAM_BYTES.saturating_add(setup as u64).saturating_add(limit)
}

/// Holds this process, which has read a setup of this length and nothing of the graph in it, to the address space
/// that it has by now, what the graph may take, and [`ROOM_BYTES`]. Where the system does not say what it has, the
/// first limit stays.
///
/// # Errors
/// [`GraphError::Unavailable`] where the system does not take the limit.
fn hold_to_limit(entry: &GraphEntry, setup: usize) -> Result<(), GraphError> {
    let Some(now) = address_space() else { return Ok(()) };
    let limit =
        now.saturating_add(ROOM_BYTES).saturating_add(entry.resource_limits.max_memory_bytes);
    // A limit can only be lowered.
    let memory_bytes = limit.min(until_read(entry, setup));
    let limits = Limits { memory_bytes, cpu_seconds: None, file_bytes: 0 };
    limits.apply().map_err(|reason| GraphError::Unavailable { reason })
}

/// Bytes of address space that this process has, where the system tells it as Linux does.
fn address_space() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn explain(failure: Failure, entry: &GraphEntry) -> GraphError {
    let limits = entry.resource_limits;
    match failure {
        Failure::Refused(error) => serde_json::from_slice(&error).unwrap_or_else(|_| {
            GraphError::Failed { reason: "its process gave no reason".to_owned() }
        }),
        // A crash that is none of memory cannot be told from it.
        Failure::Ended => GraphError::Memory { bytes: limits.max_memory_bytes },
        Failure::Late => GraphError::Time { millis: limits.max_millis },
        Failure::Cancelled => GraphError::Cancelled,
        Failure::Unavailable { reason } => GraphError::Unavailable { reason },
    }
}

/// The process for graphs: reads one graph and inputs for it from standard input and writes outputs to
/// standard output, under the limits that it is told first.
///
/// A program whose [`IsolatedProvider`] names itself calls this at the top of `main` when it sees the
/// arguments that it chose, before it starts a thread.
pub fn graph_process() -> ExitCode {
    // Nothing in them cannot be written; no bytes at all are an error, too.
    let refusal = |error: GraphError| serde_json::to_vec(&error).unwrap_or_default();
    let broken = |what: &str| GraphError::Failed { reason: what.to_owned() };
    answer_requests(|setup| {
        let load = || {
            let (length, rest) = setup.split_first_chunk()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            Some((rest.get(..length)?, &rest[length..]))
        };
        let (described, bytes) = load().ok_or_else(|| refusal(broken("it is told no graph")))?;
        let entry = GraphEntry::parse(described).map_err(|e| refusal(broken(&e.to_string())))?;
        let provider = providers::of(entry.format).map_err(refusal)?;
        hold_to_limit(&entry, described.len() + bytes.len()).map_err(refusal)?;
        let graph = provider.load(&entry, bytes).map_err(refusal)?;
        Ok(move |request: &[u8]| {
            let no_inputs = || refusal(broken("these are no inputs"));
            let (most, inputs) = request.split_first_chunk().ok_or_else(no_inputs)?;
            let most = usize::try_from(u64::from_le_bytes(*most)).unwrap_or(usize::MAX);
            let inputs = decode(inputs).ok_or_else(no_inputs)?;
            let mut context = graph.context().map_err(refusal)?;
            for (index, value) in inputs.into_iter().enumerate() {
                context.set_input(index, value).map_err(refusal)?;
            }
            context.compute_within(most, &|| true).map_err(refusal)?;
            let outputs = (0..entry.outputs.len()).map(|index| context.output(index));
            let outputs: Vec<&GraphValue> = outputs.collect::<Result<_, _>>().map_err(refusal)?;
            let mut answer = Vec::new();
            encode(outputs, &mut answer);
            Ok(answer)
        })
    })
}

/// Values one after the other: type, rank, extents, elements.
fn encode<'v>(values: impl IntoIterator<Item = &'v GraphValue>, bytes: &mut Vec<u8>) {
    for value in values {
        bytes.push(value.ty() as u8);
        bytes.push(value.shape().len() as u8);
        value.shape().iter().for_each(|n| bytes.extend((*n as u64).to_le_bytes()));
        bytes.extend(value.bytes());
    }
}

fn decode(mut bytes: &[u8]) -> Option<Vec<GraphValue>> {
    const TYPES: [GraphType; 4] = [GraphType::F32, GraphType::I32, GraphType::I64, GraphType::U8];
    let mut values = Vec::new();
    while let Some(([ty, rank], mut rest)) = bytes.split_first_chunk() {
        let ty = *TYPES.iter().find(|known| **known as u8 == *ty)?;
        let mut shape = Vec::with_capacity(usize::from(*rank));
        for _ in 0..*rank {
            let (extent, behind) = rest.split_first_chunk()?;
            shape.push(usize::try_from(u64::from_le_bytes(*extent)).ok()?);
            rest = behind;
        }
        let elements = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        let (elements, behind) = rest.split_at_checked(elements.checked_mul(ty.size())?)?;
        values.push(GraphValue::new(ty, shape, elements.to_vec())?);
        bytes = behind;
    }
    bytes.is_empty().then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_and_anything_else_is_refused() {
        let values = [
            GraphValue::new(GraphType::I64, vec![1, 2], vec![7; 16]).unwrap(),
            GraphValue::new(GraphType::F32, vec![], vec![1; 4]).unwrap(),
        ];
        let mut bytes = Vec::new();
        encode(&values, &mut bytes);
        assert_eq!(decode(&bytes).unwrap(), values);
        assert!((1..bytes.len()).all(|n| n == 34 || decode(&bytes[..n]).is_none()));
        assert!(
            decode(&[9, 0]).is_none()
                && decode(&[0, 1, 255, 255, 255, 255, 255, 255, 255, 255]).is_none()
        );
    }
}
