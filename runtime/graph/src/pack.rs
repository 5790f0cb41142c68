//! From a graph of a verified pack to one that computes: gate, then admission.

use ruvllm_host::graph::{Graph, GraphError, GraphProvider, GraphValue, KernelGraph};
use ruvllm_manifest::{GraphEntry, GraphFormat, GraphLimits, Tolerance, Violation};
use ruvllm_native::judge;
use ruvllm_signing::VerifiedPack;
use std::fmt;
use thiserror::Error;

use crate::onnx;

/// The most that a host grants a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphCaps {
    /// What computing it may use.
    pub limits: GraphLimits,
    /// How far from its checks it may be.
    pub tolerance: Tolerance,
}

impl Default for GraphCaps {
    /// 4 GiB, 30 s, and a tenth: graphs of 8-bit integers differ by that much between runtimes, which round
    /// activations at other places.
    fn default() -> Self {
        Self {
            limits: GraphLimits { max_memory_bytes: 4 << 30, max_millis: 30_000 },
            tolerance: Tolerance { rel: 0.1, abs: 0.1 },
        }
    }
}

/// Why a graph of a pack is not used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GraphPackError {
    /// The pack has no graph of that id.
    #[error("pack {pack} has no graph `{id}`; it has: {has}")]
    Unknown {
        /// Its name.
        pack: String,
        /// The id that was asked for.
        id: String,
        /// The ids that there are.
        has: String,
    },
    /// The graph breaks rules.
    #[error("graph `{graph}` is refused:{}", Lines(.violations))]
    Refused {
        /// Its id.
        graph: String,
        /// Everything that speaks against it.
        violations: Vec<Violation>,
    },
    /// It cannot be loaded, or one of its checks not be computed.
    #[error("graph `{graph}`: {source}")]
    Graph {
        /// Its id.
        graph: String,
        /// What its provider says.
        source: GraphError,
    },
}

struct Lines<'a>(&'a [Violation]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

impl GraphPackError {
    /// A stable code in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            GraphPackError::Unknown { .. } => "graph_unknown",
            GraphPackError::Refused { violations, .. } => {
                violations.first().map_or("graph_refused", |violation| violation.code)
            }
            GraphPackError::Graph { source, .. } => source.code(),
        }
    }
}

/// A graph of a verified pack that passed the gate: bounds, and what its file holds. Only
/// [`GatedGraph::pass`] makes one, and it holds the very bytes that it looked at.
///
/// ```compile_fail,E0451
/// use ruvllm_graph::GatedGraph;
///
/// fn change_the_file<'a>(gated: GatedGraph<'a>, bytes: &'a [u8]) -> GatedGraph<'a> {
///     GatedGraph { bytes, ..gated }
/// }
/// ```
#[derive(Debug)]
pub struct GatedGraph<'a> {
    entry: &'a GraphEntry,
    bytes: &'a [u8],
    tokenizer: Option<&'a [u8]>,
}

/// What the documentation of [`GatedGraph`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn change_the_file<'a>(gated: GatedGraph<'a>, bytes: &'a [u8]) -> GatedGraph<'a> {
    GatedGraph { bytes, ..gated }
}

/// A graph that gave what its pack expects, on this machine. Only [`GatedGraph::admit`] makes one.
///
/// ```compile_fail,E0451
/// use ruvllm_graph::AdmittedGraph;
/// use ruvllm_host::graph::Graph;
///
/// fn put_another_in(admitted: AdmittedGraph, graph: Box<dyn Graph>) -> AdmittedGraph {
///     AdmittedGraph { graph, ..admitted }
/// }
/// ```
#[derive(Debug)]
pub struct AdmittedGraph {
    entry: GraphEntry,
    graph: Box<dyn Graph>,
    tokenizer: Option<Vec<u8>>,
}

/// What the documentation of [`AdmittedGraph`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn put_another_in(admitted: AdmittedGraph, graph: Box<dyn Graph>) -> AdmittedGraph {
    AdmittedGraph { graph, ..admitted }
}

impl<'a> GatedGraph<'a> {
    /// Takes the graph of that id through the gate.
    ///
    /// # Errors
    /// [`GraphPackError::Unknown`], and [`GraphPackError::Refused`] with everything that speaks against it:
    /// limits and tolerance beyond `caps`, and what the walk over an ONNX file found.
    pub fn pass(
        pack: &'a VerifiedPack,
        id: &str,
        caps: &GraphCaps,
    ) -> Result<GatedGraph<'a>, GraphPackError> {
        let manifest = pack.manifest();
        let (Some(entry), Some(bytes)) = (manifest.graph(id), pack.graph_bytes(id)) else {
            let has: Vec<&str> = manifest.graphs.iter().map(|graph| graph.id.as_str()).collect();
            let has = if has.is_empty() { "no graphs".to_owned() } else { has.join(", ") };
            return Err(GraphPackError::Unknown {
                pack: manifest.name.to_string(),
                id: id.to_owned(),
                has,
            });
        };
        let mut violations = over_caps(entry, caps);
        if entry.format == GraphFormat::Onnx {
            match onnx::walk(bytes, entry.resource_limits.max_memory_bytes) {
                Ok(facts) => violations.extend(facts.disagreements(entry)),
                Err(found) => violations.extend(found),
            }
        }
        if !violations.is_empty() {
            return Err(GraphPackError::Refused { graph: entry.id.clone(), violations });
        }
        Ok(GatedGraph { entry, bytes, tokenizer: pack.graph_tokenizer(id) })
    }

    /// Loads the graph and computes its checks.
    ///
    /// # Errors
    /// [`GraphPackError::Graph`] where the provider fails, [`GraphPackError::Refused`] where an output is not
    /// within the tolerance of what the manifest has.
    pub fn admit(self, provider: &dyn GraphProvider) -> Result<AdmittedGraph, GraphPackError> {
        let failed = |source| GraphPackError::Graph { graph: self.entry.id.clone(), source };
        let graph = provider.load(self.entry, self.bytes).map_err(failed)?;
        let mut violations = Vec::new();
        for (i, check) in self.entry.checks.iter().enumerate() {
            let mut context = graph.context().map_err(failed)?;
            for (index, (values, tensor)) in check.inputs.iter().zip(&self.entry.inputs).enumerate()
            {
                // The manifest's rules hold them to shape and type.
                if let Some(value) = GraphValue::of(values, tensor.ty) {
                    context.set_input(index, value).map_err(failed)?;
                }
            }
            context.compute(&|| true).map_err(failed)?;
            for (j, expected) in check.outputs.iter().enumerate() {
                let named = |output: &ruvllm_manifest::GraphTensor| output.name == expected.name;
                let index = self.entry.outputs.iter().position(named).unwrap_or(usize::MAX);
                let computed = context.output(index).map_err(failed)?;
                if let Some(what) = difference(computed, expected, self.entry) {
                    let at = format!("checks[{i}].outputs[{j}]");
                    violations.push(Violation::new("graph_mismatch", at, what));
                }
            }
        }
        if !violations.is_empty() {
            return Err(GraphPackError::Refused { graph: self.entry.id.clone(), violations });
        }
        let tokenizer = self.tokenizer.map(<[u8]>::to_vec);
        Ok(AdmittedGraph { entry: self.entry.clone(), graph, tokenizer })
    }
}

impl AdmittedGraph {
    /// What the manifest says of it.
    pub fn entry(&self) -> &GraphEntry {
        &self.entry
    }

    /// What computes it.
    pub fn graph(&self) -> &dyn Graph {
        &*self.graph
    }

    /// What a kernel of its pack computes it by.
    pub(crate) fn into_kernel_graph(self) -> KernelGraph {
        KernelGraph { entry: self.entry, graph: self.graph }
    }

    /// The bytes of its tokenizer, where it makes vectors of texts.
    pub fn tokenizer(&self) -> Option<&[u8]> {
        self.tokenizer.as_deref()
    }
}

fn over_caps(entry: &GraphEntry, caps: &GraphCaps) -> Vec<Violation> {
    let mut found = Vec::new();
    let (limits, most) = (&entry.resource_limits, &caps.limits);
    for (name, wanted, cap) in [
        ("max_memory_bytes", limits.max_memory_bytes, most.max_memory_bytes),
        ("max_millis", limits.max_millis, most.max_millis),
    ] {
        if wanted > cap {
            let what = format!("asks for {wanted}, this host grants {cap}: lower it");
            found.push(Violation::new("limit_over_cap", format!("resource_limits.{name}"), what));
        }
    }
    let (own, most) = (&entry.tolerance, &caps.tolerance);
    if own.rel > most.rel || own.abs > most.abs {
        let what = format!(
            "rel {:e}, abs {:e} is looser than this host's rel {:e}, abs {:e}",
            own.rel, own.abs, most.rel, most.abs
        );
        found.push(Violation::new("tolerance_too_loose", "tolerance", what));
    }
    found
}

/// What is wrong with an output, if anything is beyond the tolerance.
///
/// Of a GGUF model, whose weights and activations are quantised in blocks with one scale each, an error is in
/// proportion to the largest element of a block, and not to the element that has it. So `rel` counts against the
/// largest of the output there. That alone would leave the others free beside a very large one: so the output as a
/// whole, too, may be no farther away than if each element were within the tolerance by itself.
fn difference(
    computed: &GraphValue,
    expected: &ruvllm_manifest::GraphValues,
    entry: &GraphEntry,
) -> Option<String> {
    let name = &expected.name;
    if !computed.shape().iter().map(|n| *n as u64).eq(expected.shape.iter().map(|n| u64::from(*n)))
    {
        return Some(format!("{name} has the shape {:?}", computed.shape()));
    }
    let Tolerance { rel, abs } = entry.tolerance;
    let in_blocks = entry.format == GraphFormat::Gguf;
    let tolerance = match in_blocks {
        true => judge::Tolerance { rel: 0.0, abs: abs + rel * largest(&expected.values) },
        false => judge::Tolerance { rel, abs },
    };
    let computed = computed.numbers();
    let beyond =
        |(_, computed, expected): &(usize, f64, f64)| !tolerance.holds(*computed, *expected);
    let pairs = computed.iter().zip(&expected.values).enumerate();
    let mut wrong = pairs.map(|(i, (computed, expected))| (i, *computed, *expected)).filter(beyond);
    if let Some((i, computed, expected)) = wrong.next() {
        return Some(format!(
            "{name} is {computed:e} at element {i}, where {expected:e} is expected; {} more elements are off",
            wrong.count()
        ));
    }
    if !in_blocks {
        return None;
    }
    let apart =
        computed.iter().zip(&expected.values).map(|(computed, expected)| computed - expected);
    let (apart, length) = (norm(apart), norm(expected.values.iter().copied()));
    let most = abs * (computed.len() as f64).sqrt() + rel * length;
    (apart > most).then(|| {
        format!("{name} is {apart:e} away from what is expected, of the length {length:e}; {most:e} is the most")
    })
}

/// The largest magnitude.
fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, x| most.max(x.abs()))
}

/// The length of a vector.
fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}
