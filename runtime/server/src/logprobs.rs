//! Log-probabilities in the forms of the two APIs.

use ruvllm_engine::scheduler::Token;
use ruvllm_engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// Alternatives to a token at most.
pub(crate) const TOP: usize = 20;
/// What OpenAI writes for impossible tokens: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

fn number(logprob: f32) -> Value {
    json!(logprob.max(IMPOSSIBLE))
}

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned()
}

/// A token as an element of `logprobs.content` of chat completions; `None` where log-probabilities were
/// not asked for.
pub(crate) fn chat(tokenizer: &Tokenizer, token: &Token) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let one = |token: u32, logprob: f32| {
        json!({
            "token": text(tokenizer, token),
            "logprob": number(logprob),
            "bytes": tokenizer.token_bytes(token),
        })
    };
    let mut entry = one(token.token, logprobs.chosen);
    let top = logprobs.top.iter().map(|other| one(other.token, other.logprob));
    entry["top_logprobs"] = top.collect();
    Some(entry)
}

/// `logprobs` of text completions for some tokens in a row; `offset` counts the characters before them.
#[derive(Default)]
pub(crate) struct TextLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Appends a token; `offset` moves behind it.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: &Token, offset: &mut usize) {
        let Some(logprobs) = &token.logprobs else { return };
        let word = text(tokenizer, token.token);
        self.text_offset.push(*offset);
        *offset += word.chars().count();
        self.tokens.push(word.into());
        self.token_logprobs.push(number(logprobs.chosen));
        let top = logprobs.top.iter();
        let top: Map<String, Value> =
            top.map(|other| (text(tokenizer, other.token), number(other.logprob))).collect();
        self.top_logprobs.push(top.into());
    }

    /// The JSON; null without tokens.
    pub(crate) fn take(&mut self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = std::mem::take(self);
        if tokens.is_empty() {
            return Value::Null;
        }
        json!({
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        })
    }
}
