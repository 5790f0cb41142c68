//! What a text becomes before it is cut.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::char::decompose_canonical;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// One text instead of another, which is not empty.
#[derive(Debug)]
pub(super) struct Replace {
    pub(super) pattern: String,
    pub(super) content: String,
}

/// What BERT makes of a text, step by step.
#[derive(Debug)]
pub(super) struct Bert {
    /// Control characters go, and white space is a space.
    pub(super) clean_text: bool,
    /// Ideographs have a space on either side.
    pub(super) handle_chinese_chars: bool,
    /// Letters are decomposed, and marks on them go.
    pub(super) strip_accents: bool,
    pub(super) lowercase: bool,
}

impl Bert {
    /// The characters that one becomes.
    fn push(&self, c: char, into: &mut String) {
        if self.clean_text {
            if c == '\0' || c == '\u{FFFD}' || is_control(c) && !is_space(c) {
                return;
            }
            if is_space(c) || c.is_whitespace() {
                return into.push(' ');
            }
        }
        let ideograph = self.handle_chinese_chars && is_ideograph(c);
        into.extend(ideograph.then_some(' '));
        let mut push = |c: char| match self.lowercase {
            true => into.extend(c.to_lowercase()),
            false => into.push(c),
        };
        match self.strip_accents {
            true => decompose_canonical(c, |c| {
                if !is_mark(c) {
                    push(c);
                }
            }),
            false => push(c),
        }
        into.extend(ideograph.then_some(' '));
    }
}

/// Whether a character is one of control, format or private use.
fn is_control(c: char) -> bool {
    static CLASS: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"[\p{Cc}\p{Cf}\p{Co}]").ok());
    if c.is_ascii() { c.is_ascii_control() } else { is_in(&CLASS, c) }
}

/// Whether a character is a mark that takes no room of its own.
fn is_mark(c: char) -> bool {
    static CLASS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\p{Mn}").ok());
    !c.is_ascii() && is_in(&CLASS, c)
}

fn is_in(class: &Option<Regex>, c: char) -> bool {
    // The patterns above are valid; a test has characters of each.
    class.as_ref().is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}

/// What would be a control character, and is white space to BERT.
fn is_space(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r')
}

/// Whether BERT takes it for an ideograph.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{4E00}'..='\u{9FFF}' | '\u{3400}'..='\u{4DBF}' | '\u{20000}'..='\u{2A6DF}'
        | '\u{2A700}'..='\u{2B73F}' | '\u{2B740}'..='\u{2B81F}' | '\u{2B920}'..='\u{2CEAF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{2F800}'..='\u{2FA1F}')
}

/// One step.
#[derive(Debug)]
pub(super) enum Normalizer {
    Bert(Bert),
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
            Normalizer::Bert(bert) => {
                let mut text = String::with_capacity(self.text.len());
                let mut first = 0;
                for (at, c) in self.text.char_indices() {
                    bert.push(c, &mut text);
                    if at < self.first {
                        first = text.len();
                    }
                }
                (self.text, self.first) = (Cow::Owned(text), first);
            }
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
