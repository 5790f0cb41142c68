//! Conversations, by whichever API they come: from messages to the sequences that answer them, and from
//! tokens to texts and calls.

use std::sync::Arc;
use std::time::Instant;

use ruvllm_engine::FinishReason;
use ruvllm_engine::scheduler::{Finished, Token};
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::{Grammars, Wanted};
use crate::http::Caller;
use crate::params::Params;
use crate::sequences::{Operation, Sequences, Step, Usage, Work};
use crate::tools::{self, Call, Format, ToolText, Tools};

/// What a request asks for.
pub(crate) struct Conversation {
    /// The messages, as templates want them.
    pub(crate) messages: Vec<Value>,
    /// What the answer begins with, which is not repeated.
    pub(crate) begun: String,
    pub(crate) params: Params,
    pub(crate) logprobs: Option<usize>,
    pub(crate) tools: Option<Tools>,
    /// What the text must look like, unless it must be a call.
    pub(crate) wanted: Option<Wanted>,
}

/// An answer that is being computed.
pub(crate) struct Answering {
    pub(crate) sequences: Sequences,
    /// One for each of them.
    pub(crate) messages: Vec<Message>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// Reads a request and lets its answers be computed; `take` takes the fields that its API has, and gives
/// what else is wanted of them.
///
/// # Errors
/// What is refused of the request, by the template, or by the scheduler.
pub(crate) async fn answer<T: Send + 'static>(
    app: &Arc<App>,
    caller: Caller,
    fields: Fields,
    take: impl FnOnce(&mut Fields, &App) -> Result<(Conversation, T), ApiError> + Send + 'static,
) -> Result<(Answering, T), ApiError> {
    let waiting = Waiting::default();
    let read = read(app, &caller, &waiting, fields, take).await?;
    let Read { fields, prompt, conversation, other } = read;
    let Conversation { params, logprobs, tools, wanted, .. } = conversation;
    let constrained = tools.as_ref().and_then(|tools| tools.grammar.clone());
    let wanted = wanted.or_else(|| constrained.map(|lark| Wanted::lark(lark, "tools")));
    let grammar = match wanted {
        Some(wanted) => {
            let waited_for = waiting.watch(caller.until);
            Some(Grammars::compile(app, &caller, wanted, params.n, waited_for).await?)
        }
        None => None,
    };
    let Params { model, n, stream, include_usage, options } = params;
    let (operation, prompts, prompt_logprobs) = (Operation::Chat, vec![prompt], None);
    let work = Work { model, operation, prompts, n, options, logprobs, prompt_logprobs, grammar };
    let shared = Arc::clone(app);
    let sequences = app.aside(move || Sequences::start(&shared, caller, work)).await?;
    // What was in it counts until here: a schema waited for its turn.
    drop(fields);
    let message = || Message { app: Arc::clone(app), tools: tools.as_ref().map(ToolText::new) };
    let messages = (0..sequences.count()).map(|_| message()).collect();
    Ok((Answering { sequences, messages, stream, include_usage }, other))
}

/// Reads a request and gives the number of its prompt's tokens.
///
/// # Errors
/// What is refused of the request, or by the template.
pub(crate) async fn count(
    app: &Arc<App>,
    caller: Caller,
    fields: Fields,
    take: impl FnOnce(&mut Fields, &App) -> Result<(Conversation, ()), ApiError> + Send + 'static,
) -> Result<usize, ApiError> {
    let waiting = Waiting::default();
    Ok(read(app, &caller, &waiting, fields, take).await?.prompt.len())
}

/// What was read of a request.
struct Read<T> {
    fields: Fields,
    prompt: Vec<u32>,
    conversation: Conversation,
    other: T,
}

async fn read<T: Send + 'static>(
    app: &Arc<App>,
    caller: &Caller,
    waiting: &Waiting,
    mut fields: Fields,
    take: impl FnOnce(&mut Fields, &App) -> Result<(Conversation, T), ApiError> + Send + 'static,
) -> Result<Read<T>, ApiError> {
    let (shared, asks) = (Arc::clone(app), caller.clone());
    let waited_for = waiting.watch(caller.until);
    app.aside(move || {
        let app = shared;
        let (mut conversation, other) = take(&mut fields, &app)?;
        fields.finish()?;
        let Some(template) = &app.template else {
            let message = "the model has no chat template, so it cannot tell messages apart; use /v1/completions, or start the server with --chat-template";
            return Err(ApiError::bad_request("no_chat_template", message).of("messages"));
        };
        let messages = std::mem::take(&mut conversation.messages);
        let tools = conversation.tools.as_ref();
        let teaching = match tools {
            Some(_) => &app.teaching,
            None => &app.teaching_without_tools,
        };
        let mut text = tools::render(template, teaching, messages, tools, &waited_for)?;
        text += &conversation.begun;
        asks.log_prompt(&app, &text);
        let prompt = app.engine.model().tokenizer().encode_chat(&text)?;
        Ok(Read { fields, prompt, conversation, other })
    })
    .await
}

/// Whether a client waits: until this is dropped, with the request.
#[derive(Default)]
struct Waiting(Arc<()>);

impl Waiting {
    /// Tells whether the client still waits, which it does until then at most.
    fn watch(&self, until: Instant) -> impl Fn() -> bool + use<> {
        let waiting = Arc::downgrade(&self.0);
        move || waiting.strong_count() > 0 && Instant::now() < until
    }
}

/// One answer, as its tokens come.
pub(crate) struct Message {
    app: Arc<App>,
    tools: Option<ToolText>,
}

/// How an answer ended.
pub(crate) struct Ended {
    /// The rest of its text.
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) reason: Reason,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model had said all.
    Stop,
    /// A stop string came up.
    StopString(String),
    /// There may be no more tokens.
    Length,
    /// The calls are made.
    ToolCalls,
}

impl Message {
    /// Adds a token; gives the text that is certain to be none of a call.
    pub(crate) fn push(&mut self, token: &Token) -> String {
        let Some(tools) = &mut self.tools else { return token.text.clone() };
        let mark = self.app.teaching.marks.iter().find(|(mark, _)| *mark == token.token);
        let mut text = mark.map_or_else(String::new, |(_, text)| tools.push(text));
        text += &tools.push(&token.text);
        text
    }

    /// Ends it.
    pub(crate) fn finish(&mut self, finished: &Finished) -> Ended {
        let reason = match finished.reason {
            FinishReason::MaxTokens | FinishReason::ContextFull => Reason::Length,
            FinishReason::StopString => {
                Reason::StopString(finished.stop.clone().unwrap_or_default())
            }
            FinishReason::EndOfGeneration | FinishReason::Cancelled => Reason::Stop,
        };
        let Some(tools) = &mut self.tools else {
            return Ended { text: finished.text.clone(), calls: Vec::new(), reason };
        };
        let text = tools.push(&finished.text);
        let found = tools.finish(reason == Reason::Length);
        let reason = match found.cut || found.calls.is_empty() {
            true => reason,
            false => Reason::ToolCalls,
        };
        Ended { text: text + &found.text, calls: found.calls, reason }
    }

    /// How the model writes calls.
    pub(crate) fn format(&self) -> Format {
        self.app.teaching.format
    }
}

/// The whole text of the only answer, how it ended, and token counts.
///
/// # Errors
/// What ended it instead.
pub(crate) async fn whole(
    answering: Answering,
) -> Result<(String, Ended, Message, Usage), ApiError> {
    let Answering { mut sequences, messages, .. } = answering;
    let mut messages = messages.into_iter();
    let lacking = || ApiError::internal("an answer has no sequence");
    let mut message = messages.next().ok_or_else(lacking)?;
    let (mut text, mut ended) = (String::new(), None);
    while let Some(step) = sequences.next().await {
        match step?.1 {
            Step::Token(token) => text += &message.push(&token),
            Step::Done(finished) => ended = Some(message.finish(&finished)),
            Step::Prompt(_) | Step::Embedding(_) => {}
        }
    }
    let mut ended = ended.ok_or_else(lacking)?;
    text += &std::mem::take(&mut ended.text);
    if !ended.calls.is_empty() && text.trim().is_empty() {
        text.clear();
    }
    Ok((text, ended, message, sequences.usage()))
}
