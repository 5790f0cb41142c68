//! Graphs of a pack: models that a host's own runtime for graphs computes, such as an ONNX file.
//!
//! A graph is listed like a kernel, by path, length and hash, and says what a host needs to bound and to
//! prove it: the shapes of its inputs and outputs with the largest value of each extent, the most memory and
//! time of a computation, and outputs that another runtime computed for given inputs.

pub(crate) mod decode;

use crate::{Dim, PackPath, Sha256Hex, Tolerance};
use indexmap::IndexMap;
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A graph of a pack.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphEntry {
    /// Unique among the kernels and graphs of the pack, also when case is ignored.
    pub id: String,
    /// For people.
    pub name: String,
    /// How the file is to be read.
    pub format: GraphFormat,
    /// The file within the pack.
    pub path: PackPath,
    /// The file's length in bytes.
    pub size: u64,
    /// SHA-256 of the file.
    pub hash: Sha256Hex,
    /// The inputs, by the names that the graph has for them.
    pub inputs: Vec<GraphTensor>,
    /// The outputs, by the names that the graph has for them.
    pub outputs: Vec<GraphTensor>,
    /// The largest value of each extent that shapes name.
    pub extents: IndexMap<String, u32>,
    /// What the graph may use.
    pub resource_limits: GraphLimits,
    /// How far from the outputs of [`GraphEntry::checks`] a host may come: `|y - e| <= abs + rel * |e|` for each
    /// element `e`. For a GGUF model, whose blocks of numbers share a scale, so that errors are in proportion
    /// to the largest, `|y - e| <= abs + rel * max |e|`, and of the `n` elements of an output as a vector
    /// `‖y - e‖ <= abs * sqrt(n) + rel * ‖e‖`.
    pub tolerance: Tolerance,
    /// Inputs with the outputs that they give; at least one.
    pub checks: Vec<GraphCheck>,
    /// What makes vectors of texts with the graph, where it is made for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding: Option<GraphEmbedding>,
}

/// The formats of graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphFormat {
    /// A model of the Open Neural Network Exchange, weights included.
    Onnx,
    /// A language model of this runtime's own, quantised or not, which gives hidden states.
    Gguf,
}

/// The types of a graph's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphType {
    /// Binary32.
    F32,
    /// Signed 32-bit integers.
    I32,
    /// Signed 64-bit integers.
    I64,
    /// Bytes.
    U8,
}

/// An input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphTensor {
    /// Its name in the graph.
    pub name: String,
    /// The type of its elements.
    #[serde(rename = "dtype")]
    pub ty: GraphType,
    /// Its shape, outermost dimension first; empty for a single number.
    pub shape: Vec<Dim>,
}

/// What computing a graph once may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GraphLimits {
    /// Memory in bytes, weights included. A host counts it as it can: as address space beside that of its program.
    pub max_memory_bytes: u64,
    /// Time in milliseconds.
    pub max_millis: u64,
}

/// Inputs and the outputs that they give.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphCheck {
    /// A value for each input, in their order.
    pub inputs: Vec<GraphValues>,
    /// What is expected of outputs; of one at least.
    pub outputs: Vec<GraphValues>,
}

/// The numbers of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphValues {
    /// Which input or output.
    pub name: String,
    /// Its extents.
    pub shape: Vec<u32>,
    /// Its elements, the last dimension running fastest.
    pub values: Vec<f64>,
}

/// How a text becomes a vector: tokens, the graph, and one row of its output or the mean of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphEmbedding {
    /// The tokenizer.
    pub tokenizer: GraphFile,
    /// What becomes of the rows of the first output.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub normalize: bool,
    /// The most tokens of a text, those around it included.
    pub max_tokens: u32,
}

/// A file that belongs to a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphFile {
    /// The file within the pack.
    pub path: PackPath,
    /// The file's length in bytes.
    pub size: u64,
    /// SHA-256 of the file.
    pub hash: Sha256Hex,
}

/// What becomes of a row for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one, which belongs to the token in front of a text.
    Cls,
    /// The last one.
    Last,
    /// There is one row only, which the graph has pooled itself.
    None,
}

/// What graphs of embeddings call their inputs: token ids, and optionally ones for each token and the
/// number of its segment.
pub const EMBEDDING_INPUTS: [&str; 3] = ["input_ids", "attention_mask", "token_type_ids"];

/// A name is not one of those that the format knows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("use {0}")]
pub struct UnknownName(String);

/// Names of the variants, for text and back.
macro_rules! named {
    ($type:ty, $($variant:path => $name:literal),+) => {
        impl $type {
            /// The name in manifests.
            pub const fn name(self) -> &'static str {
                match self { $($variant => $name),+ }
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text {
                    $($name => Ok($variant),)+
                    _ => Err(UnknownName([$($name),+].join(" or "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.name())
            }
        }
    };
}

named!(GraphFormat, GraphFormat::Onnx => "onnx", GraphFormat::Gguf => "gguf");
named!(GraphType, GraphType::F32 => "f32", GraphType::I32 => "i32", GraphType::I64 => "i64", GraphType::U8 => "u8");
named!(Pooling, Pooling::Mean => "mean", Pooling::Cls => "cls", Pooling::Last => "last", Pooling::None => "none");

impl GraphType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            GraphType::F32 | GraphType::I32 => 4,
            GraphType::I64 => 8,
            GraphType::U8 => 1,
        }
    }

    /// Whether every one of these numbers is one of the type.
    pub fn holds(self, value: f64) -> bool {
        let whole = |least: f64, most: f64| value.fract() == 0.0 && (least..=most).contains(&value);
        /// Up to here every whole number is a binary64 number.
        const EXACT: f64 = (1u64 << 53) as f64;
        match self {
            GraphType::F32 => (value as f32).is_finite(),
            GraphType::I32 => whole(f64::from(i32::MIN), f64::from(i32::MAX)),
            GraphType::I64 => whole(-EXACT, EXACT),
            GraphType::U8 => whole(0.0, 255.0),
        }
    }
}

impl GraphEntry {
    /// Reads an entry that [`GraphEntry::to_json`] wrote, by the rules of manifests.
    ///
    /// # Errors
    /// As [`crate::Manifest::parse`].
    pub fn parse(bytes: &[u8]) -> Result<GraphEntry, crate::ManifestError> {
        decode::entry(bytes)
    }

    /// The entry as JSON.
    ///
    /// # Errors
    /// [`crate::ManifestError::Syntax`] for numbers that JSON has no words for.
    pub fn to_json(&self) -> Result<String, crate::ManifestError> {
        serde_json::to_string(self)
            .map_err(|e| crate::ManifestError::Syntax { message: e.to_string() })
    }

    /// The files of the graph: its own, then the tokenizer.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&PackPath, u64, Sha256Hex)> {
        let tokenizer = self.embedding.iter().map(|embedding| &embedding.tokenizer);
        std::iter::once((&self.path, self.size, self.hash))
            .chain(tokenizer.map(|file| (&file.path, file.size, file.hash)))
    }

    /// The graph as a function, with the largest value of each extent: `(x: f32[batch <= 8, 4]) -> y: f32[batch <= 8]`.
    pub fn signature(&self) -> String {
        let tensor = |tensor: &GraphTensor| {
            let dims = tensor.shape.iter().map(|dim| match dim {
                Dim::Fixed(n) => n.to_string(),
                Dim::Symbol(name) => match self.extents.get(name) {
                    Some(most) => format!("{name} <= {most}"),
                    None => name.clone(),
                },
            });
            format!("{}: {}[{}]", tensor.name, tensor.ty, dims.collect::<Vec<_>>().join(", "))
        };
        let all =
            |tensors: &[GraphTensor]| tensors.iter().map(tensor).collect::<Vec<_>>().join(", ");
        format!("({}) -> {}", all(&self.inputs), all(&self.outputs))
    }

    /// The most elements of a tensor, each extent at its largest.
    pub fn largest(&self, tensor: &GraphTensor) -> u64 {
        tensor.shape.iter().fold(1, |product: u64, dim| {
            product.saturating_mul(match dim {
                Dim::Fixed(n) => u64::from(*n),
                // The rules demand one for each symbol.
                Dim::Symbol(name) => self.extents.get(name).copied().map_or(u64::MAX, u64::from),
            })
        })
    }
}
