//! Byte-pair encoding: within each piece, the adjacent pair of lowest rank merges until none is left.
//!
//! Pairs are looked up by symbol numbers, not by text: a symbol is a token or a text that only occurs
//! inside merges. Short pieces scan for the best pair, long ones keep a heap, so that a piece of any
//! length takes O(n log n). Equal ranks go to the leftmost pair in both.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::AHashMap;

use super::error::TokenizerError;
use super::metadata::Metadata;
use super::pre::Splitter;
use super::pre_table::PreTokenizer;
use super::unicode;
use super::vocab::Vocab;

/// A symbol that is no token and occurs in no merge.
const UNKNOWN: u32 = u32::MAX;
const NONE: u32 = u32::MAX;
/// Rank of a pair that does not merge.
const NEVER: u32 = u32::MAX;
/// Pieces of up to this many symbols are scanned instead of queued.
const SCAN_LIMIT: usize = 32;

/// The merges of a vocabulary.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    /// `(left, right)` to rank and merged symbol.
    pairs: AHashMap<u64, (u32, u32)>,
    /// Symbol of each byte; empty when symbols start as characters.
    byte_symbols: Vec<u32>,
    /// Symbols of texts that are no tokens, numbered from the vocabulary size on.
    extra: AHashMap<Box<[u8]>, u32>,
    ignore_merges: bool,
    newline_runs: bool,
}

/// Buffers of one call, reused from piece to piece.
#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

/// A run of `len` bytes; 0 once it has merged into its left neighbour.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    len: u32,
    prev: u32,
    next: u32,
    /// While scanning: rank of the pair with the next symbol, and what it becomes.
    rank: u32,
    merged: u32,
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Bpe {
    pub(super) fn new(
        meta: &Metadata<'_>,
        vocab: &Vocab,
        row: &PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let merges = meta.strings("tokenizer.ggml.merges")?;
        let (few, many) = merges.size_hint();
        let mut pairs = AHashMap::with_capacity(many.unwrap_or(few));
        let mut extra = AHashMap::<Box<[u8]>, u32>::new();
        let mut symbol = |bytes: &[u8]| {
            vocab.find(bytes).or_else(|| extra.get(bytes).copied()).unwrap_or_else(|| {
                let id = (vocab.len() + extra.len()) as u32;
                extra.insert(bytes.into(), id);
                id
            })
        };
        // Appends the bytes that a part stands for; false when it is outside the alphabet.
        let spell = |text: &str, bytes: &mut Vec<u8>| {
            if row.plain_utf8 {
                bytes.extend_from_slice(text.as_bytes());
                return true;
            }
            text.chars().all(|c| unicode::char_to_byte(c).map(|byte| bytes.push(byte)).is_some())
        };
        let mut joined = Vec::new();
        for (rank, merge) in merges.enumerate() {
            // A space in front belongs to the left part, not between the two.
            let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            let Some((left, right)) = cut.map(|at| (&merge[..at], &merge[at + 1..])) else {
                continue;
            };
            joined.clear();
            if !spell(left, &mut joined) {
                continue;
            }
            let middle = joined.len();
            if !spell(right, &mut joined) {
                continue;
            }
            let pair = key(symbol(&joined[..middle]), symbol(&joined[middle..]));
            let merged = symbol(&joined);
            pairs.entry(pair).or_insert((rank as u32, merged));
        }
        let byte_symbols = if row.plain_utf8 {
            Vec::new()
        } else {
            (0..=255).map(|byte| symbol(&[byte])).collect()
        };
        Ok(Self {
            splitter: Splitter::new(row)?,
            pairs,
            byte_symbols,
            extra,
            ignore_merges: row.ignore_merges,
            newline_runs: row.gemma,
        })
    }

    /// Appends the tokens of `text`, whose spaces are escaped already where the vocabulary wants it.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        for range in self.splitter.split(text) {
            let piece = &text[range];
            let whole =
                self.ignore_merges || self.newline_runs && piece.bytes().all(|byte| byte == b'\n');
            match vocab.find(piece.as_bytes()).filter(|_| whole) {
                Some(token) => out.push(token),
                None => self.encode_piece(vocab, piece, &mut scratch, out),
            }
        }
    }

    fn encode_piece(&self, vocab: &Vocab, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { symbols, heap } = scratch;
        self.fill(vocab, piece, symbols);
        if symbols.len() <= SCAN_LIMIT {
            self.merge_scanning(symbols);
        } else {
            self.merge_queued(symbols, heap);
        }
        let mut start = 0;
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let end = start + symbol.len as usize;
            if (symbol.id as usize) < vocab.len() {
                out.push(symbol.id);
            } else {
                // As the reference does, bytes that have no token are left out.
                let bytes = &piece.as_bytes()[start..end];
                if self.byte_symbols.is_empty() {
                    out.extend(bytes.iter().filter_map(|byte| vocab.byte_token(*byte)));
                } else {
                    let printable = bytes.iter().filter(|byte| byte.is_ascii_graphic());
                    out.extend(printable.filter_map(|byte| vocab.find(&[*byte])));
                }
            }
            start = end;
        }
    }

    fn fill(&self, vocab: &Vocab, piece: &str, symbols: &mut Vec<Symbol>) {
        symbols.clear();
        let symbol = |id, len| Symbol { id, len, prev: NONE, next: NONE, rank: NEVER, merged: 0 };
        if self.byte_symbols.is_empty() {
            symbols.extend(piece.char_indices().map(|(at, c)| {
                let bytes = &piece.as_bytes()[at..at + c.len_utf8()];
                let id = vocab.find(bytes).or_else(|| self.extra.get(bytes).copied());
                symbol(id.unwrap_or(UNKNOWN), bytes.len() as u32)
            }));
        } else {
            symbols
                .extend(piece.bytes().map(|byte| symbol(self.byte_symbols[usize::from(byte)], 1)));
        }
    }

    fn pair(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.pairs.get(&key(left, right)).copied()
    }

    /// Merges by scanning for the lowest rank; `symbols` stays dense.
    fn merge_scanning(&self, symbols: &mut Vec<Symbol>) {
        let rank = |symbols: &mut Vec<Symbol>, at: usize| {
            let pair = symbols.get(at + 1).and_then(|next| self.pair(symbols[at].id, next.id));
            (symbols[at].rank, symbols[at].merged) = pair.unwrap_or((NEVER, 0));
        };
        for at in 0..symbols.len() {
            rank(symbols, at);
        }
        while let Some((at, best)) =
            symbols.iter().enumerate().min_by_key(|(_, symbol)| symbol.rank)
            && best.rank != NEVER
        {
            symbols[at].id = best.merged;
            symbols[at].len += symbols[at + 1].len;
            symbols.remove(at + 1);
            rank(symbols, at);
            if at > 0 {
                rank(symbols, at - 1);
            }
        }
    }

    /// Merges through a heap of pairs `(rank, left, right, symbol of the right)`.
    fn merge_queued(
        &self,
        symbols: &mut [Symbol],
        heap: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
    ) {
        heap.clear();
        let count = symbols.len() as u32;
        for (at, symbol) in (0..count).zip(symbols.iter_mut()) {
            symbol.prev = at.checked_sub(1).unwrap_or(NONE);
            symbol.next = if at + 1 < count { at + 1 } else { NONE };
        }
        let queue = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
            if left != NONE && right != NONE {
                let (l, r) = (symbols[left as usize], symbols[right as usize]);
                if let Some((rank, _)) = self.pair(l.id, r.id) {
                    heap.push(Reverse((rank, left, right, l.len + r.len)));
                }
            }
        };
        for right in 1..count {
            queue(heap, symbols, right - 1, right);
        }
        while let Some(Reverse((_, left, right, len))) = heap.pop() {
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            // Either side may have merged since the pair was queued.
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            let Some((_, merged)) = self.pair(l.id, r.id) else { continue };
            let symbol = &mut symbols[left as usize];
            (symbol.id, symbol.len, symbol.next) = (merged, len, r.next);
            symbols[right as usize].len = 0;
            if r.next != NONE {
                symbols[r.next as usize].prev = left;
            }
            queue(heap, symbols, l.prev, left);
            queue(heap, symbols, left, r.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(ids: &[u32]) -> Vec<Symbol> {
        ids.iter()
            .map(|id| Symbol { id: *id, len: 1, prev: 0, next: 0, rank: 0, merged: 0 })
            .collect()
    }

    #[test]
    fn scanning_and_queueing_agree() {
        // A random merge table over four letters, two levels deep.
        let mut state = 7_u32;
        let mut next = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..200 {
            let mut pairs = AHashMap::new();
            for rank in 0..30 {
                pairs.entry(key(next(10), next(10))).or_insert((rank, next(10)));
            }
            let bpe = Bpe {
                splitter: Splitter::new(PreTokenizer::find("gpt-2").unwrap()).unwrap(),
                pairs,
                byte_symbols: Vec::new(),
                extra: AHashMap::new(),
                ignore_merges: false,
                newline_runs: false,
            };
            let ids: Vec<u32> = (0..next(60)).map(|_| next(10)).collect();
            let (mut scanned, mut queued) = (symbols(&ids), symbols(&ids));
            bpe.merge_scanning(&mut scanned);
            bpe.merge_queued(&mut queued, &mut BinaryHeap::new());
            let alive = |symbols: Vec<Symbol>| -> Vec<(u32, u32)> {
                symbols.iter().filter(|s| s.len > 0).map(|s| (s.id, s.len)).collect()
            };
            assert_eq!(alive(scanned), alive(queued), "{ids:?}");
        }
    }
}
