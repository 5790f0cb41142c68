//! Errors of chat templates.

use std::time::Duration;

/// Errors of [`ChatTemplate`](super::ChatTemplate).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template does not parse.
    #[error("the model's chat template does not parse: {reason}; give another template")]
    Syntax {
        /// Where and why.
        reason: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("the model's chat template refuses these messages: {reason}")]
    Refused {
        /// The template's own words.
        reason: String,
    },
    /// The template failed on the conversation.
    #[error("the model's chat template failed: {reason}")]
    Render {
        /// Where and why.
        reason: String,
    },
    /// The template needs more stack, memory or bytes than it may use.
    #[error("the model's chat template takes more than it may: {reason}; give another template")]
    Limit {
        /// What it met.
        reason: String,
    },
    /// The template did not end in time.
    #[error("the model's chat template takes longer than {limit:?}; give another template")]
    Timeout {
        /// The time that it has.
        limit: Duration,
    },
    /// Whoever waited for the text does no longer.
    #[error("nobody waits for what the model's chat template renders")]
    Cancelled,
    /// The process for templates cannot be had.
    #[error("the model's chat template needs a process of its own: {reason}")]
    Unavailable {
        /// Why not.
        reason: String,
    },
    /// Nobody said where the template may run.
    #[error(
        "the model's chat template is code from a file, and nothing says where it may run: name a process with `Renderer::Process`, or, for a file that is trusted as a program is, `Renderer::InProcess`"
    )]
    NoRenderer,
    /// The program has no interpreter of templates.
    #[error(
        "this program renders no chat templates, since it was built without the feature `chat-templates`: turn it on, or give a text to continue"
    )]
    Disabled,
}

impl ChatError {
    /// Stable identifier of the kind of error, for logs and APIs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Syntax { .. } => "chat_template_syntax",
            Self::Refused { .. } => "chat_template_refused",
            Self::Render { .. } => "chat_template_render",
            Self::Limit { .. } => "chat_template_limit",
            Self::Timeout { .. } => "chat_template_timeout",
            Self::Cancelled => "chat_template_cancelled",
            Self::Unavailable { .. } => "chat_template_unavailable",
            Self::NoRenderer => "chat_template_no_renderer",
            Self::Disabled => "chat_template_disabled",
        }
    }
}
