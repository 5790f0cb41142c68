//! From text to calls, whole or cut off.

use serde_json::{Map, Value, json};

use super::{
    ARGS, Body, CALL_ID, Call, FUNCTION, Format, Function, Layout, PARAMETER, begun_at_end,
    is_mistral_id,
};

/// Reads the calls of a text.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) format: Format,
    pub(super) functions: &'a [Function],
    pub(super) certain: bool,
    /// Whether the format is a guess, by which only calls of the functions are any.
    pub(super) guess: bool,
}

/// What was read of a text.
pub(super) struct Read<'t> {
    /// Whole calls.
    pub(super) calls: Vec<Call>,
    /// What follows them and is none.
    pub(super) rest: &'t str,
}

impl Reader<'_> {
    pub(super) fn read<'t>(&self, text: &'t str) -> Read<'t> {
        let mut read = Read { calls: Vec::new(), rest: text.trim_start() };
        while !read.rest.is_empty() {
            let Some((calls, rest)) = self.next(read.rest) else { break };
            if self.guess && calls.iter().any(|call| self.known(&call.name).is_none()) {
                break;
            }
            read.calls.extend(calls);
            read.rest = rest.trim_start();
        }
        read
    }

    pub(super) fn read_so_far(&self, text: &str) -> Option<Vec<Call>> {
        let Read { mut calls, rest } = self.read(text);
        // It may end behind a call.
        let ended = !calls.is_empty() && self.format.layout().end.starts_with(rest);
        match if ended { None } else { self.partial(rest) } {
            Some(more) => calls.extend(more),
            // Nothing is known of the next.
            None if ended || rest.is_empty() || self.certain || self.format.begins(rest) => {}
            None => return None,
        }
        (!calls.is_empty()).then_some(calls)
    }

    /// The next call, or array of calls, and what follows.
    fn next<'t>(&self, text: &'t str) -> Option<(Vec<Call>, &'t str)> {
        let Layout { begin, open, body, close, between, end, .. } = self.format.layout();
        let text = match strip(text, begin) {
            Some(behind) => behind,
            // Of several calls, which have marks of their own.
            None if !open.is_empty() => text,
            None => return None,
        };
        let (calls, rest) = match body {
            _ if text.starts_with('[') && self.has_lists() => {
                let (calls, rest) = json_value::<Vec<Map<String, Value>>>(text)?;
                let calls: Option<Vec<Call>> =
                    calls.into_iter().map(|call| self.call(call)).collect();
                (calls.filter(|calls| !calls.is_empty())?, rest)
            }
            Body::List | Body::Named(_) if self.format.is_mistral() => self.named(text, ARGS)?,
            Body::Named(mark) => self.named(strip(text, open)?, mark)?,
            Body::Xml => match strip(text, open).unwrap_or(text) {
                text if text.starts_with('{') => self.object(text)?,
                text => match self.xml(text)? {
                    (call, Some(rest)) => (vec![call], rest),
                    (_, None) => return None,
                },
            },
            Body::Object(_) | Body::List => self.object(strip(text, open)?)?,
        };
        // A model may end its turn in place of the last mark.
        let rest = rest.trim_start();
        let rest = if rest.is_empty() { rest } else { strip(rest, close)? };
        let more = if begin.is_empty() { between } else { end };
        Some((calls, strip(rest, more).unwrap_or(rest)))
    }

    /// A call at the beginning of a text, and what follows.
    fn object<'t>(&self, text: &'t str) -> Option<(Vec<Call>, &'t str)> {
        let (call, rest) = json_value(text)?;
        Some((vec![self.call(call)?], rest.trim_start()))
    }

    /// A call whose arguments come behind a mark.
    fn named<'t>(&self, text: &'t str, mark: &str) -> Option<(Vec<Call>, &'t str)> {
        let (name, id, text) = named(text, mark)?;
        let (arguments, rest) = json_value::<Value>(text)?;
        let arguments = arguments.to_string();
        Some((vec![Call { id, name: name.to_owned(), arguments }], rest))
    }

    /// A call whose arguments are elements, and what follows, unless it ends in the call.
    fn xml<'t>(&self, text: &'t str) -> Option<(Call, Option<&'t str>)> {
        let (name, mut rest) = text.strip_prefix(FUNCTION)?.split_once('>')?;
        let function = self.functions.iter().find(|function| function.name == name);
        let schema = |key: &str| function.map(|f| &f.parameters["properties"][key]);
        let call = |arguments| Call { id: None, name: name.to_owned(), arguments };
        let mut arguments = Map::new();
        loop {
            rest = rest.trim_start();
            if let Some(rest) = rest.strip_prefix("</function>") {
                return Some((call(Value::from(arguments).to_string()), Some(rest)));
            }
            let next = rest.strip_prefix(PARAMETER).and_then(|rest| rest.split_once('>'));
            let value = next.map(|(key, value)| (key, value.split_once("</parameter>"), value));
            if let Some((key, Some((value, behind)), _)) = value {
                arguments.insert(key.to_owned(), typed(value, schema(key)));
                rest = behind;
                continue;
            }
            let mut so_far = match arguments.is_empty() && next.is_none() {
                true => String::new(),
                false => Value::from(arguments).to_string(),
            };
            so_far.pop();
            // The beginning of any other value than a text is none of that type.
            let is_text =
                |key: &str| schema(key).is_none_or(|s| s.is_null() || s["type"] == "string");
            if let Some((key, value)) = next.filter(|(key, _)| is_text(key)) {
                let value = value.strip_prefix('\n').unwrap_or(value);
                let value = &value[..value.len() - begun_at_end(value, "\n</parameter>")];
                let comma = if so_far.len() > 1 { "," } else { "" };
                so_far += &format!("{comma}{}:{}", Value::from(key), Value::from(value));
                so_far.pop();
            }
            return Some((call(so_far), None));
        }
    }

    fn call(&self, mut call: Map<String, Value>) -> Option<Call> {
        let Some(Value::String(name)) = call.remove("name") else { return None };
        let arguments = ["arguments", "parameters"].into_iter().find_map(|key| call.remove(key));
        let arguments = arguments.unwrap_or_else(|| json!({}));
        let id = call.get("id").and_then(Value::as_str).filter(|id| is_mistral_id(id));
        let id = id.filter(|_| self.format.is_mistral()).map(str::to_owned);
        Some(Call { id, name, arguments: arguments.to_string() })
    }

    /// Whether calls may come in an array.
    fn has_lists(&self) -> bool {
        self.format.layout().body == Body::List || self.format.is_mistral()
    }

    /// The calls that a text which was cut off ends in: one, or those of an array.
    fn partial(&self, text: &str) -> Option<Vec<Call>> {
        let Layout { begin, open, body, .. } = self.format.layout();
        let text = match self.behind(text, begin) {
            Some(behind) => behind,
            None if !open.is_empty() => text,
            None => return None,
        };
        if body == Body::Xml {
            let text = strip(text, open).unwrap_or(text);
            if text.starts_with(FUNCTION) {
                let (call, _) = self.xml(text)?;
                return self.known(&call.name).is_some().then(|| vec![call]);
            }
        }
        let text = self.behind(text, open)?;
        match (body, text.strip_prefix('[')) {
            (_, Some(list)) if self.has_lists() => self.partial_list(list),
            (Body::List, None) if self.format.is_mistral() && !text.is_empty() => None,
            (Body::Named(mark), _) => Some(vec![self.partial_named(text, mark)?]),
            _ => Some(vec![self.partial_object(text)?]),
        }
    }

    fn partial_named(&self, text: &str, mark: &str) -> Option<Call> {
        if let Some((name, _, arguments)) = named(text, mark) {
            return Some(cut(self.known(name)?, arguments));
        }
        let name = match text.split_once(mark.trim().chars().next()?) {
            Some((name, _)) if self.certain => self.known(name.trim()),
            _ => self.likely(text.trim()),
        };
        Some(cut(name?, ""))
    }

    fn partial_list(&self, text: &str) -> Option<Vec<Call>> {
        let (mut calls, mut rest) = (Vec::new(), text.trim_start());
        while let Some((call, behind)) = self.object(rest) {
            calls.extend(call);
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
        let keys = ["\"arguments\"", "\"parameters\""];
        let arguments = strip(behind, ",").and_then(|rest| {
            let rest = keys.into_iter().find_map(|key| strip(rest, key))?;
            strip(rest, ":")
        });
        Some(cut(name, arguments.unwrap_or_default()))
    }

    /// What is behind a mark, which the text may have been cut off in.
    fn behind<'t>(&self, text: &'t str, mark: &str) -> Option<&'t str> {
        let cut = if self.certain && mark.trim().starts_with(text) { Some("") } else { None };
        strip(text, mark).or(cut)
    }

    fn known(&self, name: &str) -> Option<&str> {
        self.names().find(|known| *known == name)
    }

    /// The only name that begins so.
    fn likely(&self, begun: &str) -> Option<&str> {
        let mut likely = self.names().filter(|name| self.certain && name.starts_with(begun));
        let only = likely.next()?;
        likely.next().is_none().then_some(only)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|function| function.name.as_str())
    }
}

/// What is behind a mark, with or without the blanks around it.
fn strip<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    Some(text.trim_start().strip_prefix(mark.trim())?.trim_start())
}

/// The value that a text without a type is by its schema.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let json = match text.trim() {
        // As templates write what was called before.
        "True" => "true",
        "False" => "false",
        "None" => "null",
        json => json,
    };
    let value = serde_json::from_str::<Value>(json).unwrap_or_default();
    let schema = schema.unwrap_or(&Value::Null);
    let types: &[&str] = match &value {
        Value::Null if json == "null" => &["null"],
        Value::Null | Value::String(_) => &[],
        Value::Bool(_) => &["boolean"],
        Value::Number(_) => &["number", "integer"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    };
    let fits = match (&schema["type"], &schema["enum"]) {
        (Value::String(only), _) => types.contains(&only.as_str()),
        (Value::Array(any), _) => any.iter().any(|t| types.iter().any(|own| t == own)),
        (_, Value::Array(values)) => values.contains(&value),
        _ => schema.is_object() && !types.is_empty(),
    };
    if fits { value } else { text.into() }
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

/// The name, the id and what follows of a call whose arguments come behind a mark, which some of Mistral's
/// models leave out.
fn named<'t>(text: &'t str, mark: &str) -> Option<(&'t str, Option<String>, &'t str)> {
    let (head, arguments) = match text.split_once(mark.trim()) {
        Some(split) => split,
        None if mark == ARGS => text.split_at(text.find('{')?),
        None => return None,
    };
    let (name, id) = match head.split_once(CALL_ID) {
        Some((name, id)) => (name, Some(id.trim())),
        None => (head, None),
    };
    let id = id.filter(|id| is_mistral_id(id)).map(str::to_owned);
    Some((name.trim(), id, arguments.trim_start()))
}
