//! What a text becomes before it is cut.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// One text instead of another, which is not empty.
#[derive(Debug)]
pub(super) struct Replace {
    pub(super) pattern: String,
    pub(super) content: String,
}

/// One step.
#[derive(Debug)]
pub(super) enum Normalizer {
    Nfc,
    Prepend(String),
    Replace(Replace),
}

/// A text with what of it comes from the first character of the text that is encoded.
#[derive(Debug)]
pub(super) struct Normalized<'a> {
    pub(super) text: Cow<'a, str>,
    /// Bytes at the start.
    pub(super) first: usize,
}

impl<'a> Normalized<'a> {
    /// The result of all steps for a part of a text, which `is_first` if nothing is in front of it.
    pub(super) fn new(steps: &[Normalizer], text: &'a str, is_first: bool) -> Self {
        let first = text.chars().next().filter(|_| is_first).map_or(0, char::len_utf8);
        let mut normalized = Self { text: Cow::Borrowed(text), first };
        for step in steps {
            normalized.apply(step);
        }
        normalized
    }

    fn apply(&mut self, step: &Normalizer) {
        match step {
            Normalizer::Nfc => {
                let is_same =
                    |text: &str| text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes;
                if !is_same(&self.text) {
                    let first = self.text[..self.first].nfc().map(char::len_utf8).sum();
                    self.text = Cow::Owned(self.text.nfc().collect());
                    // What followed may have become a part of its last character.
                    self.first = self.text.ceil_char_boundary(first);
                }
            }
            Normalizer::Prepend(front) => {
                if !self.text.is_empty() {
                    self.text = Cow::Owned([front, &*self.text].concat());
                    self.first += if self.first > 0 { front.len() } else { 0 };
                }
            }
            Normalizer::Replace(Replace { pattern, content }) => {
                if self.text.contains(pattern) {
                    let (mut first, mut at) = (0, 0);
                    let ends = self.text.match_indices(pattern).map(|(at, _)| at + pattern.len());
                    // A replacement comes from where the last byte came from that it replaces.
                    for end in ends.take_while(|end| *end <= self.first) {
                        first += end - pattern.len() - at + content.len();
                        at = end;
                    }
                    let rest = &self.text[at..];
                    let kept = rest.find(pattern).unwrap_or(rest.len()).min(self.first - at);
                    self.first = first + kept;
                    self.text = Cow::Owned(self.text.replace(pattern, content));
                }
            }
        }
    }
}
