//! Tool calls: what a request says of tools, and the calls in an answer's text.
//!
//! How calls are written is the template's affair ([`Format`]); a model whose template has no place for
//! tools gets a format of the server's own ([`generic`]). A text that was cut off in a call is that call, as
//! far as it goes.

mod format;
mod generic;

use ruvllm_engine::chat::{ChatError, ChatTemplate};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::{ApiError, ServerError};
use crate::fields::{Fields, parse};
use crate::keys::{hex, random_hex};

pub(crate) use format::{Call, Format};

/// What a request says of tools.
pub(crate) struct Tools {
    /// The tools, as templates want them.
    pub(crate) tools: Value,
    format: Format,
    /// At most one call.
    single: bool,
    /// Whether there must be a call.
    required: bool,
    /// The functions that may be called.
    names: Vec<String>,
    /// What the model is told of them where its template does not.
    description: String,
    /// The grammar (Lark) of the answer, where it is not free.
    pub(crate) grammar: Option<String>,
}

/// Which tools are to be called, in any API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    None,
    Auto,
    Required,
    Named(String),
}

impl Choice {
    /// `tool_choice` in OpenAI's forms; `pointer` leads to the name in an object.
    pub(crate) fn take(fields: &mut Fields, pointer: &str) -> Result<Option<Choice>, ApiError> {
        Ok(Some(match fields.take::<Value>("tool_choice")? {
            None => return Ok(None),
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => Choice::None,
                "auto" => Choice::Auto,
                "required" => Choice::Required,
                _ => return Err(Choice::unknown()),
            },
            Some(choice) => {
                let param = format!("tool_choice{}", pointer.replace('/', "."));
                let name = choice.pointer(pointer).cloned().unwrap_or_default();
                Choice::Named(parse(&param, name)?)
            }
        }))
    }

    pub(crate) fn unknown() -> ApiError {
        let message = "`tool_choice` must be none, auto, required, or one of the tools";
        ApiError::invalid("tool_choice", message)
    }
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls` of chat completions; `None` where no tool may
    /// be called.
    ///
    /// # Errors
    /// What is malformed.
    pub(crate) fn take(fields: &mut Fields, format: Format) -> Result<Option<Tools>, ApiError> {
        let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
        let choice = Choice::take(fields, "/function/name")?;
        let single = !fields.take("parallel_tool_calls")?.unwrap_or(true);
        for (i, tool) in tools.iter().enumerate() {
            if tool["type"] != "function" {
                let message = "only tools of type `function` are supported";
                return Err(ApiError::invalid(format!("tools[{i}].type"), message));
            }
            if !tool["function"]["name"].is_string() {
                let message = "a function needs a name";
                return Err(ApiError::invalid(format!("tools[{i}].function.name"), message));
            }
        }
        Tools::new(tools, choice, single, format)
    }

    /// What tools in the form of chat completions, each with a name, become; `None` where none may be called.
    ///
    /// # Errors
    /// A choice that is none of them, and `strict` where nothing makes it so.
    pub(crate) fn new(
        tools: Vec<Value>,
        choice: Option<Choice>,
        single: bool,
        format: Format,
    ) -> Result<Option<Tools>, ApiError> {
        let choice = choice.unwrap_or(Choice::Auto);
        if choice == Choice::None || (tools.is_empty() && choice == Choice::Auto) {
            return Ok(None);
        }
        let functions = tools.iter().filter_map(|tool| tool["function"].as_object());
        let chosen: Vec<&Map<String, Value>> = match &choice {
            Choice::Named(name) => functions.filter(|f| f["name"] == **name).collect(),
            _ => functions.collect(),
        };
        if chosen.is_empty() {
            return Err(Choice::unknown());
        }
        let required = choice != Choice::Auto;
        let constrained = required || format == Format::Generic;
        if !constrained
            && chosen.iter().any(|function| function.get("strict") == Some(&json!(true)))
        {
            let message = "`strict` is kept where `tool_choice` is required or names a tool";
            return Err(ApiError::bad_request("unsupported_parameter", message).of("tools"));
        }
        let single = single || matches!(choice, Choice::Named(_));
        let names = chosen.iter().filter_map(|f| f["name"].as_str()).map(str::to_owned).collect();
        let description = match format {
            Format::Generic => generic::describe(&chosen, single, required),
            _ => String::new(),
        };
        let grammar = constrained.then(|| format.grammar(&chosen, single, required));
        let tools = tools.into();
        Ok(Some(Tools { tools, format, single, required, names, description, grammar }))
    }

    /// Whether the answer must be a call.
    pub(crate) fn required(&self) -> bool {
        self.required
    }
}

/// Renders a conversation for an answer that may, or must, call tools.
///
/// # Errors
/// Those of the template.
pub(crate) fn render(
    template: &ChatTemplate,
    format: Format,
    messages: Vec<Value>,
    tools: Option<&Tools>,
    waited_for: &dyn Fn() -> bool,
) -> Result<String, ChatError> {
    let render =
        |messages: &[Value], tools| template.render_while(messages, tools, true, waited_for);
    if format != Format::Generic {
        let messages = if format.is_mistral() { with_short_ids(messages) } else { messages };
        let mut text = render(&messages, tools.map(|tools| &tools.tools))?;
        if tools.is_some_and(Tools::required) {
            text += format.prefix();
        }
        return Ok(text);
    }
    let messages = generic::plain(messages);
    let Some(Tools { description, .. }) = tools else { return render(&messages, None) };
    // Some templates refuse system messages, others leave them out.
    let text = render(&generic::with_text(messages.clone(), description, "system"), None);
    match text {
        Ok(text) if text.contains(description.as_str()) => Ok(text),
        Ok(_) | Err(ChatError::Refused { .. }) => {
            render(&generic::with_text(messages, description, "user"), None)
        }
        Err(error) => Err(error),
    }
}

/// Mistral's templates take ids of nine letters and digits alone: others get one that follows from them.
fn with_short_ids(mut messages: Vec<Value>) -> Vec<Value> {
    let short = |id: &mut Value| {
        if let Some(long) = id.as_str().filter(|id| !format::is_mistral_id(id)) {
            *id = hex(&Sha256::digest(long))[..9].into();
        }
    };
    for message in &mut messages {
        if let Some(id) = message.get_mut("tool_call_id") {
            short(id);
        }
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            if let Some(id) = call.get_mut("id") {
                short(id);
            }
        }
    }
    messages
}

/// A text in which calls may come up.
pub(crate) struct ToolText {
    format: Format,
    single: bool,
    required: bool,
    names: Vec<String>,
    /// What is, or may become, a call.
    held: String,
    /// Whether some of the text was none.
    begun: bool,
}

/// What a text was at its end.
pub(crate) struct Calls {
    /// The rest of the text.
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    /// Whether the text was cut off in the last of the calls.
    pub(crate) cut: bool,
}

impl ToolText {
    pub(crate) fn new(tools: &Tools) -> ToolText {
        let Tools { format, single, required, .. } = *tools;
        // The prompt ends with it.
        let held = if required { format.prefix() } else { "" }.to_owned();
        ToolText { format, single, required, names: tools.names.clone(), held, begun: false }
    }

    /// Adds a piece; gives the text that is certain to be none of a call.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        self.held += piece;
        let keep = self.format.held(&self.held, self.begun);
        let held = self.held.split_off(self.held.len() - keep);
        self.begun |= !self.held.is_empty();
        std::mem::replace(&mut self.held, held)
    }

    /// The rest of the text, and the calls; `cut` says whether the text might have gone on.
    pub(crate) fn finish(&mut self, cut: bool) -> Calls {
        let held = std::mem::take(&mut self.held);
        let mut found = match self.format.calls(&held) {
            Some(calls) => Calls { text: String::new(), calls, cut: false },
            None => match self.format.calls_so_far(&held, &self.names, self.required) {
                Some(calls) if cut => Calls { text: String::new(), calls, cut },
                // What must become a call is no text, even where it is not known yet which call.
                None if cut && self.required => {
                    Calls { text: String::new(), calls: Vec::new(), cut }
                }
                _ => Calls { text: held, calls: Vec::new(), cut: false },
            },
        };
        if self.single && found.calls.len() > 1 {
            found.calls.truncate(1);
            found.cut = false;
        }
        found
    }
}

impl Call {
    /// The call's id: the model's own, or a new one, which begins so where the template takes any.
    ///
    /// # Errors
    /// Where the system gives no randomness.
    pub(crate) fn id(&self, format: Format, begin: &str) -> Result<String, ServerError> {
        match &self.id {
            Some(id) => Ok(id.clone()),
            None if format.is_mistral() => Ok(random_hex::<5>()?[..9].to_owned()),
            None => Ok(format!("{begin}_{}", random_hex::<12>()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "Goes."}})
    }

    fn text(format: Format, required: bool) -> ToolText {
        let choice = if required { Choice::Required } else { Choice::Auto };
        let tools = vec![tool("f"), tool("g")];
        ToolText::new(&Tools::new(tools, Some(choice), false, format).unwrap().unwrap())
    }

    /// The text, the calls and whether it was cut off in one.
    fn read(
        mut text: ToolText,
        pieces: &[&str],
        cut: bool,
    ) -> (String, Vec<(String, String)>, bool) {
        let mut content: String = pieces.iter().map(|piece| text.push(piece)).collect();
        let found = text.finish(cut);
        content += &found.text;
        let calls = found.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
        (content, calls, found.cut)
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn hermes_calls_are_found_behind_text_and_over_pieces() {
        let pieces = [
            "Let me <b>see</b>: <tool",
            "_call>\n{\"name\": \"f\", \"argum",
            "ents\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
        ];
        let (content, calls, cut) = read(text(Format::Hermes, false), &pieces, false);
        assert_eq!(content, "Let me <b>see</b>: ");
        assert_eq!((calls, cut), (vec![call("f", "{\"a\":1}"), call("g", "{}")], false));
    }

    #[test]
    fn llama_calls_are_the_whole_text() {
        let pieces = [" {\"name\": \"f\", ", "\"parameters\": {}}; {\"name\": \"g\"}"];
        let (content, calls, _) = read(text(Format::Llama3, false), &pieces, false);
        assert_eq!((content.as_str(), calls.len()), ("", 2));
        let pieces = ["Hello ", "{\"name\": \"f\"}"];
        let (content, calls, _) = read(text(Format::Llama3, false), &pieces, false);
        assert_eq!((content.as_str(), calls.len()), ("Hello {\"name\": \"f\"}", 0));
    }

    #[test]
    fn what_only_looks_like_a_call_stays_text() {
        for (format, piece) in [
            (Format::Hermes, "<tool_call>not JSON</tool_call>"),
            (Format::Hermes, "<tool_call>{\"arguments\": {}}"),
            (Format::Hermes, "a <tool"),
            (Format::Llama3, "{\"answer\": 42}"),
            (Format::Generic, "{\"answer\": 42}"),
            (Format::Mistral, "[TOOL_CALLS] none"),
        ] {
            for cut in [false, true] {
                let found = read(text(format, false), &[piece], cut);
                assert_eq!(found, (piece.to_owned(), Vec::new(), false));
            }
        }
    }

    #[test]
    fn a_call_that_was_cut_off_is_a_call() {
        let begun = "{\"name\": \"g\", \"arguments\": {\"a\": \"b";
        let hermes = format!("<tool_call>\n{begun}");
        // The mark is in the prompt where there must be a call.
        for (format, required, piece) in [
            (Format::Hermes, true, hermes.as_str()),
            (Format::Hermes, false, hermes.as_str()),
            (Format::Generic, true, begun),
            (Format::Mistral, true, "[{\"name\": \"g\", \"arguments\": {\"a\": \"b"),
            (Format::MistralArgs, true, "g[ARGS]{\"a\": \"b"),
        ] {
            let found = read(text(format, required), &[piece], true);
            assert_eq!(found, (String::new(), vec![call("g", "{\"a\": \"b")], true), "{piece}");
        }
        // It is not known yet which, but it is no text.
        let found = read(text(Format::Generic, true), &["{\"name\""], true);
        assert_eq!(found, (String::new(), Vec::new(), true));
        // The same, had it ended by itself.
        let found = read(text(Format::Hermes, false), &[&hermes], false);
        assert_eq!(found, (hermes.clone(), Vec::new(), false));
    }

    #[test]
    fn ids_are_those_that_the_template_takes() {
        let call = |id: Option<&str>| Call {
            id: id.map(str::to_owned),
            name: String::new(),
            arguments: String::new(),
        };
        assert_eq!(call(Some("abcdef123")).id(Format::Mistral, "call").unwrap(), "abcdef123");
        assert!(format::is_mistral_id(&call(None).id(Format::Mistral, "call").unwrap()));
        assert!(call(None).id(Format::Hermes, "call").unwrap().starts_with("call_"));
        let messages = with_short_ids(vec![
            json!({"role": "assistant", "tool_calls": [{"id": "call_1"}, {"id": "abcdef123"}]}),
            json!({"role": "tool", "tool_call_id": "call_1"}),
        ]);
        let calls = &messages[0]["tool_calls"];
        assert_eq!(
            (&calls[0]["id"], &calls[1]["id"]),
            (&messages[1]["tool_call_id"], &json!("abcdef123"))
        );
        assert!(format::is_mistral_id(calls[0]["id"].as_str().unwrap()));
    }
}
