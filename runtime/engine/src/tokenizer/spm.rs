//! SentencePiece-style encoding: adjacent symbols merge, best-scored token first, until no pair is a token.
//!
//! Nothing merges across the start of a word unless some token spells one inside, so a text is encoded word
//! by word. Short words scan for the best pair, long ones keep a heap: O(n log n) for any text. Ties go to
//! the leftmost pair in both. A character without a token becomes its bytes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::TokenizerError;
use super::vocab::Vocab;

const NONE: u32 = u32::MAX;
/// Escaped space.
const SPACE: char = '▁';
/// Words of up to this many symbols are scanned instead of queued.
const SCAN_LIMIT: usize = 32;

/// What encoding needs beyond the vocabulary.
#[derive(Debug)]
pub(super) struct Spm {
    /// Characters that some token has in front of a space: a word behind one of them is not on its own.
    joined: BTreeSet<char>,
}

/// A run of bytes of the text; `len` 0 once it has merged into its left neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Symbol {
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
    /// While scanning: the score of the token that this symbol and the next one spell, if any.
    score: Option<u32>,
}

/// A candidate merge; the derived order puts the best score first, then the leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: u32,
    left: Reverse<u32>,
    right: u32,
    len: u32,
}

/// Buffers of one call, reused from word to word.
#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Pair>,
}

/// Maps a score to an integer of the same order (zero has one sign).
fn ordered(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

impl Spm {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let mut joined = BTreeSet::new();
        for id in 0..vocab.len() as u32 {
            let mut last = SPACE;
            for c in vocab.text(id).chars() {
                if c == SPACE && last != SPACE {
                    joined.insert(last);
                }
                last = c;
            }
        }
        Self { joined }
    }

    /// Appends the tokens of `text`, whose spaces are escaped already.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        out: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let mut scratch = Scratch::default();
        let (mut start, mut last) = (0, SPACE);
        for (at, c) in text.char_indices() {
            if c == SPACE && last != SPACE && !self.joined.contains(&last) {
                encode_word(vocab, &text[start..at], &mut scratch, out)?;
                start = at;
            }
            last = c;
        }
        encode_word(vocab, &text[start..], &mut scratch, out)
    }
}

fn encode_word(
    vocab: &Vocab,
    word: &str,
    scratch: &mut Scratch,
    out: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    let Scratch { symbols, heap } = scratch;
    symbols.clear();
    symbols.extend(word.char_indices().map(|(start, c)| Symbol {
        start: start as u32,
        len: c.len_utf8() as u32,
        prev: NONE,
        next: NONE,
        score: None,
    }));
    if symbols.len() <= SCAN_LIMIT {
        merge_scanning(vocab, word.as_bytes(), symbols);
    } else {
        merge_queued(vocab, word.as_bytes(), symbols, heap);
    }
    for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
        let piece = bytes(word.as_bytes(), symbol.start, symbol.len);
        match vocab.find(piece) {
            Some(token) => out.push(token),
            None => {
                for byte in piece {
                    out.push(
                        vocab
                            .byte_token(*byte)
                            .ok_or(TokenizerError::NoByteToken { byte: *byte })?,
                    );
                }
            }
        }
    }
    Ok(())
}

fn bytes(word: &[u8], start: u32, len: u32) -> &[u8] {
    &word[start as usize..(start + len) as usize]
}

/// Score of the token that two neighbours spell.
fn score(vocab: &Vocab, word: &[u8], left: &Symbol, right: &Symbol) -> Option<u32> {
    let len = left.len + right.len;
    if len as usize > vocab.max_token_len() {
        return None;
    }
    vocab.find(bytes(word, left.start, len)).map(|token| ordered(vocab.score(token)))
}

/// Merges by scanning for the best score; `symbols` stays dense.
fn merge_scanning(vocab: &Vocab, word: &[u8], symbols: &mut Vec<Symbol>) {
    let rate = |symbols: &mut Vec<Symbol>, at: usize| {
        symbols[at].score =
            symbols.get(at + 1).and_then(|right| score(vocab, word, &symbols[at], right));
    };
    for at in 0..symbols.len() {
        rate(symbols, at);
    }
    while let Some((at, best)) =
        symbols.iter().enumerate().max_by_key(|(at, symbol)| (symbol.score, Reverse(*at)))
        && best.score.is_some()
    {
        symbols[at].len += symbols[at + 1].len;
        symbols.remove(at + 1);
        rate(symbols, at);
        if at > 0 {
            rate(symbols, at - 1);
        }
    }
}

/// Merges through a heap of pairs; merged symbols stay in place with length 0.
fn merge_queued(vocab: &Vocab, word: &[u8], symbols: &mut [Symbol], heap: &mut BinaryHeap<Pair>) {
    let count = symbols.len() as u32;
    for (at, symbol) in (0..count).zip(symbols.iter_mut()) {
        symbol.prev = at.checked_sub(1).unwrap_or(NONE);
        symbol.next = if at + 1 < count { at + 1 } else { NONE };
    }
    let pair = |symbols: &[Symbol], left: u32, right: u32| {
        if left == NONE || right == NONE {
            return None;
        }
        let (l, r) = (&symbols[left as usize], &symbols[right as usize]);
        let score = score(vocab, word, l, r)?;
        Some(Pair { score, left: Reverse(left), right, len: l.len + r.len })
    };
    heap.clear();
    heap.extend((1..count).filter_map(|right| pair(symbols, right - 1, right)));
    while let Some(Pair { left: Reverse(left), right, len, .. }) = heap.pop() {
        let (l, r) = (symbols[left as usize], symbols[right as usize]);
        // Either side may have merged since the pair was queued.
        if l.len == 0 || r.len == 0 || l.len + r.len != len {
            continue;
        }
        (symbols[left as usize].len, symbols[left as usize].next) = (len, r.next);
        symbols[right as usize].len = 0;
        if r.next != NONE {
            symbols[r.next as usize].prev = left;
        }
        heap.extend(pair(symbols, l.prev, left));
        heap.extend(pair(symbols, left, r.next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_order_is_score_order() {
        let scores = [f32::NEG_INFINITY, -1e9, -2.0, -1.5, -0.0, 0.5, 3.0, f32::INFINITY];
        assert!(scores.windows(2).all(|pair| ordered(pair[0]) < ordered(pair[1])));
        assert_eq!(ordered(-0.0), ordered(0.0));
    }
}
