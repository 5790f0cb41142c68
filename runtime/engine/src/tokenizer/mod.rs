//! Text to tokens and back.
//!
//! One [`Tokenizer`] for GGUF files (SentencePiece and byte-level BPE, token for token what llama.cpp
//! produces from the same metadata) and for Hugging Face directories (`tokenizer.json`, token for token what
//! the `tokenizers` library produces). Immutable once loaded, so threads share it freely.
//!
//! Text that is data should be encoded with [`Tokenizer::encode`], which never yields a control token for
//! it: a user cannot forge a turn by typing `<|im_end|>`. Rendered chat templates need
//! [`Tokenizer::encode_with_special`].

mod bpe;
mod hf;
mod map;
mod merges;
mod metadata;
mod pre;
mod pre_table;
mod special;
mod spm;
mod stream;
mod templates;
mod unicode;
mod unicode_table;
mod vocab;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

pub use crate::error::TokenizerError;
pub use stream::DetokenizerStream;

use bpe::Bpe;
use hf::HfTokenizer;
use metadata::Metadata;
use special::{Segment, SpecialTokens};
use spm::Spm;
use templates::ChatTemplates;
use vocab::Vocab;

use crate::gguf::Value;

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    backend: Backend,
    templates: ChatTemplates,
}

#[derive(Debug)]
enum Backend {
    Gguf(Box<GgufTokenizer>),
    Hf(Box<HfTokenizer>),
}

#[derive(Debug)]
struct GgufTokenizer {
    vocab: Vocab,
    special: SpecialTokens,
    merges: Merges,
    /// Spaces become U+2581 before encoding.
    escape_spaces: bool,
    /// A text at the start or behind a special token gets a space in front.
    add_space_prefix: bool,
    /// Special tokens by the names that chat templates have for them.
    named: Vec<(String, u32)>,
}

/// What chat templates call special tokens, besides the beginning and end of a sequence, and what GGUF files do.
const TEMPLATE_TOKENS: &[(&str, &str)] = &[
    ("cls_token", "cls"),
    ("mask_token", "mask"),
    ("pad_token", "padding"),
    // The format spells it so.
    ("sep_token", "seperator"),
    ("unk_token", "unknown"),
];

/// How symbols grow into tokens.
#[derive(Debug)]
enum Merges {
    Spm(Spm),
    Bpe(Box<Bpe>),
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata of a GGUF file describes.
    ///
    /// # Errors
    /// When the tokenizer family or its pre-tokenizer is not supported, or the metadata is incomplete or
    /// malformed.
    pub fn from_gguf(meta: &HashMap<String, Value>) -> Result<Self, TokenizerError> {
        let (defaults, row) = vocab::family(meta)?;
        let meta = Metadata(meta);
        let escape_spaces = defaults.spelling == vocab::Spelling::Escaped;
        let mut vocab = Vocab::new(&meta, defaults)?;
        vocab.add_bos |= row.is_some_and(|row| row.gemma);
        let merges = match row {
            Some(row) => Merges::Bpe(Box::new(Bpe::new(&meta, &vocab, row)?)),
            None => Merges::Spm(Spm::new(&vocab)),
        };
        let prefix = meta.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let add_space_prefix = row.is_none() && prefix;
        let special = SpecialTokens::new(&vocab)?;
        let mut named = Vec::new();
        for (name, key) in TEMPLATE_TOKENS {
            let id = meta.u32(&format!("tokenizer.ggml.{key}_token_id"))?;
            named.extend(
                id.filter(|id| (*id as usize) < vocab.len()).map(|id| ((*name).to_owned(), id)),
            );
        }
        let template =
            |key: &str| Some(meta.text(key)).filter(|source| !source.is_empty()).map(Into::into);
        let templates = ChatTemplates {
            default: template("tokenizer.chat_template"),
            tool_use: template("tokenizer.chat_template.tool_use"),
        };
        Ok(Self {
            backend: Backend::Gguf(Box::new(GgufTokenizer {
                vocab,
                special,
                merges,
                escape_spaces,
                add_space_prefix,
                named,
            })),
            templates,
        })
    }

    /// Loads the `tokenizer.json` of a Hugging Face model directory, with what `tokenizer_config.json`,
    /// `generation_config.json`, `config.json`, `chat_template.jinja` and
    /// `additional_chat_templates/tool_use.jinja` add to it where they exist.
    ///
    /// # Errors
    /// When `tokenizer.json` is missing or a file cannot be read or parsed.
    pub fn from_hf_dir(dir: &Path) -> Result<Self, TokenizerError> {
        let (tokenizer, templates) = HfTokenizer::load(dir)?;
        Ok(Self { backend: Backend::Hf(Box::new(tokenizer)), templates })
    }

    /// Reads a `tokenizer.json` that comes without the files that lie beside it in a model directory.
    ///
    /// # Errors
    /// As [`Tokenizer::from_hf_dir`].
    pub fn from_hf_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let tokenizer = HfTokenizer::of_json(bytes)?;
        Ok(Self { backend: Backend::Hf(Box::new(tokenizer)), templates: ChatTemplates::default() })
    }

    /// Encodes a text as data: control tokens written out in it stay text. `add_special` adds BOS and EOS
    /// as the model's metadata says.
    ///
    /// # Errors
    /// When the metadata asks for a special token that it does not define, or a byte has no token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with_special(text, false, add_special)
    }

    /// As [`encode`](Self::encode); with `parse_special`, control tokens written out in the text become
    /// those tokens, as a rendered chat template needs.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_special(
        &self,
        text: &str,
        parse_special: bool,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.encode(text, parse_special, [add_special; 2]),
            Backend::Hf(hf) => Ok(hf.encode(text, parse_special, add_special)),
        }
    }

    /// Encodes what a chat template rendered: control tokens written out in it become tokens. A template
    /// says what a conversation begins with and where a turn ends, so nothing is added to that of a Hugging
    /// Face directory, as in `transformers`. To that of a GGUF file a BOS is added where the metadata asks
    /// for one and the template wrote none, as in llama.cpp.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = match &self.backend {
            Backend::Gguf(gguf) => gguf.encode(rendered, true, [true, false])?,
            Backend::Hf(hf) => return Ok(hf.encode(rendered, true, false)),
        };
        if let [first, second, ..] = tokens[..]
            && first == second
            && self.bos() == Some(first)
        {
            tokens.remove(0);
        }
        Ok(tokens)
    }

    /// The text of `tokens`, without the space that encoding put in front. `skip_special` leaves control
    /// tokens out. Bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.decode(tokens, skip_special),
            Backend::Hf(hf) => hf.decode(tokens, skip_special),
        }
    }

    /// The bytes that one token adds to a text; not always whole characters. Special tokens give their
    /// text, ids outside the vocabulary nothing.
    pub fn token_bytes(&self, token: u32) -> Cow<'_, [u8]> {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.vocab.bytes(token),
            Backend::Hf(hf) => hf.token_bytes(token),
        }
    }

    /// The id of the token with exactly this text, in the spelling of the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.backend {
            Backend::Gguf(gguf) => {
                (0..gguf.vocab.len() as u32).find(|token| gguf.vocab.text(*token) == text)
            }
            Backend::Hf(hf) => hf.token_id(text),
        }
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.vocab.len(),
            Backend::Hf(hf) => hf.vocab_size(),
        }
    }

    /// The token at the start of a sequence.
    pub fn bos(&self) -> Option<u32> {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.vocab.bos,
            Backend::Hf(hf) => hf.bos,
        }
    }

    /// The token at the end of a sequence.
    pub fn eos(&self) -> Option<u32> {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.vocab.eos,
            Backend::Hf(hf) => hf.eos,
        }
    }

    /// Whether a model that emits this token is done: the end of the text, of a turn or of a message.
    pub fn is_eog(&self, token: u32) -> bool {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.vocab.eog.contains(&token),
            Backend::Hf(hf) => hf.eog.contains(&token),
        }
    }

    /// Whether the token is a control token, which is not part of a text.
    pub fn is_special(&self, token: u32) -> bool {
        match &self.backend {
            Backend::Gguf(gguf) => gguf.vocab.is_special(token),
            Backend::Hf(hf) => hf.is_special(token),
        }
    }

    /// The texts of the special tokens by the names that chat templates have for them, such as `unk_token`.
    /// `bos_token` and `eos_token` are always there, empty where the model has none.
    pub fn special_texts(&self) -> BTreeMap<String, String> {
        let mut texts: BTreeMap<String, String> = match &self.backend {
            Backend::Gguf(gguf) => {
                let named =
                    gguf.named.iter().map(|(name, id)| (name.clone(), self.token_text(*id)));
                named.collect()
            }
            Backend::Hf(hf) => hf.named.clone(),
        };
        for (name, token) in [("bos_token", self.bos()), ("eos_token", self.eos())] {
            let text = token.map(|id| self.token_text(id)).unwrap_or_default();
            texts.entry(name.to_owned()).or_insert(text);
        }
        texts
    }

    fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(token)).into_owned()
    }

    /// The chat template that came with the model, as Jinja source.
    pub fn chat_template(&self) -> Option<&str> {
        self.templates.default.as_deref()
    }

    /// The chat template for conversations with tools, as Jinja source, where the model has one of its
    /// own for them: the one that is called `tool_use`.
    pub fn tool_template(&self) -> Option<&str> {
        self.templates.tool_use.as_deref()
    }
}

impl GgufTokenizer {
    /// `around` says whether BOS and EOS may be added, as the metadata asks for.
    fn encode(
        &self,
        text: &str,
        parse_special: bool,
        around: [bool; 2],
    ) -> Result<Vec<u32>, TokenizerError> {
        let [bos, eos] = around;
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if bos && self.vocab.add_bos {
            out.push(self.vocab.bos.ok_or(TokenizerError::NoSpecialToken { token: "bos" })?);
        }
        let mut behind_special = true;
        for segment in self.special.split(&self.vocab, text, parse_special) {
            let range = match segment {
                Segment::Token(token) => {
                    out.push(token);
                    behind_special = true;
                    continue;
                }
                Segment::Text(range) => range,
            };
            let prefix = self.add_space_prefix && behind_special;
            behind_special = false;
            let part = self.escape(&text[range], prefix);
            match &self.merges {
                Merges::Bpe(bpe) => bpe.encode(&self.vocab, &part, &mut out),
                Merges::Spm(spm) => spm.encode(&self.vocab, &part, &mut out)?,
            }
        }
        if eos && self.vocab.add_eos {
            out.push(self.vocab.eos.ok_or(TokenizerError::NoSpecialToken { token: "eos" })?);
        }
        Ok(out)
    }

    fn escape<'a>(&self, text: &'a str, prefix: bool) -> Cow<'a, str> {
        if !self.escape_spaces {
            return Cow::Borrowed(text);
        }
        let escaped = text.replace(' ', "▁");
        Cow::Owned(if prefix { format!("▁{escaped}") } else { escaped })
    }

    fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        let shown = tokens.iter().filter(|token| !(skip_special && self.vocab.is_special(**token)));
        for (i, token) in shown.enumerate() {
            let piece = self.vocab.bytes(*token);
            let has_prefix = i == 0 && self.add_space_prefix && !self.vocab.is_special(*token);
            let piece = piece.strip_prefix(b" ").filter(|_| has_prefix).unwrap_or(&piece);
            bytes.extend_from_slice(piece);
        }
        match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }
}
