//! The messages of a conversation.

use serde::{Deserialize, Serialize};

/// One message of a conversation.
///
/// ```
/// use ruvllm_engine::chat::Message;
///
/// let conversation = [
///     Message::new("system", "Answer in one sentence."),
///     Message::new("user", "Why is the sky blue?"),
/// ];
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}
