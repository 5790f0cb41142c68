//! Finds special tokens in a text before anything else looks at it.
//!
//! Tokens are taken longest first, each leftmost first within what the longer ones left over; this is the
//! order of the reference, and differs from a single left-to-right scan where tokens overlap. Nobody knows
//! how many special tokens a file has, so each place of the text is looked at once, not once per token: it
//! waits in a queue under the longest token that begins there, and asks for a shorter one only if longer
//! tokens took a part of it. A token has a bounded length, which bounds what a place can cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::TokenizerError;
use super::map::Map;
use super::metadata::attr;
use super::vocab::Vocab;

/// Bytes that a special token may have; the longest known ones, runs of white space, have a hundred.
pub(super) const MAX_SPECIAL_BYTES: usize = 256;

/// A segment of a text: bytes to encode, or a token found in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    Text(Range<usize>),
    Token(u32),
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Longest first; the rank of a token is its place here.
    tokens: Vec<u32>,
    /// The trie of their texts: from a node and a byte to the next node.
    edges: Map<(u32, u8), u32>,
    /// For each node, the rank of the token that ends there.
    ends: Vec<Option<usize>>,
    /// Whether a token starts with the byte; most bytes of a text are done with this.
    starts: [bool; 256],
}

impl SpecialTokens {
    pub(super) fn new(vocab: &Vocab) -> Result<Self, TokenizerError> {
        let tokens = vocab.special_tokens();
        let (mut edges, mut ends) = (Map::default(), vec![None]);
        let mut starts = [false; 256];
        for (rank, token) in tokens.iter().enumerate() {
            let text = vocab.text(*token).as_bytes();
            if text.len() > MAX_SPECIAL_BYTES {
                return Err(TokenizerError::Malformed {
                    what: "tokenizer.ggml.tokens".into(),
                    reason: format!(
                        "special token {token} has more than {MAX_SPECIAL_BYTES} bytes"
                    ),
                });
            }
            let mut node = 0;
            for byte in text {
                node = *edges.entry((node, *byte)).or_insert_with(|| {
                    ends.push(None);
                    (ends.len() - 1) as u32
                });
            }
            ends[node as usize] = Some(rank);
            if let Some(first) = text.first() {
                starts[usize::from(*first)] = true;
            }
        }
        Ok(Self { tokens, edges, ends, starts })
    }

    /// Splits `text` at the user-defined tokens, and at control and unknown ones if `parse_special`.
    pub(super) fn split(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<Segment> {
        let found = self.find(vocab, text.as_bytes(), parse_special);
        let mut segments = Vec::with_capacity(2 * found.len() + 1);
        let mut start = 0;
        for (range, token) in found {
            if start < range.start {
                segments.push(Segment::Text(start..range.start));
            }
            segments.push(Segment::Token(token));
            start = range.end;
        }
        if start < text.len() {
            segments.push(Segment::Text(start..text.len()));
        }
        segments
    }

    /// The tokens in `text` with the bytes that go with them, in the order of the text.
    fn find(&self, vocab: &Vocab, text: &[u8], parse_special: bool) -> Vec<(Range<usize>, u32)> {
        let wanted = |token: u32| parse_special || !vocab.is_special(token);
        let mut waiting: BinaryHeap<Reverse<(usize, usize)>> = (0..text.len())
            .filter_map(|at| Some(Reverse((self.longest(&text[at..], wanted)?, at))))
            .collect();
        let mut found = Vec::new();
        if waiting.is_empty() {
            return found;
        }
        let mut taken = vec![false; text.len()];
        while let Some(Reverse((rank, at))) = waiting.pop() {
            let token = self.tokens[rank];
            let end = at + vocab.text(token).len();
            if taken[at] {
                continue;
            }
            // Whatever was taken before is no shorter, so it reaches in over an end.
            if taken[end - 1] {
                let free = taken[at..end].iter().take_while(|taken| !**taken).count();
                let shorter = self.longest(&text[at..at + free], wanted);
                waiting.extend(shorter.map(|rank| Reverse((rank, at))));
                continue;
            }
            let is_free_space = |at: usize| !taken[at] && is_space(text[at]);
            let (mut from, mut to) = (at, end);
            if vocab.has(token, attr::LSTRIP) {
                from -= (0..at).rev().take_while(|at| is_free_space(*at)).count();
            }
            if vocab.has(token, attr::RSTRIP) {
                to += (end..text.len()).take_while(|at| is_free_space(*at)).count();
            }
            taken[from..to].fill(true);
            found.push((from..to, token));
        }
        found.sort_unstable_by_key(|(range, _)| range.start);
        found
    }

    /// The rank of the longest wanted token that `text` starts with.
    fn longest(&self, text: &[u8], wanted: impl Fn(u32) -> bool) -> Option<usize> {
        if !self.starts[usize::from(*text.first()?)] {
            return None;
        }
        let (mut node, mut longest) = (0, None);
        for byte in text {
            let Some(next) = self.edges.get(&(node, *byte)) else { break };
            node = *next;
            longest =
                self.ends[node as usize].filter(|rank| wanted(self.tokens[*rank])).or(longest);
        }
        longest
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Value;
    use crate::tokenizer::metadata::Metadata;
    use crate::tokenizer::vocab::family;
    use std::collections::{BTreeSet, HashMap};

    /// The order of the reference, one pass over the text for each token.
    fn token_by_token(vocab: &Vocab, text: &str, parse_special: bool) -> Vec<Segment> {
        let is_space = |byte: &&u8| super::is_space(**byte);
        let mut segments = vec![Segment::Text(0..text.len())];
        for token in vocab.special_tokens() {
            if vocab.is_special(token) && !parse_special {
                continue;
            }
            let needle = vocab.text(token);
            let mut cut = Vec::new();
            for segment in segments {
                let Segment::Text(Range { mut start, end }) = segment else {
                    cut.push(segment);
                    continue;
                };
                while let Some(at) = text[start..end].find(needle).map(|at| start + at) {
                    let before = text.as_bytes()[start..at].iter().rev();
                    let strips = |attribute| vocab.has(token, attribute);
                    let left =
                        if strips(attr::LSTRIP) { before.take_while(is_space).count() } else { 0 };
                    cut.push(Segment::Text(start..at - left));
                    cut.push(Segment::Token(token));
                    start = at + needle.len();
                    if strips(attr::RSTRIP) {
                        start += text.as_bytes()[start..end].iter().take_while(is_space).count();
                    }
                }
                cut.push(Segment::Text(start..end));
            }
            segments = cut;
        }
        segments.retain(|segment| !matches!(segment, Segment::Text(range) if range.is_empty()));
        segments
    }

    #[test]
    fn tokens_are_found_as_token_by_token() {
        let mut state = 7_u32;
        let mut next = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for round in 0..300 {
            let mut word = |longest: u32| -> String {
                let letters = 1 + next(longest);
                (0..letters).map(|_| ['a', 'b', ' ', 'é'][next(4) as usize]).collect()
            };
            let texts: BTreeSet<String> = (0..12).map(|_| word(5)).collect();
            let text = word(60);
            let types = texts.iter().map(|_| Value::I32([1, 3, 4][next(3) as usize])).collect();
            // With the first name, special tokens take the white space behind them.
            let name = if round % 2 == 0 { "phi-3" } else { "other" };
            let meta = HashMap::from([
                ("general.name".to_owned(), Value::String(name.into())),
                ("tokenizer.ggml.model".to_owned(), Value::String("llama".into())),
                (
                    "tokenizer.ggml.tokens".to_owned(),
                    Value::Array(texts.iter().cloned().map(Value::String).collect()),
                ),
                ("tokenizer.ggml.token_type".to_owned(), Value::Array(types)),
            ]);
            let vocab = Vocab::new(&Metadata(&meta), family(&meta).unwrap().0).unwrap();
            let special = SpecialTokens::new(&vocab).unwrap();
            for parse_special in [false, true] {
                let found = special.split(&vocab, &text, parse_special);
                let expected = token_by_token(&vocab, &text, parse_special);
                assert_eq!(found, expected, "{text:?} with {texts:?}");
            }
        }
    }
}
