//! Models as `tokenizer.json` describes them: byte-pair encoding, whose symbols start as characters, and
//! vocabularies of words, whole ones or with the parts that they are cut into.

use crate::tokenizer::map::Map;
use crate::tokenizer::merges::{MergeTable, Scratch};

/// Token texts to ids.
pub(super) type Ids = Map<String, u32>;

/// Characters whose tokens are kept in a list: the alphabet of bytes, with ASCII, ends below.
const NEAR: u32 = 0x144;

/// A model.
#[derive(Debug)]
pub(super) enum SubwordModel {
    Bpe(Bpe),
    Words(Words),
}

impl SubwordModel {
    /// The token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids().get(text).copied()
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ids().len()
    }

    fn ids(&self) -> &Ids {
        match self {
            SubwordModel::Bpe(Bpe { ids, .. }) | SubwordModel::Words(Words { ids, .. }) => ids,
        }
    }

    /// Appends the tokens of a piece.
    pub(super) fn encode(&self, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        match self {
            SubwordModel::Bpe(bpe) => bpe.encode(piece, scratch, out),
            SubwordModel::Words(words) => words.encode(piece, out),
        }
    }
}

/// A vocabulary of words: `WordLevel`, or with parts `WordPiece`.
#[derive(Debug)]
pub(super) struct Words {
    ids: Ids,
    /// The token of a word that is not there.
    unknown: u32,
    parts: Option<Parts>,
    /// Bytes of the longest token.
    longest: usize,
}

/// How words are cut: the longest token at the start, then the longest of what is left behind the prefix.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) prefix: String,
    /// Characters of a word beyond which it is taken for unknown.
    pub(super) most_chars: usize,
}

impl Words {
    pub(super) fn new(ids: Ids, unknown: u32, parts: Option<Parts>) -> Self {
        let longest = ids.keys().map(String::len).max().unwrap_or(0);
        Self { ids, unknown, parts, longest }
    }

    fn encode(&self, piece: &str, out: &mut Vec<u32>) {
        let begun = out.len();
        let is_cut = match &self.parts {
            None => self.ids.get(piece).map(|token| out.push(*token)).is_some(),
            Some(parts) => self.cut(parts, piece, out),
        };
        if !is_cut {
            out.truncate(begun);
            out.push(self.unknown);
        }
    }

    /// Appends the parts of a word, as far as there are some; tells whether they are all of it.
    fn cut(&self, Parts { prefix, most_chars }: &Parts, word: &str, out: &mut Vec<u32>) -> bool {
        if word.chars().nth(*most_chars).is_some() {
            return false;
        }
        let (mut start, mut text) = (0, String::new());
        while start < word.len() {
            text.clear();
            text.push_str(if start > 0 { prefix } else { "" });
            let front = text.len();
            let room = self.longest.saturating_sub(front);
            let end = word.floor_char_boundary(word.len().min(start.saturating_add(room)));
            text.push_str(&word[start..end.max(start)]);
            let token = loop {
                if text.len() == front {
                    return false;
                }
                if let Some(token) = self.ids.get(text.as_str()) {
                    break *token;
                }
                text.pop();
            };
            out.push(token);
            start += text.len() - front;
        }
        true
    }
}

/// Byte-pair encoding.
#[derive(Debug)]
pub(super) struct Bpe {
    ids: Ids,
    merges: MergeTable,
    /// Tokens of the characters below [`NEAR`].
    near: Vec<Option<u32>>,
    /// Tokens of bytes, which spell characters that have none; empty if they do not.
    bytes: Vec<Option<u32>>,
    /// The token of characters that can be spelled in no other way; without one they are left out.
    unknown: Option<u32>,
    /// Whether one such token stands for all characters of a run.
    fuse_unknown: bool,
    /// A piece that is a token as a whole is not built by merges.
    ignore_merges: bool,
}

/// What a [`Bpe`] is made of, besides its merges.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) unknown: Option<u32>,
    pub(super) fuse_unknown: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
}

impl Bpe {
    pub(super) fn new(ids: Ids, merges: MergeTable, settings: &Settings) -> Self {
        let near = |point| ids.get(char::from_u32(point)?.encode_utf8(&mut [0; 4])).copied();
        let byte = |byte| ids.get(&format!("<0x{byte:02X}>")).copied();
        Self {
            near: (0..NEAR).map(near).collect(),
            bytes: if settings.byte_fallback { (0..=255).map(byte).collect() } else { Vec::new() },
            unknown: settings.unknown,
            fuse_unknown: settings.fuse_unknown,
            ignore_merges: settings.ignore_merges,
            ids,
            merges,
        }
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    fn encode(&self, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if self.ignore_merges
            && let Some(token) = self.id(piece)
        {
            out.push(token);
            return;
        }
        self.fill(piece, scratch);
        self.merges.apply(scratch);
        out.extend(scratch.symbols().map(|(token, _)| token));
    }

    fn fill(&self, piece: &str, scratch: &mut Scratch) {
        scratch.clear();
        // The unknown token waits for a character with a token; those of bytes go in front of it, as they do
        // in the library that vocabularies were trained with.
        let mut waiting: Option<(u32, u32)> = None;
        for c in piece.chars() {
            let len = c.len_utf8() as u32;
            if let Some(token) = self.char(c) {
                if let Some((unknown, len)) = waiting.take() {
                    scratch.push(unknown, len);
                }
                scratch.push(token, len);
            } else if !self.spell(c, scratch)
                && let Some(unknown) = self.unknown
            {
                match &mut waiting {
                    Some((_, run)) if self.fuse_unknown => *run += len,
                    _ => {
                        if let Some((unknown, len)) = waiting.replace((unknown, len)) {
                            scratch.push(unknown, len);
                        }
                    }
                }
            }
        }
        if let Some((unknown, len)) = waiting {
            scratch.push(unknown, len);
        }
    }

    fn char(&self, c: char) -> Option<u32> {
        match self.near.get(c as usize) {
            Some(token) => *token,
            None => self.id(c.encode_utf8(&mut [0; 4])),
        }
    }

    /// Spells a character by its bytes, if all of them have tokens.
    fn spell(&self, c: char, scratch: &mut Scratch) -> bool {
        let mut utf8 = [0; 4];
        let utf8 = c.encode_utf8(&mut utf8).as_bytes();
        let token = |byte: &u8| self.bytes.get(usize::from(*byte)).copied().flatten();
        let has_all = utf8.iter().all(|byte| token(byte).is_some());
        if has_all {
            utf8.iter().filter_map(token).for_each(|token| scratch.push(token, 1));
        }
        has_all
    }
}
