//! Typed access to GGUF metadata.

use std::collections::HashMap;

use super::TokenizerError;
use crate::gguf::Value;

/// Attribute bits of a token; several may be set.
pub(super) mod attr {
    pub(in crate::tokenizer) const UNKNOWN: u16 = 1;
    pub(in crate::tokenizer) const UNUSED: u16 = 2;
    pub(in crate::tokenizer) const NORMAL: u16 = 4;
    pub(in crate::tokenizer) const CONTROL: u16 = 8;
    pub(in crate::tokenizer) const USER_DEFINED: u16 = 16;
    pub(in crate::tokenizer) const BYTE: u16 = 32;
    /// White space in front of the token goes with it.
    pub(in crate::tokenizer) const LSTRIP: u16 = 64;
    /// White space behind the token goes with it.
    pub(in crate::tokenizer) const RSTRIP: u16 = 128;
}

/// The key-value pairs of a GGUF file.
pub(super) struct Metadata<'a>(pub(super) &'a HashMap<String, Value>);

fn malformed(key: &str, reason: impl Into<String>) -> TokenizerError {
    TokenizerError::Malformed { what: key.into(), reason: reason.into() }
}

/// A number, or a truth value as one.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Bool(v) => Some((*v).into()),
        other => other.as_i64(),
    }
}

impl<'a> Metadata<'a> {
    /// A text; empty when absent.
    pub(super) fn text(&self, key: &str) -> &'a str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn required_text(&self, key: &str) -> Result<&'a str, TokenizerError> {
        match self.0.get(key) {
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(malformed(key, "not a string")),
            None => Err(missing(key)),
        }
    }

    pub(super) fn u32(&self, key: &str) -> Result<Option<u32>, TokenizerError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let value = integer(value).ok_or_else(|| malformed(key, "not an integer"))?;
        // A negative id is how some writers say "none".
        Ok(u32::try_from(value).ok())
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, TokenizerError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(malformed(key, "not a boolean")),
        }
    }

    fn array(&self, key: &str) -> Result<Option<&'a [Value]>, TokenizerError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(_) => Err(malformed(key, "not an array")),
        }
    }

    /// A required array of strings.
    pub(super) fn strings(
        &self,
        key: &str,
    ) -> Result<impl Iterator<Item = &'a str>, TokenizerError> {
        let values = self.array(key)?.ok_or_else(|| missing(key))?;
        let text = |value: &'a Value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        };
        if values.iter().any(|value| text(value).is_none()) {
            return Err(malformed(key, "not an array of strings"));
        }
        Ok(values.iter().filter_map(text))
    }

    /// `tokenizer.ggml.scores`, zeros when absent.
    pub(super) fn scores(&self, len: usize) -> Result<Vec<f32>, TokenizerError> {
        let key = "tokenizer.ggml.scores";
        let Some(values) = self.long_enough(key, len)? else { return Ok(vec![0.0; len]) };
        let score = |value: &Value| match value {
            Value::F32(score) => Ok(*score),
            Value::I32(score) => Ok(*score as f32),
            _ => Err(malformed(key, "not an array of 32-bit numbers")),
        };
        values.iter().map(score).collect()
    }

    /// `tokenizer.ggml.token_type` as attributes, all normal when absent.
    pub(super) fn token_types(&self, len: usize) -> Result<Vec<u16>, TokenizerError> {
        let key = "tokenizer.ggml.token_type";
        let Some(values) = self.long_enough(key, len)? else { return Ok(vec![attr::NORMAL; len]) };
        let attributes = |value: &Value| match integer(value) {
            Some(1) => Ok(attr::NORMAL),
            Some(2) => Ok(attr::UNKNOWN),
            Some(3) => Ok(attr::CONTROL),
            Some(4) => Ok(attr::USER_DEFINED),
            Some(5) => Ok(attr::UNUSED),
            Some(6) => Ok(attr::BYTE),
            Some(_) => Ok(0),
            None => Err(malformed(key, "not an array of integers")),
        };
        values.iter().map(attributes).collect()
    }

    fn long_enough(&self, key: &str, len: usize) -> Result<Option<&'a [Value]>, TokenizerError> {
        match self.array(key)? {
            Some(values) if values.len() < len => {
                Err(malformed(key, format!("{} entries for {len} tokens", values.len())))
            }
            values => Ok(values.map(|values| &values[..len])),
        }
    }
}

fn missing(key: &str) -> TokenizerError {
    TokenizerError::Missing { what: key.into(), hint: "convert the model again with its tokenizer" }
}
