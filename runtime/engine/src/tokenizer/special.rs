//! Finds special tokens in a text before anything else looks at it.
//!
//! Tokens are taken longest first, each leftmost first within what the longer ones left over; this is the
//! order of the reference, and differs from a single left-to-right scan where tokens overlap.

use std::ops::Range;

use super::vocab::{Vocab, attr};

/// A part of a text: bytes to encode, or a token found in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(Range<usize>),
    Token(u32),
}

/// The special tokens of a vocabulary, indexed by how they start.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Longest first.
    tokens: Vec<u32>,
    /// Positions in `tokens` by first byte.
    by_first_byte: Vec<Vec<u32>>,
}

impl SpecialTokens {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let tokens = vocab.special_tokens();
        let mut by_first_byte = vec![Vec::new(); 256];
        for (at, token) in tokens.iter().enumerate() {
            if let Some(first) = vocab.text(*token).as_bytes().first() {
                by_first_byte[usize::from(*first)].push(at as u32);
            }
        }
        Self { tokens, by_first_byte }
    }

    /// Splits `text` at the user-defined tokens, and at control and unknown ones if `parse_special`.
    pub(super) fn split(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        if !text.is_empty() {
            parts.push(Part::Text(0..text.len()));
        }
        for token in self.present(vocab, text, parse_special) {
            let mut cut = Vec::with_capacity(parts.len() + 2);
            for part in parts {
                match part {
                    Part::Text(range) => split_at(vocab, text, token, range, &mut cut),
                    found => cut.push(found),
                }
            }
            parts = cut;
        }
        parts
    }

    /// The tokens that occur in `text` at all, longest first; most texts have none.
    fn present(&self, vocab: &Vocab, text: &str, parse_special: bool) -> Vec<u32> {
        let mut found = vec![false; self.tokens.len()];
        for (at, byte) in text.bytes().enumerate() {
            for candidate in &self.by_first_byte[usize::from(byte)] {
                let candidate = *candidate as usize;
                if !found[candidate] {
                    let token = vocab.text(self.tokens[candidate]).as_bytes();
                    found[candidate] = text.as_bytes()[at..].starts_with(token);
                }
            }
        }
        let wanted = |id: &u32| parse_special || !vocab.is_special(*id);
        let present = self.tokens.iter().zip(found).filter_map(|(id, found)| found.then_some(*id));
        present.filter(wanted).collect()
    }
}

fn split_at(vocab: &Vocab, text: &str, token: u32, range: Range<usize>, parts: &mut Vec<Part>) {
    let is_space = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ');
    let needle = vocab.text(token);
    let Range { mut start, end } = range;
    while let Some(at) = text[start..end].find(needle).map(|at| start + at) {
        let mut left = at;
        if vocab.has(token, attr::LSTRIP) {
            left -=
                text.as_bytes()[start..at].iter().rev().take_while(|byte| is_space(byte)).count();
        }
        if start < left {
            parts.push(Part::Text(start..left));
        }
        parts.push(Part::Token(token));
        start = at + needle.len();
        if vocab.has(token, attr::RSTRIP) {
            start += text.as_bytes()[start..end].iter().take_while(|byte| is_space(byte)).count();
        }
    }
    if start < end {
        parts.push(Part::Text(start..end));
    }
}
