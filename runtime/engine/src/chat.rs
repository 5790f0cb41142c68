//! Chat templates: a conversation rendered to the text a model was trained on.
//!
//! A template is a program that comes with a model file, and no interpreter of the language bounds what
//! every construct costs: chains of operators take the stack, filters memory, loops time. So whoever opens a
//! model says where its template runs, by a [`Renderer`]. In a process of its own it has budgets of steps,
//! stack, memory, bytes and time that hold whatever it does, and what exceeds one is an error of that
//! rendering alone. In this process only steps are bounded, which is for templates that are trusted as code
//! is; and a template that nobody has decided about does not run.
//!
//! The interpreter is the feature `chat-templates`.

#[cfg_attr(not(feature = "chat-templates"), path = "chat/absent.rs")]
mod jinja;
mod process;

use std::collections::BTreeMap;
use std::time::Duration;

use ruvllm_host::process::HelperProcess;
use serde::{Deserialize, Serialize};

pub use process::renderer_process;

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

/// Errors of [`ChatTemplate`].
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

/// Where a chat template runs.
///
/// ```
/// use ruvllm_engine::chat::Renderer;
///
/// // A file from anywhere: `main` answers `Renderer::COMMAND` by `renderer_process`.
/// let bounded = Renderer::this_program(1);
/// // A file that is trusted as this program is.
/// let unbounded = Renderer::InProcess;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Renderer {
    /// Nowhere: rendering is refused with [`ChatError::NoRenderer`].
    #[default]
    None,
    /// In this process, with a budget of steps alone: a hostile template can end the process or take its
    /// memory. For templates that are trusted as code is.
    InProcess,
    /// In processes of their own, which the system stops at their limits.
    Process(HelperProcess),
}

impl Renderer {
    /// The argument on which a program that is its own renderer calls [`renderer_process`].
    pub const COMMAND: &str = "render-template";

    /// This program, started anew with [`Renderer::COMMAND`], for as many conversations at the same time.
    pub fn this_program(processes: usize) -> Self {
        let process = HelperProcess::this_program(Self::COMMAND);
        Self::Process(HelperProcess { processes, ..process })
    }
}

/// A chat template. Threads share it freely.
#[derive(Debug)]
pub struct ChatTemplate(TemplateBackend);

#[derive(Debug)]
enum TemplateBackend {
    None,
    InProcess(Box<jinja::Template>),
    Process(process::Pool),
}

impl ChatTemplate {
    /// Compiles a template; `bos` and `eos` are the texts behind `bos_token` and `eos_token`, empty where
    /// the model has none. A process renders one message on trial, so that a template that cannot be run
    /// within the limits is refused here.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] when the template does not parse; from a process also [`ChatError::Limit`],
    /// [`ChatError::Timeout`] and [`ChatError::Unavailable`].
    pub fn new(
        source: &str,
        bos: impl Into<String>,
        eos: impl Into<String>,
        renderer: &Renderer,
    ) -> Result<Self, ChatError> {
        let tokens = [("bos_token", bos.into()), ("eos_token", eos.into())];
        let tokens = tokens.map(|(name, text)| (name.to_owned(), text));
        Self::with_tokens(source, &BTreeMap::from(tokens), renderer)
    }

    /// As [`ChatTemplate::new`], with the texts of all special tokens by the names that templates have for
    /// them, such as `bos_token` and `unk_token`. One that is not there is undefined to the template.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn with_tokens(
        source: &str,
        tokens: &BTreeMap<String, String>,
        renderer: &Renderer,
    ) -> Result<Self, ChatError> {
        Ok(Self(match renderer {
            Renderer::None => TemplateBackend::None,
            Renderer::InProcess => {
                TemplateBackend::InProcess(Box::new(jinja::Template::new(source, tokens)?))
            }
            Renderer::Process(process) => {
                TemplateBackend::Process(process::Pool::start(process, source, tokens)?)
            }
        }))
    }

    /// Renders a conversation; `add_generation_prompt` appends the start of an answer.
    ///
    /// # Errors
    /// [`ChatError::Refused`] when the template rejects the messages (roles that do not alternate, a system
    /// message it has no place for), [`ChatError::Render`] when it fails otherwise;
    /// [`ChatError::NoRenderer`] without a renderer; [`ChatError::Disabled`] without the feature
    /// `chat-templates`; from a process also those of its limits.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with_tools(messages, None, add_generation_prompt)
    }

    /// As [`ChatTemplate::render`], for messages with more than text (tool calls, their results) as JSON in
    /// the form that templates expect, and the tools that the model may call, an array of
    /// `{"type": "function", "function": {...}}`.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_with_tools(
        &self,
        messages: impl Serialize,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_while(messages, tools, add_generation_prompt, &|| true)
    }

    /// As [`ChatTemplate::render_with_tools`], as long as somebody waits for it: a process is stopped soon
    /// after `waited_for` turns false. It is asked some twenty times a second.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and [`ChatError::Cancelled`].
    pub fn render_while(
        &self,
        messages: impl Serialize,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<String, ChatError> {
        match &self.0 {
            TemplateBackend::None => Err(ChatError::NoRenderer),
            TemplateBackend::InProcess(template) => {
                template.render(messages, tools, add_generation_prompt)
            }
            TemplateBackend::Process(pool) => {
                pool.render(messages, tools, add_generation_prompt, waited_for)
            }
        }
    }
}
