//! Graphs: models that arrive as data and that a runtime for graphs computes, not a kernel's module.
//!
//! Four steps, as WASI-NN has them: a [`GraphProvider`] loads a graph, a context of it is given inputs,
//! computes, and holds outputs. What the contract asks of a provider: it computes from the bytes that it is
//! given and nothing else (no file, no network, no clock, no randomness), ends with an error instead of a
//! panic, and holds to the time and the memory of [`GraphEntry::resource_limits`] as far as it can tell.
//! Bounds that hold whatever the file makes the provider do are those of a process (`ruvllm-graph`).

use crate::error::Refusal;
use ruvllm_manifest::{Dim, GraphEntry, GraphTensor, GraphType, GraphValues};
use ruvllm_signing::VerifiedPack;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The module whose functions kernels import that compute graphs.
pub(crate) const NN_MODULE: &str = "wasi_ephemeral_nn";

/// Its functions, and how many numbers each takes; all are i32, as is what it returns.
pub(crate) const NN_FUNCTIONS: [(&str, usize); 6] = [
    ("load", 5),
    ("load_by_name", 3),
    ("init_execution_context", 2),
    ("set_input", 3),
    ("compute", 1),
    ("get_output", 5),
];

/// Numbers with a type and a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphValue {
    ty: GraphType,
    shape: Vec<usize>,
    /// Little-endian, the last dimension running fastest.
    bytes: Vec<u8>,
}

/// Loads graphs of one format.
pub trait GraphProvider: Send + Sync + fmt::Debug {
    /// Loads a graph. The entry was checked, and the bytes are those that it names.
    ///
    /// # Errors
    /// [`GraphError::Refused`] for what the provider cannot compute, and where the graph has other inputs or
    /// outputs than the entry says; [`GraphError::Time`] and [`GraphError::Memory`].
    fn load(&self, entry: &GraphEntry, bytes: &[u8]) -> Result<Box<dyn Graph>, GraphError>;
}

/// A graph that was loaded. Contexts of it may compute at the same time.
pub trait Graph: Send + Sync + fmt::Debug {
    /// A new context, without inputs.
    ///
    /// # Errors
    /// What the provider says.
    fn context(&self) -> Result<Box<dyn GraphContext + '_>, GraphError>;
}

/// One computation of a graph after the other.
pub trait GraphContext: Send {
    /// Sets the input at an index of [`GraphEntry::inputs`].
    ///
    /// # Errors
    /// [`GraphError::Input`] for one that the graph does not have, or whose type or shape it does not take.
    fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError>;

    /// As [`GraphContext::compute_within`], with outputs as large as the manifest's extents let them be.
    ///
    /// # Errors
    /// Those of it.
    fn compute(&mut self, waited_for: &dyn Fn() -> bool) -> Result<(), GraphError> {
        self.compute_within(usize::MAX, waited_for)
    }

    /// Computes the outputs for the inputs, which are let go of: at most so many bytes of elements in all outputs
    /// together. More are neither read from another process nor copied. `waited_for` is asked now and then
    /// whether anybody still waits.
    ///
    /// # Errors
    /// [`GraphError::Input`] where one was not set; [`GraphError::Time`], [`GraphError::Memory`],
    /// [`GraphError::TooLarge`], [`GraphError::Cancelled`], [`GraphError::Failed`]. Outputs of an earlier
    /// computation are gone then.
    fn compute_within(
        &mut self,
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<(), GraphError>;

    /// The output at an index of [`GraphEntry::outputs`], as the last computation left it.
    ///
    /// # Errors
    /// [`GraphError::Output`] where there is none.
    fn output(&self, index: usize) -> Result<&GraphValue, GraphError>;
}

/// Admits the graphs of packs for kernels that compute them: [`crate::HostConfig::graphs`].
pub trait GraphAdmission: Send + Sync + fmt::Debug {
    /// Every graph of the pack, each of which gave what the manifest expects, on this machine.
    ///
    /// # Errors
    /// What speaks against each graph that did not; a refusal names it in place of a kernel.
    fn admit(&self, pack: &VerifiedPack) -> Result<Vec<KernelGraph>, Vec<Refusal>>;
}

/// A graph that was admitted, for kernels of its pack.
#[derive(Debug)]
pub struct KernelGraph {
    /// What the manifest says of it.
    pub entry: GraphEntry,
    /// What computes it.
    pub graph: Box<dyn Graph>,
}

/// The graphs that kernels of one pack compute; none where none of them does.
#[derive(Clone, Debug, Default)]
pub(crate) struct PackGraphs(Option<Arc<(String, Vec<KernelGraph>)>>);

impl PackGraphs {
    /// The graphs of the pack of this digest, which also stands for their bytes.
    pub(crate) fn new(digest: String, graphs: Vec<KernelGraph>) -> Self {
        Self(Some(Arc::new((digest, graphs))))
    }

    /// Of the pack, where its kernels compute graphs.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.0.as_ref().map(|graphs| graphs.0.as_str())
    }

    /// The graphs, in the order of the manifest.
    #[cfg(feature = "wasi-nn")]
    pub(crate) fn all(&self) -> &[KernelGraph] {
        self.0.as_ref().map_or(&[], |graphs| &graphs.1)
    }
}

/// Why a graph cannot be loaded or computed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GraphError {
    /// The graph cannot be computed here.
    #[error("the graph is refused: {reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// An input is missing, or not one that the graph takes.
    #[error("input {name}: {reason}")]
    Input {
        /// Which.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such output.
    #[error("there is no output {index}: compute first; outputs are counted from 0")]
    Output {
        /// Its index.
        index: usize,
    },
    /// It takes longer than it may.
    #[error("the graph takes longer than {millis} ms")]
    Time {
        /// What it may take.
        millis: u64,
    },
    /// It takes more memory than it may.
    #[error("the graph takes more than {bytes} bytes of memory")]
    Memory {
        /// What it may take.
        bytes: u64,
    },
    /// Its outputs are larger than whoever asks for them takes.
    #[error("the graph's outputs have more than {bytes} bytes: ask for less at once")]
    TooLarge {
        /// What all together may have.
        bytes: usize,
    },
    /// Nobody waits for the outputs any more.
    #[error("nobody waits for the graph's outputs any more")]
    Cancelled,
    /// It failed.
    #[error("the graph failed: {reason}")]
    Failed {
        /// How.
        reason: String,
    },
    /// Nothing here can compute it at the moment.
    #[error("the graph cannot be computed now: {reason}")]
    Unavailable {
        /// Why, and what to do.
        reason: String,
    },
}

impl GraphError {
    /// A stable code in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            GraphError::Refused { .. } => "graph_refused",
            GraphError::Input { .. } => "graph_input",
            GraphError::Output { .. } => "graph_output",
            GraphError::Time { .. } => "graph_time",
            GraphError::Memory { .. } => "graph_memory",
            GraphError::TooLarge { .. } => "graph_too_large",
            GraphError::Cancelled => "graph_cancelled",
            GraphError::Failed { .. } => "graph_failed",
            GraphError::Unavailable { .. } => "graph_unavailable",
        }
    }
}

impl GraphValue {
    /// A value of these bytes: little-endian elements, the last dimension running fastest. `None` where the
    /// shape has another number of them.
    pub fn new(ty: GraphType, shape: Vec<usize>, bytes: Vec<u8>) -> Option<GraphValue> {
        let elements = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        let fits = elements.checked_mul(ty.size()) == Some(bytes.len());
        fits.then_some(GraphValue { ty, shape, bytes })
    }

    /// The numbers of a manifest, as elements of a type.
    pub fn of(values: &GraphValues, ty: GraphType) -> Option<GraphValue> {
        let numbers = values.values.iter();
        let bytes: Vec<u8> = match ty {
            GraphType::F32 => numbers.flat_map(|x| (*x as f32).to_le_bytes()).collect(),
            GraphType::I32 => numbers.flat_map(|x| (*x as i32).to_le_bytes()).collect(),
            GraphType::I64 => numbers.flat_map(|x| (*x as i64).to_le_bytes()).collect(),
            GraphType::U8 => numbers.map(|x| *x as u8).collect(),
        };
        GraphValue::new(ty, values.shape.iter().map(|n| *n as usize).collect(), bytes)
    }

    /// The type of the elements.
    pub fn ty(&self) -> GraphType {
        self.ty
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as bytes, taken.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The elements as numbers; whole ones beyond 2^53 are rounded.
    pub fn numbers(&self) -> Vec<f64> {
        fn all<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks().0.iter().map(|chunk| one(*chunk)).collect()
        }
        match self.ty {
            GraphType::F32 => all(&self.bytes, |b| f32::from_le_bytes(b).into()),
            GraphType::I32 => all(&self.bytes, |b| i32::from_le_bytes(b).into()),
            GraphType::I64 => all(&self.bytes, |b| i64::from_le_bytes(b) as f64),
            GraphType::U8 => self.bytes.iter().map(|byte| f64::from(*byte)).collect(),
        }
    }

    /// The elements, where they are of type f32.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        (self.ty == GraphType::F32)
            .then(|| self.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Whether the graph takes, or gives, this as one of its tensors.
    ///
    /// # Errors
    /// [`GraphError::Input`] with what is wrong, also for an output.
    pub fn check(&self, tensor: &GraphTensor, entry: &GraphEntry) -> Result<(), GraphError> {
        let wrong = |reason| GraphError::Input { name: tensor.name.clone(), reason };
        if self.ty != tensor.ty {
            return Err(wrong(format!("it is of {}, the graph has {}", self.ty, tensor.ty)));
        }
        let fits = |(dim, n): (&Dim, &usize)| match dim {
            Dim::Fixed(fixed) => *fixed as usize == *n,
            Dim::Symbol(name) => {
                *n > 0 && entry.extents.get(name).is_some_and(|most| *n <= *most as usize)
            }
        };
        let same_rank = tensor.shape.len() == self.shape.len();
        if same_rank && tensor.shape.iter().zip(&self.shape).all(fits) {
            return Ok(());
        }
        let dims = tensor.shape.iter().map(|dim| match dim {
            Dim::Fixed(n) => n.to_string(),
            Dim::Symbol(name) => {
                format!("{name} <= {}", entry.extents.get(name).copied().unwrap_or(0))
            }
        });
        let dims = dims.collect::<Vec<_>>().join(", ");
        Err(wrong(format!("its shape is {:?}, the graph has [{dims}]", self.shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_as_many_bytes_as_their_shape_says() {
        assert!(GraphValue::new(GraphType::I64, vec![2, 3], vec![0; 48]).is_some());
        assert!(GraphValue::new(GraphType::I64, vec![2, 3], vec![0; 47]).is_none());
        assert!(GraphValue::new(GraphType::F32, vec![usize::MAX, 2], Vec::new()).is_none());
        let values = GraphValues { name: "x".into(), shape: vec![3], values: vec![-1.0, 0.0, 2.0] };
        for ty in [GraphType::F32, GraphType::I32, GraphType::I64] {
            assert_eq!(GraphValue::of(&values, ty).unwrap().numbers(), [-1.0, 0.0, 2.0]);
        }
    }
}
