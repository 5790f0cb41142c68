//! Rendering in processes of their own, with limits that hold for every construct of a template.
//!
//! A process is given one template, which it compiles, and then conversations, one after the other. The
//! interpreter bounds the steps, a [`Pool`] everything else, and no text is longer than its conversation
//! explains.
//!
//! This guards time and memory. It is no guard against a template that takes the interpreter over.

use std::collections::BTreeMap;
use std::process::ExitCode;

use ruvllm_host::process::{Failure, HelperProcess, answer_requests};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::ChatError;
use super::jinja::Template;
use super::message::Message;

/// The longest template, with the one for tools.
const MAX_SOURCE: usize = 1 << 20;
/// The longest conversation with its tools, as JSON.
const MAX_REQUEST: usize = 32 << 20;
/// The longest reason for a failure, in characters.
const MAX_REASON: usize = 1000;

/// The bytes that a conversation of this length may become.
fn max_text(request: usize) -> usize {
    (1 << 20) + 8 * request
}

/// What a process is told first.
#[derive(Serialize, Deserialize)]
struct Setup {
    source: String,
    #[serde(default)]
    tool_use: Option<String>,
    tokens: BTreeMap<String, String>,
}

/// What it is told each time.
#[derive(Serialize, Deserialize)]
struct Conversation<M, T> {
    messages: M,
    tools: T,
    add_generation_prompt: bool,
}

/// Why it refuses, as it tells its parent.
#[derive(Serialize, Deserialize)]
enum Refusal {
    Syntax(String),
    Refused(String),
    Render(String),
    Limit(String),
    Disabled,
}

impl Refusal {
    fn to_bytes(error: ChatError) -> Vec<u8> {
        let (kind, reason): (fn(String) -> Refusal, String) = match error {
            ChatError::Syntax { reason } => (Refusal::Syntax, reason),
            ChatError::Refused { reason } => (Refusal::Refused, reason),
            ChatError::Limit { reason } => (Refusal::Limit, reason),
            ChatError::Render { reason } => (Refusal::Render, reason),
            ChatError::Disabled => (|_| Refusal::Disabled, String::new()),
            error => (Refusal::Render, error.to_string()),
        };
        let refusal = kind(reason.chars().take(MAX_REASON).collect());
        // Nothing in it cannot be written; no bytes at all are a refusal, too.
        serde_json::to_vec(&refusal).unwrap_or_default()
    }

    fn to_error(bytes: &[u8]) -> ChatError {
        match serde_json::from_slice(bytes) {
            Ok(Refusal::Syntax(reason)) => ChatError::Syntax { reason },
            Ok(Refusal::Refused(reason)) => ChatError::Refused { reason },
            Ok(Refusal::Render(reason)) => ChatError::Render { reason },
            Ok(Refusal::Limit(reason)) => ChatError::Limit { reason },
            Ok(Refusal::Disabled) => ChatError::Disabled,
            Err(error) => ChatError::Render { reason: error.to_string() },
        }
    }
}

/// The processes of one template.
#[derive(Debug)]
pub(super) struct Pool(ruvllm_host::process::Pool);

impl Pool {
    /// Starts the processes, and tries the template on one message.
    pub(super) fn start(
        process: &HelperProcess,
        source: &str,
        tool_use: Option<&str>,
        tokens: &BTreeMap<String, String>,
    ) -> Result<Self, ChatError> {
        let len = source.len() + tool_use.map_or(0, str::len);
        if len > MAX_SOURCE {
            let reason = format!("it has {len} bytes and may have {MAX_SOURCE}");
            return Err(ChatError::Limit { reason });
        }
        let (source, tool_use) = (source.to_owned(), tool_use.map(str::to_owned));
        let setup = Setup { source, tool_use, tokens: tokens.clone() };
        let most = max_text(len);
        let pool = Self(ruvllm_host::process::Pool::new(process.clone(), to_json(&setup)?, most));
        pool.0.warm().map_err(|failure| pool.error(failure))?;
        match pool.render([Message::new("user", "Hello")], None, true, &|| true) {
            // It may want other messages than that.
            Err(ChatError::Refused { .. } | ChatError::Render { .. }) | Ok(_) => Ok(pool),
            Err(error) => Err(error),
        }
    }

    fn error(&self, failure: Failure) -> ChatError {
        match failure {
            Failure::Refused(bytes) => Refusal::to_error(&bytes),
            Failure::Late => ChatError::Timeout { limit: self.0.process().time },
            Failure::Cancelled => ChatError::Cancelled,
            Failure::Unavailable { reason } => ChatError::Unavailable { reason },
            Failure::Ended => {
                let memory = self.0.process().memory_bytes >> 20;
                let reason = format!(
                    "the process that renders it, which may use {memory} MiB and the stack of a main thread, crashed"
                );
                ChatError::Limit { reason }
            }
        }
    }

    pub(super) fn render(
        &self,
        messages: impl Serialize,
        tools: Option<&Value>,
        add_generation_prompt: bool,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<String, ChatError> {
        let request = to_json(&Conversation { messages, tools, add_generation_prompt })?;
        if request.len() > MAX_REQUEST {
            let reason =
                format!("the messages have {} bytes and may have {MAX_REQUEST}", request.len());
            return Err(ChatError::Limit { reason });
        }
        let text = self.0.ask(&request, max_text(request.len()), waited_for);
        let text = text.map_err(|failure| self.error(failure))?;
        String::from_utf8(text).map_err(|error| ChatError::Render { reason: error.to_string() })
    }
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, ChatError> {
    let fail = |error: serde_json::Error| ChatError::Render {
        reason: format!("the messages cannot be written as JSON: {error}"),
    };
    serde_json::to_vec(value).map_err(fail)
}

/// The process for templates: reads a template and conversations from standard input and writes texts to
/// standard output, under the limits that it is told first.
///
/// A program whose [`Renderer`](super::Renderer) names itself calls this at the top of `main` when it sees
/// the arguments that it chose, before it starts a thread.
pub fn renderer_process() -> ExitCode {
    let fail = |error: serde_json::Error| {
        Refusal::to_bytes(ChatError::Render {
            reason: format!("the messages cannot be read: {error}"),
        })
    };
    answer_requests(|setup| {
        let Setup { source, tool_use, tokens } = serde_json::from_slice(setup).map_err(fail)?;
        let template = Template::new(&source, tool_use.as_deref(), &tokens);
        let template = template.map_err(Refusal::to_bytes)?;
        Ok(move |request: &[u8]| {
            let Conversation::<Value, Option<Value>> { messages, tools, add_generation_prompt } =
                serde_json::from_slice(request).map_err(fail)?;
            let text = template.render(messages, tools.as_ref(), add_generation_prompt);
            let text = text.map_err(Refusal::to_bytes)?;
            let most = max_text(request.len());
            if text.len() > most {
                let reason = format!("the text has {} bytes and may have {most}", text.len());
                return Err(Refusal::to_bytes(ChatError::Limit { reason }));
            }
            Ok(text.into_bytes())
        })
    })
}
