//! `POST /v1/responses`: conversations in the newer form of OpenAI's API.
//!
//! Nothing is stored, so a request has the whole conversation as `input`, and `previous_response_id` is
//! refused.

use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use serde_json::{Map, Value, json};

use crate::answer::{self, Writer, named};
use crate::app::{App, now};
use crate::chat::format_wanted;
use crate::conversation::{self, Conversation, Ended, Message, Reason};
use crate::error::{ApiError, ServerError};
use crate::fields::{Fields, parse};
use crate::http::Caller;
use crate::keys::random_hex;
use crate::messages;
use crate::params::Params;
use crate::sequences::{Step, Usage};
use crate::tools::{Call, Choice, Tools};

/// What a response repeats of its request, with what holds where that says nothing.
fn repeated(fields: &Fields) -> Map<String, Value> {
    let mut repeated = Map::new();
    for (name, default) in [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("temperature", json!(1.0)),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_p", json!(1.0)),
        ("user", Value::Null),
    ] {
        let given = fields.peek(name);
        repeated.insert(name.to_owned(), if given.is_null() { default } else { given });
    }
    repeated
}

/// The handler.
pub(crate) async fn responses(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    fields: Fields,
) -> Result<Response, ApiError> {
    type Taken = Result<(Conversation, Map<String, Value>), ApiError>;
    let take = |fields: &mut Fields, app: &App| -> Taken {
        let repeated = repeated(fields);
        Ok((conversation(fields, app)?, repeated))
    };
    let (answering, repeated) = conversation::answer(&app, caller, fields, take).await?;
    let head = Head {
        id: id("resp")?,
        created: now(),
        model: answering.sequences.model().to_string(),
        repeated,
    };
    let item = id("msg")?;
    if answering.stream {
        let message = answering.messages.into_iter().next();
        let (text, output) = (None, Vec::new());
        let events = Events { head, item, message, text, output, number: 0 };
        return Ok(answer::events(answering.sequences, events));
    }
    let (text, ended, message, usage) = conversation::whole(answering).await?;
    let mut output = Vec::new();
    if !text.is_empty() || ended.calls.is_empty() {
        output.push(text_item(&item, &text, status(&ended.reason)));
    }
    for call in &ended.calls {
        output.push(call_item(&message, call, &ended.reason)?);
    }
    Ok(Json(head.response(Some(&ended.reason), output, Some(usage))).into_response())
}

/// A new id that begins so.
fn id(begin: &str) -> Result<String, ApiError> {
    let id = random_hex::<12>().map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(format!("{begin}_{id}"))
}

fn conversation(fields: &mut Fields, app: &App) -> Result<Conversation, ApiError> {
    let params = Params::take_single(fields, app, "max_output_tokens", "stop")?;
    // What it may hold pads events against observers of their length.
    fields.take::<Value>("stream_options")?;
    let mut messages = Vec::new();
    if let Some(instructions) = fields.take::<String>("instructions")? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.require::<Value>("input")? {
        Value::String(text) => messages.push(json!({"role": "user", "content": text})),
        items => {
            let items: Vec<Map<String, Value>> = parse("input", items)?;
            if items.is_empty() {
                return Err(ApiError::invalid("input", "there must be at least one item"));
            }
            for (i, item) in items.into_iter().enumerate() {
                take_item(Fields::within(format!("input[{i}]"), item), &mut messages)?;
            }
        }
    }
    let tools = take_tools(fields, app)?;
    let mut wanted = None;
    if let Some(text) = fields.take::<Map<String, Value>>("text")? {
        let mut text = Fields::within("text".to_owned(), text);
        if let Some(mut format) = text.take::<Value>("format")? {
            let schema = format.get_mut("schema").map(Value::take);
            wanted = format_wanted(
                &format,
                schema,
                "text.format",
                "text.format.schema",
                tools.as_ref(),
            )?;
        }
        text.finish()?;
    }
    let begun = String::new();
    Ok(Conversation { messages, begun, params, logprobs: None, tools, wanted })
}

/// Appends an item of the input to the messages.
fn take_item(mut item: Fields, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let kind = item.take::<String>("type")?;
    // Those of an earlier response, which is not stored.
    for known in ["id", "status"] {
        item.take::<String>(known)?;
    }
    match kind.as_deref() {
        None | Some("message") => {
            let role: String = item.require("role")?;
            let role = if role == "developer" { "system".to_owned() } else { role };
            let at = item.path("content");
            let text = texts(item.require("content")?, &at)?;
            // Instructions and the developer's messages are one system text.
            match messages.last_mut().filter(|last| role == "system" && last["role"] == "system") {
                Some(last) => {
                    let before = last["content"].as_str().unwrap_or_default();
                    last["content"] = format!("{before}\n\n{text}").into();
                }
                None => messages.push(json!({"role": role, "content": text})),
            }
        }
        Some("function_call") => {
            let (id, name) = (item.require("call_id")?, item.require("name")?);
            let arguments = Value::from(item.require::<String>("arguments")?);
            let arguments = messages::arguments(&arguments, item.path("arguments"))?;
            let call = messages::call(id, name, arguments);
            // Text and calls of one answer are one message.
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => {
                    messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}))
                }
            }
        }
        Some("function_call_output") => {
            let id: String = item.require("call_id")?;
            let at = item.path("output");
            let text = texts(item.require("output")?, &at)?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        }
        Some(_) => {
            let message = "the type must be message, function_call or function_call_output";
            return Err(ApiError::invalid(item.path("type"), message));
        }
    }
    item.finish()
}

/// A text, or the texts of parts that are texts.
fn texts(content: Value, param: &str) -> Result<String, ApiError> {
    if let Value::String(text) = content {
        return Ok(text);
    }
    let parts: Vec<Map<String, Value>> = parse(param, content)?;
    let mut texts = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = Fields::within(format!("{param}[{i}]"), part);
        let kind: String = part.require("type")?;
        if !["input_text", "output_text", "text"].contains(&kind.as_str()) {
            let message =
                format!("parts of type `{kind}` are not supported: models are shown texts");
            return Err(ApiError::invalid(part.path("type"), message));
        }
        texts += &part.require::<String>("text")?;
        // Of an earlier response.
        for known in ["annotations", "logprobs"] {
            part.take::<Value>(known)?;
        }
        part.finish()?;
    }
    Ok(texts)
}

fn take_tools(fields: &mut Fields, app: &App) -> Result<Option<Tools>, ApiError> {
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    let tool = |(i, tool)| {
        let mut tool = Fields::within(format!("tools[{i}]"), tool);
        if tool.require::<String>("type")? != "function" {
            let message = "only tools of type `function` are supported";
            return Err(ApiError::invalid(tool.path("type"), message));
        }
        let mut function = json!({"name": tool.require::<String>("name")?});
        for known in ["description", "parameters", "strict"] {
            if let Some(value) = tool.take::<Value>(known)? {
                function[known] = value;
            }
        }
        tool.finish()?;
        Ok(json!({"type": "function", "function": function}))
    };
    let tools: Result<Vec<Value>, ApiError> = tools.into_iter().enumerate().map(tool).collect();
    let choice = Choice::take(fields, "/name")?;
    let single = !fields.take("parallel_tool_calls")?.unwrap_or(true);
    Tools::new(tools?, choice, single, &app.teaching)
}

/// `status` of a response, and of its last item.
fn status(reason: &Reason) -> &'static str {
    if *reason == Reason::Length { "incomplete" } else { "completed" }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn text_item(id: &str, text: &str, status: &str) -> Value {
    let content = [text_part(text)];
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
}

fn call_item(message: &Message, call: &Call, reason: &Reason) -> Result<Value, ApiError> {
    let internal = |error: ServerError| ApiError::internal(error.to_string());
    Ok(json!({
        "type": "function_call",
        "id": id("fc")?,
        "call_id": call.id(message.format(), "call").map_err(internal)?,
        "name": call.name,
        "arguments": call.arguments,
        "status": status(reason),
    }))
}

/// What all states of a response have in common.
struct Head {
    id: String,
    created: u64,
    model: String,
    repeated: Map<String, Value>,
}

impl Head {
    /// The response; while it is computed, without the reason why it ended.
    fn response(&self, ended: Option<&Reason>, output: Vec<Value>, usage: Option<Usage>) -> Value {
        let incomplete = ended.filter(|reason| **reason == Reason::Length);
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": ended.map_or("in_progress", status),
            "error": null,
            "incomplete_details": incomplete.map(|_| json!({"reason": "max_output_tokens"})),
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "store": false,
            "truncation": "disabled",
            "usage": usage.map(|usage| json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached.min(usage.prompt)},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.completion,
            })),
        });
        for (name, value) in &self.repeated {
            response[name] = value.clone();
        }
        response
    }
}

/// The stream of a response.
struct Events {
    head: Head,
    /// The id of the item that has the text.
    item: String,
    message: Option<Message>,
    /// The text so far, once there is one.
    text: Option<String>,
    /// Items that are complete.
    output: Vec<Value>,
    /// Events so far.
    number: u64,
}

impl Events {
    fn event(&mut self, kind: &str, mut fields: Value) -> Event {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.number.into();
        self.number += 1;
        named(&fields)
    }

    /// Adds a piece of the text, which begins with the first.
    fn push(&mut self, piece: &str, events: &mut Vec<Event>) {
        let item = self.item.clone();
        if self.text.is_none() {
            let mut begun = text_item(&item, "", "in_progress");
            begun["content"] = json!([]);
            let fields = json!({"output_index": 0, "item": begun});
            events.push(self.event("response.output_item.added", fields));
            let fields = json!({
                "item_id": item, "output_index": 0, "content_index": 0, "part": text_part(""),
            });
            events.push(self.event("response.content_part.added", fields));
        }
        *self.text.get_or_insert_default() += piece;
        if !piece.is_empty() {
            let fields = json!({
                "item_id": item, "output_index": 0, "content_index": 0, "delta": piece,
                "logprobs": [],
            });
            events.push(self.event("response.output_text.delta", fields));
        }
    }

    fn finish(
        &mut self,
        ended: &Ended,
        usage: Usage,
        events: &mut Vec<Event>,
    ) -> Result<(), ApiError> {
        if !ended.text.is_empty() || ended.calls.is_empty() {
            self.push(&ended.text, events);
        }
        if let Some(text) = self.text.take() {
            let item = self.item.clone();
            let at = json!({"item_id": item, "output_index": 0, "content_index": 0});
            let mut fields = at.clone();
            (fields["text"], fields["logprobs"]) = (text.as_str().into(), json!([]));
            events.push(self.event("response.output_text.done", fields));
            let mut fields = at;
            fields["part"] = text_part(&text);
            events.push(self.event("response.content_part.done", fields));
            let done = text_item(&item, &text, status(&ended.reason));
            let fields = json!({"output_index": 0, "item": done});
            events.push(self.event("response.output_item.done", fields));
            self.output.push(done);
        }
        for call in &ended.calls {
            let Some(message) = &self.message else { break };
            let done = call_item(message, call, &ended.reason)?;
            let (id, index) = (done["id"].clone(), self.output.len());
            let mut begun = done.clone();
            (begun["arguments"], begun["status"]) = ("".into(), "in_progress".into());
            let fields = json!({"output_index": index, "item": begun});
            events.push(self.event("response.output_item.added", fields));
            let fields = json!({"item_id": id, "output_index": index, "delta": call.arguments});
            events.push(self.event("response.function_call_arguments.delta", fields));
            let fields = json!({
                "item_id": id, "output_index": index, "name": call.name,
                "arguments": call.arguments,
            });
            events.push(self.event("response.function_call_arguments.done", fields));
            let fields = json!({"output_index": index, "item": done});
            events.push(self.event("response.output_item.done", fields));
            self.output.push(done);
        }
        let kind = format!("response.{}", status(&ended.reason));
        let output = std::mem::take(&mut self.output);
        let response = self.head.response(Some(&ended.reason), output, Some(usage));
        events.push(self.event(&kind, json!({"response": response})));
        Ok(())
    }
}

impl Writer for Events {
    fn begin(&mut self, _: usize) -> Vec<Event> {
        ["response.created", "response.in_progress"]
            .map(|kind| {
                let response = self.head.response(None, Vec::new(), None);
                self.event(kind, json!({"response": response}))
            })
            .into()
    }

    fn step(&mut self, _: usize, step: Step, usage: Usage) -> Vec<Event> {
        let mut events = Vec::new();
        match (step, &mut self.message) {
            (Step::Token(token), Some(message)) => {
                let text = message.push(&token);
                if !text.is_empty() {
                    self.push(&text, &mut events);
                }
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
        let mut fields = error.body()["error"].take();
        fields["type"] = Value::Null;
        vec![self.event("error", fields)]
    }
}
