//! From the components that a `tokenizer.json` names to the steps that do their work.

use super::cut::{Behavior, GPT2, META_SPACE, Matcher, PrependScheme, Step};
use super::decode::{DecodeStep, WordPrefix};
use super::json;
use super::normalize::{Bert, Normalizer, Replace};
use crate::tokenizer::TokenizerError;

/// Components of one kind that follow each other; known files have up to seven.
const MAX_COMPONENTS: usize = 16;
/// How many times as long normalisers may make a text, and decoders the texts of tokens. Llama 2 comes to 12:
/// a three-byte character in front and one for each space.
const MAX_GROWTH: usize = 16;
/// Bytes in UTF-8 that composed characters may have for one of the text's.
const NFC_GROWTH: usize = 3;
/// Bytes that characters without accents, in lower case and with a space on either side, may have for one of the
/// text's: decomposed they have three at most, and so have the spaces.
const BERT_GROWTH: usize = 6;
/// Bytes of U+FFFD, which stands for a byte that is no UTF-8.
const REPLACEMENT_GROWTH: usize = 3;

/// How the texts of tokens stand for bytes, after the decoder of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spelling {
    ByteAlphabet,
    Escaped,
    /// There is a space in front of each, or with a prefix of those without it.
    Words(Option<WordPrefix>),
    Plain,
}

/// An error that names what a `tokenizer.json` has that is not supported, or contradicts itself.
pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T, TokenizerError> {
    Err(TokenizerError::HuggingFace(reason.into()))
}

/// The components one after the other, without the sequences they came in, whose `parts` are components again.
pub(super) fn flat<C>(
    component: Option<C>,
    parts: impl Fn(C) -> Result<Vec<C>, C>,
) -> Result<Vec<C>, TokenizerError> {
    let mut flat = Vec::new();
    let mut left: Vec<C> = component.into_iter().collect();
    while let Some(next) = left.pop() {
        match parts(next) {
            Ok(parts) => left.extend(parts.into_iter().rev()),
            Err(single) => flat.push(single),
        }
    }
    if flat.len() > MAX_COMPONENTS {
        return refuse(format!("more than {MAX_COMPONENTS} components follow each other"));
    }
    Ok(flat)
}

/// How many times as long a text can become.
struct Growth(usize);

impl Growth {
    fn by(&mut self, factor: usize) -> Result<(), TokenizerError> {
        self.0 = self.0.saturating_mul(factor);
        if self.0 > MAX_GROWTH {
            return refuse(format!("a text could become more than {MAX_GROWTH} times as long"));
        }
        Ok(())
    }
}

/// A replacement of one text by another.
fn replace(
    pattern: json::Pattern,
    content: String,
    growth: &mut Growth,
) -> Result<Replace, TokenizerError> {
    match pattern {
        json::Pattern::String(pattern) if !pattern.is_empty() => {
            growth.by(content.len().div_ceil(pattern.len()).max(1))?;
            Ok(Replace { pattern, content })
        }
        json::Pattern::String(_) => refuse("a `Replace` of an empty text is not supported"),
        json::Pattern::Regex(_) => refuse("a `Replace` by a pattern is not supported"),
    }
}

/// Which pieces get a U+2581 in front.
fn prepend_scheme(fields: &json::Metaspace) -> Result<PrependScheme, TokenizerError> {
    if fields.replacement != META_SPACE {
        return refuse(format!("`Metaspace` with {:?} is not supported", fields.replacement));
    }
    Ok(match fields.add_prefix_space {
        Some(false) => PrependScheme::Never,
        _ => fields.prepend_scheme.unwrap_or(PrependScheme::Always),
    })
}

/// The normalisers of a file.
pub(super) fn normalizers(
    component: Option<json::Normalizer>,
) -> Result<Vec<Normalizer>, TokenizerError> {
    let parts = flat(component, |part| match part {
        json::Normalizer::Sequence { normalizers } => Ok(normalizers),
        single => Err(single),
    })?;
    let mut growth = Growth(1);
    let mut built = Vec::with_capacity(parts.len());
    for part in parts {
        built.push(match part {
            json::Normalizer::Nfc => {
                growth.by(NFC_GROWTH)?;
                Normalizer::Nfc
            }
            json::Normalizer::Bert {
                clean_text,
                handle_chinese_chars,
                strip_accents,
                lowercase,
            } => {
                growth.by(BERT_GROWTH)?;
                let strip_accents = strip_accents.unwrap_or(lowercase);
                Normalizer::Bert(Bert {
                    clean_text,
                    handle_chinese_chars,
                    strip_accents,
                    lowercase,
                })
            }
            json::Normalizer::Prepend { prepend } => {
                // The text may be one byte between two special tokens.
                growth.by(1 + prepend.len())?;
                Normalizer::Prepend(prepend)
            }
            json::Normalizer::Replace { pattern, content } => {
                Normalizer::Replace(replace(pattern, content, &mut growth)?)
            }
            // `flat` leaves none.
            json::Normalizer::Sequence { .. } => continue,
        });
    }
    Ok(built)
}

/// The steps that the pre-tokenizers of a file come to.
pub(super) fn steps(component: Option<json::PreTokenizer>) -> Result<Vec<Step>, TokenizerError> {
    let parts = flat(component, |part| match part {
        json::PreTokenizer::Sequence { pretokenizers } => Ok(pretokenizers),
        single => Err(single),
    })?;
    // Each makes a text a few times as long.
    let respells = |part: &&json::PreTokenizer| {
        matches!(part, json::PreTokenizer::ByteLevel { .. } | json::PreTokenizer::Metaspace(_))
    };
    if parts.iter().filter(respells).count() > 1 {
        return refuse("more than one of `ByteLevel` and `Metaspace` is not supported");
    }
    let cut = |matcher, behavior| Step::Cut { matcher, behavior, invert: false };
    let mut built = Vec::with_capacity(parts.len());
    for part in parts {
        match part {
            json::PreTokenizer::ByteLevel { add_prefix_space, use_regex } => {
                built.extend(add_prefix_space.then_some(Step::PrefixSpace));
                if use_regex {
                    built.push(cut(pattern(GPT2)?, Behavior::Isolated));
                }
                built.push(Step::ByteAlphabet);
            }
            json::PreTokenizer::Metaspace(fields) => {
                built.push(Step::Metaspace(prepend_scheme(&fields)?));
                if fields.split.unwrap_or(true) {
                    built.push(cut(Matcher::Text(META_SPACE.into()), Behavior::MergedWithNext));
                }
            }
            json::PreTokenizer::Whitespace => {
                let matcher = Matcher::regex(r"\w+|[^\w\s]+")?;
                built.push(Step::Cut { matcher, behavior: Behavior::Removed, invert: true });
            }
            json::PreTokenizer::WhitespaceSplit => {
                built.push(cut(Matcher::regex(r"\s")?, Behavior::Removed));
            }
            json::PreTokenizer::Bert => {
                built.push(cut(Matcher::regex(r"\s")?, Behavior::Removed));
                let punctuation = Matcher::regex(r"[!-/:-@\[-`{-~\p{P}]")?;
                built.push(cut(punctuation, Behavior::Isolated));
            }
            json::PreTokenizer::Digits { individual_digits: true } => {
                built.push(cut(Matcher::Number, Behavior::Isolated));
            }
            json::PreTokenizer::Digits { individual_digits: false } => {
                built.push(cut(Matcher::Number, Behavior::Contiguous));
            }
            json::PreTokenizer::Split { pattern: by, behavior, invert } => {
                let matcher = match by {
                    json::Pattern::String(text) if !text.is_empty() => Matcher::Text(text),
                    json::Pattern::String(text) => return unknown_pattern(&text),
                    json::Pattern::Regex(text) => pattern(&text)?,
                };
                built.push(Step::Cut { matcher, behavior, invert });
            }
            json::PreTokenizer::Sequence { .. } => {}
        }
    }
    Ok(built)
}

fn pattern(pattern: &str) -> Result<Matcher, TokenizerError> {
    Matcher::pattern(pattern).unwrap_or_else(|| unknown_pattern(pattern))
}

fn unknown_pattern<T>(pattern: &str) -> Result<T, TokenizerError> {
    refuse(format!("a `Split` by the pattern {pattern:?} is not supported"))
}

/// The decoders, and how they say that tokens spell bytes.
pub(super) fn decoders(
    component: Option<json::JsonDecoder>,
) -> Result<(Vec<DecodeStep>, Spelling), TokenizerError> {
    let parts = flat(component, |part| match part {
        json::JsonDecoder::Sequence { decoders } => Ok(decoders),
        single => Err(single),
    })?;
    let mut growth = Growth(1);
    let mut built = Vec::with_capacity(parts.len());
    for part in parts {
        built.push(match part {
            json::JsonDecoder::ByteLevel => {
                growth.by(REPLACEMENT_GROWTH)?;
                DecodeStep::ByteLevel
            }
            json::JsonDecoder::ByteFallback => DecodeStep::ByteFallback,
            json::JsonDecoder::Fuse => DecodeStep::Fuse,
            json::JsonDecoder::Metaspace(fields) => DecodeStep::Metaspace {
                prepended: prepend_scheme(&fields)? != PrependScheme::Never,
            },
            json::JsonDecoder::Replace { pattern, content } => {
                DecodeStep::Replace(replace(pattern, content, &mut growth)?)
            }
            json::JsonDecoder::Strip { stop: 1.., .. } => {
                return refuse("a `Strip` of the end of tokens is not supported");
            }
            json::JsonDecoder::Strip { content, start, .. } => DecodeStep::Strip { content, start },
            json::JsonDecoder::WordPiece { prefix, cleanup } => {
                // A space in front of a token of one byte.
                growth.by(2)?;
                DecodeStep::WordPiece(WordPrefix { prefix, cleanup })
            }
            json::JsonDecoder::Sequence { .. } => continue,
        });
    }
    let is_escaped = |part: &DecodeStep| match part {
        DecodeStep::Metaspace { .. } | DecodeStep::ByteFallback => true,
        // How newer files spell what `Metaspace` did.
        DecodeStep::Replace(Replace { pattern, .. }) => pattern.chars().eq([META_SPACE]),
        _ => false,
    };
    let words = built.iter().find_map(|part| match part {
        DecodeStep::WordPiece(prefix) => Some(prefix.clone()),
        _ => None,
    });
    let spelling = if words.is_some() || built.is_empty() {
        Spelling::Words(words)
    } else if built.iter().any(|part| matches!(part, DecodeStep::ByteLevel)) {
        Spelling::ByteAlphabet
    } else if built.iter().any(is_escaped) {
        Spelling::Escaped
    } else {
        Spelling::Plain
    };
    Ok((built, spelling))
}
