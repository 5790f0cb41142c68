//! A model: configuration, weights, tokenizer and chat template of one file or directory.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::chat::{ChatError, ChatTemplate, Renderer};
use crate::config::{self, ModelConfig};
use crate::error::EngineError;
use crate::gguf::{GgufFile, Metadata, Value};
use crate::hf::HfDir;
use crate::tokenizer::Tokenizer;
use crate::weights::ModelWeights;

/// A loaded model. Immutable; share it between engines with an [`std::sync::Arc`].
///
/// ```no_run
/// use ruvllm_engine::Model;
/// use std::path::Path;
///
/// # fn main() -> Result<(), ruvllm_engine::EngineError> {
/// let model = Model::open(Path::new("model.gguf"))?;
/// println!("{}: {} parameters in {}", model.name(), model.parameters(), model.weight_type());
/// # Ok(())
/// # }
/// ```
pub struct Model {
    id: String,
    name: String,
    config: ModelConfig,
    weights: ModelWeights,
    tokenizer: Tokenizer,
    load_time: Duration,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face directory, whichever is there.
    ///
    /// # Errors
    /// Every way in which a file can fail to be a model that this engine runs.
    pub fn open(path: &Path) -> Result<Model, EngineError> {
        let start = Instant::now();
        let kind = std::fs::metadata(path).map_err(|e| EngineError::io(path, e))?;
        let mut model = if kind.is_dir() {
            Self::from_dir(path)?
        } else {
            Self::from_gguf(GgufFile::open(path)?)?
        };
        let stem = stem(path, kind.is_dir());
        model.id = without_spaces(&stem);
        if model.name.is_empty() {
            model.name = stem;
        }
        model.load_time = start.elapsed();
        Ok(model)
    }

    /// Opens a GGUF file that is built into the program; `name` stands for its path in messages, and its
    /// first word is the model's [id](Model::id).
    /// Bytes that start on a multiple of 32 are used in place, others are copied.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Model, EngineError> {
        Self::in_memory(|| GgufFile::from_static(bytes, name), name)
    }

    /// Opens a GGUF file that is in memory, as one that was downloaded or decrypted; `name` stands for its
    /// path in messages. The bytes are used where they lie; single tensors that they hold misaligned are
    /// copied.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_bytes(bytes: impl Into<Vec<u8>>, name: &str) -> Result<Model, EngineError> {
        Self::in_memory(|| GgufFile::from_bytes(bytes, name), name)
    }

    fn in_memory(
        file: impl FnOnce() -> Result<GgufFile, EngineError>,
        name: &str,
    ) -> Result<Model, EngineError> {
        let start = Instant::now();
        let mut model = Self::from_gguf(file()?)?;
        model.id = name.split_whitespace().next().unwrap_or_default().to_owned();
        if model.name.is_empty() {
            model.name = name.to_owned();
        }
        model.load_time = start.elapsed();
        Ok(model)
    }

    fn from_gguf(file: GgufFile) -> Result<Model, EngineError> {
        let config = config::from_gguf(&file)?;
        let weights = ModelWeights::load(&file, &config)?;
        let tokenizer = Tokenizer::from_gguf(file.metadata())?;
        Ok(Model {
            id: String::new(),
            name: text(file.metadata(), "general.name").unwrap_or_default(),
            config,
            weights,
            tokenizer,
            load_time: Duration::ZERO,
        })
    }

    fn from_dir(path: &Path) -> Result<Model, EngineError> {
        let dir = HfDir::open(path)?;
        let origin = path.join("config.json").display().to_string();
        let config = config::from_hf(dir.config(), &origin)?;
        let weights = ModelWeights::load(&dir, &config)?;
        let tokenizer = Tokenizer::from_hf_dir(path)?;
        let (id, name) = (String::new(), String::new());
        Ok(Model { id, name, config, weights, tokenizer, load_time: Duration::ZERO })
    }

    /// What servers call the model: its file's name without the extension, or its directory's name, with
    /// `-` in place of white space.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The model's own name, or that of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model's chat template, where it has one, to be run by `renderer`. Conversations with tools
    /// are rendered by the one for them, where there are two.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::new`].
    pub fn chat_template(&self, renderer: &Renderer) -> Result<Option<ChatTemplate>, ChatError> {
        let Some(source) = self.tokenizer.chat_template() else { return Ok(None) };
        let (tool_use, tokens) = (self.tokenizer.tool_template(), self.tokenizer.special_texts());
        ChatTemplate::with_tool_template(source, tool_use, &tokens, renderer).map(Some)
    }

    /// A chat template for this model, to be run by `renderer`.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::new`].
    pub fn compile_template(
        &self,
        source: &str,
        renderer: &Renderer,
    ) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::with_tokens(source, &self.tokenizer.special_texts(), renderer)
    }

    /// Number of logits of a token: rows of the embedding table, which may exceed the number of
    /// tokens that the tokenizer knows.
    pub fn vocab(&self) -> usize {
        self.weights.vocab()
    }

    /// Bytes of all matrices as stored.
    pub fn size_bytes(&self) -> usize {
        self.weights.totals().0
    }

    /// Number of elements of all matrices.
    pub fn parameters(&self) -> usize {
        self.weights.totals().1
    }

    /// The element type of most matrices, such as `q8_0`.
    pub fn weight_type(&self) -> &'static str {
        self.weights.main_dtype().name()
    }

    /// How long opening took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// A hash of the configuration and of a sample of the weights, which tells models apart.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("ruvllm model fingerprint v2");
        hasher.update(&self.config.to_bytes());
        self.weights.sample(&mut |bytes| {
            hasher.update(bytes);
        });
        *hasher.finalize().as_bytes()
    }

    pub(crate) fn weights(&self) -> &ModelWeights {
        &self.weights
    }
}

/// Opens the tokenizer of a model alone. A GGUF file may lack the tensors or hold types that the
/// engine does not compute with.
///
/// # Errors
/// A missing file, a damaged header, and what the tokenizer refuses.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, EngineError> {
    let kind = std::fs::metadata(path).map_err(|e| EngineError::io(path, e))?;
    if kind.is_dir() {
        return Ok(Tokenizer::from_hf_dir(path)?);
    }
    Ok(Tokenizer::from_gguf(&GgufFile::read_metadata(path)?)?)
}

/// The name of a model's directory, or of its file without the extension `gguf`: what stands behind another
/// dot tells models apart.
fn stem(path: &Path, is_dir: bool) -> String {
    // `.` and `..` have no name of their own.
    let resolved = if path.file_name().is_none() { path.canonicalize().ok() } else { None };
    let path = resolved.as_deref().unwrap_or(path);
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let stem = if is_gguf && !is_dir { path.file_stem() } else { path.file_name() };
    stem.map_or_else(|| "model".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn without_spaces(name: &str) -> String {
    name.split_whitespace().collect::<Vec<_>>().join("-")
}

fn text(metadata: &Metadata, key: &str) -> Option<String> {
    let text = metadata.get(key).and_then(Value::as_str)?;
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_the_stem_of_the_file_or_the_name_of_the_directory_without_spaces() {
        for (path, is_dir, id) in [
            ("models/SmolLM2-135M.Q4_K_M.gguf", false, "SmolLM2-135M.Q4_K_M"),
            ("my  own model.GGUF", false, "my-own-model"),
            ("/models/Qwen2.5-0.5B/", true, "Qwen2.5-0.5B"),
            ("a.gguf", true, "a.gguf"),
            ("v1.5", false, "v1.5"),
        ] {
            assert_eq!(without_spaces(&stem(Path::new(path), is_dir)), id);
        }
        assert_eq!(
            stem(Path::new("."), true),
            env!("CARGO_MANIFEST_DIR").rsplit('/').next().unwrap()
        );
    }
}
