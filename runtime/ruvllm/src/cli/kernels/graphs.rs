//! `explain` for a graph of a pack: what the manifest says of it, and whether it is right on this machine.

use super::tables::{self, say};
use crate::cli::args::KernelOptions;
use crate::cli::{Failure, setup};
use ruvllm::signing::{PackLimits, UnverifiedPack, VerifiedPack};
use ruvllm_manifest::GraphEntry;
use serde::Serialize;
use std::rc::Rc;

/// A graph of a pack whose publishers are trusted.
pub(super) struct PackGraph {
    pack: Rc<VerifiedPack>,
    at: usize,
}

#[derive(Serialize)]
struct Explained<'a> {
    pack: String,
    id: &'a str,
    name: &'a str,
    format: &'a str,
    signature: String,
    path: &'a str,
    size: u64,
    hash: String,
    max_memory_bytes: u64,
    max_millis: u64,
    /// Whether it makes vectors of texts.
    embedding: bool,
    /// Kernels of its pack that compute graphs.
    kernels: Vec<&'a str>,
    /// `None` where this program computes no graphs.
    admitted: Option<bool>,
    reason: String,
}

impl PackGraph {
    pub(super) fn entry(&self) -> &GraphEntry {
        &self.pack.manifest().graphs[self.at]
    }
}

/// The graphs of the packs that the options name.
pub(super) fn of_packs(options: &KernelOptions) -> Result<Vec<PackGraph>, Failure> {
    let mut graphs = Vec::new();
    for path in &options.pack {
        let acceptance = setup::acceptance(options, None)?;
        let pack = UnverifiedPack::read(path, &PackLimits::with_graphs())?;
        let pack = Rc::new(pack.verify(&acceptance.trust, None)?);
        let all = 0..pack.manifest().graphs.len();
        graphs.extend(all.map(|at| PackGraph { pack: pack.clone(), at }));
    }
    Ok(graphs)
}

/// Whether a host that computes graphs admits it, and why it does or does not.
#[cfg(feature = "graphs")]
fn admission(graph: &PackGraph) -> (Option<bool>, String) {
    use ruvllm_graph::{GatedGraph, GraphCaps, IsolatedProvider};
    let id = &graph.entry().id;
    let admitted = GatedGraph::pass(&graph.pack, id, &GraphCaps::default())
        .and_then(|gated| gated.admit(&IsolatedProvider::this_program(1)));
    match admitted {
        Ok(admitted) => {
            let checks = admitted.entry().checks.len();
            (Some(true), format!("it gives what its {checks} check(s) expect, on this machine"))
        }
        Err(error) => (Some(false), error.to_string()),
    }
}

#[cfg(not(feature = "graphs"))]
fn admission(_: &PackGraph) -> (Option<bool>, String) {
    (None, "this program was built without the feature `graphs`, so it computes none".to_owned())
}

/// Describes the graph and lets it show itself.
pub(super) fn explain(graph: &PackGraph, json: bool) -> Result<(), Failure> {
    let (entry, manifest) = (graph.entry(), graph.pack.manifest());
    let (admitted, reason) = admission(graph);
    let asking = manifest.kernels.iter().filter(|kernel| kernel.asks_for_graphs());
    let explained = Explained {
        pack: format!("{} {}", manifest.name, manifest.version),
        id: &entry.id,
        name: &entry.name,
        format: entry.format.name(),
        signature: entry.signature(),
        path: entry.path.as_str(),
        size: entry.size,
        hash: entry.hash.to_string(),
        max_memory_bytes: entry.resource_limits.max_memory_bytes,
        max_millis: entry.resource_limits.max_millis,
        embedding: entry.embedding.is_some(),
        kernels: asking.map(|kernel| kernel.id.as_str()).collect(),
        admitted,
        reason,
    };
    if json {
        return tables::json(&explained);
    }
    let Explained { pack, id, name, format, signature, path, size, hash, .. } = &explained;
    say(&format!("graph {id} of {pack}: {name}"));
    say(&format!("  computes  {signature}"));
    say(&format!("  file      {format}, {path}, {size} bytes, {hash}"));
    let (bytes, millis) = (explained.max_memory_bytes, explained.max_millis);
    say(&format!("  limits    {bytes} bytes of memory, {millis} ms"));
    if let Some(embedding) = &entry.embedding {
        let (pooling, most) = (embedding.pooling, embedding.max_tokens);
        say(&format!("  texts     pooling {pooling}, up to {most} tokens"));
    }
    if !explained.kernels.is_empty() {
        say(&format!("  kernels   {}", explained.kernels.join(", ")));
    }
    let state = match explained.admitted {
        Some(true) => "admitted",
        Some(false) => "not admitted",
        None => "not tried",
    };
    // Of several lines where several things speak against it.
    let mut reason = explained.reason.lines();
    say(&format!("  {state}: {}", reason.next().unwrap_or_default()));
    reason.for_each(|line| say(&format!("  {line}")));
    Ok(())
}
