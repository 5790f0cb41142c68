//! The messages of a conversation, from OpenAI's form to the one that templates expect.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;

/// Takes `messages`: roles and texts, tool calls with their arguments as objects, and what tools
/// answered.
///
/// # Errors
/// What is malformed, and contents that are no text.
pub(crate) fn take(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let messages: Vec<Map<String, Value>> = fields.require("messages")?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "there must be at least one message"));
    }
    let numbered = messages.into_iter().enumerate();
    numbered.map(|(i, message)| one(Fields::within(format!("messages[{i}]"), message))).collect()
}

fn one(mut message: Fields) -> Result<Value, ApiError> {
    let role: String = message.require("role")?;
    // The newer name of the same thing, which templates do not know.
    let role = if role == "developer" { "system".to_owned() } else { role };
    let calls = message.take::<Vec<Value>>("tool_calls")?.unwrap_or_default();
    let content = match message.take::<Value>("content")? {
        Some(content) => text(&message, content)?,
        None if role == "assistant" => String::new(),
        None => return message.require::<Value>("content"),
    };
    let mut out = json!({"role": role, "content": content});
    if !calls.is_empty() {
        let calls: Result<Vec<Value>, ApiError> =
            calls.into_iter().map(|call| with_arguments(&message, call)).collect();
        out["tool_calls"] = calls?.into();
    }
    for name in ["name", "tool_call_id"] {
        if let Some(value) = message.take::<String>(name)? {
            out[name] = value.into();
        }
    }
    message.finish()?;
    Ok(out)
}

/// A text, or the texts of parts of type `text`.
fn text(message: &Fields, content: Value) -> Result<String, ApiError> {
    let refuse = |at: &str| {
        let param = message.path(&format!("content{at}"));
        let text = format!("`{param}` must be a text, or parts of type `text`");
        Err(ApiError::invalid(param, text))
    };
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let mut texts = String::new();
            for (i, part) in parts.iter().enumerate() {
                match (&part["type"], &part["text"]) {
                    (Value::String(kind), Value::String(text)) if kind == "text" => texts += text,
                    _ => return refuse(&format!("[{i}]")),
                }
            }
            Ok(texts)
        }
        _ => refuse(""),
    }
}

/// OpenAI writes the arguments of a call as a text, templates want the object.
fn with_arguments(message: &Fields, mut call: Value) -> Result<Value, ApiError> {
    let param = message.path("tool_calls.function.arguments");
    call["function"]["arguments"] = arguments(&call["function"]["arguments"], param)?;
    Ok(call)
}

/// The object that the arguments of a call are as a text.
pub(crate) fn arguments(text: &Value, param: String) -> Result<Value, ApiError> {
    let parsed = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let refused = || ApiError::invalid(param, "the arguments of a call must be an object, as JSON");
    parsed.filter(Value::is_object).ok_or_else(refused)
}

/// A call as templates want it.
pub(crate) fn call(id: String, name: String, arguments: Value) -> Value {
    let function = json!({"name": name, "arguments": arguments});
    json!({"id": id, "type": "function", "function": function})
}
