//! `POST /v1/chat/completions`: the next message of a conversation.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use ruvllm_engine::scheduler::{Finished, Token};
use serde_json::{Value, json};

use crate::answer::{self, Shape, reason};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::{Grammars, Wanted};
use crate::http::Caller;
use crate::logprobs::{self, TOP};
use crate::messages;
use crate::params::Params;
use crate::sequences::{Operation, Sequences, Work};
use crate::tools::{ToolText, Tools};

/// The handler.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let shared = Arc::clone(&app);
    let waiting = Waiting::default();
    let waited_for = waiting.watch(caller.until);
    let asks = caller.clone();
    let (body, prompt, logprobs, wanted, params, tools) = app.aside(move || {
        let app = shared;
        let params = Params::take(&mut fields, &app, None)?;
        let logprobs = logprobs(&mut fields)?;
        let messages = messages::take(&mut fields)?;
        let tools = Tools::take(&mut fields, app.tool_format)?;
        let wanted = wanted(&mut fields, tools.as_ref())?;
        fields.finish()?;
        let Some(template) = &app.template else {
            let message = "the model has no chat template, so it cannot tell messages apart; use /v1/completions, or start the server with --chat-template";
            return Err(ApiError::bad_request("no_chat_template", message).of("messages"));
        };
        let list = tools.as_ref().map(|tools| &tools.tools);
        let text = template.render_while(&messages, list, true, &waited_for)?;
        asks.log_prompt(&app, &text);
        let prompt = app.engine.model().tokenizer().encode_chat(&text)?;
        Ok((fields, prompt, logprobs, wanted, params, tools))
    })
    .await?;
    let grammar = match wanted {
        Some(wanted) => {
            let waited_for = waiting.watch(caller.until);
            Some(Grammars::compile(&app, &caller, wanted, params.n, waited_for).await?)
        }
        None => None,
    };
    let (n, options) = (params.n, params.options.clone());
    let (operation, prompts) = (Operation::Chat, vec![prompt]);
    let model = params.model.clone();
    let work = Work { model, operation, prompts, n, options, logprobs, grammar };
    let shared = Arc::clone(&app);
    let sequences = app.aside(move || Sequences::start(&shared, caller, work)).await?;
    // What was in it counts until here: a schema waited for its turn.
    drop(body);
    let message = || Message {
        content: String::new(),
        logprobs: Vec::new(),
        tools: tools.as_ref().map(ToolText::new),
    };
    let messages = (0..sequences.count()).map(|_| message()).collect();
    let shape = Messages { app: Arc::clone(&app), messages };
    if params.stream {
        return answer::stream(sequences, shape, params.include_usage);
    }
    answer::whole(sequences, shape).await
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

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.take("logprobs")?.unwrap_or(false);
    let top = fields.take::<usize>("top_logprobs")?;
    match top {
        Some(_) if !wanted => {
            Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs`: true"))
        }
        Some(top) if top > TOP => {
            Err(ApiError::invalid("top_logprobs", format!("`top_logprobs` may be {TOP} at most")))
        }
        top => Ok(wanted.then_some(top.unwrap_or(0))),
    }
}

/// What the text must look like: as `response_format` says, or a call where there must be one.
fn wanted(fields: &mut Fields, tools: Option<&Tools>) -> Result<Option<Wanted>, ApiError> {
    const NAME: &str = "response_format";
    let mut format = fields.take::<Value>(NAME)?.unwrap_or_else(|| json!({"type": "text"}));
    let kind = format["type"].as_str().unwrap_or_default().to_owned();
    let wanted = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Wanted::schema(json!({"type": "object"}), NAME)),
        "json_schema" => {
            let schema = format.pointer_mut("/json_schema/schema").map(Value::take);
            let Some(schema) = schema.filter(Value::is_object) else {
                let param = "response_format.json_schema.schema";
                return Err(ApiError::invalid(param, "the schema must be an object"));
            };
            Some(Wanted::schema(schema, NAME))
        }
        _ => {
            let message = "the type must be text, json_object or json_schema";
            return Err(ApiError::invalid("response_format.type", message));
        }
    };
    match (wanted, tools) {
        (Some(_), Some(_)) => {
            let message = "an answer cannot both have a format and call tools; leave out one";
            Err(ApiError::invalid(NAME, message))
        }
        (None, Some(Tools { required: Some(lark), .. })) => {
            Ok(Some(Wanted::lark(lark.clone(), "tools")))
        }
        (wanted, _) => Ok(wanted),
    }
}

/// The messages so far.
struct Messages {
    app: Arc<App>,
    messages: Vec<Message>,
}

struct Message {
    content: String,
    logprobs: Vec<Value>,
    tools: Option<ToolText>,
}

impl Message {
    /// What is left of the content, the calls, and why it ended.
    fn finish(&mut self, finished: &Finished) -> (String, Vec<Value>, &'static str) {
        let reason = reason(finished.reason);
        let Some(tools) = &mut self.tools else {
            return (finished.text.clone(), Vec::new(), reason);
        };
        let text = tools.push(&finished.text);
        match tools.finish() {
            Ok((rest, calls)) if calls.is_empty() => (text + &rest, calls, reason),
            Ok((rest, calls)) => (text + &rest, calls, "tool_calls"),
            Err(error) => {
                tracing::error!(code = error.code(), "{error}");
                (text, Vec::new(), reason)
            }
        }
    }
}

fn chunk(index: usize, delta: Value, reason: Option<&str>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": reason})
}

impl Shape for Messages {
    const PREFIX: &'static str = "chatcmpl";
    const OBJECTS: [&'static str; 2] = ["chat.completion", "chat.completion.chunk"];

    fn begin(&mut self, index: usize) -> Option<Value> {
        Some(chunk(index, json!({"role": "assistant", "content": ""}), None))
    }

    fn token(&mut self, index: usize, token: &Token, streaming: bool) -> Option<Value> {
        let message = &mut self.messages[index];
        let logprobs = logprobs::chat(self.app.engine.model().tokenizer(), token);
        let text = match &mut message.tools {
            Some(tools) => tools.push(&token.text),
            None => token.text.clone(),
        };
        if !streaming {
            message.content += &text;
            message.logprobs.extend(logprobs);
            return None;
        }
        if text.is_empty() && logprobs.is_none() {
            return None;
        }
        let mut choice = chunk(index, json!({"content": text}), None);
        choice["logprobs"] =
            logprobs.map_or(Value::Null, |logprobs| json!({"content": [logprobs]}));
        Some(choice)
    }

    fn end(&mut self, index: usize, finished: &Finished) -> Vec<Value> {
        let (text, calls, reason) = self.messages[index].finish(finished);
        let mut choices = Vec::new();
        if !text.is_empty() {
            choices.push(chunk(index, json!({"content": text}), None));
        }
        if !calls.is_empty() {
            let numbered = |(i, mut call): (usize, Value)| {
                call["index"] = i.into();
                call
            };
            let calls: Vec<Value> = calls.into_iter().enumerate().map(numbered).collect();
            choices.push(chunk(index, json!({"tool_calls": calls}), None));
        }
        choices.push(chunk(index, json!({}), Some(reason)));
        choices
    }

    fn whole(&mut self, index: usize, finished: &Finished) -> Value {
        let (rest, calls, reason) = self.messages[index].finish(finished);
        let Message { content, logprobs, .. } = &mut self.messages[index];
        let content = std::mem::take(content) + &rest;
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !calls.is_empty() {
            if content.trim().is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = calls.into();
        }
        let logprobs = std::mem::take(logprobs);
        let logprobs = if logprobs.is_empty() {
            Value::Null
        } else {
            json!({"content": logprobs, "refusal": null})
        };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    }
}
