//! The tokens that a file adds to its vocabulary, and finding them in texts.
//!
//! Where several begin at one place the longest is taken, and the search goes on behind it.

use std::collections::{BTreeMap, BTreeSet};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::tokenizer::TokenizerError;
use crate::tokenizer::special::Segment;

/// A token with its own text.
#[derive(Debug)]
pub(super) struct AddedToken {
    pub(super) text: String,
    /// Whether it is a control token.
    pub(super) special: bool,
    /// What the normalisers make of its text, if it is looked for behind them.
    pub(super) normalized: Option<String>,
}

impl AddedToken {
    /// The text that it is found by and decoded from.
    fn searched(&self) -> &str {
        self.normalized.as_ref().unwrap_or(&self.text)
    }
}

/// All of them, by id.
#[derive(Debug)]
pub(super) struct AddedTokens {
    tokens: BTreeMap<u32, AddedToken>,
    plain: Search,
    normalized: Search,
    /// Tokens that are left out of a text together with the control tokens.
    hidden: BTreeSet<u32>,
}

/// Some of the tokens, to be found together.
#[derive(Debug)]
struct Search {
    /// None where there are no tokens.
    automaton: Option<AhoCorasick>,
    /// Id and whether it is a control token, by number of the pattern.
    patterns: Vec<(u32, bool)>,
}

impl AddedTokens {
    pub(super) fn new(tokens: BTreeMap<u32, AddedToken>) -> Result<Self, TokenizerError> {
        let search = |normalized: bool| {
            let wanted =
                tokens.iter().filter(|(_, token)| token.normalized.is_some() == normalized);
            wanted.map(|(id, token)| (token.searched(), (*id, token.special))).unzip()
        };
        let (plain, normalized) = (Search::new(search(false))?, Search::new(search(true))?);
        // Decided by what decoders get, as the library does: a control token whose text is another once it
        // is normalised stays.
        let special = tokens.values().filter(|token| token.special);
        let special: BTreeSet<&str> = special.map(|token| token.text.as_str()).collect();
        let hidden = tokens.iter().filter(|(_, token)| special.contains(token.searched()));
        let hidden = hidden.map(|(id, _)| *id).collect();
        Ok(Self { tokens, plain, normalized, hidden })
    }

    /// Whether decoders that skip control tokens do not get it.
    pub(super) fn is_hidden(&self, id: u32) -> bool {
        self.hidden.contains(&id)
    }

    /// The token with this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.tokens.iter().find(|(_, token)| token.text == text).map(|(id, _)| *id)
    }

    pub(super) fn get(&self, id: u32) -> Option<&AddedToken> {
        self.tokens.get(&id)
    }

    /// Splits a text at the tokens that are looked for as it is, or `normalized`; at control tokens only if
    /// `parse_special`. No segment is empty.
    pub(super) fn split(&self, text: &str, normalized: bool, parse_special: bool) -> Vec<Segment> {
        let search = if normalized { &self.normalized } else { &self.plain };
        let (mut segments, mut start) = (Vec::new(), 0);
        for found in search.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            let (id, special) = search.patterns[found.pattern().as_usize()];
            // Nothing shorter is looked for in the text of a control token that is not wanted.
            if special && !parse_special {
                continue;
            }
            if start < found.start() {
                segments.push(Segment::Text(start..found.start()));
            }
            segments.push(Segment::Token(id));
            start = found.end();
        }
        if start < text.len() {
            segments.push(Segment::Text(start..text.len()));
        }
        segments
    }
}

impl Search {
    fn new((texts, patterns): (Vec<&str>, Vec<(u32, bool)>)) -> Result<Self, TokenizerError> {
        let automaton = (!texts.is_empty()).then(|| {
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                // The other kind takes a kilobyte and more for each byte of a token.
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(texts)
                .map_err(|error| TokenizerError::HuggingFace(error.to_string()))
        });
        Ok(Self { automaton: automaton.transpose()?, patterns })
    }
}
