//! The vocabulary of a GGUF file: token texts, scores, attributes and special tokens.
//!
//! Follows what llama.cpp derives from the same metadata, including the tokens that it recognises by their
//! text (end of generation, fill in the middle), so that both agree on what is special.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use super::TokenizerError;
use super::map::Map;
use super::metadata::{Metadata, attr};
use super::pre_table::PreTokenizer;
use super::unicode;
use crate::gguf::Value;

/// Bytes that a token may have, an order of magnitude above any known vocabulary's: a short answer must not
/// become a huge text.
pub(super) const MAX_TOKEN_BYTES: usize = 4096;

/// How token texts stand for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// UTF-8 with U+2581 for the space and `<0xNN>` tokens for bytes.
    Escaped,
    /// The byte alphabet of byte-level BPE.
    ByteAlphabet,
}

/// Tokens that end a generation, by text.
pub(super) const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Fill-in-the-middle tokens: the metadata keys that may name one, the texts it is found by otherwise, and
/// whether it ends a generation.
const FILL_IN_THE_MIDDLE: &[(&[&str], &[&str], bool)] = &[
    (
        &["fim_pre", "prefix"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        false,
    ),
    (
        &["fim_suf", "suffix"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        false,
    ),
    (
        &["fim_mid", "middle"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        false,
    ),
    (&["fim_pad"], &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"], true),
    (&["fim_rep"], &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"], true),
    (&["fim_sep"], &["<|file_sep|>"], true),
];

/// What the family of a tokenizer implies where the metadata is silent.
pub(super) struct Defaults {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) add_bos: bool,
    pub(super) spelling: Spelling,
}

/// Tokens and special tokens.
#[derive(Debug)]
pub(super) struct Vocab {
    texts: Vec<Box<str>>,
    scores: Vec<f32>,
    attrs: Vec<u16>,
    /// By the bytes that a text spells under the byte alphabet, else by the text itself.
    ids: Map<Box<[u8]>, u32>,
    byte_tokens: Box<[Option<u32>; 256]>,
    max_token_len: usize,
    spelling: Spelling,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) eog: BTreeSet<u32>,
}

impl Vocab {
    pub(super) fn new(meta: &Metadata<'_>, defaults: Defaults) -> Result<Self, TokenizerError> {
        let texts: Vec<Box<str>> = meta
            .strings("tokenizer.ggml.tokens")?
            .enumerate()
            .map(
                |(i, text)| {
                    if text.is_empty() { format!("[EMPTY_{i}]").into() } else { text.into() }
                },
            )
            .collect();
        if let Some(id) = texts.iter().position(|text| text.len() > MAX_TOKEN_BYTES) {
            return Err(TokenizerError::Malformed {
                what: "tokenizer.ggml.tokens".into(),
                reason: format!("token {id} has more than {MAX_TOKEN_BYTES} bytes"),
            });
        }
        let scores = meta.scores(texts.len())?;
        let attrs = meta.token_types(texts.len())?;
        let mut by_text =
            Map::<&str, u32>::with_capacity_and_hasher(texts.len(), Default::default());
        for (id, text) in texts.iter().enumerate() {
            by_text.insert(text, id as u32);
        }
        let in_range = |id: &u32| (*id as usize) < texts.len();
        let special = |name: &str, default: Option<u32>| {
            let named = meta.u32(&format!("tokenizer.ggml.{name}_token_id"))?;
            Ok::<_, TokenizerError>(named.filter(in_range).or(default.filter(in_range)))
        };
        let bos = special("bos", defaults.bos)?;
        let eos = special("eos", defaults.eos)?;
        let unk = special("unknown", defaults.unk)?;
        let mut marks = Marks { by_text: &by_text, attrs, eog: BTreeSet::new() };
        for (keys, names, ends) in FILL_IN_THE_MIDDLE {
            let mut token = None;
            for key in *keys {
                token = special(key, token)?;
            }
            let token = token.or_else(|| marks.control(names));
            if *ends {
                marks.eog.extend(token);
            }
        }
        for name in END_OF_GENERATION {
            let token = marks.control(&[name]);
            marks.eog.extend(token);
        }
        for name in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
            marks.set(name, attr::USER_DEFINED);
        }
        marks.eog.extend(eos);
        marks.eog.extend(special("eot", None)?);
        marks.eog.extend(special("eom", None)?);
        marks.resolve_conflicts();
        let Marks { mut attrs, eog, .. } = marks;
        strip_attributes(meta, &by_text, &mut attrs);

        let mut ids =
            Map::<Box<[u8]>, u32>::with_capacity_and_hasher(texts.len(), Default::default());
        let mut max_token_len = 0;
        for (text, id) in &by_text {
            let key = match defaults.spelling {
                Spelling::Escaped => Some(text.as_bytes().into()),
                // A text outside the alphabet can never come out of a merge.
                Spelling::ByteAlphabet => {
                    unicode::alphabet_to_bytes(text).map(Vec::into_boxed_slice)
                }
            };
            if let Some(key) = key {
                max_token_len = max_token_len.max(key.len());
                ids.insert(key, *id);
            }
        }
        let byte_token = |byte: usize| {
            let spelled = by_text.get(format!("<0x{byte:02X}>").as_str());
            spelled.or_else(|| ids.get(&[byte as u8][..])).copied()
        };
        let byte_tokens = Box::new(std::array::from_fn(|byte| match defaults.spelling {
            Spelling::Escaped => byte_token(byte).or(unk),
            Spelling::ByteAlphabet => None,
        }));
        Ok(Self {
            add_bos: meta.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(defaults.add_bos),
            add_eos: meta.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            spelling: defaults.spelling,
            texts,
            scores,
            attrs,
            ids,
            byte_tokens,
            max_token_len,
            bos,
            eos,
            eog,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", |text| text)
    }

    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    pub(super) fn has(&self, id: u32, attributes: u16) -> bool {
        self.attrs.get(id as usize).is_some_and(|bits| bits & attributes != 0)
    }

    /// The token of a run of bytes (escaped text, or raw bytes under the byte alphabet).
    pub(super) fn find(&self, bytes: &[u8]) -> Option<u32> {
        self.ids.get(bytes).copied()
    }

    /// The token that stands for one byte of a character without a token.
    pub(super) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.byte_tokens[usize::from(byte)]
    }

    /// Length of the longest token in bytes.
    pub(super) fn max_token_len(&self) -> usize {
        self.max_token_len
    }

    /// Whether the text of `id` is hidden when special tokens are skipped.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.has(id, attr::CONTROL | attr::UNKNOWN)
    }

    /// The bytes that a token adds to a text; special and user-defined tokens add their own text.
    pub(super) fn bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let text = self.text(id);
        if self.has(id, attr::UNKNOWN | attr::CONTROL | attr::USER_DEFINED) {
            return Cow::Borrowed(text.as_bytes());
        }
        if self.has(id, attr::NORMAL) {
            return match self.spelling {
                Spelling::Escaped if text.contains('▁') => {
                    Cow::Owned(text.replace('▁', " ").into_bytes())
                }
                Spelling::Escaped => Cow::Borrowed(text.as_bytes()),
                // A text outside the alphabet was added by hand and stands for itself.
                Spelling::ByteAlphabet => unicode::alphabet_to_bytes(text)
                    .map_or(Cow::Borrowed(text.as_bytes()), Cow::Owned),
            };
        }
        let byte = text.strip_prefix("<0x").and_then(|hex| hex.strip_suffix('>'));
        match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if self.has(id, attr::BYTE) => Cow::Owned(vec![byte]),
            _ => Cow::Borrowed(&[]),
        }
    }

    /// Tokens that are matched in a text before anything else, longest first.
    pub(super) fn special_tokens(&self) -> Vec<u32> {
        let special = attr::CONTROL | attr::USER_DEFINED | attr::UNKNOWN;
        let mut tokens: Vec<u32> =
            (0..self.len() as u32).filter(|id| self.has(*id, special)).collect();
        tokens.sort_by_key(|id| std::cmp::Reverse(self.text(*id).len()));
        tokens
    }
}

/// Attributes while they are being derived from token texts.
struct Marks<'a> {
    by_text: &'a Map<&'a str, u32>,
    attrs: Vec<u16>,
    eog: BTreeSet<u32>,
}

impl Marks<'_> {
    /// The first of `names` in the vocabulary, made a control token.
    fn control(&mut self, names: &[&str]) -> Option<u32> {
        let id = names.iter().find_map(|name| self.by_text.get(name).copied())?;
        self.attrs[id as usize] |= attr::CONTROL;
        Some(id)
    }

    fn set(&mut self, name: &str, attributes: u16) {
        if let Some(id) = self.by_text.get(name) {
            self.attrs[*id as usize] = attributes;
        }
    }

    /// Takes tokens off the end-of-generation list that other tokens of the same family reinterpret.
    fn resolve_conflicts(&mut self) {
        let ends = |name: &str| self.by_text.get(name).is_some_and(|id| self.eog.contains(id));
        let call = ends("<|call|>") || ends("<|calls|>");
        let harmony = call && (ends("<|return|>") || ends("<|flush|>")) && ends("<|end|>");
        let tools = (ends("<|tool_response>") || ends("<|plamo:eos|>")) && ends("</s>");
        for (applies, name, attributes) in
            [(harmony, "<|end|>", attr::USER_DEFINED), (tools, "</s>", attr::NORMAL)]
        {
            if applies {
                self.set(name, attributes);
                if let Some(id) = self.by_text.get(name) {
                    self.eog.remove(id);
                }
            }
        }
    }
}

/// White space attributes, which GGUF does not carry and which go by the names of models.
fn strip_attributes(meta: &Metadata<'_>, by_text: &Map<&str, u32>, attrs: &mut [u16]) {
    let name = meta.text("general.name").to_ascii_lowercase();
    let pre = meta.text("tokenizer.ggml.pre");
    let mut change = |token: &str, change: fn(u16) -> u16| {
        if let Some(bits) = by_text.get(token).and_then(|id| attrs.get_mut(*id as usize)) {
            *bits = change(*bits);
        }
    };
    if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|jina| pre.contains(jina)) {
        change("<mask>", |bits| bits | attr::LSTRIP);
    } else if name.contains("phi-3") || name.contains("phi3") {
        change("</s>", |bits| bits | attr::RSTRIP);
        let kept = ["<unk>", "<s>", "<|endoftext|>"].map(|token| by_text.get(token).copied());
        for (id, bits) in attrs.iter_mut().enumerate() {
            let special = *bits & (attr::CONTROL | attr::USER_DEFINED | attr::UNKNOWN) != 0;
            if special && !kept.contains(&Some(id as u32)) {
                *bits |= attr::RSTRIP;
            }
        }
    } else if name.contains("modern-bert") {
        change("[MASK]", |bits| bits | attr::LSTRIP);
    }
}

/// What `tokenizer.ggml.model` implies, with the row of its pre-tokenizer where it has one.
pub(super) fn family(
    meta: &HashMap<String, Value>,
) -> Result<(Defaults, Option<&'static PreTokenizer>), TokenizerError> {
    let meta = Metadata(meta);
    let model = meta.required_text("tokenizer.ggml.model")?;
    let pre = match model {
        "llama" => {
            let defaults = Defaults {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                add_bos: true,
                spelling: Spelling::Escaped,
            };
            return Ok((defaults, None));
        }
        "gpt2" => meta.text("tokenizer.ggml.pre"),
        "gemma4" => "gemma4",
        other => return Err(TokenizerError::UnsupportedModel { model: other.into() }),
    };
    let row = PreTokenizer::find(pre).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        name: pre.into(),
        supported: PreTokenizer::supported(),
    })?;
    // Files of the first byte-level models name neither; both had their end of text at 11.
    let default = (model == "gpt2").then_some(11);
    let defaults = Defaults {
        bos: default.filter(|_| row.default_bos),
        eos: default,
        unk: None,
        add_bos: row.add_bos,
        spelling: if row.plain_utf8 { Spelling::Escaped } else { Spelling::ByteAlphabet },
    };
    Ok((defaults, Some(row)))
}
