//! Log-probabilities in the forms of the two APIs.

use ruvllm_engine::Logprobs;
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

/// A token as an element of `logprobs.content` of chat completions; `None` where log-probabilities were
/// not asked for.
pub(crate) fn chat(tokenizer: &Tokenizer, token: &Token) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let one = |token: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(token);
        json!({
            "token": String::from_utf8_lossy(&bytes),
            "logprob": number(logprob),
            "bytes": bytes,
        })
    };
    let mut entry = one(token.token, logprobs.chosen);
    let top = logprobs.top.iter().map(|other| one(other.token, other.logprob));
    entry["top_logprobs"] = top.collect();
    Some(entry)
}

/// A token as text completions write it: its text, or its bytes as `bytes:\xe2\x96` where they are none, so
/// that different tokens are told apart.
fn word(tokenizer: &Tokenizer, token: u32) -> String {
    let bytes = tokenizer.token_bytes(token);
    let written = || bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    str::from_utf8(&bytes).map_or_else(|_| format!("bytes:{}", written()), str::to_owned)
}

/// Where tokens begin in a text, in characters.
#[derive(Default)]
pub(crate) struct Offset {
    chars: usize,
    /// The beginning of a character.
    partial: Vec<u8>,
    /// Bytes of the next tokens that are not in the text.
    skip: usize,
}

impl Offset {
    /// For the tokens of a prompt. The text may lack the beginning of what they stand for: a token that
    /// begins texts, and a space that the tokenizer put in front.
    pub(crate) fn in_prompt(tokenizer: &Tokenizer, tokens: &[u32], text: &str) -> Offset {
        let bytes = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token).into_owned());
        let bytes: Vec<u8> = bytes.collect();
        let before = bytes.strip_suffix(text.as_bytes());
        Offset { skip: before.map_or(0, <[u8]>::len), ..Offset::default() }
    }

    /// Where a token of these bytes begins; the next begins behind it.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let begin = self.chars;
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        self.partial.extend_from_slice(&bytes[skipped..]);
        let mut done = 0;
        for chunk in self.partial.utf8_chunks() {
            self.chars += chunk.valid().chars().count();
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let last = done + invalid.len() == self.partial.len();
            if last && str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none()) {
                break;
            }
            // Shown as one character.
            self.chars += usize::from(!invalid.is_empty());
            done += invalid.len();
        }
        self.partial.drain(..done);
        begin
    }
}

/// `logprobs` of text completions for some tokens in a row.
#[derive(Default)]
pub(crate) struct TextLogprobs {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Appends a token of the text, where its log-probabilities were asked for; `offset` moves behind it.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: &Token, offset: &mut Offset) {
        if token.logprobs.is_some() {
            self.push_prompt(tokenizer, token.token, token.logprobs.as_ref(), offset);
        }
    }

    /// Appends a token of the prompt; `offset` moves behind it.
    pub(crate) fn push_prompt(
        &mut self,
        tokenizer: &Tokenizer,
        token: u32,
        logprobs: Option<&Logprobs>,
        offset: &mut Offset,
    ) {
        self.text_offset.push(offset.push(&tokenizer.token_bytes(token)));
        self.tokens.push(word(tokenizer, token).into());
        self.token_logprobs.push(logprobs.map_or(Value::Null, |l| number(l.chosen)));
        self.top_logprobs.push(logprobs.map_or(Value::Null, |logprobs| {
            let mut top = Map::new();
            for other in &logprobs.top {
                // Of tokens with the same text the likeliest.
                top.entry(word(tokenizer, other.token)).or_insert_with(|| number(other.logprob));
            }
            top.into()
        }));
    }

    /// The JSON of some of a text's tokens; null without any.
    pub(crate) fn take(&mut self) -> Value {
        if self.tokens.is_empty() { Value::Null } else { self.take_all() }
    }

    /// The JSON of all of a text's tokens, of which there may be none.
    pub(crate) fn take_all(&mut self) -> Value {
        let Self { tokens, token_logprobs, top_logprobs, text_offset } = std::mem::take(self);
        json!({
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_begin_where_their_characters_do() {
        let mut offset = Offset { skip: 4, ..Offset::default() };
        let begin = |bytes: &[u8], offset: &mut Offset| offset.push(bytes);
        // A token that begins the text and a space in front of it, which the text lacks.
        assert_eq!(begin(b"<s>", &mut offset), 0);
        assert_eq!(begin(b" Oh", &mut offset), 0);
        // A character of three tokens, and a byte that is none.
        assert_eq!(begin(b"\xe2", &mut offset), 2);
        assert_eq!(begin(b"\x96", &mut offset), 2);
        assert_eq!(begin(b"\x81!", &mut offset), 2);
        assert_eq!(begin(b"\xff", &mut offset), 4);
        assert_eq!(begin(b"", &mut offset), 5);
    }
}
