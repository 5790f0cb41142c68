//! Tokenizers of Hugging Face model directories.
//!
//! Encoding and decoding are the `tokenizers` crate's, as far as `hf_file` lets a file use it; this module
//! adds what lies in the files around `tokenizer.json`, and the bytes of single tokens, which streaming
//! needs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use super::error::TokenizerError;
use super::hf_file::{self, HfFile, Spelling};
use super::unicode;
use super::vocab::END_OF_GENERATION;
use crate::files::{self, MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES};

#[derive(Debug)]
pub(super) struct HfTokenizer {
    tokenizer: tokenizers::Tokenizer,
    /// A copy that does not recognise special tokens in texts, made when first needed.
    literal: OnceLock<tokenizers::Tokenizer>,
    /// Text of every added token, and whether it is a control token.
    added: BTreeMap<u32, (String, bool)>,
    spelling: Spelling,
    /// Tokens around a text, where special ones are added.
    before: Vec<u32>,
    behind: Vec<u32>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eog: BTreeSet<u32>,
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

/// The default chat template: one text, or a list of named ones.
fn configured_template(config: &Value) -> Option<String> {
    let template = &config["chat_template"];
    let named = || {
        let default = template.as_array()?.iter().find(|entry| entry["name"] == "default")?;
        default["template"].as_str()
    };
    template.as_str().or_else(named).map(Into::into)
}

impl HfTokenizer {
    /// Loads the tokenizer and the chat template of a directory.
    pub(super) fn load(dir: &Path) -> Result<(Self, Option<String>), TokenizerError> {
        let path = dir.join("tokenizer.json");
        let bytes = read(&path, MAX_TOKENIZER_BYTES)?.ok_or_else(|| TokenizerError::Missing {
            what: path.display().to_string(),
            hint: "save the model's fast tokenizer (a lone tokenizer.model is not read), or use a GGUF file",
        })?;
        let HfFile { tokenizer, before, behind, spelling } = hf_file::read(&bytes)?;

        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let generation = read_json(&dir.join("generation_config.json"))?;
        let id = |value: &Value| token_text(value).and_then(|text| tokenizer.token_to_id(text));
        let (bos, eos) = (id(&config["bos_token"]), id(&config["eos_token"]));
        let ends = &generation["eos_token_id"];
        let ends = ends.as_array().map_or(std::slice::from_ref(ends), Vec::as_slice);
        let ends = ends.iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok());
        let mut eog: BTreeSet<u32> = ends.collect();
        eog.extend(eos);
        eog.extend(END_OF_GENERATION.iter().filter_map(|text| tokenizer.token_to_id(text)));

        let added = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, (token.content, token.special)))
            .collect();
        let template = match read(&dir.join("chat_template.jinja"), MAX_CONFIG_BYTES)? {
            Some(bytes) => {
                Some(String::from_utf8(bytes).map_err(|error| TokenizerError::Malformed {
                    what: "chat_template.jinja".into(),
                    reason: error.to_string(),
                })?)
            }
            None => configured_template(&config),
        };
        let literal = OnceLock::new();
        Ok((Self { tokenizer, literal, added, spelling, before, behind, bos, eos, eog }, template))
    }

    pub(super) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        add_special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let tokenizer = match parse_special {
            true => &self.tokenizer,
            false => self.literal.get_or_init(|| {
                let mut literal = self.tokenizer.clone();
                literal.set_encode_special_tokens(true);
                literal
            }),
        };
        let encoding = tokenizer.encode_fast(text, false);
        let encoding = encoding.map_err(|error| TokenizerError::HuggingFace(error.to_string()))?;
        let ids = encoding.get_ids();
        Ok(match add_special {
            true => [&self.before[..], ids, &self.behind].concat(),
            false => ids.to_vec(),
        })
    }

    pub(super) fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        // The crate fails on no ids that it gave out; unknown ones it leaves out.
        self.tokenizer.decode(tokens, skip_special).unwrap_or_default()
    }

    pub(super) fn token_bytes(&self, token: u32) -> Cow<'_, [u8]> {
        if let Some((text, _)) = self.added.get(&token) {
            return Cow::Borrowed(text.as_bytes());
        }
        let Some(text) = self.tokenizer.id_to_token(token) else { return Cow::Borrowed(&[]) };
        let byte = || u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok();
        Cow::Owned(match self.spelling {
            Spelling::ByteAlphabet => {
                unicode::alphabet_to_bytes(&text).unwrap_or(text.into_bytes())
            }
            Spelling::Escaped => {
                byte().map_or_else(|| text.replace('▁', " ").into_bytes(), |byte| vec![byte])
            }
            Spelling::Plain => text.into_bytes(),
        })
    }

    pub(super) fn token_id(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    pub(super) fn is_special(&self, token: u32) -> bool {
        self.added.get(&token).is_some_and(|(_, special)| *special)
    }
}
