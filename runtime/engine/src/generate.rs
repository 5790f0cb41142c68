//! What to generate, and what is said of it while it happens and at its end.
//!
//! There is one loop that generates, the [scheduler's](crate::scheduler); [`Session::generate`] has it
//! compute one request on the caller's thread.
//!
//! [`Session::generate`]: crate::Session::generate

use serde::Serialize;

use crate::logprobs::Logprobs;
use crate::sampler::SamplingOptions;

/// What to generate and when to stop.
///
/// ```
/// use ruvllm_engine::{GenerateOptions, SamplingOptions};
///
/// let options = GenerateOptions {
///     max_tokens: 100,
///     stop: vec!["\n\n".to_owned()],
///     sampling: SamplingOptions { temperature: 0.7, seed: Some(3), ..SamplingOptions::default() },
///     ..GenerateOptions::default()
/// };
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Generation ends before the first of these in the text; empty ones do not count.
    pub stop: Vec<String>,
    /// Whether to go on where the model would end; its end tokens are then never chosen.
    pub ignore_eos: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: SamplingOptions::default(),
            stop: Vec::new(),
            ignore_eos: false,
        }
    }
}

/// What happens during generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// So many tokens of the prompt are computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen; its text may follow later.
    Token(u32),
    /// More text.
    Text(String),
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub token: u32,
    /// The text that is certain with it. It may be empty, and it may be of earlier tokens, which were held
    /// back because a character was not whole or might have been a stop string.
    pub text: String,
    /// How likely it was, where that was asked for.
    pub logprobs: Option<Logprobs>,
}

/// Why generation ended.
///
/// ```
/// use ruvllm_engine::FinishReason;
///
/// let is_whole = |reason| matches!(reason, FinishReason::EndOfGeneration | FinishReason::StopString);
/// assert!(!is_whole(FinishReason::MaxTokens));
/// assert_eq!(FinishReason::MaxTokens.name(), "max_tokens");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model chose a token that ends its turn.
    EndOfGeneration,
    /// A stop string came up.
    StopString,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller broke off.
    Cancelled,
}

impl FinishReason {
    /// The name in statistics, such as `context_full`.
    pub const fn name(self) -> &'static str {
        match self {
            FinishReason::EndOfGeneration => "end_of_generation",
            FinishReason::StopString => "stop_string",
            FinishReason::MaxTokens => "max_tokens",
            FinishReason::ContextFull => "context_full",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Token counts of a generation.
///
/// ```
/// use ruvllm_engine::Usage;
///
/// let Usage { prompt_tokens, completion_tokens } = Usage { prompt_tokens: 5, completion_tokens: 12 };
/// println!("{prompt_tokens} tokens were read and {completion_tokens} written");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt that were computed.
    pub prompt_tokens: usize,
    /// Tokens that were chosen, an end token not counted.
    pub completion_tokens: usize,
}

/// How long the parts of a generation took, in seconds, and the rates that follow.
///
/// ```
/// use ruvllm_engine::Timings;
///
/// let slow = |timings: Timings| timings.time_to_first_token_seconds > 1.0;
/// assert!(!slow(Timings::default()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Opening the model.
    pub load_seconds: f64,
    /// From the call to the first chosen token.
    pub time_to_first_token_seconds: f64,
    /// Computing the prompt.
    pub prefill_seconds: f64,
    /// Prompt tokens per second; 0 without any.
    pub prefill_tokens_per_second: f64,
    /// Computing and choosing the tokens after the first.
    pub decode_seconds: f64,
    /// Tokens after the first, per second; 0 without any.
    pub decode_tokens_per_second: f64,
}

/// Scales a vector to length 1, as embeddings are; one of zeros stays.
pub fn unit_length(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Timings.
    pub timings: Timings,
}
