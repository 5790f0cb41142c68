//! Turns tokens into text as they are generated.

use super::Tokenizer;

/// Collects the bytes of tokens and gives them out in whole characters.
///
/// A character may span several tokens; its first bytes wait until it is complete. Bytes that cannot become
/// a character are given out as U+FFFD. Every token counts as a continuation: unlike
/// [`Tokenizer::decode`], the stream keeps the space in front of the first word.
#[derive(Debug, Clone, Default)]
pub struct DetokenizerStream {
    pending: Vec<u8>,
    with_special: bool,
}

impl DetokenizerStream {
    /// A stream that leaves control tokens out.
    pub fn new() -> Self {
        Self::default()
    }

    /// A stream that shows the text of control tokens.
    pub fn with_special() -> Self {
        Self { with_special: true, ..Self::default() }
    }

    /// Adds a token; returns the text that is complete now, if any.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Option<String> {
        if !self.with_special && tokenizer.is_special(token) {
            return None;
        }
        self.pending.extend_from_slice(&tokenizer.token_bytes(token));
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            let (valid, invalid) = (chunk.valid(), chunk.invalid());
            text.push_str(valid);
            done += valid.len();
            if invalid.is_empty() {
                break;
            }
            let last = done + invalid.len() == self.pending.len();
            if last && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
            {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
        (!text.is_empty()).then_some(text)
    }

    /// Ends the stream; returns what an unfinished character leaves, if any.
    pub fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.pending);
        (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned())
    }
}
