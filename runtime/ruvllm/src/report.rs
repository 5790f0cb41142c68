//! What a generation produced and what it cost, as types that serialise.

use ruvllm_engine::{Adapter, Finish, MemoryReport, Timings, Usage};
use ruvllm_host::OpStats;
use serde::Serialize;

/// A text that was generated.
///
/// ```
/// use ruvllm::{FinishReason, GenerateOptions, Prompt, Runtime};
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = Runtime::builder().build()?;
/// let options = GenerateOptions { max_tokens: 8, ..GenerateOptions::default() };
/// let done = runtime.stream(Prompt::Raw("Once upon a time"), &options)?.wait()?;
/// assert_eq!(done.finish.reason, FinishReason::MaxTokens);
/// println!("{} tokens: {:?}", done.usage().completion_tokens, done.token_ids);
/// println!("{:.0} tokens a second", done.timings().decode_tokens_per_second);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// The whole text.
    pub text: String,
    /// The ids of its tokens. Of a text that ends before a stop string, those of the stop string are among
    /// them.
    pub token_ids: Vec<u32>,
    /// Why it ended, token counts and timings. In a conversation the prompt's tokens are those that
    /// had to be computed.
    pub finish: Finish,
}

impl Completion {
    /// Token counts.
    pub fn usage(&self) -> Usage {
        self.finish.usage
    }

    /// How long its parts took.
    pub fn timings(&self) -> Timings {
        self.finish.timings
    }
}

/// A text as a vector; made by [`Runtime::embed`](crate::Runtime::embed).
///
/// ```
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = ruvllm::Runtime::builder().build()?;
/// let [a, b] = [runtime.embed("A cat slept.")?, runtime.embed("A dog slept.")?];
/// // Of vectors of length 1 the product is the cosine of the angle.
/// let alike: f32 = a.vector.iter().zip(&b.vector).map(|(a, b)| a * b).sum();
/// println!("{alike:.3}, for {} and {} tokens", a.tokens, b.tokens);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Embedding {
    /// The vector `[dim]`, of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the text.
    pub tokens: usize,
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
///
/// ```
/// use ruvllm::{GenerateOptions, Prompt, Runtime};
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = Runtime::builder().build()?;
/// let options = GenerateOptions { max_tokens: 8, ..GenerateOptions::default() };
/// let done = runtime.stream(Prompt::Raw("Once upon a time"), &options)?.wait()?;
/// let report = runtime.report(&done);
/// assert_eq!(report.generated_tokens, 8);
/// println!("loaded in {:.0} ms, {:.0} tokens/s", report.load_ms, report.decode_tokens_per_second);
/// # Ok(())
/// # }
/// ```
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
