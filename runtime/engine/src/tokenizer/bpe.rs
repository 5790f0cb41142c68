//! Byte-pair encoding of GGUF files: within each piece, symbols merge as the vocabulary's merges say.
//!
//! A symbol is a token or a text that only occurs inside merges.

use super::TokenizerError;
use super::map::Map;
use super::merges::{MergeTable, Scratch};
use super::metadata::Metadata;
use super::pre::Splitter;
use super::pre_table::PreTokenizer;
use super::unicode;
use super::vocab::Vocab;

/// A symbol that is no token and occurs in no merge.
const UNKNOWN: u32 = u32::MAX;

/// The encoder of a vocabulary.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    merges: MergeTable,
    /// Symbol of each byte; empty when symbols start as characters.
    byte_symbols: Vec<u32>,
    /// Symbols of texts that are no tokens, numbered from the vocabulary size on.
    extra: Map<Box<[u8]>, u32>,
    ignore_merges: bool,
    newline_runs: bool,
}

impl Bpe {
    pub(super) fn new(
        meta: &Metadata<'_>,
        vocab: &Vocab,
        row: &PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let texts = meta.strings("tokenizer.ggml.merges")?;
        let (few, many) = texts.size_hint();
        let mut merges = MergeTable::with_capacity(many.unwrap_or(few));
        let mut extra = Map::<Box<[u8]>, u32>::default();
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
        for (rank, merge) in texts.enumerate() {
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
            let (left, right) = (symbol(&joined[..middle]), symbol(&joined[middle..]));
            merges.add(left, right, rank as u32, symbol(&joined));
        }
        let byte_symbols = if row.plain_utf8 {
            Vec::new()
        } else {
            (0..=255).map(|byte| symbol(&[byte])).collect()
        };
        Ok(Self {
            splitter: Splitter::new(row)?,
            merges,
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
        self.fill(vocab, piece, scratch);
        self.merges.apply(scratch);
        let mut start = 0;
        for (symbol, len) in scratch.symbols() {
            let end = start + len as usize;
            if (symbol as usize) < vocab.len() {
                out.push(symbol);
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

    fn fill(&self, vocab: &Vocab, piece: &str, scratch: &mut Scratch) {
        scratch.clear();
        if !self.byte_symbols.is_empty() {
            for byte in piece.bytes() {
                scratch.push(self.byte_symbols[usize::from(byte)], 1);
            }
            return;
        }
        for (at, c) in piece.char_indices() {
            let bytes = &piece.as_bytes()[at..at + c.len_utf8()];
            let id = vocab.find(bytes).or_else(|| self.extra.get(bytes).copied());
            scratch.push(id.unwrap_or(UNKNOWN), bytes.len() as u32);
        }
    }
}
