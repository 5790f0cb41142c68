//! `POST /v1/messages` and `/v1/messages/count_tokens`: conversations in the form of Anthropic's API.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use crate::answer::{self, Writer, named};
use crate::app::App;
use crate::chat::format_wanted;
use crate::conversation::{self, Conversation, Ended, Message, Reason};
use crate::error::{ApiError, ServerError};
use crate::fields::{Fields, parse};
use crate::http::{Caller, REQUEST_ID};
use crate::keys::random_hex;
use crate::messages;
use crate::params::Params;
use crate::sequences::{Step, Usage};
use crate::tools::{Call, Choice, Tools};

/// What the addresses of this API begin with.
pub(crate) const PATH: &str = "/v1/messages";

/// The handler of messages.
pub(crate) async fn messages(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    fields: Fields,
) -> Result<Response, ApiError> {
    let take = |fields: &mut Fields, app: &App| -> Result<(Conversation, ()), ApiError> {
        if fields.peek("max_tokens").is_null() {
            fields.require::<usize>("max_tokens")?;
        }
        Ok((conversation(fields, app)?, ()))
    };
    let (answering, ()) = conversation::answer(&app, caller, fields, take).await?;
    let model = Arc::clone(answering.sequences.model());
    let id = random_hex::<12>().map_err(|error| ApiError::internal(error.to_string()))?;
    let id = format!("msg_{id}");
    if answering.stream {
        let message = answering.messages.into_iter().next();
        let events = Events { model, id, message, begun: false, blocks: 0, open: false };
        return Ok(answer::events(answering.sequences, events));
    }
    let (text, ended, message, usage) = conversation::whole(answering).await?;
    let mut content = Vec::new();
    if !text.is_empty() {
        content.push(json!({"type": "text", "text": text}));
    }
    for call in &ended.calls {
        // An object in any case: what was cut off is none.
        let input = serde_json::from_str::<Value>(&call.arguments).ok().filter(Value::is_object);
        content.push(tool_use(&message, call, input.unwrap_or_else(|| json!({})))?);
    }
    let mut body = head(&model, &id);
    body["content"] = content.into();
    (body["stop_reason"], body["stop_sequence"]) = stop(&ended.reason);
    body["usage"] = counts(usage);
    Ok(Json(body).into_response())
}

/// The handler of token counts.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let take = |fields: &mut Fields, app: &App| -> Result<(Conversation, ()), ApiError> {
        Ok((conversation(fields, app)?, ()))
    };
    let tokens = conversation::count(&app, caller, fields, take).await?;
    Ok(Json(json!({"input_tokens": tokens})))
}

/// Gives an answer the form that clients of this API read: errors, and the id of the request.
pub(crate) fn mark(response: &mut Response) {
    if let Some(error) = response.extensions().get::<ApiError>() {
        *response.body_mut() = Body::from(error.anthropic_body().to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    if let Some(id) = response.headers().get(REQUEST_ID).cloned() {
        response.headers_mut().insert(HeaderName::from_static("request-id"), id);
    }
}

fn conversation(fields: &mut Fields, app: &App) -> Result<Conversation, ApiError> {
    let params = Params::take_single(fields, app, "max_tokens", "stop_sequences")?;
    if let Some(thinking) = fields.take::<Value>("thinking")?
        && thinking["type"] != "disabled"
    {
        let message = "`thinking` must be disabled: what models think is part of their text";
        return Err(ApiError::bad_request("unsupported_parameter", message).of("thinking"));
    }
    let mut all = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        let text = texts(system, "system", "\n")?;
        all.push(json!({"role": "system", "content": text}));
    }
    let messages: Vec<Map<String, Value>> = fields.require("messages")?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "there must be at least one message"));
    }
    for (i, message) in messages.into_iter().enumerate() {
        take_message(Fields::within(format!("messages[{i}]"), message), &mut all)?;
    }
    let tools = take_tools(fields, app)?;
    let mut wanted = None;
    if let Some(config) = fields.take::<Map<String, Value>>("output_config")? {
        let mut config = Fields::within("output_config".to_owned(), config);
        if let Some(mut format) = config.take::<Value>("format")? {
            let schema = format.get_mut("schema").map(Value::take);
            let (name, schema_name) = ("output_config.format", "output_config.format.schema");
            wanted = format_wanted(&format, schema, name, schema_name, tools.as_ref())?;
        }
        config.finish()?;
    }
    // An answer that is begun goes on from there.
    let goes_on = all
        .last()
        .is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    let last = if goes_on { all.pop() } else { None };
    let begun = last.and_then(|last| last["content"].as_str().map(str::to_owned));
    let begun = begun.unwrap_or_default();
    let required = wanted.is_some() || tools.as_ref().is_some_and(Tools::required);
    if !begun.is_empty() && required {
        let message =
            "an answer of a given form cannot be begun by a last message of the assistant's";
        return Err(ApiError::invalid("messages", message));
    }
    Ok(Conversation { messages: all, begun, params, logprobs: None, tools, wanted })
}

/// A text, or the texts of blocks of type `text`.
fn texts(content: Value, param: &str, between: &str) -> Result<String, ApiError> {
    if let Value::String(text) = content {
        return Ok(text);
    }
    let blocks: Vec<Map<String, Value>> = parse(param, content)?;
    let text = |(i, block)| {
        let mut block = Fields::within(format!("{param}[{i}]"), block);
        let kind: String = block.require("type")?;
        if kind != "text" {
            return Err(unknown_block(&block, &kind));
        }
        let text: String = block.require("text")?;
        block.finish()?;
        Ok(text)
    };
    let texts: Result<Vec<String>, ApiError> = blocks.into_iter().enumerate().map(text).collect();
    Ok(texts?.join(between))
}

fn unknown_block(block: &Fields, kind: &str) -> ApiError {
    let message = format!("blocks of type `{kind}` are not supported here: models are shown texts");
    ApiError::invalid(block.path("type"), message)
}

/// Appends a message of the API's as those that templates expect: what tools answered comes from the user
/// here.
fn take_message(mut message: Fields, all: &mut Vec<Value>) -> Result<(), ApiError> {
    let role: String = message.require("role")?;
    if role != "user" && role != "assistant" {
        let error = "the role must be user or assistant; there is `system` for the system's text";
        return Err(ApiError::invalid(message.path("role"), error));
    }
    let content: Value = message.require("content")?;
    let at = message.path("content");
    message.finish()?;
    if let Value::String(text) = content {
        all.push(json!({"role": role, "content": text}));
        return Ok(());
    }
    let blocks: Vec<Map<String, Value>> = parse(&at, content)?;
    let (mut texts, mut calls, mut answers) = (Vec::new(), Vec::new(), 0);
    for (i, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::within(format!("{at}[{i}]"), block);
        let kind: String = block.require("type")?;
        match (role.as_str(), kind.as_str()) {
            (_, "text") => texts.push(block.require::<String>("text")?),
            ("assistant", "tool_use") => {
                let (id, name) = (block.require("id")?, block.require("name")?);
                let input: Map<String, Value> = block.require("input")?;
                calls.push(messages::call(id, name, input.into()));
            }
            ("user", "tool_result") => {
                if !texts.is_empty() {
                    let text = std::mem::take(&mut texts).join("\n");
                    all.push(json!({"role": role, "content": text}));
                }
                all.push(take_result(&mut block)?);
                answers += 1;
            }
            _ => return Err(unknown_block(&block, &kind)),
        }
        block.finish()?;
    }
    let between = if role == "user" { "\n" } else { "" };
    if answers == 0 || !texts.is_empty() {
        let mut message = json!({"role": role, "content": texts.join(between)});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        all.push(message);
    }
    Ok(())
}

/// What a tool answered.
fn take_result(block: &mut Fields) -> Result<Value, ApiError> {
    let id: String = block.require("tool_use_id")?;
    let at = block.path("content");
    let content = block.take::<Value>("content")?.map(|content| texts(content, &at, "\n"));
    let content = content.transpose()?.unwrap_or_default();
    let content = match block.take("is_error")?.unwrap_or(false) {
        true => format!("Error: {content}"),
        false => content,
    };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

fn take_tools(fields: &mut Fields, app: &App) -> Result<Option<Tools>, ApiError> {
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    let tool = |(i, tool)| {
        let mut tool = Fields::within(format!("tools[{i}]"), tool);
        let kind = tool.take::<String>("type")?;
        if kind.is_some_and(|kind| kind != "custom") {
            let message = "only tools of type `custom` are supported";
            return Err(ApiError::invalid(tool.path("type"), message));
        }
        let name: String = tool.require("name")?;
        let mut function = json!({"name": name});
        if let Some(description) = tool.take::<String>("description")? {
            function["description"] = description.into();
        }
        function["parameters"] = Value::from(tool.require::<Map<String, Value>>("input_schema")?);
        tool.finish()?;
        Ok(json!({"type": "function", "function": function}))
    };
    let tools: Result<Vec<Value>, ApiError> = tools.into_iter().enumerate().map(tool).collect();
    let (mut choice, mut single) = (None, false);
    if let Some(given) = fields.take::<Map<String, Value>>("tool_choice")? {
        let mut given = Fields::within("tool_choice".to_owned(), given);
        choice = Some(match given.require::<String>("type")?.as_str() {
            "auto" => Choice::Auto,
            "any" => Choice::Required,
            "none" => Choice::None,
            "tool" => Choice::Named(given.require("name")?),
            _ => {
                let message = "the type must be auto, any, tool or none";
                return Err(ApiError::invalid("tool_choice.type", message));
            }
        });
        single = given.take("disable_parallel_tool_use")?.unwrap_or(false);
        given.finish()?;
    }
    Tools::new(tools?, choice, single, &app.teaching)
}

/// A message without content.
fn head(model: &str, id: &str) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// `stop_reason` and `stop_sequence`.
fn stop(reason: &Reason) -> (Value, Value) {
    match reason {
        Reason::Stop => ("end_turn".into(), Value::Null),
        Reason::StopString(stop) => ("stop_sequence".into(), stop.as_str().into()),
        Reason::Length => ("max_tokens".into(), Value::Null),
        Reason::ToolCalls => ("tool_use".into(), Value::Null),
    }
}

/// `usage`: what was found in the prefix cache counts apart.
fn counts(usage: Usage) -> Value {
    let cached = usage.cached.min(usage.prompt);
    json!({
        "input_tokens": usage.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion,
    })
}

fn tool_use(message: &Message, call: &Call, input: Value) -> Result<Value, ApiError> {
    let internal = |error: ServerError| ApiError::internal(error.to_string());
    let id = call.id(message.format(), "toolu").map_err(internal)?;
    Ok(json!({"type": "tool_use", "id": id, "name": call.name, "input": input}))
}

/// The stream of a message.
struct Events {
    model: Arc<str>,
    id: String,
    message: Option<Message>,
    begun: bool,
    /// Blocks that have begun.
    blocks: usize,
    /// Whether the last of them is a text that goes on.
    open: bool,
}

impl Events {
    fn start(&mut self, block: Value) -> Event {
        self.blocks += 1;
        let index = self.blocks - 1;
        named(&json!({"type": "content_block_start", "index": index, "content_block": block}))
    }

    fn delta(&self, delta: Value) -> Event {
        let index = self.blocks.saturating_sub(1);
        named(&json!({"type": "content_block_delta", "index": index, "delta": delta}))
    }

    fn close(&self) -> Event {
        let index = self.blocks.saturating_sub(1);
        named(&json!({"type": "content_block_stop", "index": index}))
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        if !self.open {
            self.open = true;
            events.push(self.start(json!({"type": "text", "text": ""})));
        }
        events.push(self.delta(json!({"type": "text_delta", "text": text})));
    }

    fn finish(
        &mut self,
        ended: &Ended,
        usage: Usage,
        events: &mut Vec<Event>,
    ) -> Result<(), ApiError> {
        self.text(&ended.text, events);
        if std::mem::take(&mut self.open) {
            events.push(self.close());
        }
        for call in &ended.calls {
            let Some(message) = &self.message else { break };
            let block = tool_use(message, call, json!({}))?;
            events.push(self.start(block));
            let delta = json!({"type": "input_json_delta", "partial_json": call.arguments});
            events.extend([self.delta(delta), self.close()]);
        }
        let (reason, sequence) = stop(&ended.reason);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        events.push(named(&json!({
            "type": "message_delta", "delta": delta, "usage": counts(usage),
        })));
        events.push(named(&json!({"type": "message_stop"})));
        Ok(())
    }
}

impl Writer for Events {
    fn begin(&mut self, _: usize) -> Vec<Event> {
        // Not before it is known how much of the prompt was in the cache.
        Vec::new()
    }

    fn step(&mut self, _: usize, step: Step, usage: Usage) -> Vec<Event> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            let mut message = head(&self.model, &self.id);
            message["usage"] = counts(usage);
            events.push(named(&json!({"type": "message_start", "message": message})));
        }
        match (step, &mut self.message) {
            (Step::Token(token), Some(message)) => {
                let text = message.push(&token);
                self.text(&text, &mut events);
            }
            (Step::Done(finished), Some(message)) => {
                let ended = message.finish(&finished);
                if let Err(error) = self.finish(&ended, usage, &mut events) {
                    events.extend(self.failed(&error));
                }
            }
            _ => {}
        }
        events
    }

    fn end(&mut self, _: Usage) -> Vec<Event> {
        Vec::new()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![named(&error.anthropic_body())]
    }
}
