//! Tokenizers of Hugging Face model directories.
//!
//! A text takes the way that the `tokenizers` library gives it, token for token: added tokens are found in
//! it (`added`), what is between them is normalised (`normalize`) and searched for the tokens that are added
//! in normalised form, then cut (`cut`) and encoded piece by piece (`model`). Back from tokens to text, the
//! decoders of the file follow each other (`decode`). `json` is what a file may say; `file` and `components`
//! refuse the rest. Of the configuration beside it, one setting changes the file (`prefix`).
//!
//! Not as in the library: NFC follows a later Unicode version, which has more combining marks.

mod added;
mod components;
mod cut;
mod decode;
mod file;
mod json;
mod model;
mod normalize;
mod prefix;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use self::components::{Spelling, refuse};
use self::cut::{META_SPACE, Pieces};
use self::file::HfFile;
use self::normalize::Normalized;
use self::prefix::PrefixSpace;
use super::TokenizerError;
use super::merges::Scratch;
use super::special::Segment;
use super::templates::ChatTemplates;
use super::unicode;
use super::vocab::END_OF_GENERATION;
use crate::files::{self, MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES};

#[derive(Debug)]
pub(super) struct HfTokenizer {
    file: HfFile,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eog: BTreeSet<u32>,
    /// The texts that `tokenizer_config.json` gives to names such as `unk_token`.
    pub(super) named: BTreeMap<String, String>,
}

/// A file of at most `max` bytes, if it is there.
fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    match files::read(path, max) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Io { path: path.display().to_string(), source }),
    }
}

/// A JSON file; null when absent.
fn read_json(path: &Path) -> Result<Value, TokenizerError> {
    let Some(bytes) = read(path, MAX_CONFIG_BYTES)? else { return Ok(Value::Null) };
    serde_json::from_slice(&bytes).map_err(|error| TokenizerError::Malformed {
        what: path.display().to_string(),
        reason: error.to_string(),
    })
}

/// `tokenizer_config.json` names a token by its text or by an object with its `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// The chat templates of a configuration: one text, or a list of named ones.
fn configured_templates(config: &Value) -> ChatTemplates {
    let template = &config["chat_template"];
    let named = |name: &str| {
        let entry = template.as_array()?.iter().find(|entry| entry["name"] == name)?;
        entry["template"].as_str()
    };
    let default = template.as_str().or_else(|| named("default")).map(Into::into);
    ChatTemplates { default, tool_use: named("tool_use").map(Into::into) }
}

/// A template that is a file of its own.
fn template_file(path: &Path) -> Result<Option<String>, TokenizerError> {
    let malformed = |error: std::string::FromUtf8Error| TokenizerError::Malformed {
        what: path.display().to_string(),
        reason: error.to_string(),
    };
    let bytes = read(path, MAX_CONFIG_BYTES)?;
    bytes.map(|bytes| String::from_utf8(bytes).map_err(malformed)).transpose()
}

impl HfTokenizer {
    /// Loads the tokenizer and the chat templates of a directory.
    pub(super) fn load(dir: &Path) -> Result<(Self, ChatTemplates), TokenizerError> {
        let path = dir.join("tokenizer.json");
        let bytes = read(&path, MAX_TOKENIZER_BYTES)?.ok_or_else(|| TokenizerError::Missing {
            what: path.display().to_string(),
            hint: "save the model's fast tokenizer (a lone tokenizer.model is not read), or use a GGUF file",
        })?;
        let config = read_json(&dir.join("tokenizer_config.json"))?;
        // Either may be the only one that says what ends a text.
        let files =
            [read_json(&dir.join("generation_config.json"))?, read_json(&dir.join("config.json"))?];
        let file = file::read(&bytes, PrefixSpace::of(&config, &files[1]["model_type"]))?;
        let id = |value: &Value| token_text(value).and_then(|text| file.token_id(text));
        let (bos, eos) = (id(&config["bos_token"]), id(&config["eos_token"]));
        let ends = files.iter().flat_map(|file| match &file["eos_token_id"] {
            Value::Array(several) => several.as_slice(),
            one => std::slice::from_ref(one),
        });
        let ends = ends.filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok());
        let mut eog: BTreeSet<u32> = ends.collect();
        eog.extend(eos);
        eog.extend(END_OF_GENERATION.iter().filter_map(|text| file.token_id(text)));

        let templates = match template_file(&dir.join("chat_template.jinja"))? {
            Some(default) => ChatTemplates {
                default: Some(default),
                tool_use: template_file(&dir.join("additional_chat_templates/tool_use.jinja"))?,
            },
            None => configured_templates(&config),
        };
        let entries = config.as_object().into_iter().flatten();
        let named = entries.filter(|(name, _)| name.ends_with("_token"));
        let named =
            named.filter_map(|(name, value)| Some((name.clone(), token_text(value)?.into())));
        let named = named.collect();
        Ok((Self { file, bos, eos, eog, named }, templates))
    }

    /// The tokenizer of a `tokenizer.json` alone: nothing ends a text.
    pub(super) fn of_json(bytes: &[u8]) -> Result<Self, TokenizerError> {
        if bytes.len() as u64 > MAX_TOKENIZER_BYTES {
            return refuse(format!("it has more than {MAX_TOKENIZER_BYTES} bytes"));
        }
        let file = file::read(bytes, None)?;
        let (eog, named) = (BTreeSet::new(), BTreeMap::new());
        Ok(Self { file, bos: None, eos: None, eog, named })
    }

    pub(super) fn encode(&self, text: &str, parse_special: bool, add_special: bool) -> Vec<u32> {
        let file = &self.file;
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        out.extend(file.before.iter().filter(|_| add_special));
        let mut scratch = Scratch::default();
        for segment in file.added.split(text, false, parse_special) {
            let range = match segment {
                Segment::Token(token) => {
                    out.push(token);
                    continue;
                }
                Segment::Text(range) => range,
            };
            let is_first = range.start == 0;
            let Normalized { text, first } =
                Normalized::new(&file.normalizers, &text[range], is_first);
            for segment in file.added.split(&text, true, parse_special) {
                match segment {
                    Segment::Token(token) => out.push(token),
                    Segment::Text(range) => {
                        let first = first.saturating_sub(range.start);
                        for piece in Pieces::new(&file.steps, &text[range], first).iter() {
                            file.model.encode(piece, &mut scratch, &mut out);
                        }
                    }
                }
            }
        }
        out.extend(file.behind.iter().filter(|_| add_special));
        out
    }

    pub(super) fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let added = &self.file.added;
        let shown = tokens.iter().filter(|token| !(skip_special && added.is_hidden(**token)));
        let texts = shown.filter_map(|token| {
            let text = added.get(*token).and_then(|token| token.normalized.as_ref());
            text.or_else(|| self.file.texts.get(token)).map(|text| Cow::Borrowed(text.as_str()))
        });
        decode::decode(&self.file.decoders, texts.collect())
    }

    pub(super) fn token_bytes(&self, token: u32) -> Cow<'_, [u8]> {
        let Some(text) = self.file.texts.get(&token) else { return Cow::Borrowed(&[]) };
        let plain = Cow::Borrowed(text.as_bytes());
        let added = self.file.added.get(token);
        let is_word = matches!(self.file.spelling, Spelling::Words(_));
        if added.is_some_and(|added| added.special || !is_word) {
            return plain;
        }
        let byte = || u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok();
        match &self.file.spelling {
            Spelling::ByteAlphabet => unicode::alphabet_to_bytes(text).map_or(plain, Cow::Owned),
            Spelling::Escaped => Cow::Owned(match byte() {
                Some(byte) => vec![byte],
                None => text.replace(META_SPACE, " ").into_bytes(),
            }),
            Spelling::Words(None) => Cow::Owned(format!(" {text}").into_bytes()),
            Spelling::Words(Some(prefix)) => Cow::Owned(prefix.joined(text).into_bytes()),
            Spelling::Plain => plain,
        }
    }

    pub(super) fn token_id(&self, text: &str) -> Option<u32> {
        self.file.token_id(text)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.file.texts.len()
    }

    pub(super) fn is_special(&self, token: u32) -> bool {
        self.file.added.get(token).is_some_and(|token| token.special)
    }
}
