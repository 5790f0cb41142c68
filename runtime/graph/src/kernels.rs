//! Graphs for kernels of their pack.

use ruvllm_host::Refusal;
use ruvllm_host::graph::{GraphAdmission, GraphProvider, KernelGraph};
use ruvllm_manifest::Violation;
use ruvllm_signing::VerifiedPack;

use crate::pack::{GatedGraph, GraphCaps, GraphPackError};

/// Takes the graphs of a pack through gate and admission before its kernels compute them.
#[derive(Clone, Debug)]
pub struct KernelGraphs<P> {
    provider: P,
    caps: GraphCaps,
}

impl<P: GraphProvider> KernelGraphs<P> {
    /// With what computes them, and the most that each is granted.
    pub fn new(provider: P, caps: GraphCaps) -> Self {
        Self { provider, caps }
    }
}

impl<P: GraphProvider> GraphAdmission for KernelGraphs<P> {
    fn admit(&self, pack: &VerifiedPack) -> Result<Vec<KernelGraph>, Vec<Refusal>> {
        let (mut graphs, mut refusals) = (Vec::new(), Vec::new());
        for entry in &pack.manifest().graphs {
            let admitted = GatedGraph::pass(pack, &entry.id, &self.caps)
                .and_then(|gated| gated.admit(&self.provider));
            match admitted {
                Ok(admitted) => graphs.push(admitted.into_kernel_graph()),
                Err(error) => refusals.extend(each(error, &entry.id)),
            }
        }
        if refusals.is_empty() { Ok(graphs) } else { Err(refusals) }
    }
}

/// Everything that an error has against a graph.
fn each(error: GraphPackError, graph: &str) -> Vec<Refusal> {
    let refusal = |code, message| Refusal { kernel: graph.to_owned(), code, message, place: None };
    match error {
        GraphPackError::Refused { violations, .. } => {
            let one = |Violation { code, location, message }| match location.is_empty() {
                true => refusal(code, message),
                false => refusal(code, format!("{location}: {message}")),
            };
            violations.into_iter().map(one).collect()
        }
        GraphPackError::Graph { source, .. } => vec![refusal(source.code(), source.to_string())],
        unknown => vec![refusal(unknown.code(), unknown.to_string())],
    }
}
