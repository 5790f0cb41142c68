//! Cuts a text into the pieces that tokens are built within.
//!
//! Patterns come from a list of ones that models have. They contain no look-around but the ending
//! `\s+(?!\S)|\s+`, which is done by hand, and run on automata, so each takes time linear in the text.

use std::borrow::Cow;
use std::ops::Range;

use regex::Regex;
use serde::Deserialize;

use crate::tokenizer::TokenizerError;
use crate::tokenizer::pre_table::Tail;
use crate::tokenizer::unicode;

/// What SentencePiece writes for a space.
pub(super) const META_SPACE: char = '▁';

/// The pattern of GPT-2, which `ByteLevel` cuts by.
pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The patterns that texts are cut by. Any other could take time that is not linear in the text.
const PATTERNS: &[&str] = &[
    // GPT-2, StarCoder.
    GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    // Llama 3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Qwen2.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // Mistral's Tekken, and with more digits its successors.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // GPT-4o.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    // DeepSeek, which cuts by several.
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[一-龥ࠀ-一가-퟿]+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// How the last alternatives of a pattern treat white space.
const TAIL: &str = r"\s+(?!\S)|\s+";

/// What becomes of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    /// As `Isolated`, with matches that touch in one piece.
    Contiguous,
}

/// Which pieces get a U+2581 in front, if they do not start with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PrependScheme {
    /// The one at the start of the text.
    First,
    Never,
    Always,
}

/// Finds what to cut by.
#[derive(Debug)]
pub(super) enum Matcher {
    Pattern(Regex, Tail),
    Text(String),
    Number,
}

/// One step. The first kind cuts each piece; the others change its text.
#[derive(Debug)]
pub(super) enum Step {
    Cut {
        matcher: Matcher,
        behavior: Behavior,
        invert: bool,
    },
    /// A space in front of pieces that start with none.
    PrefixSpace,
    /// U+2581 for each space.
    Metaspace(PrependScheme),
    /// The characters that stand for the bytes of a text.
    ByteAlphabet,
}

/// A text in pieces, in order; what is not part of one was removed.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    text: Cow<'a, str>,
    ranges: Vec<Range<usize>>,
    /// Bytes at the start that come from the first character of the text that is encoded.
    first: usize,
}

impl Matcher {
    /// The matcher of one of the known patterns.
    pub(super) fn pattern(pattern: &str) -> Option<Result<Self, TokenizerError>> {
        PATTERNS.contains(&pattern).then(|| {
            let (pattern, tail) = match pattern.strip_suffix(TAIL) {
                None => (pattern.into(), Tail::None),
                Some(rest) if rest.ends_with(r"\s*[\r\n]+|") => {
                    (format!(r"{rest}\s+"), Tail::RunAfterNewlines)
                }
                Some(rest) => (format!(r"{rest}\s+"), Tail::Run),
            };
            let pattern = Regex::new(&pattern);
            let pattern = pattern.map_err(|error| TokenizerError::HuggingFace(error.to_string()));
            Ok(Self::Pattern(pattern?, tail))
        })
    }

    /// The matcher of a pattern without look-around.
    pub(super) fn regex(pattern: &str) -> Result<Self, TokenizerError> {
        let pattern = Regex::new(pattern);
        let pattern = pattern.map_err(|error| TokenizerError::HuggingFace(error.to_string()))?;
        Ok(Self::Pattern(pattern, Tail::None))
    }

    /// Calls `part` for each match and each text between two, in order.
    fn each(&self, text: &str, mut part: impl FnMut(Range<usize>, bool)) {
        let mut at = 0;
        let mut found = |range: Range<usize>| {
            if at < range.start {
                part(at..range.start, false);
            }
            at = range.end;
            part(range, true);
        };
        match self {
            Self::Pattern(pattern, tail) => {
                let mut at = 0;
                while let Some(range) = pattern.find_at(text, at) {
                    let end = tail_end(text, range.range(), *tail);
                    found(range.start()..end);
                    at = end;
                }
            }
            Self::Text(pattern) => {
                text.match_indices(pattern).for_each(|(at, _)| found(at..at + pattern.len()));
            }
            Self::Number => {
                let numbers = text.char_indices().filter(|(_, c)| c.is_numeric());
                numbers.for_each(|(at, c)| found(at..at + c.len_utf8()));
            }
        }
        if at < text.len() {
            part(at..text.len(), false);
        }
    }
}

/// The end of a match, which is a character shorter if it is a run of white space in front of something else.
fn tail_end(text: &str, range: Range<usize>, tail: Tail) -> usize {
    let is_tail = |c: char| tail.took(c.is_whitespace(), matches!(c, '\r' | '\n'));
    if range.end == text.len() {
        return range.end;
    }
    let last = text[range.clone()].chars().next_back().filter(|c| is_tail(*c));
    let end = range.end - last.map_or(0, char::len_utf8);
    if end == range.start { range.end } else { end }
}

impl<'a> Pieces<'a> {
    /// Cuts a part of a text, of which `first` bytes come from the first character of the whole.
    pub(super) fn new(steps: &[Step], text: &'a str, first: usize) -> Self {
        let whole = 0..text.len();
        let mut pieces = Self { text: Cow::Borrowed(text), ranges: vec![whole], first };
        for step in steps {
            match step {
                Step::Cut { matcher, behavior, invert } => pieces.cut(matcher, *behavior, *invert),
                Step::PrefixSpace => pieces.respell(|piece, _, out| {
                    out.push_str(if piece.starts_with(' ') { "" } else { " " });
                    out.push_str(piece);
                }),
                Step::Metaspace(scheme) => pieces.respell(|piece, is_first, out| {
                    let prepends = match scheme {
                        PrependScheme::First => is_first,
                        PrependScheme::Never => false,
                        PrependScheme::Always => true,
                    };
                    if prepends && !piece.starts_with([' ', META_SPACE]) {
                        out.push(META_SPACE);
                    }
                    out.extend(piece.chars().map(|c| if c == ' ' { META_SPACE } else { c }));
                }),
                Step::ByteAlphabet => pieces.respell(|piece, _, out| {
                    out.extend(piece.bytes().map(unicode::byte_to_char));
                }),
            }
        }
        pieces
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.ranges.iter().map(|range| &self.text[range.clone()])
    }

    fn cut(&mut self, matcher: &Matcher, behavior: Behavior, invert: bool) {
        let mut cut: Vec<Range<usize>> = Vec::with_capacity(self.ranges.len());
        for piece in &self.ranges {
            let own = cut.len();
            let mut behind_match = false;
            matcher.each(&self.text[piece.clone()], |part, is_match| {
                let is_match = is_match != invert;
                let joins = match behavior {
                    Behavior::Removed | Behavior::Isolated => false,
                    Behavior::Contiguous => is_match == behind_match,
                    Behavior::MergedWithPrevious => is_match && !behind_match,
                    Behavior::MergedWithNext => !is_match && behind_match,
                };
                behind_match = is_match;
                let part = piece.start + part.start..piece.start + part.end;
                match cut[own..].last_mut() {
                    Some(last) if joins => last.end = part.end,
                    _ if is_match && behavior == Behavior::Removed => {}
                    _ => cut.push(part),
                }
            });
        }
        self.ranges = cut;
    }

    /// Writes each piece anew; `spell` is told whether one is at the start of the text.
    fn respell(&mut self, spell: impl Fn(&str, bool, &mut String)) {
        let mut text = String::with_capacity(self.text.len() + self.text.len() / 2);
        for range in &mut self.ranges {
            let start = text.len();
            spell(&self.text[range.clone()], range.start < self.first, &mut text);
            *range = start..text.len();
        }
        self.text = Cow::Owned(text);
    }
}
