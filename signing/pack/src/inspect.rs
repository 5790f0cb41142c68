//! `inspect`: everything that a person wants to know about a pack, without running it.
//!
//! The pack may be hostile. Its text is escaped before it is shown, and what its manifest claims
//! stands beside what its modules really are.

use std::fmt;
use std::path::Path;

use ruvllm_graph::onnx::walk;
use ruvllm_host::module_features;
use ruvllm_manifest::{
    GraphEntry, GraphFormat, KernelEntry, MANIFEST_FILE, Manifest, SIGNATURE_FILE,
};
use ruvllm_signing::{Envelope, PackError, TrustPolicy, escape_untrusted};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::sign::policy;
use crate::{ModuleFacts, Report, ToolError, trial};

/// A pack as its manifest, its signatures and its modules present it.
#[derive(Clone, Debug, Serialize)]
pub struct InspectReport {
    /// Name, a claim until the pack is verified.
    pub name: String,
    /// Version.
    pub version: String,
    /// Description.
    pub description: String,
    /// The kernel ABI that it was built for.
    pub abi_version: u32,
    /// Runtime versions that may load it.
    pub runtime: String,
    /// When it says that it was made.
    pub created_at: String,
    /// Who says to have made it.
    pub author: String,
    /// The key that its author claims.
    pub signing_key: String,
    /// SHA-256 of the manifest.
    pub digest: String,
    /// Bytes of all modules, as the manifest says.
    pub size: u64,
    /// Key ids of the signatures.
    pub signatures: Vec<String>,
    /// What verification says: empty where the pack is trusted.
    pub objections: Vec<String>,
    /// The publishers whose signatures count.
    pub publishers: Vec<InspectedPublisher>,
    /// The kernels.
    pub kernels: Vec<InspectedKernel>,
    /// The graphs.
    pub graphs: Vec<InspectedGraph>,
    /// Kernel id to what answers when it cannot.
    pub fallbacks: Vec<(String, String)>,
}

/// A publisher that the policy trusts and whose signature counts.
#[derive(Clone, Debug, Serialize)]
pub struct InspectedPublisher {
    /// Its name in the policy.
    pub name: String,
    /// The key that signed.
    pub key: String,
    /// The id of that key.
    pub key_id: String,
    /// The pack names that it may sign.
    pub packs: Vec<String>,
    /// Since when its signatures count.
    pub not_before: Option<String>,
    /// When its trust ends.
    pub not_after: Option<String>,
}

/// One kernel of a pack.
#[derive(Clone, Debug, Serialize)]
pub struct InspectedKernel {
    /// Its id.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// How it is called, such as `rmsnorm_forward(x: f32[rows, dim], ..) -> y: f32[rows, dim]`.
    pub signature: String,
    /// The operation.
    pub op: String,
    /// Whether the host knows the operation and holds the kernel against its oracle.
    pub known_op: bool,
    /// Its file.
    pub path: String,
    /// Bytes, as the manifest says.
    pub size: u64,
    /// SHA-256, as the manifest says.
    pub hash: String,
    /// Pages of memory that the manifest grants it.
    pub max_memory_pages: u32,
    /// Ticks that one call may take.
    pub max_epoch_ticks: u64,
    /// Table elements that the manifest grants it.
    pub max_table_elements: u32,
    /// Whether it gives gradients, as the manifest says.
    pub backward: bool,
    /// Features that the manifest declares.
    pub declared_features: Vec<String>,
    /// Features that the module uses.
    pub used_features: Vec<String>,
    /// How far from the oracle its author lets it be, relative and absolute.
    pub tolerance: Option<(f64, f64)>,
    /// Microseconds of a call that its author measured, by shape.
    pub benchmarks: Vec<(String, f64)>,
    /// What the module is; absent where the file is missing or no module.
    pub module: Option<ModuleFacts>,
    /// What is wrong with the file.
    pub problems: Vec<String>,
}

/// One graph of a pack.
#[derive(Clone, Debug, Serialize)]
pub struct InspectedGraph {
    /// Its id.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// How its file is to be read.
    pub format: String,
    /// Inputs and outputs, with the largest value of each extent.
    pub signature: String,
    /// Its file.
    pub path: String,
    /// Bytes, as the manifest says.
    pub size: u64,
    /// SHA-256, as the manifest says.
    pub hash: String,
    /// Memory in bytes that the manifest grants it.
    pub max_memory_bytes: u64,
    /// Milliseconds that computing it may take.
    pub max_millis: u64,
    /// How far from its checks it may be, relative and absolute.
    pub tolerance: (f64, f64),
    /// Inputs with the outputs that it must give before a host uses it.
    pub checks: usize,
    /// Pooling and the most tokens, where it makes vectors of texts.
    pub embedding: Option<(String, u32)>,
    /// What is wrong with it: a host does not load it.
    pub problems: Vec<String>,
}

impl Report for InspectReport {}

/// Reads a pack. Whether it is to be trusted is part of the report, not a condition.
///
/// # Errors
/// [`ToolError::Pack`] where the files cannot be read as a pack, [`ToolError::Manifest`] where
/// there is no valid manifest, and what a policy file can be refused for.
pub fn inspect(trust: Option<&Path>, directory: &Path) -> Result<InspectReport, ToolError> {
    let policy = policy(trust)?;
    let pack = trial::read(directory)?;
    let bytes = pack.file(MANIFEST_FILE).unwrap_or_default().to_vec();
    let manifest = Manifest::parse(&bytes)?;
    let signatures = match pack.file(SIGNATURE_FILE).map(Envelope::parse) {
        Some(Ok(envelope)) => envelope.signatures().iter().map(|(id, _)| id.to_string()).collect(),
        _ => Vec::new(),
    };
    let kernels = manifest
        .kernels
        .iter()
        .map(|kernel| inspect_kernel(kernel, pack.file(kernel.path.as_str())));
    let kernels = kernels.collect();
    let graphs =
        manifest.graphs.iter().map(|graph| inspect_graph(graph, pack.file(graph.path.as_str())));
    let graphs = graphs.collect();
    let (publishers, objections) = match pack.verify(&policy, None) {
        Ok(pack) => {
            let signers = pack.publishers().iter();
            let known = signers.map(|signer| {
                inspect_publisher(&policy, &signer.publisher, signer.key_id.to_string())
            });
            (known.collect(), Vec::new())
        }
        Err(PackError::Rejected(found)) => (Vec::new(), found.iter().map(shown).collect()),
        Err(other) => (Vec::new(), vec![other.to_string()]),
    };
    let until = manifest.max_runtime_version.as_ref();
    Ok(InspectReport {
        name: manifest.name.to_string(),
        version: manifest.version.to_string(),
        description: manifest.description.clone(),
        abi_version: manifest.abi_version,
        runtime: match until {
            Some(until) => format!(">= {}, < {until}", manifest.min_runtime_version),
            None => format!(">= {}", manifest.min_runtime_version),
        },
        created_at: manifest.created_at.to_string(),
        author: match &manifest.author.email {
            Some(email) => format!("{} <{email}>", manifest.author.name),
            None => manifest.author.name.clone(),
        },
        signing_key: manifest.author.signing_key.clone(),
        digest: ruvllm_manifest::Sha256Hex::from_bytes(Sha256::digest(&bytes).into()).to_string(),
        size: manifest.kernels.iter().map(|kernel| kernel.size).sum(),
        signatures,
        objections,
        publishers,
        kernels,
        graphs,
        fallbacks: manifest.fallbacks.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
    })
}

fn inspect_publisher(policy: &TrustPolicy, name: &str, key_id: String) -> InspectedPublisher {
    let mut all = policy.publishers().iter();
    let entry = all.find(|p| p.name == name && p.key.key_id().to_string() == key_id);
    InspectedPublisher {
        name: name.to_owned(),
        key: entry.map(|p| p.key.to_string()).unwrap_or_default(),
        key_id,
        packs: entry.into_iter().flat_map(|p| &p.packs).map(|p| p.to_string()).collect(),
        not_before: entry.and_then(|p| p.not_before).map(|time| time.to_string()),
        not_after: entry.and_then(|p| p.not_after).map(|time| time.to_string()),
    }
}

fn shown(violation: &impl fmt::Display) -> String {
    violation.to_string()
}

fn inspect_kernel(kernel: &KernelEntry, wasm: Option<&[u8]>) -> InspectedKernel {
    let mut problems = Vec::new();
    let (mut used_features, mut module) = (Vec::new(), None);
    match wasm {
        None => problems.push("the file is missing".to_owned()),
        Some(wasm) => {
            let hash = ruvllm_manifest::Sha256Hex::from_bytes(Sha256::digest(wasm).into());
            if hash != kernel.hash {
                problems.push(format!("the file's hash is {hash}"));
            }
            if wasm.len() as u64 != kernel.size {
                problems.push(format!("the file has {} bytes", wasm.len()));
            }
            match module_features(wasm) {
                Ok(used) => used_features = used.into_iter().map(str::to_owned).collect(),
                Err(what) => problems.push(what),
            }
            match ModuleFacts::read(wasm) {
                Ok(facts) => module = Some(facts),
                Err(what) => problems.push(what),
            }
        }
    }
    let limits = kernel.resource_limits;
    let wasmtime = kernel.platforms.wasmtime.as_ref();
    InspectedKernel {
        id: kernel.id.clone(),
        name: kernel.name.clone(),
        signature: signature(kernel),
        op: kernel.op.clone(),
        known_op: kernel.known_op().is_some(),
        path: kernel.path.to_string(),
        size: kernel.size,
        hash: kernel.hash.to_string(),
        max_memory_pages: limits.max_memory_pages,
        max_epoch_ticks: limits.max_epoch_ticks,
        max_table_elements: limits.max_table_elements,
        backward: kernel.backward,
        declared_features: wasmtime.map(|p| p.features.clone()).unwrap_or_default(),
        used_features,
        tolerance: kernel.tolerance.map(|t| (t.rel, t.abs)),
        benchmarks: kernel
            .benchmarks
            .iter()
            .map(|(shape, figure)| (shape.clone(), figure.latency_us))
            .collect(),
        module,
        problems,
    }
}

fn inspect_graph(graph: &GraphEntry, bytes: Option<&[u8]>) -> InspectedGraph {
    let mut problems = Vec::new();
    match bytes {
        None => problems.push("the file is missing".to_owned()),
        Some(bytes) => {
            let hash = ruvllm_manifest::Sha256Hex::from_bytes(Sha256::digest(bytes).into());
            if hash != graph.hash {
                problems.push(format!("the file's hash is {hash}"));
            }
            if graph.format == GraphFormat::Onnx {
                let found = match walk(bytes, graph.resource_limits.max_memory_bytes) {
                    Ok(facts) => facts.disagreements(graph),
                    Err(found) => found,
                };
                problems.extend(found.iter().map(shown));
            }
        }
    }
    InspectedGraph {
        id: graph.id.clone(),
        name: graph.name.clone(),
        format: graph.format.to_string(),
        signature: graph.signature(),
        path: graph.path.to_string(),
        size: graph.size,
        hash: graph.hash.to_string(),
        max_memory_bytes: graph.resource_limits.max_memory_bytes,
        max_millis: graph.resource_limits.max_millis,
        tolerance: (graph.tolerance.rel, graph.tolerance.abs),
        checks: graph.checks.len(),
        embedding: graph.embedding.as_ref().map(|e| (e.pooling.to_string(), e.max_tokens)),
        problems,
    }
}

/// The kernel as a function.
pub(crate) fn signature(kernel: &KernelEntry) -> String {
    use ruvllm_manifest::{Dim, TensorSpec};
    let tensor = |tensor: &TensorSpec| {
        let dims: Vec<String> = tensor
            .shape
            .iter()
            .map(|dim| match dim {
                Dim::Symbol(name) => name.clone(),
                Dim::Fixed(n) => n.to_string(),
            })
            .collect();
        format!("{}: {}[{}]", tensor.name, tensor.dtype, dims.join(", "))
    };
    let mut inputs: Vec<String> = kernel.inputs.iter().map(tensor).collect();
    inputs.extend(kernel.params.iter().map(|(name, spec)| format!("{name}: {}", spec.ty.name())));
    let outputs: Vec<String> = kernel.outputs.iter().map(tensor).collect();
    format!("{}({}) -> {}", kernel.entry_point, inputs.join(", "), outputs.join(", "))
}

impl fmt::Display for InspectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let safe = escape_untrusted;
        writeln!(f, "{} {}: {}", safe(&self.name), safe(&self.version), safe(&self.description))?;
        writeln!(f, "  author      {}", safe(&self.author))?;
        writeln!(f, "  signing key {}", safe(&self.signing_key))?;
        writeln!(f, "  created     {}", safe(&self.created_at))?;
        writeln!(f, "  runtime     {}, ABI {}", safe(&self.runtime), self.abi_version)?;
        writeln!(f, "  digest      {}", self.digest)?;
        write!(f, "  size        {} bytes in {} module(s)", self.size, self.kernels.len())?;
        match self.graphs.iter().map(|graph| graph.size).sum::<u64>() {
            0 => writeln!(f)?,
            bytes => writeln!(f, ", {bytes} bytes in {} graph(s)", self.graphs.len())?,
        }
        writeln!(f, "  signatures  {}", list(&self.signatures))?;
        if self.objections.is_empty() {
            let names: Vec<String> = self.publishers.iter().map(|p| p.name.clone()).collect();
            writeln!(f, "  trust       verified, signed by {}", list(&names))?;
            for publisher in &self.publishers {
                let InspectedPublisher { name, key, packs, not_before, not_after, .. } = publisher;
                writeln!(f, "  publisher   {}, {}", safe(name), safe(key))?;
                writeln!(f, "    may sign  {}", list(packs))?;
                let from = not_before.as_deref().unwrap_or("ever");
                writeln!(
                    f,
                    "    trusted   from {from} to {}",
                    not_after.as_deref().unwrap_or("ever")
                )?;
            }
        } else {
            writeln!(f, "  trust       NOT verified:")?;
            for objection in &self.objections {
                writeln!(f, "              {}", safe(objection))?;
            }
        }
        for kernel in &self.kernels {
            writeln!(f, "\n{}: {}", safe(&kernel.id), safe(&kernel.name))?;
            write!(f, "{kernel}")?;
        }
        for graph in &self.graphs {
            writeln!(f, "\ngraph {}: {}", safe(&graph.id), safe(&graph.name))?;
            write!(f, "{graph}")?;
        }
        for (kernel, fallback) in &self.fallbacks {
            writeln!(f, "\nfallback of {}: {}", safe(kernel), safe(fallback))?;
        }
        Ok(())
    }
}

impl fmt::Display for InspectedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let safe = escape_untrusted;
        writeln!(f, "  {}", safe(&self.signature))?;
        let Self { format, size, hash, max_memory_bytes, max_millis, checks, .. } = self;
        writeln!(f, "  file        {format}, {}, {size} bytes, {hash}", safe(&self.path))?;
        writeln!(f, "  limits      {max_memory_bytes} bytes of memory, {max_millis} ms")?;
        let (rel, abs) = self.tolerance;
        writeln!(f, "  admission   {checks} check(s) within rel {rel:e}, abs {abs:e}")?;
        if let Some((pooling, tokens)) = &self.embedding {
            writeln!(f, "  texts       pooling {pooling}, up to {tokens} tokens")?;
        }
        for problem in &self.problems {
            writeln!(f, "  PROBLEM     {}", safe(problem))?;
        }
        Ok(())
    }
}

impl fmt::Display for InspectedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let safe = escape_untrusted;
        let known = if self.known_op { "held against the oracle" } else { "custom, no oracle" };
        writeln!(f, "  {}", safe(&self.signature))?;
        let gradients = if self.backward { ", with gradients" } else { "" };
        writeln!(f, "  op          {} ({known}{gradients})", safe(&self.op))?;
        writeln!(f, "  file        {}, {} bytes, {}", safe(&self.path), self.size, self.hash)?;
        let pages = self.max_memory_pages;
        let (ticks, elements) = (self.max_epoch_ticks, self.max_table_elements);
        writeln!(f, "  limits      {pages} pages, {ticks} ticks, {elements} table elements")?;
        writeln!(f, "  features    {}", list(&self.used_features))?;
        let undeclared: Vec<String> = self
            .used_features
            .iter()
            .filter(|used| !self.declared_features.contains(used))
            .cloned()
            .collect();
        if !undeclared.is_empty() {
            writeln!(f, "  UNDECLARED  {}", list(&undeclared))?;
        }
        if let Some(module) = &self.module {
            writeln!(f, "  imports     {}", list(&module.imports))?;
            writeln!(f, "  exports     {}", list(&module.exports))?;
            for (name, size) in &module.custom_sections {
                writeln!(f, "  custom      section {}, {size} bytes", safe(name))?;
            }
            writeln!(
                f,
                "  module      {} functions, {} loops, {} trap sites, memory {}..{} pages",
                module.functions,
                module.loops,
                module.trap_sites,
                module.memory_pages,
                module.max_memory_pages.map_or("unbounded".to_owned(), |max| max.to_string()),
            )?;
        }
        if let Some((rel, abs)) = self.tolerance {
            writeln!(f, "  tolerance   rel {rel:e}, abs {abs:e}")?;
        }
        for (shape, us) in &self.benchmarks {
            writeln!(f, "  measured    {us} us, {}", safe(shape))?;
        }
        for problem in &self.problems {
            writeln!(f, "  PROBLEM     {}", safe(problem))?;
        }
        Ok(())
    }
}

/// Names from a pack, made safe to print.
fn list(items: &[String]) -> String {
    if items.is_empty() {
        return "none".to_owned();
    }
    items.iter().map(|item| escape_untrusted(item)).collect::<Vec<_>>().join(", ")
}
