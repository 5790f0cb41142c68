//! Encoders of texts that `serve --embedding-model` asks for.

use super::args::{EmbeddingModel, KernelOptions};
use super::terminal::LoadBar;
use super::{Failure, setup};
use ruvllm::host::Acceptance;
use ruvllm::host::graph::{GraphAdmission, GraphError};
use ruvllm::server::{EncoderFailure, TextEncoder};
use ruvllm::signing::{PackLimits, UnverifiedPack, VersionFloor};
use ruvllm_graph::{EncoderError, GatedGraph, GraphCaps, IsolatedProvider, KernelGraphs};
use std::sync::Arc;

/// Processes of each encoder, and so texts that it computes at the same time.
const PROCESSES: usize = 2;

/// What admits the graphs that kernels of packs compute, one call after the other, in processes of their own.
pub(crate) fn kernel_graphs() -> Arc<dyn GraphAdmission> {
    Arc::new(KernelGraphs::new(IsolatedProvider::this_program(1), GraphCaps::default()))
}

/// An encoder as the server sees it.
struct Served(ruvllm_graph::TextEncoder);

/// An encoder with the name that requests have for it.
type Named = (String, Arc<dyn TextEncoder>);

/// Opens all encoders: their packs are verified like those of kernels, and their graphs computed in processes
/// of their own.
pub(crate) fn open(
    models: &[EmbeddingModel],
    options: &KernelOptions,
) -> Result<Vec<Named>, Failure> {
    if models.is_empty() {
        return Ok(Vec::new());
    }
    let _loading = LoadBar::new();
    let floor = setup::state_dir(options).map(|dir| VersionFloor::open(dir.join("floors")));
    let floor = floor.transpose()?;
    let acceptance = setup::acceptance(options, floor.as_ref())?;
    let named = |model: &EmbeddingModel| -> Result<Named, Failure> {
        let EmbeddingModel { name, pack, .. } = model;
        let encoder = one(model, &acceptance, floor.as_ref())
            .map_err(|error| format!("--embedding-model {name}={}: {error}", pack.display()))?;
        Ok((name.clone(), Arc::new(Served(encoder))))
    };
    models.iter().map(named).collect()
}

fn one(
    model: &EmbeddingModel,
    acceptance: &Acceptance,
    floor: Option<&VersionFloor>,
) -> Result<ruvllm_graph::TextEncoder, Failure> {
    let pack = UnverifiedPack::read(&model.pack, &PackLimits::with_graphs())?;
    let pack = pack.verify(&acceptance.trust, floor)?;
    if let Some(lock) = &acceptance.lock {
        lock.check(&pack)?;
    }
    let manifest = pack.manifest();
    let id = match (&model.graph, &manifest.graphs[..]) {
        (Some(id), _) => id,
        (None, [only]) => &only.id,
        (None, []) => return Err("the pack has no graphs".into()),
        (None, several) => {
            let ids: Vec<&str> = several.iter().map(|graph| graph.id.as_str()).collect();
            return Err(format!("name one of its graphs behind a #: {}", ids.join(", ")).into());
        }
    };
    let gated = GatedGraph::pass(&pack, id, &GraphCaps::default())?;
    let admitted = gated.admit(&IsolatedProvider::this_program(PROCESSES))?;
    let encoder = ruvllm_graph::TextEncoder::new(admitted)?;
    // Only what is served in the end raises its floor.
    if let Some(floor) = floor {
        floor.raise_to(&manifest.name, &manifest.version)?;
    }
    Ok(encoder)
}

fn failure(error: EncoderError) -> EncoderFailure {
    match error {
        EncoderError::Graph(GraphError::Cancelled) => EncoderFailure::Cancelled,
        EncoderError::Graph(error) => EncoderFailure::Computing { message: error.to_string() },
        error => EncoderFailure::Text { code: error.code(), message: error.to_string() },
    }
}

impl TextEncoder for Served {
    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn max_tokens(&self) -> usize {
        self.0.max_tokens()
    }

    fn vocab_size(&self) -> usize {
        self.0.tokenizer().vocab_size()
    }

    fn tokens(&self, text: &str) -> Result<Vec<u32>, EncoderFailure> {
        self.0.tokens(text).map_err(failure)
    }

    fn embed(
        &self,
        tokens: &[u32],
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<f32>, EncoderFailure> {
        self.0.embed(tokens, waited_for).map_err(failure)
    }
}
