//! Tokenizers of Hugging Face model directories.
//!
//! Encoding and decoding are the `tokenizers` crate's; this module adds what lies in the files around
//! `tokenizer.json`, and the bytes of single tokens, which streaming needs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use super::error::TokenizerError;
use super::unicode;
use super::vocab::END_OF_GENERATION;

#[derive(Debug)]
pub(super) struct HfTokenizer {
    tokenizer: tokenizers::Tokenizer,
    /// A copy that does not recognise special tokens in texts, made when first needed.
    literal: OnceLock<tokenizers::Tokenizer>,
    /// Text of every added token, and whether it is a control token.
    added: BTreeMap<u32, (String, bool)>,
    spelling: Spelling,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eog: BTreeSet<u32>,
}

/// How the texts of tokens stand for bytes, after the decoder of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    ByteAlphabet,
    Escaped,
    Plain,
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TokenizerError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Io { path: path.display().to_string(), source }),
    }
}

/// A JSON file; null when absent.
fn read_json(path: &Path) -> Result<Value, TokenizerError> {
    let Some(bytes) = read(path)? else { return Ok(Value::Null) };
    serde_json::from_slice(&bytes).map_err(|error| TokenizerError::Malformed {
        what: path.display().to_string(),
        reason: error.to_string(),
    })
}

/// The types of a decoder and of the decoders inside it.
fn decoder_types(decoder: &Value, types: &mut Vec<String>) {
    types.extend(decoder["type"].as_str().map(Into::into));
    // `Replace` of U+2581 is how newer files spell what `Metaspace` did.
    if decoder["pattern"]["String"].as_str() == Some("▁") {
        types.push("Metaspace".into());
    }
    for inner in decoder["decoders"].as_array().into_iter().flatten() {
        decoder_types(inner, types);
    }
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
        let bytes = read(&path)?.ok_or_else(|| TokenizerError::Missing {
            what: path.display().to_string(),
            hint: "save the model's fast tokenizer (a lone tokenizer.model is not read), or use a GGUF file",
        })?;
        let fail = |error: tokenizers::Error| TokenizerError::HuggingFace(error.to_string());
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes).map_err(fail)?;
        // Training-time settings of some files; a prompt must not be cut or filled up.
        tokenizer.with_truncation(None).map_err(fail)?;
        tokenizer.with_padding(None);

        let config = read_json(&dir.join("tokenizer_config.json"))?;
        let generation = read_json(&dir.join("generation_config.json"))?;
        let id = |value: &Value| token_text(value).and_then(|text| tokenizer.token_to_id(text));
        let (bos, eos) = (id(&config["bos_token"]), id(&config["eos_token"]));
        let ends = &generation["eos_token_id"];
        let ends = ends.as_array().map_or(std::slice::from_ref(ends), Vec::as_slice);
        let mut eog: BTreeSet<u32> =
            ends.iter().filter_map(Value::as_u64).map(|id| id as u32).collect();
        eog.extend(eos);
        eog.extend(END_OF_GENERATION.iter().filter_map(|text| tokenizer.token_to_id(text)));

        let added = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, (token.content, token.special)))
            .collect();
        let decoder = tokenizer.get_decoder().map(serde_json::to_value).transpose();
        let decoder = decoder.map_err(|error| TokenizerError::HuggingFace(error.to_string()))?;
        let mut types = Vec::new();
        decoder_types(&decoder.unwrap_or_default(), &mut types);
        let has = |name: &str| types.iter().any(|kind| kind == name);
        let spelling = if has("ByteLevel") {
            Spelling::ByteAlphabet
        } else if has("Metaspace") || has("ByteFallback") {
            Spelling::Escaped
        } else {
            Spelling::Plain
        };

        let template = match read(&dir.join("chat_template.jinja"))? {
            Some(bytes) => {
                Some(String::from_utf8(bytes).map_err(|error| TokenizerError::Malformed {
                    what: "chat_template.jinja".into(),
                    reason: error.to_string(),
                })?)
            }
            None => configured_template(&config),
        };
        Ok((Self { tokenizer, literal: OnceLock::new(), added, spelling, bos, eos, eog }, template))
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
        let encoding = tokenizer.encode_fast(text, add_special);
        let encoding = encoding.map_err(|error| TokenizerError::HuggingFace(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
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
