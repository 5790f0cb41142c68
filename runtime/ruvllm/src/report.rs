//! What a generation produced and what it cost, as types that serialise.

use ruvllm_engine::{Adapter, Finish, MemoryReport};
use ruvllm_host::OpStats;
use serde::Serialize;

/// The end of one generation.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The whole text.
    pub text: String,
    /// Why it ended, token counts and timings. In a conversation the prompt's tokens are those that
    /// had to be computed.
    pub finish: Finish,
}

/// An adapter in figures.
#[derive(Clone, Debug, Serialize)]
pub struct AdapterReport {
    /// Its own name, or that of its file.
    pub name: String,
    /// Its largest rank.
    pub rank: usize,
    /// Its alpha.
    pub alpha: f32,
    /// The scale that was asked for.
    pub scale: f32,
    /// Bytes of its factors in memory.
    pub bytes: usize,
    /// Its generation: the beginning of a hash of factors, scales and targets, in hexadecimal.
    pub generation: String,
}

impl AdapterReport {
    pub(crate) fn new(adapter: &Adapter) -> Self {
        Self {
            name: adapter.name().to_owned(),
            rank: adapter.rank(),
            alpha: adapter.alpha(),
            scale: adapter.scale(),
            bytes: adapter.bytes(),
            generation: adapter.generation(),
        }
    }
}

/// One run in figures: what `ruvllm run --stats json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The model file, or the name of the built-in model.
    pub model: String,
    /// The adapter, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterReport>,
    /// Threads that computed.
    pub threads: usize,
    /// The instruction set of the native kernels.
    pub isa: &'static str,
    /// How keys and values were stored.
    pub kv: String,
    /// Who holds the engine's memory, and what its KV cache has done.
    pub memory: MemoryReport,
    /// Why generation ended.
    pub finish: &'static str,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// Milliseconds to read the model, verify and admit the packs and prepare both.
    pub load_ms: f64,
    /// Milliseconds from the request to the first generated token.
    pub time_to_first_token_ms: f64,
    /// Prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Generated tokens per second, the first one not counted.
    pub decode_tokens_per_second: f64,
    /// Per kernel that was asked: its op, where it came from, calls, time and fallbacks.
    pub ops: Vec<OpStats>,
}
