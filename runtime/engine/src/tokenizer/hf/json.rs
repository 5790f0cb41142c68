//! What a `tokenizer.json` may say: the components that tokenizers of Llama, Mistral, SmolLM and Qwen2 models
//! are made of, those of small models with a vocabulary of words, and nothing else.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use super::cut::{Behavior, PrependScheme};
use super::model::Ids;

/// The file. Settings of training, such as truncation and padding, are left out: a prompt must not be cut or
/// filled up.
#[derive(Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    pub(super) normalizer: Option<Normalizer>,
    pub(super) pre_tokenizer: Option<PreTokenizer>,
    pub(super) post_processor: Option<PostProcessor>,
    pub(super) decoder: Option<JsonDecoder>,
    pub(super) model: JsonModel,
}

#[derive(Deserialize)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "BertNormalizer")]
    Bert {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: Option<bool>,
        lowercase: bool,
    },
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "default_use_regex")]
        use_regex: bool,
    },
    Metaspace(Metaspace),
    Whitespace,
    WhitespaceSplit,
    #[serde(rename = "BertPreTokenizer")]
    Bert,
    Digits {
        individual_digits: bool,
    },
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessor {
    Sequence {
        processors: Vec<PostProcessor>,
    },
    /// Changes where tokens are said to lie, not which there are.
    ByteLevel,
    TemplateProcessing {
        single: Vec<Piece>,
        special_tokens: HashMap<String, TemplateToken>,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(super) enum JsonDecoder {
    Sequence { decoders: Vec<JsonDecoder> },
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace(Metaspace),
    Replace { pattern: Pattern, content: String },
    Strip { content: char, start: usize, stop: usize },
    WordPiece { prefix: String, cleanup: bool },
}

#[derive(Deserialize)]
pub(super) enum Pattern {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
pub(super) struct Metaspace {
    pub(super) replacement: char,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) prepend_scheme: Option<PrependScheme>,
    pub(super) split: Option<bool>,
}

#[derive(Deserialize)]
pub(super) enum Piece {
    Sequence { id: String },
    SpecialToken { id: String },
}

#[derive(Deserialize)]
pub(super) struct TemplateToken {
    pub(super) ids: Vec<u32>,
}

/// A model of one of the kinds. Null stands for a default in any of the optional fields.
#[derive(Deserialize)]
pub(super) struct JsonModel {
    #[serde(rename = "type", default)]
    pub(super) kind: ModelKind,
    pub(super) dropout: Option<f32>,
    pub(super) unk_token: Option<String>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    pub(super) fuse_unk: Option<bool>,
    pub(super) byte_fallback: Option<bool>,
    pub(super) ignore_merges: Option<bool>,
    pub(super) max_input_chars_per_word: Option<usize>,
    pub(super) vocab: Ids,
    pub(super) merges: Option<Vec<Merge>>,
}

/// Old files do not say it.
#[derive(Deserialize, Default)]
pub(super) enum ModelKind {
    #[default]
    #[serde(rename = "BPE")]
    Bpe,
    WordPiece,
    WordLevel,
}

/// A pair, or in old files a text with a space in between.
pub(super) struct Merge(pub(super) String, pub(super) String);

const fn default_use_regex() -> bool {
    true
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens, as a list or with a space in between")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                let halves = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) =
                    halves.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Merge(left.into(), right.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut halves: A) -> Result<Merge, A::Error> {
                let mut half =
                    |at| halves.next_element()?.ok_or_else(|| de::Error::invalid_length(at, &self));
                let (left, right) = (half(0)?, half(1)?);
                match halves.next_element::<de::IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(de::Error::invalid_length(3, &self)),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}
