//! What an ONNX file may hold, checked before a runtime sees it.
//!
//! The file is hostile until shown otherwise. One pass over its fields, linear in its size, refuses by name
//! what would reach beyond it or cost more than it says: data in other files, weights that are not there or
//! of another length than their shape, names that nobody defines, nodes that wait for each other, graphs
//! within graphs, whose loops nothing here bounds, randomness, and constants that make shapes of a size that
//! does not fit the graph's memory. Shapes that only a computation makes are bounded while it runs.

use std::collections::{HashMap, HashSet};

use ruvllm_manifest::{Dim, GraphEntry, GraphTensor, GraphType, Violation, escape_untrusted};

use super::tensor::{self, Tensor};
use super::wire::{Fields, Malformed, Value};

/// The most nodes, and the most tensors, of a graph.
const MAX_PARTS: usize = 50_000;
/// The most inputs and outputs of all nodes together.
const MAX_EDGES: usize = 1_000_000;
/// The most that is listed of what is wrong.
const MAX_VIOLATIONS: usize = 32;
/// The largest extent of a window, its step or its padding; image models have some dozens.
const MAX_WINDOW: i64 = 4096;
/// The most numbers of an attribute.
const MAX_NUMBERS: usize = 1 << 20;
/// The most dimensions of a tensor.
pub(super) const MAX_RANK: usize = 16;

/// Whose operators are known. Contributed ones of onnxruntime are what exporters fuse encoders to.
const DOMAINS: [&str; 4] = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft"];
/// Operators that hold graphs.
const CONTROL: [&str; 4] = ["If", "Loop", "Scan", "SequenceMap"];
/// Operators whose outputs do not follow from their inputs.
const RANDOM: [&str; 6] = [
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
];
/// Attributes that say how windows lie.
const WINDOWS: [&str; 6] =
    ["dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides"];

/// A graph that was looked at.
#[derive(Clone, Debug)]
pub struct OnnxFacts {
    /// Inputs without a value of their own, in the file's order.
    pub inputs: Vec<OnnxTensor>,
    /// Outputs.
    pub outputs: Vec<OnnxTensor>,
    /// How many nodes it has.
    pub nodes: usize,
    /// Bytes of weights.
    pub weight_bytes: u64,
}

/// An input or output of a graph as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxTensor {
    /// Its name.
    pub name: String,
    /// The type of its elements; `None` for one that packs have no name for.
    pub ty: Option<GraphType>,
    /// Its extents, where the file says any: a number or a name, which may be empty.
    pub shape: Option<Vec<OnnxDim>>,
}

/// An extent of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnnxDim {
    /// This many.
    Fixed(u64),
    /// As many as the input has.
    Named(String),
}

/// Walks over the bytes of an ONNX file whose computation may take so much memory.
///
/// # Errors
/// Everything that speaks against it, as far as it could be read.
pub fn walk(bytes: &[u8], memory_bytes: u64) -> Result<OnnxFacts, Vec<Violation>> {
    let mut walk = Walk { memory_bytes, ..Walk::default() };
    let graph = walk.model(bytes).and_then(|graph| match graph {
        Some(graph) => walk.graph(graph),
        None => Err(Malformed("there is no graph in the file")),
    });
    if let Err(Malformed(what)) = graph {
        walk.refuse("onnx_malformed", "", &format!("{what}: export the model anew"));
    } else {
        walk.wires();
        walk.shapes();
    }
    if !walk.violations.is_empty() {
        return Err(walk.violations);
    }
    let given = |port: &OnnxTensor| !walk.weights.contains(port.name.as_str());
    Ok(OnnxFacts {
        inputs: walk.inputs.iter().filter(|port| given(port)).cloned().collect(),
        outputs: walk.outputs.clone(),
        nodes: walk.nodes.len(),
        weight_bytes: walk.weight_bytes,
    })
}

impl OnnxFacts {
    /// What a manifest's entry says otherwise of inputs and outputs than the file.
    pub fn disagreements(&self, entry: &GraphEntry) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut refuse = |at: &str, what: String| {
            found.push(Violation::new("graph_io_mismatch", at, what));
        };
        for input in &self.inputs {
            if !entry.inputs.iter().any(|tensor| tensor.name == input.name) {
                refuse(&input.name, "the manifest does not list this input; add it".to_owned());
            }
        }
        for (tensors, ports, is_input) in
            [(&entry.inputs, &self.inputs, true), (&entry.outputs, &self.outputs, false)]
        {
            for tensor in tensors {
                match ports.iter().find(|port| port.name == tensor.name) {
                    None => refuse(&tensor.name, "the graph has no tensor of this name".to_owned()),
                    Some(port) => {
                        if let Some(what) = port.objection(tensor, is_input) {
                            refuse(&tensor.name, what);
                        }
                    }
                }
            }
        }
        found
    }
}

impl OnnxTensor {
    /// What a manifest says otherwise of the tensor.
    fn objection(&self, tensor: &GraphTensor, is_input: bool) -> Option<String> {
        if self.ty != Some(tensor.ty) {
            let ty = self.ty.map_or("of another type", GraphType::name);
            return Some(format!("the manifest says {}, the graph has {ty}", tensor.ty));
        }
        let shape = self.shape.as_ref()?;
        let same = |(own, dim): (&OnnxDim, &Dim)| match (own, dim) {
            (OnnxDim::Fixed(own), Dim::Fixed(n)) => *own == u64::from(*n),
            // What an input must be is no variable of the manifest's.
            (OnnxDim::Fixed(_), Dim::Symbol(_)) => !is_input,
            (OnnxDim::Named(_), _) => true,
        };
        if shape.len() == tensor.shape.len() && shape.iter().zip(&tensor.shape).all(same) {
            return None;
        }
        Some(format!("the manifest says another shape than the graph, which has {shape:?}"))
    }
}

/// A node, as far as its wires go.
struct Node<'a> {
    name: &'a str,
    op: &'a str,
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
}

impl Node<'_> {
    /// What messages call it.
    fn shown(&self) -> String {
        let name = if self.name.is_empty() {
            self.outputs.first().copied().unwrap_or_default()
        } else {
            self.name
        };
        format!("{} ({})", short(name), short(self.op))
    }
}

fn short(text: &str) -> String {
    escape_untrusted(&text.chars().take(64).collect::<String>())
}

#[derive(Default)]
struct Walk<'a> {
    memory_bytes: u64,
    violations: Vec<Violation>,
    nodes: Vec<Node<'a>>,
    edges: usize,
    inputs: Vec<OnnxTensor>,
    outputs: Vec<OnnxTensor>,
    /// Names that inputs define.
    input_names: HashSet<&'a str>,
    weights: HashSet<&'a str>,
    /// Small whole numbers by the name of their tensor, of which shapes may be made.
    numbers: HashMap<&'a str, Vec<i64>>,
    weight_bytes: u64,
}

impl<'a> Walk<'a> {
    fn refuse(&mut self, code: &'static str, at: &str, what: &str) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(Violation::new(code, short(at), what));
        }
    }

    /// The bytes of the model's graph.
    fn model(&mut self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        let (mut graph, mut operators) = (None, false);
        let mut fields = Fields::of(bytes);
        while let Some((number, value)) = fields.next()? {
            match number {
                8 => operators = true,
                7 if graph.is_some() => return Err(Malformed("the file holds two graphs")),
                7 => graph = Some(value.bytes()?),
                20 => self.refuse("onnx_training", "", "it holds training; export for inference"),
                25 => {
                    let what = "it defines functions of its own; export it with these inlined";
                    self.refuse("onnx_functions", "", what);
                }
                _ => {}
            }
        }
        match operators {
            true => Ok(graph),
            false => Err(Malformed("the file says no version of its operators")),
        }
    }

    fn graph(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        let mut fields = Fields::of(bytes);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => self.node(value.bytes()?)?,
                5 => {
                    let tensor = Tensor::read(value.bytes()?)?;
                    self.weight(&tensor, tensor.name);
                    if !self.weights.insert(tensor.name) {
                        self.refuse("onnx_name_twice", tensor.name, "two weights have this name");
                    }
                }
                11 => {
                    let (name, port) = port(value.bytes()?)?;
                    self.input_names.insert(name);
                    self.inputs.push(port);
                }
                12 => self.outputs.push(port(value.bytes()?)?.1),
                13 => {
                    let (_, port) = port(value.bytes()?)?;
                    self.fits(&port);
                }
                15 => self.refuse("onnx_sparse", "", "it has sparse weights; export dense ones"),
                _ => {}
            }
            if self.nodes.len().max(self.weights.len()) > MAX_PARTS
                || self.inputs.len().max(self.outputs.len()) > MAX_PARTS
                || self.edges > MAX_EDGES
            {
                return Err(Malformed("it has more parts than any graph needs"));
            }
        }
        let ports: Vec<OnnxTensor> = self.inputs.iter().chain(&self.outputs).cloned().collect();
        ports.iter().for_each(|port| self.fits(port));
        Ok(())
    }

    fn node(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        let mut node = Node { name: "", op: "", inputs: Vec::new(), outputs: Vec::new() };
        let (mut domain, mut attributes) = ("", Vec::new());
        let mut fields = Fields::of(bytes);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => node.inputs.push(value.text()?),
                2 => node.outputs.push(value.text()?),
                3 => node.name = value.text()?,
                4 => node.op = value.text()?,
                5 => attributes.push(value.bytes()?),
                7 => domain = value.text()?,
                _ => {}
            }
        }
        self.edges += node.inputs.len() + node.outputs.len();
        let at = node.shown();
        if !DOMAINS.contains(&domain) {
            let what = format!("no host knows operators of `{}`", short(domain));
            self.refuse("onnx_operator", &at, &what);
        }
        if CONTROL.contains(&node.op) {
            let what = "what it holds may run any number of times; export the model without";
            self.refuse("onnx_control_flow", &at, what);
        }
        if RANDOM.contains(&node.op) {
            let what = "its output does not follow from its inputs; export for inference";
            self.refuse("onnx_random", &at, what);
        }
        for bytes in attributes {
            self.attribute(&node, &at, bytes)?;
        }
        self.nodes.push(node);
        Ok(())
    }

    fn attribute(&mut self, node: &Node<'a>, at: &str, bytes: &'a [u8]) -> Result<(), Malformed> {
        let (mut name, mut numbers, mut constant) = ("", Vec::new(), None);
        let mut fields = Fields::of(bytes);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => name = value.text()?,
                3 => numbers.push(value.number()?),
                5 | 10 => {
                    let tensor = Tensor::read(value.bytes()?)?;
                    self.weight(&tensor, at);
                    constant = tensor.numbers.or(constant);
                }
                6 | 11 => self.refuse("onnx_subgraph", at, "it holds a graph of its own"),
                8 => value.numbers(&mut numbers, MAX_NUMBERS)?,
                22 | 23 => self.refuse("onnx_sparse", at, "it holds a sparse tensor"),
                _ => {}
            }
        }
        let beyond = |n: &i64| !(-MAX_WINDOW..=MAX_WINDOW).contains(n);
        if WINDOWS.contains(&name) && numbers.iter().any(beyond) {
            let what = format!("`{name}` has a number beyond {MAX_WINDOW}");
            self.refuse("onnx_window", at, &what);
        }
        if let ("Constant", Some(output)) = (node.op, node.outputs.first()) {
            let values = constant.or_else(|| (!numbers.is_empty()).then_some(numbers));
            self.numbers.extend(values.map(|values| (*output, values)));
        }
        Ok(())
    }

    /// Takes a tensor that stands in the file; `at` is what messages call it.
    fn weight(&mut self, tensor: &Tensor<'a>, at: &str) {
        if let Some((code, what)) = &tensor.objection {
            self.refuse(code, at, what);
        }
        self.weight_bytes = self.weight_bytes.saturating_add(tensor.data_bytes);
        if let (false, Some(numbers)) = (tensor.name.is_empty(), &tensor.numbers) {
            self.numbers.insert(tensor.name, numbers.clone());
        }
    }

    /// Whether a tensor whose shape the file gives fits the memory.
    fn fits(&mut self, port: &OnnxTensor) {
        let fixed = port.shape.iter().flatten().map(|dim| match dim {
            OnnxDim::Fixed(n) => *n,
            OnnxDim::Named(_) => 1,
        });
        let elements = fixed.fold(1, u64::saturating_mul);
        self.limit(elements, &port.name);
    }

    fn limit(&mut self, elements: u64, at: &str) {
        if elements.saturating_mul(4) > self.memory_bytes {
            let what = format!(
                "{elements} elements do not fit the {} bytes that the graph may take",
                self.memory_bytes
            );
            self.refuse("onnx_shape_too_large", at, &what);
        }
    }

    /// Whether every name that is read is defined once, and no node waits for itself.
    fn wires(&mut self) {
        let mut made: HashMap<&str, usize> = HashMap::new();
        let mut found = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            for output in node.outputs.iter().filter(|name| !name.is_empty()) {
                let taken = self.input_names.contains(output) || self.weights.contains(output);
                if taken || made.insert(output, i).is_some() {
                    let what = format!("`{}` has a value already", short(output));
                    found.push(("onnx_name_twice", node.shown(), what));
                }
            }
        }
        // For each node, how many that it reads of are not computed, and who reads of it.
        let mut waits = vec![0usize; self.nodes.len()];
        let mut readers = vec![Vec::new(); self.nodes.len()];
        let mut sorted = true;
        for (i, node) in self.nodes.iter().enumerate() {
            for input in node.inputs.iter().filter(|name| !name.is_empty()) {
                if self.input_names.contains(input) || self.weights.contains(input) {
                    continue;
                }
                match made.get(input) {
                    Some(&maker) => {
                        sorted &= maker < i;
                        waits[i] += 1;
                        readers[maker].push(i);
                    }
                    None => {
                        let what = format!("it reads `{}`, which nothing defines", short(input));
                        found.push(("onnx_missing_weight", node.shown(), what));
                    }
                }
            }
        }
        if !sorted {
            let mut ready: Vec<usize> = (0..waits.len()).filter(|i| waits[*i] == 0).collect();
            while let Some(i) = ready.pop() {
                for &reader in &readers[i] {
                    waits[reader] -= 1;
                    ready.extend((waits[reader] == 0).then_some(reader));
                }
            }
            match waits.iter().position(|left| *left > 0) {
                Some(i) => {
                    let what = "it needs its own output; a graph has no cycles".to_owned();
                    found.push(("onnx_cycle", self.nodes[i].shown(), what));
                }
                None => {
                    let what =
                        "a node stands before one whose output it reads; export the model anew";
                    found.push(("onnx_order", String::new(), what.to_owned()));
                }
            }
        }
        for output in &self.outputs {
            let name = output.name.as_str();
            if !made.contains_key(name) && !self.input_names.contains(name) {
                found.push(("onnx_missing_output", name.to_owned(), "no node makes it".to_owned()));
            }
        }
        for (code, at, what) in found {
            self.refuse(code, &at, &what);
        }
    }

    /// Whether shapes that constants say fit the memory.
    fn shapes(&mut self) {
        let mut found = Vec::new();
        for node in &self.nodes {
            let constant =
                |index: usize| self.numbers.get(node.inputs.get(index)?).map(Vec::as_slice);
            let product = |numbers: &[i64]| {
                numbers
                    .iter()
                    .fold(1u64, |n, extent| n.saturating_mul(extent.unsigned_abs().max(1)))
            };
            let largest =
                |numbers: &[i64]| numbers.iter().map(|n| n.unsigned_abs()).max().unwrap_or(0);
            let elements = match node.op {
                "ConstantOfShape" => constant(0).map(product),
                "Expand" | "Reshape" | "Tile" => constant(1).map(product),
                "Resize" => constant(3).map(product),
                "OneHot" | "Pad" => constant(1).map(largest),
                "Range" => match (constant(0), constant(1), constant(2)) {
                    (Some([start]), Some([end]), Some([step])) => {
                        Some(end.abs_diff(*start) / step.unsigned_abs().max(1))
                    }
                    _ => None,
                },
                _ => None,
            };
            found.extend(elements.map(|elements| (node.shown(), elements)));
        }
        for (at, elements) in found {
            self.limit(elements, &at);
        }
    }
}

/// A `ValueInfoProto`: its name and what is said of it.
fn port(bytes: &[u8]) -> Result<(&str, OnnxTensor), Malformed> {
    let (mut name, mut ty, mut shape) = ("", None, None);
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => name = value.text()?,
            2 => (ty, shape) = tensor_type(value.bytes()?)?,
            _ => {}
        }
    }
    Ok((name, OnnxTensor { name: name.to_owned(), ty, shape }))
}

type Typed = (Option<GraphType>, Option<Vec<OnnxDim>>);

/// A `TypeProto`.
fn tensor_type(bytes: &[u8]) -> Result<Typed, Malformed> {
    let (mut ty, mut shape) = (None, None);
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        if number != 1 {
            continue;
        }
        let mut fields = Fields::of(value.bytes()?);
        while let Some((number, value)) = fields.next()? {
            match (number, value) {
                (1, value) => ty = tensor::graph_type(value.number()?),
                (2, Value::Bytes(bytes)) => shape = Some(dims(bytes)?),
                _ => {}
            }
        }
    }
    Ok((ty, shape))
}

/// A `TensorShapeProto`.
fn dims(bytes: &[u8]) -> Result<Vec<OnnxDim>, Malformed> {
    let mut dims = Vec::new();
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        if number != 1 {
            continue;
        }
        let mut dim = OnnxDim::Named(String::new());
        let mut fields = Fields::of(value.bytes()?);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    let n = u64::try_from(value.number()?);
                    dim = OnnxDim::Fixed(n.map_err(|_| Malformed("an extent is negative"))?);
                }
                2 => dim = OnnxDim::Named(value.text()?.to_owned()),
                _ => {}
            }
        }
        dims.push(dim);
        if dims.len() > MAX_RANK {
            return Err(Malformed("a tensor has too many dimensions"));
        }
    }
    Ok(dims)
}
