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

mod error;
#[cfg_attr(not(feature = "chat-templates"), path = "chat/absent.rs")]
mod jinja;
mod message;
mod process;

use std::collections::BTreeMap;

use ruvllm_host::process::HelperProcess;
use serde::Serialize;

pub use error::ChatError;
pub use message::Message;
pub use process::renderer_process;

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
        Self::with_tool_template(source, None, tokens, renderer)
    }

    /// As [`ChatTemplate::with_tokens`], with a template of its own for the conversations that have
    /// tools.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`], for either template.
    pub fn with_tool_template(
        source: &str,
        tool_use: Option<&str>,
        tokens: &BTreeMap<String, String>,
        renderer: &Renderer,
    ) -> Result<Self, ChatError> {
        Ok(Self(match renderer {
            Renderer::None => TemplateBackend::None,
            Renderer::InProcess => TemplateBackend::InProcess(Box::new(jinja::Template::new(
                source, tool_use, tokens,
            )?)),
            Renderer::Process(process) => {
                TemplateBackend::Process(process::Pool::start(process, source, tool_use, tokens)?)
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
