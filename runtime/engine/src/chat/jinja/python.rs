//! Values as Python has them: how they print, how they become JSON, and which tests they pass.

use std::fmt;
use std::sync::{Arc, LazyLock};

use minijinja::value::{
    DynObject, Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, ValueIter, ValueKind, from_args,
};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};
use regex::Regex;

/// Containers within containers that are written; no conversation has as many, and each takes stack.
const MAX_DEPTH: usize = 200;
/// Spaces that `tojson` indents by, and characters that a text may be padded to.
pub(super) const MAX_WIDTH: usize = 1 << 20;

/// A list or dictionary that prints in Python's form wherever a template makes a text of it, and so do those
/// within.
#[derive(Debug)]
struct Container(DynObject);

impl Object for Container {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.repr()
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key).map(python)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&Value::from_dyn_object(self.0.clone())))
    }
}

/// A list that prints as a tuple; to all else it is a list.
#[derive(Debug)]
struct Tuple(Vec<Value>);

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned().map(python)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&Value::from_dyn_object(self.clone())))
    }
}

/// The tuple of the items of a list.
///
/// # Errors
/// For what has no items.
pub(super) fn tuple(items: &Value) -> Result<Value, Error> {
    Ok(Value::from_object(Tuple(iterate(items)?.collect())))
}

/// A tuple of a dictionary's key with its value.
fn pair((key, value): (Value, Value)) -> Value {
    Value::from_object(Tuple(vec![key, value]))
}

/// Keys, values or pairs of a dictionary: they have a length, and print with the view's name.
#[derive(Debug)]
struct View {
    name: &'static str,
    items: Vec<Value>,
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let view = Arc::clone(self);
        Enumerator::Iter(Box::new((0..self.items.len()).map(move |i| view.items[i].clone())))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&Value::from_dyn_object(self.clone())))
    }
}

/// The characters of a text, of which a loop knows how many there are.
#[derive(Debug)]
struct Letters(String);

impl Object for Letters {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let (letters, mut at) = (Arc::clone(self), 0);
        let next = move |_| {
            let letter = letters.0[at..].chars().next().unwrap_or_default();
            at += letter.len_utf8();
            Value::from(letter)
        };
        Enumerator::Iter(Box::new((0..self.0.chars().count()).map(next)))
    }
}

/// The items of a value as Python's `iter` gives them: undefined values have none.
///
/// # Errors
/// For what has no items, which `none` is too.
pub(super) fn iterate(value: &Value) -> Result<ValueIter, Error> {
    match value.is_none() {
        true => Err(invalid("none is not iterable")),
        false => value.try_iter(),
    }
}

/// What a loop goes through: the value, or several that stand without brackets, so that their number
/// is known before the first.
///
/// # Errors
/// As [`iterate`].
pub(super) fn each(values: Rest<Value>) -> Result<Value, Error> {
    let [value] = &values[..] else { return Ok(Value::from(values.0)) };
    let items = iterate(value)?;
    let is_counted = matches!(items.size_hint(), (least, Some(most)) if least == most);
    Ok(match value.as_str() {
        Some(text) => Value::from_object(Letters(text.to_owned())),
        None if is_counted => value.clone(),
        None => Value::from(items.collect::<Vec<_>>()),
    })
}

/// The filter and the method `items`, of an undefined value none.
///
/// # Errors
/// For what is no dictionary.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => Ok(view(value, "dict_items", pair)),
        kind => Err(invalid(format!("a value of kind {kind} has no items"))),
    }
}

/// The method `keys` of a dictionary.
pub(super) fn keys(value: &Value) -> Value {
    view(value, "dict_keys", |(key, _)| key)
}

/// The method `values` of a dictionary.
pub(super) fn values(value: &Value) -> Value {
    view(value, "dict_values", |(_, value)| python(value))
}

fn view(value: &Value, name: &'static str, part: fn((Value, Value)) -> Value) -> Value {
    let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
    Value::from_object(View { name, items: pairs.into_iter().flatten().map(part).collect() })
}

/// The filter `dictsort`.
///
/// # Errors
/// For what is no dictionary, and what cannot be compared.
pub(super) fn dict_sort(
    value: &Value,
    case_sensitive: Option<bool>,
    by: Option<String>,
    reverse: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let mut arguments: Vec<(&str, Value)> = Vec::new();
    for name in kwargs.args() {
        arguments.push((name, kwargs.get(name)?));
    }
    let given = [
        ("case_sensitive", case_sensitive.map(Value::from)),
        ("by", by.map(Value::from)),
        ("reverse", reverse.map(Value::from)),
    ];
    arguments.extend(given.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let sorted = minijinja::filters::dictsort(value, arguments.into_iter().collect())?;
    let pairs = sorted.try_iter()?.map(|pair| tuple(&pair)).collect::<Result<Vec<_>, _>>()?;
    Ok(python(Value::from(pairs)))
}

/// A value whose lists and dictionaries print in Python's form.
pub(super) fn python(value: Value) -> Value {
    match value.as_object() {
        Some(object)
            if matches!(value.kind(), ValueKind::Seq | ValueKind::Map)
                && object.downcast_ref::<Container>().is_none()
                && object.downcast_ref::<Tuple>().is_none() =>
        {
            Value::from_object(Container(object.clone()))
        }
        _ => value,
    }
}

/// Writes what `{{ value }}` prints.
///
/// # Errors
/// Where the value is an error that nobody has looked at.
pub(super) fn print(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            out.write_str(&text(value)).map_err(|_| Error::from(ErrorKind::WriteFailure))
        }
        _ => escape_formatter(out, state, value),
    }
}

/// Python's `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            let mut out = String::new();
            repr(&mut out, value, 0);
            out
        }
        _ => value.to_string(),
    }
}

/// Python's `repr(value)`.
pub(super) fn repr(out: &mut String, value: &Value, depth: usize) {
    match value.kind() {
        ValueKind::String => quote(out, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable if depth == MAX_DEPTH => {
            out.push_str("...");
        }
        ValueKind::Seq => match value.downcast_object_ref::<Tuple>() {
            Some(tuple) => {
                let close = if tuple.0.len() == 1 { ",)" } else { ")" };
                list_items(out, value, depth, ["(", close]);
            }
            None => list_items(out, value, depth, ["[", "]"]),
        },
        // What has no length may be a text that is on its way; it is not read to be printed.
        ValueKind::Iterable if value.len().is_some() => match value.downcast_object_ref::<View>() {
            Some(view) => {
                out.push_str(view.name);
                list_items(out, value, depth, ["([", "])"]);
            }
            None => list_items(out, value, depth, ["[", "]"]),
        },
        ValueKind::Map => {
            out.push('{');
            let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
            for (i, (key, value)) in pairs.into_iter().flatten().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                repr(out, &key, depth + 1);
                out.push_str(": ");
                repr(out, &value, depth + 1);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn list_items(out: &mut String, value: &Value, depth: usize, [open, close]: [&str; 2]) {
    out.push_str(open);
    for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
        out.push_str(if i == 0 { "" } else { ", " });
        repr(out, &item, depth + 1);
    }
    out.push_str(close);
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => float(number, ["nan", "inf"]),
        _ => value.to_string(),
    }
}

/// The shortest digits that give the number again, as Python lays them out.
fn float(number: f64, [nan, infinity]: [&str; 2]) -> String {
    if number.is_nan() {
        return nan.to_owned();
    }
    if number.is_infinite() {
        return format!("{}{infinity}", if number < 0.0 { "-" } else { "" });
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Python's `repr` of a text.
fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str(r"\\"),
            '\n' => out.push_str(r"\n"),
            '\r' => out.push_str(r"\r"),
            '\t' => out.push_str(r"\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ ..=0xff => out.push_str(&format!("\\x{code:02x}")),
                code @ ..=0xffff => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
}

/// Whether Python prints a character as it is: all but those that Unicode calls separators or others, besides
/// the space.
fn is_printable(c: char) -> bool {
    static OTHERS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{Z}\p{C}]$").ok());
    match c {
        ' '..='~' => true,
        c if c.is_ascii() => false,
        c => match &*OTHERS {
            Some(others) => !others.is_match(c.encode_utf8(&mut [0; 4])),
            None => !c.is_control(),
        },
    }
}

/// How `tojson` lays a text out.
struct JsonStyle {
    ascii: bool,
    sorted: bool,
    indent: Option<String>,
    between_items: String,
    behind_key: String,
}

/// The filter `tojson` as `transformers` defines it: Python's `json.dumps`, which escapes nothing for HTML
/// and, unless asked to, leaves what is not ASCII as it is. Undefined values are null.
///
/// # Errors
/// Arguments that are none of Python's, and values that JSON has no form for.
pub(super) fn to_json(value: &Value, args: Rest<Value>) -> Result<String, Error> {
    type Optional = Option<Value>;
    let (ensure_ascii, indent, separators, sort_keys, kwargs): (
        Optional,
        Optional,
        Optional,
        Optional,
        Kwargs,
    ) = from_args(&args)?;
    let is_on = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ascii = is_on(named(ensure_ascii, "ensure_ascii", &kwargs)?);
    let sorted = is_on(named(sort_keys, "sort_keys", &kwargs)?);
    let indent =
        named(indent, "indent", &kwargs)?.map(|indent| indentation(&indent)).transpose()?;
    let separators = named(separators, "separators", &kwargs)?.map(|pair| pair_of_texts(&pair));
    kwargs.assert_all_used()?;
    let defaults = || {
        let between_items = if indent.is_none() { ", " } else { "," };
        [between_items, ": "].map(str::to_owned)
    };
    let [between_items, behind_key] = separators.transpose()?.unwrap_or_else(defaults);
    let style = JsonStyle { ascii, sorted, indent, between_items, behind_key };
    let mut out = String::new();
    style.write(&mut out, value, 0)?;
    Ok(out)
}

pub(super) fn invalid(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// An argument by its place or else its name.
pub(super) fn named<T>(given: Option<T>, name: &str, kwargs: &Kwargs) -> Result<Option<T>, Error>
where
    Option<T>: for<'a> minijinja::value::ArgType<'a, Output = Option<T>>,
{
    match given {
        Some(value) => Ok(Some(value)),
        None => kwargs.get::<Option<T>>(name),
    }
}

fn indentation(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let width = i64::try_from(indent.clone())?;
    match usize::try_from(width) {
        Ok(width) if width > MAX_WIDTH => Err(invalid(format!("an indent of {width}"))),
        Ok(width) => Ok(" ".repeat(width)),
        // Python takes less than none for none, in lines of their own.
        Err(_) => Ok(String::new()),
    }
}

fn pair_of_texts(pair: &Value) -> Result<[String; 2], Error> {
    let texts: Vec<Value> = pair.try_iter()?.take(3).collect();
    match &texts[..] {
        [items, keys] => match (items.as_str(), keys.as_str()) {
            (Some(items), Some(keys)) => Ok([items.to_owned(), keys.to_owned()]),
            _ => Err(invalid("the `separators` of `tojson` must be texts")),
        },
        _ => Err(invalid("the `separators` of `tojson` are two, for items and keys")),
    }
}

impl JsonStyle {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth == MAX_DEPTH {
            return Err(invalid(format!("more than {MAX_DEPTH} containers within each other")));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)),
            ValueKind::String => self.quote(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                if let Some(view) = value.downcast_object_ref::<View>() {
                    return Err(invalid(format!("cannot write {} as JSON", view.name)));
                }
                let mut empty = true;
                out.push('[');
                for item in value.try_iter()? {
                    self.begin(out, &mut empty, depth + 1);
                    self.write(out, &item, depth + 1)?;
                }
                self.end(out, empty, depth);
                out.push(']');
            }
            ValueKind::Map => {
                let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
                let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
                if self.sorted {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                let mut empty = true;
                out.push('{');
                for (key, value) in pairs {
                    self.begin(out, &mut empty, depth + 1);
                    self.quote(out, &json_key(&key)?);
                    out.push_str(&self.behind_key);
                    self.write(out, &value, depth + 1)?;
                }
                self.end(out, empty, depth);
                out.push('}');
            }
            kind => return Err(invalid(format!("cannot write a value of kind {kind} as JSON"))),
        }
        Ok(())
    }

    /// What stands before an item.
    fn begin(&self, out: &mut String, empty: &mut bool, depth: usize) {
        if !std::mem::take(empty) {
            out.push_str(&self.between_items);
        }
        self.line(out, depth);
    }

    /// What stands behind all items.
    fn end(&self, out: &mut String, empty: bool, depth: usize) {
        if !empty {
            self.line(out, depth);
        }
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn quote(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => float(number, ["NaN", "Infinity"]),
        _ => value.to_string(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => json_number(key),
        kind => return Err(invalid(format!("a key of JSON cannot be a value of kind {kind}"))),
    })
}

/// The test `iterable`: what Python's `iter` takes. Undefined values are, and give nothing.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `number`: in Python truth values are numbers, too.
pub(super) fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// The test `callable`: functions, macros and the like, and in Jinja2 undefined values, which raise when called.
pub(super) fn is_callable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Plain | ValueKind::Undefined => true,
        // Macros tell of themselves as dictionaries do, but not how they print.
        ValueKind::Map => value.to_string().starts_with("<macro "),
        _ => false,
    }
}

/// The test `sequence`: what has a length and items, so texts and dictionaries too.
pub(super) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined => true,
        // A part of a list, or two lists in one.
        ValueKind::Iterable => {
            value.len().is_some() && value.downcast_object_ref::<View>().is_none()
        }
        _ => false,
    }
}

/// The filter `join`.
///
/// # Errors
/// For what has no items.
pub(super) fn join(
    value: &Value,
    between: Option<Value>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let between = named(between, "d", &kwargs)?;
    let attribute = named(attribute, "attribute", &kwargs)?;
    kwargs.assert_all_used()?;
    let between = between.as_ref().map(text).unwrap_or_default();
    let mut out = String::new();
    for (i, mut item) in iterate(value)?.enumerate() {
        if i > 0 {
            out.push_str(&between);
        }
        if let Some(attribute) = &attribute {
            item = member(&item, attribute)?;
        }
        out.push_str(&text(&item));
    }
    Ok(out)
}

/// The part of a value that `attribute` names, by keys or numbers with dots between.
pub(super) fn member(value: &Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else { return value.get_item(attribute) };
    path.split('.').try_fold(value.clone(), |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_item_by_index(index),
        Err(_) => value.get_attr(part),
    })
}

/// The filter `list`.
///
/// # Errors
/// For what has no items.
pub(super) fn list(value: &Value) -> Result<Value, Error> {
    Ok(python(Value::from(iterate(value)?.collect::<Vec<_>>())))
}

/// The filter `wordcount`: the runs of letters, digits and underscores.
pub(super) fn word_count(value: &Value) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text(value).split(|c| !is_word(c)).filter(|word| !word.is_empty()).count()
}

/// The filter `round`: to the nearest number of so many decimals, and of two that are as near to the even one.
///
/// # Errors
/// For what is no number, and another `method` than `common`, `ceil` and `floor`.
pub(super) fn round(
    value: &Value,
    precision: Option<i32>,
    method: Option<String>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let precision = named(precision, "precision", &kwargs)?.unwrap_or(0);
    let method = named(method, "method", &kwargs)?;
    kwargs.assert_all_used()?;
    let number = f64::try_from(value.clone())?;
    // Beyond, no float has a decimal.
    let precision = precision.clamp(-308, 308);
    let scale = 10_f64.powi(precision);
    Ok(match method.as_deref().unwrap_or("common") {
        "common" if precision >= 0 && value.is_integer() => value.clone(),
        "common" if precision >= 0 => {
            let text = format!("{number:.*}", precision.unsigned_abs() as usize);
            Value::from(text.parse::<f64>().unwrap_or(number))
        }
        "common" => Value::from((number * scale).round_ties_even() / scale),
        "ceil" => Value::from((number * scale).ceil() / scale),
        "floor" => Value::from((number * scale).floor() / scale),
        other => return Err(invalid(format!("`round` knows no method {other:?}"))),
    })
}
