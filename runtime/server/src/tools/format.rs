//! Ways of writing calls: what a model's template teaches, the grammar of it, and back from text to calls.
//!
//! Of *Hermes* (also Qwen) calls are `<tool_call>` and JSON with `name` and `arguments` and `</tool_call>`, any
//! number of them, behind text or alone. Of *Llama 3* the whole text is JSON with `name` and `parameters`,
//! several of them separated by `;`. Of *Mistral* `[TOOL_CALLS]` comes before a JSON array of calls, or, in
//! its later models, before each name, with `[ARGS]` before the arguments. What looks like a call and is none
//! stays text.
//!
//! A template that has no place for tools, or teaches an unknown way, gets the *generic* one (`generic`): the
//! whole text is JSON with `name` and `arguments`, one call on a line.

use ruvllm_engine::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::grammar::one_layout;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const CALLS: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

/// A way of writing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Hermes,
    Llama3,
    /// An array of calls.
    Mistral,
    /// Names and arguments, each behind a mark of its own.
    MistralArgs,
    Generic,
}

/// A call that a text has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The id that the model gave it, where it is one that its template takes back.
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// JSON; its beginning where the text was cut off in it.
    pub(crate) arguments: String,
}

impl Format {
    /// The way that a template teaches, if it has a place for tools and the way is known.
    pub(crate) fn of(template: &str) -> Format {
        let has = |text: &str| template.contains(text);
        // Others write names and arguments in XML between these marks.
        let xml = has("<function=") || has("<arg_key>");
        if !has("tools") {
            Format::Generic
        } else if has(OPEN) && !xml {
            Format::Hermes
        } else if has(CALLS) {
            if has(ARGS) { Format::MistralArgs } else { Format::Mistral }
        } else if has("\"parameters\"") && has("ipython") {
            Format::Llama3
        } else {
            Format::Generic
        }
    }

    /// The name that clients see.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Format::Hermes => "hermes",
            Format::Llama3 => "llama3",
            Format::Mistral | Format::MistralArgs => "mistral",
            Format::Generic => "generic",
        }
    }

    pub(crate) fn is_mistral(self) -> bool {
        matches!(self, Format::Mistral | Format::MistralArgs)
    }

    fn arguments(self) -> &'static str {
        match self {
            Format::Llama3 => "parameters",
            _ => "arguments",
        }
    }

    /// The control tokens of a vocabulary that calls are told by; the text of others is in the model's.
    pub(crate) fn marks(self, tokenizer: &Tokenizer) -> Vec<(u32, &'static str)> {
        let marks: &[&'static str] = match self {
            Format::Hermes => &[OPEN, CLOSE],
            Format::Mistral | Format::MistralArgs => &[CALLS, CALL_ID, ARGS],
            Format::Llama3 | Format::Generic => &[],
        };
        let marks = marks.iter().filter_map(|mark| Some((tokenizer.token_id(mark)?, *mark)));
        marks.filter(|&(token, _)| tokenizer.is_special(token)).collect()
    }

    /// What a prompt ends with behind which a call must come. A grammar has texts alone, and this is a
    /// token where the model knows it.
    pub(crate) fn prefix(self) -> &'static str {
        if self.is_mistral() { CALLS } else { "" }
    }

    /// The grammar (Lark) of texts that call one of the functions, behind [`Format::prefix`], or, unless
    /// `single`, some of them; and of any other text, where they need not.
    pub(crate) fn grammar(
        self,
        functions: &[&Map<String, Value>],
        single: bool,
        required: bool,
    ) -> String {
        let schema = |function: &Map<String, Value>| {
            function.get("parameters").cloned().unwrap_or_else(|| json!({"type": "object"}))
        };
        let arguments = self.arguments();
        let call = |function: &&Map<String, Value>| {
            json!({
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments: schema(function)},
                "required": ["name", arguments],
                "additionalProperties": false,
            })
        };
        let mut calls = json!({"anyOf": functions.iter().map(call).collect::<Vec<_>>()});
        let more = |between: &str| match single {
            true => String::new(),
            false => format!(" ({between} call)*"),
        };
        let (start, rules) = match self {
            Format::Hermes => {
                one_layout(&mut calls);
                let call = format!("call: \"{OPEN}\\n\" json \"\\n{CLOSE}\"");
                (format!("call{}", more("\"\\n\"")), format!("{call}\njson: %json {calls}\n"))
            }
            Format::Llama3 | Format::Generic => {
                one_layout(&mut calls);
                let between = if self == Format::Generic { "\"\\n\"" } else { "\"; \"" };
                (format!("call{}", more(between)), format!("call: %json {calls}\n"))
            }
            Format::Mistral => {
                let mut list = json!({"type": "array", "items": calls, "minItems": 1});
                if single {
                    list["maxItems"] = 1.into();
                }
                one_layout(&mut list);
                ("list".to_owned(), format!("list: %json {list}\n"))
            }
            Format::MistralArgs => {
                let one = |(i, function): (usize, &&Map<String, Value>)| {
                    let mut schema = schema(function);
                    one_layout(&mut schema);
                    let named = format!("{} \"{ARGS}\" args{i}", function["name"]);
                    (named, format!("args{i}: %json {schema}\n"))
                };
                let (named, args): (Vec<_>, String) = functions.iter().enumerate().map(one).unzip();
                let rules = format!("call: {}\n{args}", named.join(" | "));
                (format!("call{}", more(&format!("\"{CALLS}\""))), rules)
            }
        };
        match required {
            true => format!("start: {start}\n{rules}"),
            // Any text that does not begin as a call does.
            false => format!(
                "start: TEXT | calls | BLANK calls\ncalls: {start}\n{rules}{}",
                "BLANK: /[ \\t\\r\\n]+/\nTEXT: /(?s:[ \\t\\r\\n]*[^ \\t\\r\\n{].*)/\n"
            ),
        }
    }

    /// The bytes at the end of a text that are, or may become, a call; `begun` says whether text that is
    /// none came before.
    pub(crate) fn held(self, text: &str, begun: bool) -> usize {
        let behind = |mark: &str| match text.find(mark) {
            Some(at) => text.len() - at,
            None => (1..mark.len()).rev().find(|&n| text.ends_with(&mark[..n])).unwrap_or(0),
        };
        match self {
            Format::Hermes => behind(OPEN),
            Format::Mistral | Format::MistralArgs => behind(CALLS),
            Format::Llama3 | Format::Generic => {
                let start = text.trim_start();
                let may_call = !begun && (start.is_empty() || start.starts_with('{'));
                if may_call { text.len() } else { 0 }
            }
        }
    }

    /// Whether a text may be the beginning of a call.
    fn begins(self, text: &str) -> bool {
        let mark = match self {
            Format::Hermes => OPEN,
            Format::Mistral | Format::MistralArgs => CALLS,
            Format::Llama3 | Format::Generic => "{",
        };
        mark.starts_with(text) || text.starts_with(mark)
    }

    /// The calls that a text consists of; `None` where it is something else, or more.
    pub(crate) fn calls(self, text: &str) -> Option<Vec<Call>> {
        let read = Reader { format: self, names: &[], certain: false }.read(text);
        (!read.calls.is_empty() && read.rest.is_empty()).then_some(read.calls)
    }

    /// The calls of a text that was cut off, one of `names` each, the last of them perhaps not whole;
    /// `None` where it is something else. Where it is `certain` that there is a call, its name may follow
    /// from the names that there are.
    pub(crate) fn calls_so_far(
        self,
        text: &str,
        names: &[String],
        certain: bool,
    ) -> Option<Vec<Call>> {
        let reader = Reader { format: self, names, certain };
        let Read { mut calls, rest } = reader.read(text);
        let more = if rest.is_empty() && !calls.is_empty() { None } else { reader.partial(rest) };
        match more {
            Some(more) => calls.extend(more),
            // Nothing is known of the next.
            None if rest.is_empty() || certain || self.begins(rest) => {}
            None => return None,
        }
        (!calls.is_empty()).then_some(calls)
    }
}

/// Reads the calls of a text.
#[derive(Clone, Copy)]
struct Reader<'a> {
    format: Format,
    names: &'a [String],
    certain: bool,
}

/// What was read of a text.
struct Read<'t> {
    /// Whole calls.
    calls: Vec<Call>,
    /// What follows them and is none.
    rest: &'t str,
}

impl Reader<'_> {
    fn read<'t>(&self, text: &'t str) -> Read<'t> {
        let mut read = Read { calls: Vec::new(), rest: text.trim_start() };
        while !read.rest.is_empty() {
            let Some((calls, rest)) = self.next(read.rest) else { break };
            read.calls.extend(calls);
            read.rest = rest.trim_start();
        }
        read
    }

    /// The next call, or array of calls, and what follows.
    fn next<'t>(&self, text: &'t str) -> Option<(Vec<Call>, &'t str)> {
        match self.format {
            Format::Hermes => {
                let (call, rest) = self.object(text.strip_prefix(OPEN)?)?;
                // A model may end its turn in place of the last mark.
                let rest = if rest.is_empty() { rest } else { rest.strip_prefix(CLOSE)? };
                Some((vec![call], rest))
            }
            Format::Llama3 => {
                let (call, rest) = self.object(text)?;
                Some((vec![call], rest.strip_prefix(';').unwrap_or(rest)))
            }
            Format::Generic => self.object(text).map(|(call, rest)| (vec![call], rest)),
            Format::Mistral | Format::MistralArgs => {
                let text = text.strip_prefix(CALLS)?.trim_start();
                if !text.starts_with('[') {
                    let (name, id, text) = named(text)?;
                    let (arguments, rest) = json_value::<Value>(text)?;
                    let arguments = arguments.to_string();
                    return Some((vec![Call { id, name: name.to_owned(), arguments }], rest));
                }
                let (calls, rest) = json_value::<Vec<Map<String, Value>>>(text)?;
                let calls: Option<Vec<Call>> =
                    calls.into_iter().map(|call| self.call(call)).collect();
                Some((calls.filter(|calls| !calls.is_empty())?, rest))
            }
        }
    }

    /// A call at the beginning of a text, and what follows.
    fn object<'t>(&self, text: &'t str) -> Option<(Call, &'t str)> {
        let (call, rest) = json_value(text)?;
        Some((self.call(call)?, rest.trim_start()))
    }

    fn call(&self, mut call: Map<String, Value>) -> Option<Call> {
        let Some(Value::String(name)) = call.remove("name") else { return None };
        let arguments = call.remove(self.format.arguments()).unwrap_or_else(|| json!({}));
        let id = call.get("id").and_then(Value::as_str).filter(|id| is_mistral_id(id));
        let id = id.filter(|_| self.format.is_mistral()).map(str::to_owned);
        Some(Call { id, name, arguments: arguments.to_string() })
    }

    /// The calls that a text which was cut off ends in: one, or those of an array.
    fn partial(&self, text: &str) -> Option<Vec<Call>> {
        let text = match self.format {
            Format::Hermes => self.behind(text, OPEN)?,
            Format::Mistral | Format::MistralArgs => {
                let text = self.behind(text, CALLS)?.trim_start();
                match text.strip_prefix('[') {
                    Some(list) => return self.partial_list(list),
                    None if self.format == Format::Mistral && !text.is_empty() => return None,
                    None => {}
                }
                let call = match (named(text), text.split_once('[')) {
                    (Some((name, _, arguments)), _) => cut(self.known(name)?, arguments),
                    (None, Some((name, _))) if self.certain => cut(self.known(name)?, ""),
                    (None, _) => cut(self.likely(text)?, ""),
                };
                return Some(vec![call]);
            }
            Format::Llama3 | Format::Generic => text,
        };
        Some(vec![self.partial_object(text)?])
    }

    fn partial_list(&self, text: &str) -> Option<Vec<Call>> {
        let (mut calls, mut rest) = (Vec::new(), text.trim_start());
        while let Some((call, behind)) = self.object(rest) {
            calls.push(call);
            let Some(next) = behind.strip_prefix(',') else { return Some(calls) };
            rest = next.trim_start();
        }
        match self.partial_object(rest) {
            Some(last) => calls.push(last),
            None if calls.is_empty() => return None,
            None => {}
        }
        Some(calls)
    }

    fn partial_object(&self, text: &str) -> Option<Call> {
        let mut rest = text.trim_start();
        for piece in ["{", "\"name\"", ":"] {
            match rest.strip_prefix(piece) {
                Some(behind) => rest = behind.trim_start(),
                None if piece.starts_with(rest) => return Some(cut(self.likely("")?, "")),
                None => return None,
            }
        }
        let Some((name, behind)) = json_value::<String>(rest) else {
            let begun = rest.strip_prefix('"').unwrap_or(rest);
            return Some(cut(self.likely(begun)?, ""));
        };
        let name = self.known(&name)?;
        let key = format!("\"{}\"", self.format.arguments());
        let mut rest = behind.trim_start();
        for piece in [",", &key, ":"] {
            match rest.strip_prefix(piece) {
                Some(behind) => rest = behind.trim_start(),
                None => return Some(cut(name, "")),
            }
        }
        Some(cut(name, rest))
    }

    /// What is behind a mark, which the text may have been cut off in.
    fn behind<'t>(&self, text: &'t str, mark: &str) -> Option<&'t str> {
        let cut = if self.certain && mark.starts_with(text) { Some("") } else { None };
        text.strip_prefix(mark).or(cut)
    }

    fn known(&self, name: &str) -> Option<&str> {
        self.names.iter().map(String::as_str).find(|known| *known == name)
    }

    /// The only name that begins so.
    fn likely(&self, begun: &str) -> Option<&str> {
        let mut likely = self.names.iter().filter(|name| self.certain && name.starts_with(begun));
        let only = likely.next()?;
        likely.next().is_none().then_some(only)
    }
}

/// A call with as much of its arguments as there is.
fn cut(name: &str, arguments: &str) -> Call {
    let whole = json_value::<Value>(arguments).map(|(value, _)| value.to_string());
    let arguments = whole.unwrap_or_else(|| arguments.to_owned());
    Call { id: None, name: name.to_owned(), arguments }
}

/// A value at the beginning of a text, and what follows.
fn json_value<T: serde::de::DeserializeOwned>(text: &str) -> Option<(T, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let value = values.next()?.ok()?;
    let at = values.byte_offset();
    Some((value, &text[at..]))
}

/// The name, the id and what follows of a call of Mistral's later models.
fn named(text: &str) -> Option<(&str, Option<String>, &str)> {
    let (head, arguments) = match text.split_once(ARGS) {
        Some(split) => split,
        None => text.split_at(text.find('{')?),
    };
    let (name, id) = match head.split_once(CALL_ID) {
        Some((name, id)) => (name, Some(id.trim())),
        None => (head, None),
    };
    let id = id.filter(|id| is_mistral_id(id)).map(str::to_owned);
    Some((name.trim(), id, arguments))
}

/// Whether Mistral's templates take an id.
pub(crate) fn is_mistral_id(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("{% if tools %}<tool_call>\n<function=name>", Format::Generic),
            ("{% if tools %}something else", Format::Generic),
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
        ] {
            let calls = format.calls(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(calls, [call("f", "{\"a\":1}"), call("g", "{}")], "{text}");
        }
        let text = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcDEF123\"}]";
        let calls = Format::Mistral.calls(text).unwrap();
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
        ] {
            assert_eq!(format.calls(text), None, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_cut_off_anywhere_has_the_calls_so_far() {
        let names = ["walk".to_owned(), "fly".to_owned()];
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
        ] {
            let whole = "{\"to\": \"hill\"}";
            let from = text.find(whole).unwrap();
            for end in 0..=text.len() {
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
                let named =
                    text.find("walk").unwrap() + 4 + usize::from(format != Format::MistralArgs);
                let marked = if format == Format::MistralArgs { named + 6 } else { named };
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
        let other = "{\"name\": \"swim\", \"arguments\": {";
        assert_eq!(Format::Generic.calls_so_far(other, &names, false), None);
        assert_eq!(Format::Generic.calls_so_far("Well, ", &names, false), None);
    }
}
