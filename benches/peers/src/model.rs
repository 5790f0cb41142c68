//! What has to be known of a model file beforehand.

use ruvllm::engine::gguf::GgufFile;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

/// The key under which GGUF files list the texts of all tokens.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// A GGUF file that engines can be given.
pub(crate) struct ModelFile {
    pub(crate) path: PathBuf,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Number of token ids.
    pub(crate) vocab: u32,
    /// Bytes of the weights that computing one token reads; `None` where the file has types whose
    /// sizes are not known here.
    pub(crate) bytes_per_token: Option<u64>,
}

impl ModelFile {
    /// Reads the whole file, so that no engine's first start waits for the disk, and its header.
    pub(crate) fn read(path: &Path) -> Result<ModelFile, String> {
        let named = |error: io::Error| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(named)?;
        let bytes = io::copy(&mut BufReader::with_capacity(1 << 20, file), &mut io::sink());
        let metadata = GgufFile::read_metadata(path).map_err(|error| error.to_string())?;
        let tokens = metadata.get(TOKENS).and_then(|value| value.as_array());
        let vocab = tokens
            .and_then(|tokens| u32::try_from(tokens.len()).ok())
            .ok_or_else(|| format!("{}: no {TOKENS} in its header", path.display()))?;
        Ok(ModelFile {
            path: path.to_owned(),
            bytes: bytes.map_err(named)?,
            vocab,
            bytes_per_token: bytes_per_token(path),
        })
    }
}

/// Of all tensors; but of an embedding table that is not the output projection too, a token reads
/// one row.
fn bytes_per_token(path: &Path) -> Option<u64> {
    let file = GgufFile::open(path).ok()?;
    let tensors = file.tensors();
    let tied = !tensors.iter().any(|tensor| tensor.name == "output.weight");
    let counted = tensors.iter().filter(|tensor| tied || tensor.name != "token_embd.weight");
    Some(counted.map(|tensor| tensor.bytes.len() as u64).sum())
}
