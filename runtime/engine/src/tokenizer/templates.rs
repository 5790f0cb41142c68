//! The chat templates that come with a tokenizer.

/// The sources of a model's chat templates.
#[derive(Debug, Default)]
pub(super) struct ChatTemplates {
    pub(super) default: Option<String>,
    /// The one for conversations with tools, where that is another.
    pub(super) tool_use: Option<String>,
}
