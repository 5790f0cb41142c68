//! Finds special tokens in a text before anything else looks at it.
//!
//! Tokens are taken longest first, each leftmost first within what the longer ones left over; this is the
//! order of the reference, and differs from a single left-to-right scan where tokens overlap.

use std::ops::Range;

use super::hash::FastMap;
use super::vocab::{Vocab, attr};

/// A part of a text: bytes to encode, or a token found in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(Range<usize>),
    Token(u32),
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Longest first.
    tokens: Vec<u32>,
    /// Positions in `tokens` by text.
    by_text: FastMap<Box<[u8]>, usize>,
    /// Lengths of the tokens that start with each byte.
    lengths: Vec<Vec<usize>>,
}

impl SpecialTokens {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let tokens = vocab.special_tokens();
        let mut by_text = FastMap::default();
        let mut lengths = vec![Vec::new(); 256];
        for (at, token) in tokens.iter().enumerate() {
            let text = vocab.text(*token).as_bytes();
            let Some(first) = text.first() else { continue };
            by_text.insert(text.into(), at);
            // Longest first, so equal lengths are neighbours.
            let lengths: &mut Vec<usize> = &mut lengths[usize::from(*first)];
            if lengths.last() != Some(&text.len()) {
                lengths.push(text.len());
            }
        }
        Self { tokens, by_text, lengths }
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
            for len in &self.lengths[usize::from(byte)] {
                let candidate = text.as_bytes().get(at..at + len);
                if let Some(token) = candidate.and_then(|candidate| self.by_text.get(candidate)) {
                    found[*token] = true;
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
