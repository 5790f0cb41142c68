//! Tool calls: what a request says of tools, and the calls in an answer's text.
//!
//! How calls are written is the template's affair ([`Format`]); a model whose template has no place for
//! tools gets a format of the server's own ([`generic`]). What a template leaves out of tools and calls is
//! told in the messages' texts ([`Teaching`]). A text that was cut off in a call is that call, as far as it
//! goes.

mod format;
mod generic;

use std::sync::Arc;

use ruvllm_engine::chat::{ChatError, ChatTemplate};
use ruvllm_engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::{ApiError, ServerError};
use crate::fields::{Fields, parse};
use crate::keys::{hex, random_hex};

pub(crate) use format::{Call, Format};
use format::{Function, Marks};

/// What a model's template knows of tools.
pub(crate) struct Teaching {
    pub(crate) format: Format,
    /// The control tokens that calls are told by.
    pub(crate) marks: Marks,
    place: Place,
    /// Whether it shows calls in messages.
    calls: bool,
    /// Whether it joins arguments to texts, and so wants them as one.
    joins_arguments: bool,
}

/// Where a template takes tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Variable,
    /// A text in the system message.
    SystemField,
    Nowhere,
}

impl Teaching {
    pub(crate) fn new(template: &str, tokenizer: &Tokenizer) -> Teaching {
        let format = Format::of(template);
        Teaching { marks: format.marks(tokenizer), ..Teaching::of(template, format) }
    }

    fn of(template: &str, format: Format) -> Teaching {
        let has = |text: &str| template.contains(text);
        let place = if format::takes_tools(template) {
            Place::Variable
        } else if format == Format::Phi {
            Place::SystemField
        } else {
            Place::Nowhere
        };
        let calls = has("tool_calls");
        let joins_arguments = has("['arguments'] +") || has(".arguments +");
        Teaching { format, marks: Marks::new(), place, calls, joins_arguments }
    }
}

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
    functions: Arc<[Function]>,
    /// What the model is told of them where its template does not.
    description: String,
    /// The grammar (Lark) of the answer, where it is not free, and the same for any vocabulary.
    pub(crate) grammar: Option<[String; 2]>,
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
    pub(crate) fn take(
        fields: &mut Fields,
        teaching: &Teaching,
    ) -> Result<Option<Tools>, ApiError> {
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
        Tools::new(tools, choice, single, teaching)
    }

    /// What tools in the form of chat completions, each with a name, become; `None` where none may be called.
    ///
    /// # Errors
    /// A choice that is none of them, and `strict` where nothing makes it so.
    pub(crate) fn new(
        tools: Vec<Value>,
        choice: Option<Choice>,
        single: bool,
        teaching: &Teaching,
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
        // What an unknown template teaches has no grammar.
        let format = match teaching.format {
            Format::Template if required => Format::Generic,
            format => format,
        };
        let constrained = required || format == Format::Generic;
        if !constrained
            && chosen.iter().any(|function| function.get("strict") == Some(&json!(true)))
        {
            let message = "`strict` is kept where `tool_choice` is required or names a tool";
            return Err(ApiError::bad_request("unsupported_parameter", message).of("tools"));
        }
        let single = single || matches!(choice, Choice::Named(_));
        let function = |function: &&Map<String, Value>| {
            let parameters = function.get("parameters").cloned().unwrap_or_default();
            Some(Function { name: function["name"].as_str()?.to_owned(), parameters })
        };
        let functions = chosen.iter().filter_map(function).collect();
        let description = generic::describe(&chosen, single, required, format);
        let grammar = |marks: &Marks| format.grammar(&chosen, single, required, marks);
        let grammar = constrained.then(|| [grammar(&teaching.marks), grammar(&Marks::new())]);
        let tools = tools.into();
        Ok(Some(Tools { tools, format, single, required, functions, description, grammar }))
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
    teaching: &Teaching,
    messages: Vec<Value>,
    tools: Option<&Tools>,
    waited_for: &dyn Fn() -> bool,
) -> Result<String, ChatError> {
    let render =
        |messages: &[Value], tools| template.render_while(messages, tools, true, waited_for);
    let format = tools.map_or(teaching.format, |tools| tools.format);
    let mut messages = match format {
        Format::Generic => generic::plain(messages),
        _ => teaching.as_shown(with_names(messages)),
    };
    let Some(Tools { tools, description, required, .. }) = tools else {
        return render(&messages, None);
    };
    let place = if format == Format::Generic { Place::Nowhere } else { teaching.place };
    let text = match place {
        Place::Variable => render(&messages, Some(tools)),
        Place::SystemField => {
            generic::with_field(&mut messages, tools);
            render(&messages, None)
        }
        // Some templates refuse system messages, others leave them out.
        Place::Nowhere => {
            let system = generic::with_text(messages.clone(), description, "system");
            match render(&system, None) {
                Ok(text) if text.contains(description.as_str()) => Ok(text),
                Ok(_) | Err(ChatError::Refused { .. }) => {
                    render(&generic::with_text(messages, description, "user"), None)
                }
                Err(error) => Err(error),
            }
        }
    };
    Ok(text? + if *required { format.prefix() } else { "" })
}

impl Teaching {
    /// Messages with their calls as the template shows them.
    fn as_shown(&self, messages: Vec<Value>) -> Vec<Value> {
        let mut messages =
            if self.format.is_mistral() { with_short_ids(messages) } else { messages };
        for message in &mut messages {
            let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) else {
                continue;
            };
            if !self.calls {
                let calls: Vec<Value> = calls.iter().map(|call| call["function"].clone()).collect();
                let text = generic::content(message) + &self.format.write(&calls);
                message["content"] = text.into();
                continue;
            }
            if self.joins_arguments {
                for call in calls {
                    let arguments = &mut call["function"]["arguments"];
                    *arguments = arguments.to_string().into();
                }
            }
            // These tell calls with a text and without by it.
            if self.format.is_deepseek() && message["content"] == "" {
                message["content"] = Value::Null;
            }
        }
        messages
    }
}

/// Gives what a tool answered the name of its function, which some templates want: clients say the id
/// of the call alone.
fn with_names(mut messages: Vec<Value>) -> Vec<Value> {
    let mut names = generic::Names::default();
    for message in &mut messages {
        names.note(&message["tool_calls"]);
        if generic::is_answer(message)
            && let Some(name) = names.of(message)
        {
            message["name"] = name;
        }
    }
    messages
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
    functions: Arc<[Function]>,
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
        let functions = Arc::clone(&tools.functions);
        ToolText { format, single, required, functions, held, begun: false }
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
        let mut held = std::mem::take(&mut self.held);
        if cut {
            // A character whose bytes are not all there.
            held.truncate(held.trim_end_matches('\u{fffd}').len());
        }
        let mut found = match self.format.calls(&held, &self.functions) {
            Some(calls) => Calls { text: String::new(), calls, cut: false },
            None => match self.format.calls_so_far(&held, &self.functions, self.required) {
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
    use ruvllm_engine::chat::Renderer;

    use super::*;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "Goes."}})
    }

    fn text(format: Format, required: bool) -> ToolText {
        let choice = if required { Choice::Required } else { Choice::Auto };
        let tools = vec![tool("f"), tool("g")];
        let teaching = Teaching::of("", format);
        ToolText::new(&Tools::new(tools, Some(choice), false, &teaching).unwrap().unwrap())
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
            (Format::DeepSeek31, true, "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{\"a\": \"b"),
            (Format::Granite, true, "[{\"name\": \"g\", \"arguments\": {\"a\": \"b"),
            (Format::Qwen3Coder, true, hermes.as_str()),
            (Format::Template, false, hermes.as_str()),
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
    fn calls_between_marks_are_found_behind_text_and_over_pieces() {
        let call = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"日本\"}<｜tool▁call▁end｜>";
        let deepseek = format!("<｜tool▁calls▁begin｜>{call}{call}<｜tool▁calls▁end｜>");
        let phi = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"日本\"}}, {\"name\": \"f\", \"arguments\": {\"a\": \"日本\"}}]<|/tool_call|>";
        let xml = "<tool_call>\n<function=f>\n<parameter=a>\n日本\n</parameter>\n</function>\n</tool_call>\n";
        for (format, calls) in [
            (Format::DeepSeek31, deepseek.as_str()),
            (Format::Phi, phi),
            (Format::Qwen3Coder, &xml.repeat(2)),
            (Format::Template, phi),
        ] {
            let whole = format!("So <b>｜: {calls}");
            let pieces: Vec<String> = whole.chars().map(String::from).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let found = read(text(format, false), &pieces, false);
            let f = || self::tests::call("f", "{\"a\":\"日本\"}");
            assert_eq!(found, ("So <b>｜: ".to_owned(), vec![f(), f()], false), "{format:?}");
        }
        // What an unknown template taught is what the model said.
        let other = "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>";
        let found = read(text(Format::Template, false), &["{} ", other], false);
        assert_eq!(found, (format!("{{}} {other}"), Vec::new(), false));
    }

    /// What a conversation with a call is rendered as.
    fn rendered(source: &str, choice: Option<Choice>) -> String {
        let teaching = Teaching::of(source, Format::of(source));
        let template = ChatTemplate::new(source, "", "", &Renderer::InProcess).unwrap();
        let call = json!({"name": "f", "arguments": {"a": "ü"}});
        let messages = vec![
            json!({"role": "user", "content": "Go."}),
            json!({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": call}]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "There."}),
        ];
        let tools = choice.and_then(|choice| {
            Tools::new(vec![tool("f")], Some(choice), false, &teaching).unwrap()
        });
        render(&template, &teaching, messages, tools.as_ref(), &|| true).unwrap()
    }

    #[test]
    fn templates_are_shown_tools_and_calls_as_they_want_them() {
        let f = "{\"name\":\"f\",\"description\":\"Goes.\"}";
        // Calls, whose arguments it joins to texts, but no tools.
        let deepseek = "{% for m in messages %}{% if m['tool_calls'] %}{% if m['content'] is not none %}{{ '!' }}{% endif %}{% for tool in m['tool_calls'] %}{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}{% endfor %}{% else %}<{{ m['role'] }}>{{ m['content'] }}{% endif %}{% endfor %}";
        let called = "<user>Go.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":\"ü\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜><tool>There.";
        assert_eq!(rendered(deepseek, None), called);
        let auto = rendered(deepseek, Some(Choice::Auto));
        assert!(auto.starts_with("<system>") && auto.ends_with(called), "{auto}");
        let taught = "in this form: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>the function's name<｜tool▁sep｜>{";
        assert!(auto.contains(f) && auto.contains(taught), "{auto}");
        let required = rendered(deepseek, Some(Choice::Required));
        assert!(required.ends_with(&format!("{called}<｜tool▁calls▁begin｜>")), "{required}");
        // Tools in the system message, but no calls.
        let phi = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if 'tools' in m and m['tools'] is not none %}{{ '<|tool|>' + m['tools'] + '<|/tool|>' }}{% endif %}{% endfor %}";
        let called = "<user>Go.<assistant><|tool_call|>[{\"name\":\"f\",\"arguments\":{\"a\":\"ü\"}}]<|/tool_call|><tool>There.";
        let auto = rendered(phi, Some(Choice::Auto));
        assert!(auto.ends_with(&format!("<|tool|>[{f}]<|/tool|>{called}")), "{auto}");
        assert_eq!(rendered(phi, None), called);
        // Tools, but no calls.
        let granite = "{% if tools %}{{ tools | length }}<|tool_call|>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
        let called = "<user>Go.<assistant><|tool_call|>[{\"name\":\"f\",\"arguments\":{\"a\":\"ü\"}}]<tool>There.";
        assert_eq!(rendered(granite, Some(Choice::Auto)), format!("1<|tool_call|>{called}"));
        // Tools and calls in a way of its own, which is left to it unless a call must be made.
        let other = "{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments.a }}){% endfor %}{% endfor %}";
        let called = "<user>Go.<assistant>f(ü)<tool>There.";
        assert_eq!(rendered(other, Some(Choice::Auto)), format!("<f>{called}"));
        assert_eq!(rendered(other, None), called);
        let required = rendered(other, Some(Choice::Required));
        assert!(required.starts_with("<system>You can call functions."), "{required}");
        assert!(required.contains("<assistant>{\"name\":\"f\""), "{required}");
        // It refuses what a tool answered without the tool's name, which the client did not say.
        let named = "{% for tool in tools or [] %}<{{ tool.function.name }}>{% endfor %}{% for m in messages %}{% if m.role == 'tool' and not m.name %}{{ raise_exception('no name') }}{% endif %}<{{ m.role }}>{{ m.name }}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}";
        let called = "<user>Go.<assistant><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"ü\"}}</tool_call><tool>fThere.";
        assert_eq!(rendered(named, Some(Choice::Auto)), format!("<f>{called}"));
        assert_eq!(rendered(named, None), called);
    }

    #[test]
    fn what_a_tool_answered_has_the_name_of_its_function() {
        let call = |id: &str, name: &str| json!({"id": id, "function": {"name": name}});
        let named = with_names(vec![
            json!({"role": "tool", "tool_call_id": "1"}),
            json!({"role": "assistant", "tool_calls": [call("1", "walk"), call("2", "fly")]}),
            json!({"role": "tool", "tool_call_id": "2"}),
            json!({"role": "tool", "tool_call_id": "1", "name": "stroll"}),
            json!({"role": "tool", "tool_call_id": "3"}),
            json!({"role": "user", "tool_call_id": "1"}),
            json!({"role": "assistant", "tool_calls": [call("1", "swim")]}),
            json!({"role": "tool", "tool_call_id": "1"}),
        ]);
        let names: Vec<Option<&str>> = named.iter().map(|m| m["name"].as_str()).collect();
        let fly = [None, None, Some("fly"), Some("stroll"), None, None, None, Some("swim")];
        assert_eq!(names, fly);
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
