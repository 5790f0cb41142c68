//! What a generation produced and what it cost, as types that serialise.

use ruvllm_engine::{Finish, MemoryReport};
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

/// One run in figures: what `ruvllm run --stats json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The model file, or the name of the built-in model.
    pub model: String,
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
