//! Tool calls: which way of writing them a model's template teaches, and back from text to calls.
//!
//! Two ways are known. *Hermes* (also Qwen): `<tool_call>` and JSON with `name` and `arguments` and
//! `</tool_call>`, any number of them, behind text or alone. *Llama 3*: the whole text is JSON with
//! `name` and `parameters`, several of them separated by `;`. What looks like a call and is none stays
//! text.

use serde_json::{Map, Value, json};

use crate::error::{ApiError, ServerError};
use crate::fields::{Fields, parse};
use crate::grammar::one_layout;
use crate::keys::random_hex;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A way of writing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Hermes,
    Llama3,
}

/// What a request says of tools.
pub(crate) struct Tools {
    /// The tools, as templates want them.
    pub(crate) tools: Value,
    pub(crate) format: Format,
    /// At most one call.
    pub(crate) single: bool,
    /// The grammar (Lark) of an answer that must be a call.
    pub(crate) required: Option<String>,
}

impl Format {
    /// The way that a template teaches, if it has a place for tools and the way is known.
    pub(crate) fn of(template: &str) -> Option<Format> {
        if !template.contains("tools") {
            return None;
        }
        if template.contains(OPEN) {
            return Some(Format::Hermes);
        }
        let llama = template.contains("\"parameters\"") && template.contains("ipython");
        llama.then_some(Format::Llama3)
    }

    fn arguments(self) -> &'static str {
        match self {
            Format::Hermes => "arguments",
            Format::Llama3 => "parameters",
        }
    }
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls`; `None` where no tool may be called.
    ///
    /// # Errors
    /// What is malformed, and tools for a model whose template has no place for them.
    pub(crate) fn take(
        fields: &mut Fields,
        format: Option<Format>,
    ) -> Result<Option<Tools>, ApiError> {
        let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
        let choice = fields.take::<Value>("tool_choice")?;
        let single = !fields.take("parallel_tool_calls")?.unwrap_or(true);
        let functions = functions(&tools)?;
        let name = |choice: &Value| match choice {
            Value::String(choice) => Ok(choice.clone()),
            choice => parse("tool_choice.function.name", choice["function"]["name"].clone())
                .map(|name: String| format!("function {name}")),
        };
        let choice = choice.as_ref().map(name).transpose()?;
        let choice = choice.as_deref().unwrap_or("auto");
        if choice == "none" || (tools.is_empty() && choice == "auto") {
            return Ok(None);
        }
        let Some(format) = format else {
            let message =
                "the model's chat template has no place for tools, or one of an unknown format";
            return Err(ApiError::bad_request("tools_unsupported", message).of("tools"));
        };
        let chosen: Vec<&Map<String, Value>> = match choice.strip_prefix("function ") {
            Some(name) => functions.iter().copied().filter(|f| f["name"] == name).collect(),
            None => functions,
        };
        let must = match choice {
            "auto" => false,
            "required" => true,
            choice => choice.starts_with("function "),
        };
        if !must && choice != "auto" || must && chosen.is_empty() {
            let message = "`tool_choice` must be none, auto, required, or one of the tools";
            return Err(ApiError::invalid("tool_choice", message));
        }
        if !must && chosen.iter().any(|function| function.get("strict") == Some(&json!(true))) {
            let message = "`strict` is kept where `tool_choice` is required or names a tool";
            return Err(ApiError::bad_request("unsupported_parameter", message).of("tools"));
        }
        let single = single || choice.starts_with("function ");
        let required = must.then(|| grammar(format, &chosen, single));
        Ok(Some(Tools { tools: tools.into(), format, single, required }))
    }
}

/// The functions of `tools`, each with its name.
fn functions(tools: &[Value]) -> Result<Vec<&Map<String, Value>>, ApiError> {
    let check = |(i, tool): (usize, &'_ Value)| {
        if tool["type"] != "function" {
            let message = "only tools of type `function` are supported";
            return Err(ApiError::invalid(format!("tools[{i}].type"), message));
        }
        if !tool["function"]["name"].is_string() {
            let message = "a function needs a name";
            return Err(ApiError::invalid(format!("tools[{i}].function.name"), message));
        }
        Ok(())
    };
    tools.iter().enumerate().try_for_each(check)?;
    Ok(tools.iter().filter_map(|tool| tool["function"].as_object()).collect())
}

/// The texts that call one of the functions, or, unless `single`, some of them.
fn grammar(format: Format, functions: &[&Map<String, Value>], single: bool) -> String {
    let arguments = format.arguments();
    let calls: Vec<Value> = functions
        .iter()
        .map(|function| {
            let schema =
                function.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"}));
            json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments: schema},
                "required": ["name", arguments],
                "additionalProperties": false,
            })
        })
        .collect();
    let mut call = json!({"anyOf": calls});
    one_layout(&mut call);
    let (one, between) = match format {
        Format::Hermes => (format!("\"{OPEN}\\n\" json \"\\n{CLOSE}\""), "\"\\n\""),
        Format::Llama3 => ("json".to_owned(), "\"; \""),
    };
    let more = if single { String::new() } else { format!(" ({between} call)*") };
    format!("start: call{more}\ncall: {one}\njson: %json {call}\n")
}

/// A text in which calls may come up.
pub(crate) struct ToolText {
    format: Format,
    single: bool,
    /// What is, or may become, a call.
    held: String,
    /// Whether some of the text was none.
    begun: bool,
}

impl ToolText {
    pub(crate) fn new(tools: &Tools) -> ToolText {
        ToolText { format: tools.format, single: tools.single, held: String::new(), begun: false }
    }

    /// Adds a piece; gives the text that is certain to be none of a call.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.held += piece;
        let keep = match self.format {
            Format::Hermes => match self.held.find(OPEN) {
                Some(at) => self.held.len() - at,
                None => {
                    let begun = (1..OPEN.len()).rev();
                    begun.into_iter().find(|&n| self.held.ends_with(&OPEN[..n])).unwrap_or(0)
                }
            },
            Format::Llama3 => {
                let start = self.held.trim_start();
                let may_call = !self.begun && (start.is_empty() || start.starts_with('{'));
                if may_call { self.held.len() } else { 0 }
            }
        };
        let held = self.held.split_off(self.held.len() - keep);
        self.begun |= !self.held.is_empty();
        std::mem::replace(&mut self.held, held)
    }

    /// The rest of the text, and the calls, in OpenAI's form.
    ///
    /// # Errors
    /// Where the system gives no randomness for the calls' ids.
    pub(crate) fn finish(&mut self) -> Result<(String, Vec<Value>), ServerError> {
        let held = std::mem::take(&mut self.held);
        let Some(mut calls) = calls(self.format, &held) else { return Ok((held, Vec::new())) };
        if self.single {
            calls.truncate(1);
        }
        let call = |(name, arguments): (String, Value)| {
            let id = format!("call_{}", random_hex::<12>()?);
            let function = json!({"name": name, "arguments": arguments.to_string()});
            Ok(json!({"id": id, "type": "function", "function": function}))
        };
        Ok((String::new(), calls.into_iter().map(call).collect::<Result<_, ServerError>>()?))
    }
}

/// The calls that a text consists of; `None` where it is something else, or more.
fn calls(format: Format, text: &str) -> Option<Vec<(String, Value)>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if format == Format::Hermes {
            rest = rest.strip_prefix(OPEN)?;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Map<String, Value>>();
        let mut call = values.next()?.ok()?;
        rest = rest[values.byte_offset()..].trim_start();
        rest = match format {
            // A model may end its turn in place of the last mark.
            Format::Hermes if rest.is_empty() => rest,
            Format::Hermes => rest.strip_prefix(CLOSE)?.trim_start(),
            Format::Llama3 => rest.strip_prefix(';').unwrap_or(rest).trim_start(),
        };
        let Some(Value::String(name)) = call.remove("name") else { return None };
        let arguments = call.remove(format.arguments()).unwrap_or_else(|| json!({}));
        calls.push((name, arguments));
    }
    (!calls.is_empty()).then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: Format, pieces: &[&str]) -> (String, Vec<(Value, Value)>) {
        let mut text = ToolText { format, single: false, held: String::new(), begun: false };
        let mut content: String = pieces.iter().map(|piece| text.push(piece)).collect();
        let (rest, calls) = text.finish().unwrap();
        content += &rest;
        let function =
            |call: Value| (call["function"]["name"].clone(), call["function"]["arguments"].clone());
        (content, calls.into_iter().map(function).collect())
    }

    #[test]
    fn hermes_calls_are_found_behind_text_and_over_pieces() {
        let (content, calls) = read(
            Format::Hermes,
            &[
                "Let me <b>see</b>: <tool",
                "_call>\n{\"name\": \"f\", \"argum",
                "ents\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
            ],
        );
        assert_eq!(content, "Let me <b>see</b>: ");
        assert_eq!(calls, [(json!("f"), json!("{\"a\":1}")), (json!("g"), json!("{}"))]);
    }

    #[test]
    fn llama_calls_are_the_whole_text() {
        let (content, calls) = read(
            Format::Llama3,
            &[" {\"name\": \"f\", ", "\"parameters\": {}}; {\"name\": \"g\"}"],
        );
        assert_eq!((content.as_str(), calls.len()), ("", 2));
        let (content, calls) = read(Format::Llama3, &["Hello ", "{\"name\": \"f\"}"]);
        assert_eq!((content.as_str(), calls.len()), ("Hello {\"name\": \"f\"}", 0));
    }

    #[test]
    fn what_only_looks_like_a_call_stays_text() {
        for text in ["<tool_call>not JSON</tool_call>", "<tool_call>{\"arguments\": {}}", "a <tool"]
        {
            assert_eq!(read(Format::Hermes, &[text]), (text.to_owned(), Vec::new()));
        }
        let text = "{\"answer\": 42}";
        assert_eq!(read(Format::Llama3, &[text]), (text.to_owned(), Vec::new()));
    }

    #[test]
    fn the_format_is_the_one_that_the_template_teaches() {
        assert_eq!(Format::of("{% if tools %}<tool_call>"), Some(Format::Hermes));
        assert_eq!(Format::of("{% if tools %}\"parameters\": ... ipython"), Some(Format::Llama3));
        assert_eq!(Format::of("{% if tools %}[TOOL_CALLS]"), None);
        assert_eq!(Format::of("{{ messages[0].content }}"), None);
    }
}
