//! In place of the interpreter, in a build without the feature `chat-templates`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::error::ChatError;

/// A template that nothing renders.
#[derive(Debug)]
pub(super) struct Template;

impl Template {
    /// Models with a template are used without it, so that only rendering is an error.
    pub(super) fn new(
        _: &str,
        _: Option<&str>,
        _: &BTreeMap<String, String>,
    ) -> Result<Self, ChatError> {
        Ok(Self)
    }

    pub(super) fn render(
        &self,
        _: impl Serialize,
        _: Option<&serde_json::Value>,
        _: bool,
    ) -> Result<String, ChatError> {
        Err(ChatError::Disabled)
    }
}
