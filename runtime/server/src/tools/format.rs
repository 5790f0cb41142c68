//! Ways of writing calls: what a model's template teaches, the grammar of it, and back from text to calls.
//!
//! Each way is a row of [`Format::layout`]. Of *Hermes* (also Qwen) calls are `<tool_call>` and JSON with `name`
//! and `arguments` and `</tool_call>`, any number of them, behind text or alone. Of *Llama 3* the whole text is
//! JSON with `name` and `parameters`, several of them separated by `;`. Of *Mistral* `[TOOL_CALLS]` comes before
//! a JSON array of calls, or, in its later models, before each name, with `[ARGS]` before the arguments. *Phi*,
//! *Granite* and *Nemotron* have arrays behind marks of their own, *DeepSeek* names and arguments within marks.
//! *Qwen3-Coder* has XML: its arguments have no types, which follow from the schemas, and where a call must
//! keep to a schema it is written as JSON between the same marks. What looks like a call and is none stays
//! text.
//!
//! A template that takes tools and teaches an unknown way is shown them as it wants, and calls are read in
//! whatever known way they are written (`Template`). A template that has no place for tools gets the *generic*
//! way (`generic`): the whole text is JSON with `name` and `arguments`, one call on a line.

mod read;

use ruvllm_engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::grammar::one_layout;
use read::Reader;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const CALLS: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";
const BEGIN: &str = "<|tool_call|>";
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const DEEPSEEK: &str = "<｜tool▁calls▁begin｜>";
const DEEPSEEK_MARKS: &[&str] = &[
    DEEPSEEK,
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

/// A way of writing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Hermes,
    Llama3,
    /// An array of calls.
    Mistral,
    /// Names and arguments, each behind a mark of its own.
    MistralArgs,
    /// V3 and R1.
    DeepSeek,
    /// V3.1.
    DeepSeek31,
    Phi,
    Granite,
    Nemotron,
    Qwen3Coder,
    /// Whatever an unknown template teaches.
    Template,
    Generic,
}

/// The ways that a call of an unknown template may be written in.
const KNOWN: [Format; 8] = [
    Format::Hermes,
    Format::Qwen3Coder,
    Format::MistralArgs,
    Format::DeepSeek,
    Format::DeepSeek31,
    Format::Phi,
    Format::Nemotron,
    Format::Llama3,
];

/// What calls consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// A JSON object with `name` and, as this, the arguments.
    Object(&'static str),
    /// A JSON array of such objects.
    List,
    /// The name, this mark, and the arguments as JSON.
    Named(&'static str),
    /// The name and each argument in XML, or such an object.
    Xml,
}

/// A way of writing calls, as data. Blanks around marks are written, but not needed to read a call.
struct Layout {
    /// The name that clients see.
    name: &'static str,
    /// What comes before the first call.
    begin: &'static str,
    /// What comes before each call.
    open: &'static str,
    body: Body,
    close: &'static str,
    between: &'static str,
    /// What comes behind the last call.
    end: &'static str,
    /// What may be a control token of a vocabulary.
    marks: &'static [&'static str],
}

const GENERIC: Layout = Layout {
    name: "generic",
    begin: "",
    open: "",
    body: Body::Object("arguments"),
    close: "",
    between: "\n",
    end: "",
    marks: &[],
};

/// The control tokens of a vocabulary that calls are told by, with their texts.
pub(crate) type Marks = Vec<(u32, &'static str)>;

/// A call that a text has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The id that the model gave it, where it is one that its template takes back.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// JSON; its beginning where the text was cut off in it.
    pub(crate) arguments: String,
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) parameters: Value,
}

/// Whether a template looks at the variable `tools`, and not at another that is called so, or at the word.
pub(super) fn takes_tools(template: &str) -> bool {
    let last = |text: &str, marks: [&str; 2]| marks.map(|mark| text.rfind(mark)).into_iter().max();
    let word = |c: char| c.is_alphanumeric() || "_.'\"▁".contains(c);
    template.match_indices("tools").any(|(at, tools)| {
        let (before, after) = (&template[..at], &template[at + tools.len()..]);
        let in_tag = last(before, ["{%", "{{"]) > last(before, ["%}", "}}"]);
        in_tag && !before.ends_with(word) && !after.starts_with(word)
    })
}

impl Format {
    /// The way that a template teaches.
    pub(crate) fn of(template: &str) -> Format {
        let has = |text: &str| template.contains(text);
        // These know calls, but most of them have no place for tools.
        if has(DEEPSEEK) {
            return if has("```json") { Format::DeepSeek } else { Format::DeepSeek31 };
        }
        // What one of Phi's has is no variable.
        if has("<|tool|>") && has("tools") {
            return Format::Phi;
        }
        if !takes_tools(template) {
            Format::Generic
        } else if has(BEGIN) {
            if has("<|/tool_call|>") { Format::Phi } else { Format::Granite }
        } else if has("<TOOLCALL>") {
            Format::Nemotron
        } else if has(OPEN) && has(FUNCTION) {
            Format::Qwen3Coder
        // Others write names and arguments in another XML between these marks.
        } else if has(OPEN) && !has("<arg_key>") {
            Format::Hermes
        } else if has(CALLS) {
            if has(ARGS) { Format::MistralArgs } else { Format::Mistral }
        } else if has("\"parameters\"") && has("ipython") {
            Format::Llama3
        } else {
            Format::Template
        }
    }

    fn layout(self) -> Layout {
        match self {
            Format::Hermes | Format::Qwen3Coder => Layout {
                name: if self == Format::Hermes { "hermes" } else { "qwen3-coder" },
                open: "<tool_call>\n",
                body: if self == Format::Hermes { Body::Object("arguments") } else { Body::Xml },
                close: "\n</tool_call>",
                marks: &[OPEN, CLOSE],
                ..GENERIC
            },
            Format::Llama3 => Layout {
                name: "llama3",
                body: Body::Object("parameters"),
                between: "; ",
                ..GENERIC
            },
            Format::Mistral | Format::MistralArgs => Layout {
                name: "mistral",
                begin: CALLS,
                body: if self == Format::Mistral { Body::List } else { Body::Named(ARGS) },
                between: CALLS,
                marks: &[CALLS, CALL_ID, ARGS],
                ..GENERIC
            },
            Format::DeepSeek => Layout {
                name: "deepseek",
                begin: DEEPSEEK,
                open: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                body: Body::Named("\n```json\n"),
                close: "\n```<｜tool▁call▁end｜>",
                between: "\n",
                end: "<｜tool▁calls▁end｜>",
                marks: DEEPSEEK_MARKS,
            },
            Format::DeepSeek31 => Layout {
                open: "<｜tool▁call▁begin｜>",
                body: Body::Named("<｜tool▁sep｜>"),
                close: "<｜tool▁call▁end｜>",
                between: "",
                ..Format::DeepSeek.layout()
            },
            Format::Phi => Layout {
                name: "phi",
                begin: BEGIN,
                body: Body::List,
                end: "<|/tool_call|>",
                marks: &[BEGIN, "<|/tool_call|>"],
                ..GENERIC
            },
            Format::Granite => Layout {
                name: "granite",
                begin: BEGIN,
                body: Body::List,
                marks: &[BEGIN],
                ..GENERIC
            },
            Format::Nemotron => Layout {
                name: "nemotron",
                begin: "<TOOLCALL>",
                body: Body::List,
                end: "</TOOLCALL>",
                marks: &["<TOOLCALL>", "</TOOLCALL>"],
                ..GENERIC
            },
            Format::Template => Layout { name: "template", ..GENERIC },
            Format::Generic => GENERIC,
        }
    }

    /// The name that clients see.
    pub(crate) fn name(self) -> &'static str {
        self.layout().name
    }

    pub(crate) fn is_mistral(self) -> bool {
        matches!(self, Format::Mistral | Format::MistralArgs)
    }

    pub(crate) fn is_deepseek(self) -> bool {
        matches!(self, Format::DeepSeek | Format::DeepSeek31)
    }

    /// The ways that a text is read in.
    fn read_as(&self) -> &[Format] {
        if *self == Format::Template { &KNOWN } else { std::slice::from_ref(self) }
    }

    /// The control tokens of a vocabulary that calls are told by; the text of others is in the model's.
    pub(crate) fn marks(self, tokenizer: &Tokenizer) -> Marks {
        let marks = self.read_as().iter().flat_map(|format| format.layout().marks);
        let marks = marks.filter_map(|mark| Some((tokenizer.token_id(mark)?, *mark)));
        marks.filter(|&(token, _)| tokenizer.is_special(token)).collect()
    }

    /// What a prompt ends with behind which a call must come.
    pub(crate) fn prefix(self) -> &'static str {
        self.layout().begin
    }

    /// The text of calls, each an object with `name` and `arguments`.
    pub(super) fn write(self, calls: &[Value]) -> String {
        let Layout { begin, open, body, close, between, end, .. } = self.layout();
        let call = |call: &Value| match body {
            Body::Named(mark) => {
                let name = call["name"].as_str().unwrap_or_default();
                format!("{open}{name}{mark}{}{close}", call["arguments"])
            }
            Body::Object(key) => {
                let call = json!({"name": call["name"], key: call["arguments"]});
                format!("{open}{call}{close}")
            }
            Body::List | Body::Xml => format!("{open}{call}{close}"),
        };
        let calls = match body {
            Body::List => Value::from(calls).to_string(),
            _ => calls.iter().map(call).collect::<Vec<_>>().join(between),
        };
        format!("{begin}{calls}{end}")
    }

    /// The grammar (Lark) of texts that call one of the functions, behind [`Format::prefix`], or, unless
    /// `single`, some of them; and of any other text, where they need not. Of the marks, those given are
    /// tokens in it, and others text.
    pub(crate) fn grammar(
        self,
        functions: &[&Map<String, Value>],
        single: bool,
        required: bool,
        marks: &[(u32, &str)],
    ) -> String {
        let Layout { open, body, close, between, end, .. } = self.layout();
        let (open, close) = (literal(open, marks), literal(close, marks));
        let schema = |function: &Map<String, Value>| {
            function.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"}))
        };
        let arguments = if let Body::Object(key) = body { key } else { "arguments" };
        let call = |function: &&Map<String, Value>| {
            json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments: schema(function)},
                "required": ["name", arguments],
                "additionalProperties": false,
            })
        };
        let mut calls = json!({"anyOf": functions.iter().map(call).collect::<Vec<_>>()});
        let rules = match body {
            Body::Object(_) | Body::Xml => {
                one_layout(&mut calls);
                format!("call:{open} json{close}\njson: %json {calls}\n")
            }
            Body::List => {
                calls = json!({"type": "array", "items": calls, "minItems": 1});
                if single {
                    calls["maxItems"] = 1.into();
                }
                one_layout(&mut calls);
                format!("call: %json {calls}\n")
            }
            Body::Named(mark) => {
                let one = |(i, function): (usize, &&Map<String, Value>)| {
                    let mut schema = schema(function);
                    one_layout(&mut schema);
                    let (name, mark) = (&function["name"], literal(mark, marks));
                    (
                        format!("{open} {name}{mark} args{i}{close}"),
                        format!("args{i}: %json {schema}\n"),
                    )
                };
                let (named, args): (Vec<_>, String) = functions.iter().enumerate().map(one).unzip();
                format!("call:{}\n{args}", named.join(" |"))
            }
        };
        let more = match single || body == Body::List {
            true => String::new(),
            false => format!(" ({} call)*", literal(between, marks)),
        };
        let start = format!("call{more}{}", literal(end, marks));
        match required {
            true => format!("start: {start}\n{rules}"),
            // Any text that does not begin as a call does.
            false => format!(
                "start: TEXT | calls | BLANK calls\ncalls: {start}\n{rules}{}",
                "BLANK: /[ \\t\\r\\n]+/\nTEXT: /(?s:[ \\t\\r\\n]*[^ \\t\\r\\n{].*)/\n"
            ),
        }
    }

    /// What a call, or an array of them, may begin with.
    fn starts(self) -> impl Iterator<Item = &'static str> {
        let Layout { begin, open, body, .. } = self.layout();
        let bare = if body == Body::Xml { FUNCTION } else { "" };
        [begin, open.trim_end(), bare].into_iter().filter(|mark| !mark.is_empty())
    }

    /// The bytes at the end of a text that are, or may become, a call; `begun` says whether text that is
    /// none came before.
    pub(crate) fn held(self, text: &str, begun: bool) -> usize {
        let behind = |mark: &str| match text.find(mark) {
            Some(at) => text.len() - at,
            None => begun_at_end(text, mark),
        };
        let marked = self.read_as().iter().flat_map(|format| format.starts());
        let marked = marked.map(behind).max().unwrap_or(0);
        let start = text.trim_start();
        let may_call = !begun && (start.is_empty() || start.starts_with('{'));
        if may_call && self.is_whole_text() { text.len() } else { marked }
    }

    /// Whether a call without marks may be the whole text.
    fn is_whole_text(self) -> bool {
        self.read_as().iter().any(|format| format.starts().next().is_none())
    }

    /// Whether a text may be the beginning of a call, or the end of the last.
    fn begins(self, text: &str) -> bool {
        let mut marks = self.read_as().iter().flat_map(|format| format.starts());
        let brace = self.is_whole_text() && (text.is_empty() || text.starts_with('{'));
        brace || marks.any(|mark| mark.starts_with(text) || text.starts_with(mark))
    }

    /// The calls that a text consists of; `None` where it is something else, or more.
    pub(crate) fn calls(self, text: &str, functions: &[Function]) -> Option<Vec<Call>> {
        let mut readers = self.readers(functions, false);
        readers.find_map(|reader| {
            let read = reader.read(text);
            (!read.calls.is_empty() && read.rest.is_empty()).then_some(read.calls)
        })
    }

    fn readers<'a>(
        &'a self,
        functions: &'a [Function],
        certain: bool,
    ) -> impl Iterator<Item = Reader<'a>> {
        let guess = *self == Format::Template;
        self.read_as().iter().map(move |&format| Reader { format, functions, certain, guess })
    }

    /// The calls of a text that was cut off, each of one of the functions, the last of them perhaps not
    /// whole; `None` where it is something else. Where it is `certain` that there is a call, its name may
    /// follow from the functions that there are.
    pub(crate) fn calls_so_far(
        self,
        text: &str,
        functions: &[Function],
        certain: bool,
    ) -> Option<Vec<Call>> {
        self.readers(functions, certain).find_map(|reader| reader.read_so_far(text))
    }
}

/// The bytes at the end of a text that a mark may begin with.
fn begun_at_end(text: &str, mark: &str) -> usize {
    let begins = |n: &usize| mark.is_char_boundary(*n) && text.ends_with(&mark[..*n]);
    (1..mark.len()).rev().find(begins).unwrap_or(0)
}

/// A part of a grammar, behind a blank: a text, or the tokens in it.
fn literal(text: &str, marks: &[(u32, &str)]) -> String {
    if text.is_empty() {
        return String::new();
    }
    let found = marks.iter().filter_map(|mark| Some((text.find(mark.1)?, mark)));
    let Some((at, (token, mark))) = found.min() else { return format!(" {}", Value::from(text)) };
    let (before, behind) = (literal(&text[..at], &[]), literal(&text[at + mark.len()..], marks));
    format!("{before} <[{token}]>{behind}")
}

/// Whether Mistral's templates take an id.
pub(crate) fn is_mistral_id(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function { name: name.to_owned(), parameters: Value::Null }
    }

    fn call(name: &str, arguments: &str) -> Call {
        Call { id: None, name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn the_format_is_the_one_that_the_template_teaches() {
        for (template, format) in [
            ("{% if tools %}<tool_call>", Format::Hermes),
            ("{% if tools %}\"parameters\": ... ipython", Format::Llama3),
            ("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]", Format::Mistral),
            ("{% if tools %}[TOOL_CALLS]name[ARGS]", Format::MistralArgs),
            ("{% if tools %}<tool_call>\n<function=name>", Format::Qwen3Coder),
            ("{% if tools %}<tool_call>name\n<arg_key>", Format::Template),
            ("{{ tools | tojson }}<|tool_call|><|/tool_call|>", Format::Phi),
            ("{% if 'tools' in m and m['tools'] %}<|tool|>{{ m['tools'] }}<|/tool|>", Format::Phi),
            ("{% set available_tools = tools %}<|tool_call|>", Format::Granite),
            ("{%- if tools -%}<TOOLCALL>[]</TOOLCALL>", Format::Nemotron),
            ("{{ '<｜tool▁calls▁begin｜>' + x + '```json' }}", Format::DeepSeek),
            ("{{ '<｜tool▁calls▁begin｜>' + x }}", Format::DeepSeek31),
            ("{% for tool in tools %}something else", Format::Template),
            ("{% if m['tools'] %}{% endif %}tools {{ 'tools' }}{{ m.tools }}", Format::Generic),
            ("{{ messages[0].content }}", Format::Generic),
        ] {
            assert_eq!(Format::of(template), format, "{template}");
        }
    }

    #[test]
    fn calls_of_every_format_are_read() {
        for (format, text) in [
            (
                Format::Hermes,
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}",
            ),
            (Format::Llama3, " {\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\"}"),
            (Format::Generic, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n{\"name\": \"g\"}"),
            (
                Format::Mistral,
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]",
            ),
            (Format::Mistral, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]none[ARGS]{}"),
            (
                Format::DeepSeek,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            (
                Format::DeepSeek31,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            (
                Format::Phi,
                "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]<|/tool_call|>",
            ),
            (
                Format::Phi,
                "<|tool_call|>{\"name\": \"f\", \"arguments\": {\"a\": 1}}<|/tool_call|><|tool_call|>{\"name\": \"g\"}<|/tool_call|>",
            ),
            (
                Format::Granite,
                "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]",
            ),
            (
                Format::Nemotron,
                "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]</TOOLCALL>",
            ),
            (
                Format::Qwen3Coder,
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            ),
        ] {
            // What is written of them is read, too.
            let f = json!({"name": "f", "arguments": {"a": 1}});
            let written = format.write(&[f, json!({"name": "g", "arguments": {}})]);
            assert_eq!(format.calls(&written, &[]), format.calls(text, &[]), "{written}");
            let known = ["f", "g"].map(function);
            assert_eq!(Format::Template.calls(&written, &known), format.calls(text, &[]));
            assert_eq!(Format::Template.calls(&written, &known[..1]), None, "{written}");
            let calls = format.calls(text, &[]).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(calls, [call("f", "{\"a\":1}"), call("g", "{}")], "{text}");
        }
        let text = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcDEF123\"}]";
        let calls = Format::Mistral.calls(text, &[]).unwrap();
        assert_eq!(calls[0].id.as_deref(), Some("abcDEF123"));
    }

    #[test]
    fn what_only_looks_like_a_call_is_none() {
        for (format, text) in [
            (Format::Hermes, "<tool_call>not JSON</tool_call>"),
            (Format::Hermes, "<tool_call>{\"arguments\": {}}"),
            (Format::Llama3, "{\"answer\": 42}"),
            (Format::Generic, "{\"answer\": 42}"),
            (Format::Generic, "{\"name\": \"f\"} and more"),
            (Format::Mistral, "[TOOL_CALLS] []"),
            (Format::Mistral, "[TOOL_CALLS] [42]"),
            (
                Format::DeepSeek,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}",
            ),
            (
                Format::DeepSeek31,
                "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜> and more",
            ),
            (Format::Granite, "<|tool_call|>[]"),
            (Format::Qwen3Coder, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</tool_call>"),
            (Format::Template, "{\"name\": \"f\", \"arguments\": {}}"),
            (Format::Template, "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>"),
        ] {
            assert_eq!(format.calls(text, &[]), None, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_cut_off_anywhere_has_the_calls_so_far() {
        let names = [function("walk"), function("fly")];
        for (format, text) in [
            (
                Format::Hermes,
                "<tool_call>\n{\"name\": \"walk\", \"arguments\": {\"to\": \"hill\"}}\n</tool_call>",
            ),
            (Format::Llama3, "{\"name\": \"walk\", \"parameters\": {\"to\": \"hill\"}}"),
            (Format::Generic, "{\"name\": \"walk\", \"arguments\": {\"to\": \"hill\"}}"),
            (
                Format::Mistral,
                "[TOOL_CALLS][{\"name\": \"walk\", \"arguments\": {\"to\": \"hill\"}}]",
            ),
            (Format::MistralArgs, "[TOOL_CALLS]walk[ARGS]{\"to\": \"hill\"}"),
            (
                Format::DeepSeek,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>walk\n```json\n{\"to\": \"hill\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            (
                Format::DeepSeek31,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>walk<｜tool▁sep｜>{\"to\": \"hill\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            (
                Format::Phi,
                "<|tool_call|>[{\"name\": \"walk\", \"arguments\": {\"to\": \"hill\"}}]<|/tool_call|>",
            ),
            (
                Format::Qwen3Coder,
                "<tool_call>\n{\"name\": \"walk\", \"arguments\": {\"to\": \"hill\"}}\n</tool_call>",
            ),
        ] {
            let whole = "{\"to\": \"hill\"}";
            let from = text.find(whole).unwrap();
            for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
                let only = &names[..1];
                let calls = format.calls_so_far(&text[..end], only, true);
                let calls = calls.unwrap_or_else(|| panic!("{format:?}: {}", &text[..end]));
                let arguments = match end.saturating_sub(from) {
                    n if n >= whole.len() => "{\"to\":\"hill\"}",
                    n => &whole[..n],
                };
                assert_eq!(calls, [call("walk", arguments)], "{format:?}: {}", &text[..end]);
                // Of two functions, the one whose name has begun.
                let of_two = format.calls_so_far(&text[..end], &names, true);
                assert_eq!(of_two.is_some(), end > text.find("walk").unwrap(), "{}", &text[..end]);
                // Where it is not certain that there is a call, one has to be seen.
                let seen = format.calls_so_far(&text[..end], &names, false);
                let mark = match format.layout().body {
                    Body::Named(mark) => mark.trim_end(),
                    _ => "\"",
                };
                let marked = text.find("walk").unwrap() + 4 + mark.len();
                assert_eq!(seen.is_some(), end >= marked, "{format:?}: {}", &text[..end]);
            }
        }
        let first = "{\"name\": \"walk\", \"arguments\": {}}";
        let hermes = format!("<tool_call>{first}</tool_call><tool_c");
        let list = format!("[TOOL_CALLS][{first}, {{\"na");
        for (format, text) in [(Format::Hermes, &hermes), (Format::Mistral, &list)] {
            let calls = format.calls_so_far(text, &names, false);
            assert_eq!(calls, Some(vec![call("walk", "{}")]), "{text}");
        }
        let deepseek = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>walk<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁be";
        for certain in [false, true] {
            let calls = Format::DeepSeek31.calls_so_far(deepseek, &names, certain);
            assert_eq!(calls, Some(vec![call("walk", "{}")]), "{certain}");
        }
        let other = "{\"name\": \"swim\", \"arguments\": {";
        assert_eq!(Format::Generic.calls_so_far(other, &names, false), None);
        assert_eq!(Format::Generic.calls_so_far("Well, ", &names, false), None);
    }

    #[test]
    fn arguments_in_xml_are_what_the_schema_says() {
        let schema = json!({"properties": {
            "text": {"type": "string"}, "number": {"type": "integer"}, "flag": {"type": "boolean"},
            "list": {"type": "array"}, "maybe": {"type": ["string", "null"]},
            "choice": {"enum": ["1", "2"]}, "any": {"anyOf": [{"type": "number"}]},
        }});
        let functions = [Function { name: "f".to_owned(), parameters: schema }];
        let parameters = [
            ("text", "Grüße,\n\"日本\" </p>"),
            ("number", "7"),
            ("flag", "True"),
            ("list", "[1, {\"a\": \"b\"}]"),
            ("maybe", "null"),
            ("choice", "1"),
            ("any", "1.5"),
            ("unknown", "42"),
        ];
        let parameters = parameters
            .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
            .concat();
        let text = format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>");
        let whole = json!({
            "text": "Grüße,\n\"日本\" </p>", "number": 7, "flag": true, "list": [1, {"a": "b"}],
            "maybe": null, "choice": "1", "any": 1.5, "unknown": "42",
        });
        let calls = Format::Qwen3Coder.calls(&text, &functions).unwrap();
        assert_eq!(calls, [call("f", &whole.to_string())]);
        // Some models leave out the first mark.
        let bare = text.strip_prefix("<tool_call>\n").unwrap();
        assert_eq!(Format::Qwen3Coder.calls(bare, &functions), Some(calls));
        // Cut off anywhere behind the name, the arguments are the beginning of the whole.
        let named = text.find(">\n<parameter").unwrap() + 1;
        let whole = whole.to_string();
        let mut lengths = Vec::new();
        for end in (named..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let read = Format::Qwen3Coder.calls_so_far(&text[..end], &functions, false);
            let arguments = read.unwrap_or_else(|| panic!("{}", &text[..end]))[0].arguments.clone();
            assert!(whole.starts_with(&arguments), "{}: {arguments}", &text[..end]);
            lengths.push(arguments.len());
        }
        lengths.dedup();
        assert!(lengths.len() > 25, "{lengths:?}");
    }

    #[test]
    fn control_tokens_are_tokens_in_a_grammar() {
        let function = json!({"name": "f", "parameters": {"type": "object"}});
        let functions = [function.as_object().unwrap()];
        let marks = [(8, "<｜tool▁call▁begin｜>"), (9, "<｜tool▁sep｜>")];
        let grammar = Format::DeepSeek.grammar(&functions, true, true, &marks);
        let rule = "call: <[8]> \"function\" <[9]> \"f\" \"\\n```json\\n\" args0 \"\\n```<｜tool▁call▁end｜>\"\n";
        assert!(grammar.contains(rule), "{grammar}");
        let texts = Format::DeepSeek.grammar(&functions, true, true, &[]);
        assert!(texts.contains("call: \"<｜tool▁call▁begin｜>function<｜tool▁sep｜>\" \"f\""));
    }
}
