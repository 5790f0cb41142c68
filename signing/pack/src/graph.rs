//! `graph`: a pack of graphs, from their files and what `graph.toml` says of them.
//!
//! Names, types and shapes of inputs and outputs are read from the file itself. What it must give for which
//! inputs comes from another runtime, in a file of checks.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use ruvllm_graph::onnx::{OnnxDim, OnnxTensor, walk};
use ruvllm_manifest::{
    Dim, EMBEDDING_INPUTS, GraphCheck, GraphEmbedding, GraphEntry, GraphFile, GraphFormat,
    GraphLimits, GraphTensor, GraphType, GraphValues, MANIFEST_FILE, MAX_GRAPH_FILE_BYTES,
    PackPath, Pooling, SIGNATURE_FILE, Sha256Hex, Tolerance,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::spec::PackSection;
use crate::{Report, ToolError};
use ruvllm_signing::DIST;

/// What the fields of `graph.toml` mean, for `help graph`.
pub const GRAPH_TOML_FIELDS: &str = "\
Fields of graph.toml; those marked ? may be left out. Files are named from its directory:

  [pack]                  as in pack.toml, see help build
  [[graph]]               one for each graph
    id                    names the graph
    name                  for people
    file                  the ONNX file, weights included; or a GGUF model, whose vectors are the means of its final
                          hidden states: input_ids [1, tokens] to embedding [1, width]
    width ?               of a GGUF model: the numbers of a vector
    checks                a JSON file of what it must give for which inputs, as another runtime computed it:
                          a list of { inputs, outputs }, each a list of { name, shape, values }
    extents               the largest value of each extent that its shapes name: { batch = 1, tokens = 256 }
    max_memory_bytes      that computing it may take, weights included; on Linux its process may have so much address
                          space beside the program, the file that it has read, and 32 MiB
    max_millis            that computing it may take
    tolerance             { rel, abs }: |y - expected| <= abs + rel * |expected|; of a GGUF model, rel counts against
                          the largest |expected| of an output, and against the length of the output as a vector
  [graph.embedding] ?     where it makes vectors of texts
    tokenizer             a tokenizer.json
    pooling               mean, cls, last or none: what becomes of the rows of the first output
    normalize             whether vectors are scaled to length 1
    max_tokens            the most tokens of a text, those around it included";

/// What every GGUF file begins with.
const GGUF_MAGIC: &[u8] = b"GGUF";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphSpec {
    pack: PackSection,
    graph: Vec<GraphSection>,
}

/// A graph as its author describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GraphSection {
    id: String,
    name: String,
    file: PathBuf,
    width: Option<u32>,
    checks: PathBuf,
    extents: IndexMap<String, u32>,
    max_memory_bytes: u64,
    max_millis: u64,
    tolerance: ToleranceSection,
    embedding: Option<EmbeddingSection>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToleranceSection {
    rel: f64,
    abs: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbeddingSection {
    tokenizer: PathBuf,
    pooling: String,
    normalize: bool,
    max_tokens: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    inputs: Vec<Values>,
    outputs: Vec<Values>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    name: String,
    shape: Vec<u32>,
    values: Vec<f64>,
}

/// What is known of a graph's file.
struct Facts {
    format: GraphFormat,
    inputs: Vec<GraphTensor>,
    outputs: Vec<GraphTensor>,
}

impl GraphSection {
    fn facts(&self, bytes: &[u8]) -> Result<Facts, String> {
        if let Some(width) = self.width {
            let tensor = |name: &str, ty, dim| GraphTensor {
                name: name.to_owned(),
                ty,
                shape: vec![Dim::Fixed(1), dim],
            };
            let tokens = Dim::Symbol("tokens".to_owned());
            return Ok(Facts {
                format: GraphFormat::Gguf,
                inputs: vec![tensor(EMBEDDING_INPUTS[0], GraphType::I64, tokens)],
                outputs: vec![tensor("embedding", GraphType::F32, Dim::Fixed(width))],
            });
        }
        if bytes.starts_with(GGUF_MAGIC) {
            let what = "a GGUF model needs `width`, the numbers of a vector, such as width = 576";
            return Err(what.to_owned());
        }
        let facts = walk(bytes, self.max_memory_bytes).map_err(|found| {
            found.iter().map(|violation| format!("\n  {violation}")).collect::<String>()
        })?;
        let tensors = |ports: &[OnnxTensor]| ports.iter().map(tensor).collect::<Result<_, _>>();
        Ok(Facts {
            format: GraphFormat::Onnx,
            inputs: tensors(&facts.inputs)?,
            outputs: tensors(&facts.outputs)?,
        })
    }
}

/// A pack of graphs that was written, not signed yet.
#[derive(Clone, Debug, Serialize)]
pub struct GraphReport {
    /// Where the pack is.
    pub directory: PathBuf,
    /// The graphs: id, and bytes of the file.
    pub graphs: Vec<(String, u64)>,
}

impl Report for GraphReport {}

impl fmt::Display for GraphReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "wrote {}", self.directory.display())?;
        for (id, bytes) in &self.graphs {
            writeln!(f, "  {id:<20} {bytes} bytes")?;
        }
        writeln!(f, "next: ruvllm-pack sign --key KEY {}", self.directory.display())
    }
}

/// Makes the pack that a `graph.toml` describes, in `dist/` beside it.
///
/// # Errors
/// [`ToolError::Spec`] where the description or a graph cannot be used, [`ToolError::Manifest`],
/// [`ToolError::Io`].
pub fn graph(spec: &Path) -> Result<GraphReport, ToolError> {
    let invalid = |message: String| ToolError::Spec { path: spec.to_owned(), message };
    let text = fs::read_to_string(spec).map_err(ToolError::io("read", spec))?;
    let parsed: GraphSpec = toml::from_str(&text).map_err(|e| invalid(e.to_string()))?;
    let root = spec.parent().unwrap_or(Path::new(""));
    let mut manifest = parsed.pack.manifest().map_err(invalid)?;
    let Graphs { entries, files } = read_all(&parsed.graph, spec)?;
    let graphs = entries.iter().map(|entry| (entry.id.clone(), entry.size)).collect();
    manifest.graphs = entries;
    let json = manifest.to_json()?;
    let directory = root.join(DIST);
    for (path, bytes) in files {
        let path = directory.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(ToolError::io("create", parent))?;
        }
        fs::write(&path, bytes).map_err(ToolError::io("write", &path))?;
    }
    let signature = directory.join(SIGNATURE_FILE);
    if signature.is_file() {
        fs::remove_file(&signature).map_err(ToolError::io("remove", &signature))?;
    }
    let path = directory.join(MANIFEST_FILE);
    fs::write(&path, json).map_err(ToolError::io("write", &path))?;
    Ok(GraphReport { directory, graphs })
}

/// Graphs of a pack, and their files by path within it.
pub(crate) struct Graphs {
    pub(crate) entries: Vec<GraphEntry>,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

/// Reads the graphs that a description names, from its directory.
///
/// # Errors
/// [`ToolError::Spec`] where a graph cannot be used, [`ToolError::Io`].
pub(crate) fn read_all(sections: &[GraphSection], spec: &Path) -> Result<Graphs, ToolError> {
    let root = spec.parent().unwrap_or(Path::new(""));
    let (mut files, mut entries) = (Vec::new(), Vec::new());
    for section in sections {
        let named = |message: String| ToolError::Spec {
            path: spec.to_owned(),
            message: format!("graph `{}`: {message}", section.id),
        };
        let bytes = read(&root.join(&section.file))?;
        let facts = section.facts(&bytes).map_err(named)?;
        let checks_path = root.join(&section.checks);
        let checks: Vec<Check> = serde_json::from_slice(&read(&checks_path)?)
            .map_err(|e| named(format!("{}: {e}", checks_path.display())))?;
        let (path, size, hash) = listed(&section.id, facts.format.name(), &bytes).map_err(named)?;
        let embedding = match &section.embedding {
            None => None,
            Some(embedding) => {
                let bytes = read(&root.join(&embedding.tokenizer))?;
                let (path, size, hash) =
                    listed(&section.id, "tokenizer.json", &bytes).map_err(named)?;
                files.push((path.to_string(), bytes));
                let pooling = embedding.pooling.parse::<Pooling>();
                Some(GraphEmbedding {
                    tokenizer: GraphFile { path, size, hash },
                    pooling: pooling.map_err(|e| named(format!("pooling: {e}")))?,
                    normalize: embedding.normalize,
                    max_tokens: embedding.max_tokens,
                })
            }
        };
        entries.push(GraphEntry {
            id: section.id.clone(),
            name: section.name.clone(),
            format: facts.format,
            path: path.clone(),
            size,
            hash,
            inputs: facts.inputs,
            outputs: facts.outputs,
            extents: section.extents.clone(),
            resource_limits: GraphLimits {
                max_memory_bytes: section.max_memory_bytes,
                max_millis: section.max_millis,
            },
            tolerance: Tolerance { rel: section.tolerance.rel, abs: section.tolerance.abs },
            checks: checks.into_iter().map(check).collect(),
            embedding,
        });
        files.push((path.to_string(), bytes));
    }
    Ok(Graphs { entries, files })
}

fn read(path: &Path) -> Result<Vec<u8>, ToolError> {
    let io = ToolError::io("read", path);
    match fs::metadata(path).map(|metadata| metadata.len()) {
        Ok(length) if length > MAX_GRAPH_FILE_BYTES => {
            let most = MAX_GRAPH_FILE_BYTES >> 20;
            let what = format!("it has {length} bytes, and a file of a graph {most} MiB at most");
            Err(io(std::io::Error::new(std::io::ErrorKind::FileTooLarge, what)))
        }
        _ => fs::read(path).map_err(io),
    }
}

/// Path, length and hash of a file of a graph.
fn listed(id: &str, extension: &str, bytes: &[u8]) -> Result<(PackPath, u64, Sha256Hex), String> {
    let path = format!("graphs/{id}.{extension}").parse();
    let path: PackPath = path.map_err(|e: ruvllm_manifest::InvalidPath| format!("id: {e}"))?;
    Ok((path, bytes.len() as u64, Sha256Hex::from_bytes(Sha256::digest(bytes).into())))
}

/// An input or output as the file has it. Its named extents get names that manifests may have.
fn tensor(port: &OnnxTensor) -> Result<GraphTensor, String> {
    let name = &port.name;
    let ty = port.ty.ok_or_else(|| format!("{name} is of a type other than f32, i32, i64, u8"))?;
    let shape = port.shape.as_ref();
    let shape = shape.ok_or_else(|| format!("the file says no shape of {name}: export it anew"))?;
    let dims = shape.iter().map(|dim| match dim {
        OnnxDim::Fixed(n) => {
            u32::try_from(*n).map(Dim::Fixed).map_err(|_| format!("{name} is too large"))
        }
        OnnxDim::Named(symbol) if symbol.is_empty() => {
            Err(format!("an extent of {name} has neither a number nor a name: export it anew"))
        }
        OnnxDim::Named(symbol) => {
            let plain =
                |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
            let symbol: String = symbol.chars().map(plain).collect();
            let digit = symbol.starts_with(|c: char| c.is_ascii_digit());
            Ok(Dim::Symbol(if digit { format!("_{symbol}") } else { symbol }))
        }
    });
    Ok(GraphTensor { name: name.clone(), ty, shape: dims.collect::<Result<_, _>>()? })
}

fn check(check: Check) -> GraphCheck {
    let all = |values: Vec<Values>| {
        let one = |Values { name, shape, values }| GraphValues { name, shape, values };
        values.into_iter().map(one).collect()
    };
    GraphCheck { inputs: all(check.inputs), outputs: all(check.outputs) }
}
