//! What the texts of tokens become behind the model.

use std::borrow::Cow;

use super::cut::META_SPACE;
use super::normalize::Replace;
use crate::tokenizer::unicode;

/// One step.
#[derive(Debug)]
pub(super) enum DecodeStep {
    /// All tokens become one text, whose characters stand for bytes.
    ByteLevel,
    /// Runs of `<0xNN>` become the characters that they are in UTF-8.
    ByteFallback,
    /// All tokens become one.
    Fuse,
    /// U+2581 becomes a space; in the first token it goes, if the encoder put one there.
    Metaspace {
        prepended: bool,
    },
    Replace(Replace),
    /// Each token loses this character up to so many times at its start.
    Strip {
        content: char,
        start: usize,
    },
    /// A space in front of each token but the first, or of those that are no parts of a word.
    WordPiece(WordPrefix),
}

/// What marks the parts of a word that are not its first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WordPrefix {
    pub(super) prefix: String,
    /// Whether the space in front of punctuation and contractions goes.
    pub(super) cleanup: bool,
}

impl WordPrefix {
    /// What a token adds to the text in front of it.
    pub(super) fn joined(&self, token: &str) -> String {
        let text = match token.strip_prefix(self.prefix.as_str()) {
            Some(part) => part.to_owned(),
            None => format!(" {token}"),
        };
        self.cleaned(text)
    }

    fn cleaned(&self, text: String) -> String {
        // In the order of the library.
        const REPLACED: [(&str, &str); 11] = [
            (" .", "."),
            (" ?", "?"),
            (" !", "!"),
            (" ,", ","),
            (" ' ", "'"),
            (" n't", "n't"),
            (" 'm", "'m"),
            (" do not", " don't"),
            (" 's", "'s"),
            (" 've", "'ve"),
            (" 're", "'re"),
        ];
        if !self.cleanup {
            return text;
        }
        REPLACED.iter().fold(text, |text, (from, to)| text.replace(from, to))
    }
}

/// Decodes tokens step by step; without a step there are spaces between them.
pub(super) fn decode(steps: &[DecodeStep], mut tokens: Vec<Cow<'_, str>>) -> String {
    if steps.is_empty() {
        return tokens.join(" ");
    }
    for step in steps {
        tokens = step.apply(tokens);
    }
    tokens.concat()
}

impl DecodeStep {
    fn apply<'a>(&self, tokens: Vec<Cow<'a, str>>) -> Vec<Cow<'a, str>> {
        match self {
            Self::ByteLevel => {
                let mut bytes = Vec::with_capacity(tokens.iter().map(|token| token.len()).sum());
                for token in &tokens {
                    match unicode::alphabet_to_bytes(token) {
                        Some(spelled) => bytes.extend(spelled),
                        None => bytes.extend(token.as_bytes()),
                    }
                }
                vec![Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())]
            }
            Self::ByteFallback => byte_fallback(tokens),
            Self::Fuse => vec![Cow::Owned(tokens.concat())],
            Self::Metaspace { prepended } => {
                let space = |at: usize| if at == 0 && *prepended { "" } else { " " };
                let tokens = tokens.into_iter().enumerate();
                tokens.map(|(at, token)| token.replace(META_SPACE, space(at)).into()).collect()
            }
            Self::Replace(Replace { pattern, content }) => tokens
                .into_iter()
                .map(|token| match token.contains(pattern) {
                    true => token.replace(pattern, content).into(),
                    false => token,
                })
                .collect(),
            Self::WordPiece(prefix) => {
                let tokens = tokens.into_iter().enumerate();
                let joined = tokens.map(|(at, token)| match at {
                    0 => prefix.cleaned(token.into_owned()).into(),
                    _ => prefix.joined(&token).into(),
                });
                joined.collect()
            }
            Self::Strip { content, start } => tokens
                .into_iter()
                .map(|token| {
                    let cut = token.chars().take(*start).take_while(|c| c == content).count();
                    match cut {
                        0 => token,
                        cut => token[cut * content.len_utf8()..].to_owned().into(),
                    }
                })
                .collect(),
        }
    }
}

fn byte_fallback(tokens: Vec<Cow<'_, str>>) -> Vec<Cow<'_, str>> {
    let byte = |token: &str| {
        let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
        u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
    };
    let mut out = Vec::with_capacity(tokens.len());
    let mut run = Vec::new();
    let close = |run: &mut Vec<u8>, out: &mut Vec<Cow<'_, str>>| {
        let bytes = std::mem::take(run);
        let len = bytes.len();
        match String::from_utf8(bytes) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => out.push(text.into()),
            // If one byte of a run is no UTF-8, none is taken for it.
            Err(_) => out.extend(std::iter::repeat_n(Cow::Borrowed("\u{FFFD}"), len)),
        }
    };
    for token in tokens {
        if let Some(byte) = byte(&token) {
            run.push(byte);
        } else {
            close(&mut run, &mut out);
            out.push(token);
        }
    }
    close(&mut run, &mut out);
    out
}
