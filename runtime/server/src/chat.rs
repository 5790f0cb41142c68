//! `POST /v1/chat/completions`: the next message of a conversation.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use ruvllm_engine::scheduler::{Finished, Token};
use serde_json::{Value, json};

use crate::answer::{self, Shape};
use crate::app::App;
use crate::conversation::{self, Conversation, Ended, Message, Reason};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::grammar::Wanted;
use crate::http::Caller;
use crate::logprobs::{self, TOP};
use crate::messages;
use crate::params::Params;
use crate::tools::Tools;

/// The handler.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let take = |fields: &mut Fields, app: &App| -> Result<(Conversation, bool), ApiError> {
        let params = Params::take(fields, app, None)?;
        let logprobs = logprobs(fields)?;
        let messages = messages::take(fields)?;
        let tools = Tools::take(fields, &app.teaching)?;
        let wanted = wanted(fields, tools.as_ref())?;
        let begun = String::new();
        let told = logprobs.is_some();
        Ok((Conversation { messages, begun, params, logprobs, tools, wanted }, told))
    };
    let (answering, logprobs) = conversation::answer(&app, caller, fields, take).await?;
    let so_far = |message| SoFar { message, content: String::new(), logprobs: Vec::new() };
    let messages = answering.messages.into_iter().map(so_far).collect();
    let shape = Messages { app: Arc::clone(&app), logprobs, messages };
    if answering.stream {
        return answer::stream(answering.sequences, shape, answering.include_usage);
    }
    answer::whole(answering.sequences, shape).await
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

/// What the text must look like, as `response_format` says.
fn wanted(fields: &mut Fields, tools: Option<&Tools>) -> Result<Option<Wanted>, ApiError> {
    const NAME: &str = "response_format";
    let mut format = fields.take::<Value>(NAME)?.unwrap_or_else(|| json!({"type": "text"}));
    let schema = format.pointer_mut("/json_schema/schema").map(Value::take);
    format_wanted(&format, schema, NAME, "response_format.json_schema.schema", tools)
}

/// What a text must look like: of the type of `format`, which the request has as `name`, and of a schema,
/// which it has as `schema_name`.
pub(crate) fn format_wanted(
    format: &Value,
    schema: Option<Value>,
    name: &'static str,
    schema_name: &str,
    tools: Option<&Tools>,
) -> Result<Option<Wanted>, ApiError> {
    let wanted = match format["type"].as_str().unwrap_or_default() {
        "text" => return Ok(None),
        "json_object" => Wanted::schema(json!({"type": "object"}), name),
        "json_schema" => match schema.filter(Value::is_object) {
            Some(schema) => Wanted::schema(schema, name),
            None => return Err(ApiError::invalid(schema_name, "the schema must be an object")),
        },
        _ => {
            let message = "the type must be text, json_object or json_schema";
            return Err(ApiError::invalid(format!("{name}.type"), message));
        }
    };
    if tools.is_some() {
        let message = "an answer cannot both have a format and call tools; leave out one";
        return Err(ApiError::invalid(name, message));
    }
    Ok(Some(wanted))
}

/// The messages so far.
struct Messages {
    app: Arc<App>,
    /// Whether log-probabilities are told.
    logprobs: bool,
    messages: Vec<SoFar>,
}

struct SoFar {
    message: Message,
    content: String,
    logprobs: Vec<Value>,
}

impl SoFar {
    /// What is left of the content, the calls, and why it ended.
    fn finish(&mut self, finished: &Finished) -> (String, Vec<Value>, &'static str) {
        let Ended { text, calls, reason } = self.message.finish(finished);
        let reason = match reason {
            Reason::Stop | Reason::StopString(_) => "stop",
            Reason::Length => "length",
            Reason::ToolCalls => "tool_calls",
        };
        let call = |call: crate::tools::Call| {
            let id = call.id(self.message.format(), "call")?;
            let function = json!({"name": call.name, "arguments": call.arguments});
            Ok(json!({"id": id, "type": "function", "function": function}))
        };
        let calls: Result<Vec<Value>, crate::error::ServerError> =
            calls.into_iter().map(call).collect();
        match calls {
            Ok(calls) => (text, calls, reason),
            Err(error) => {
                tracing::error!(code = error.code(), "{error}");
                (text, Vec::new(), "stop")
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
        let so_far = &mut self.messages[index];
        let logprobs = logprobs::chat(self.app.engine.model().tokenizer(), token);
        let text = so_far.message.push(token);
        if !streaming {
            so_far.content += &text;
            so_far.logprobs.extend(logprobs);
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
        let SoFar { content, logprobs, .. } = &mut self.messages[index];
        let content = std::mem::take(content) + &rest;
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !calls.is_empty() {
            if content.trim().is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = calls.into();
        }
        let logprobs = std::mem::take(logprobs);
        let logprobs = self.logprobs.then(|| json!({"content": logprobs, "refusal": null}));
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    }
}
