//! Methods that Python's texts, lists and dictionaries have.
//!
//! Those of `minijinja-contrib` are used where they do as Python does; here is what it lacks, and what it does
//! otherwise: positions count characters, an empty text is of no kind, arguments have names.

use std::borrow::Cow;
use std::sync::LazyLock;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args, merge_maps};
use minijinja::{Error, FormatStyle, State, format_filter};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;

use super::python::{MAX_WIDTH, invalid, items, iterate, keys, named, python, repr, tuple, values};

/// Calls a method.
///
/// # Errors
/// For one that there is not, wrong arguments, and where Python raises an exception.
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => of_text(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable if method == "index" => {
            let (item,): (&Value,) = from_args(args)?;
            let found = value.try_iter()?.position(|other| other == *item);
            Some(Value::from(found.ok_or_else(|| invalid("the item is not in the list"))?))
        }
        ValueKind::Map if method == "items" => {
            let () = from_args(args)?;
            Some(items(value)?)
        }
        ValueKind::Map if method == "keys" => {
            let () = from_args(args)?;
            Some(keys(value))
        }
        ValueKind::Map if method == "values" => {
            let () = from_args(args)?;
            Some(values(value))
        }
        ValueKind::Map if method == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(value) => Ok(python(value)),
        None => unknown_method_callback(state, value, method, args).map(python),
    }
}

/// `None` for a method that is not here.
fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "split" | "rsplit" => {
            let (separator, most) = split_arguments(args)?;
            let parts = match (separator.as_deref(), method == "rsplit") {
                (None, false) => words(text, most),
                (None, true) => words_from_behind(text, most),
                (Some(""), _) => return Err(invalid("empty separator")),
                (Some(by), false) => match most {
                    Some(most) => text.splitn(most.saturating_add(1), by).collect(),
                    None => text.split(by).collect(),
                },
                (Some(by), true) => {
                    let mut parts: Vec<&str> = match most {
                        Some(most) => text.rsplitn(most.saturating_add(1), by).collect(),
                        None => text.rsplit(by).collect(),
                    };
                    parts.reverse();
                    parts
                }
            };
            parts.into_iter().map(Value::from).collect()
        }
        "format" => Value::from(format_filter(FormatStyle::StrFormat, text, &as_python(args))?),
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            if by.is_empty() {
                return Err(invalid("empty separator"));
            }
            let is_last = method == "rpartition";
            let halves = if is_last { text.rsplit_once(by) } else { text.split_once(by) };
            let parts = match halves {
                Some((before, behind)) => [before, by, behind],
                None if is_last => ["", "", text],
                None => [text, "", ""],
            };
            tuple(&parts.into_iter().map(Value::from).collect())?
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = named(keep, "keepends", &kwargs)?;
            kwargs.assert_all_used()?;
            lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect()
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            let mut fill = fill.unwrap_or(" ").chars();
            let (Some(fill), None) = (fill.next(), fill.next()) else {
                return Err(invalid("the character to fill with must be one"));
            };
            let (width, missing) = missing(text, width)?;
            let left = match method {
                "center" => missing / 2 + (missing & width & 1),
                "ljust" => 0,
                _ => missing,
            };
            Value::from(padded(text, fill, left, missing - left))
        }
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let (_, missing) = missing(text, width)?;
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            Value::from(sign.to_owned() + &padded(digits, '0', missing, 0))
        }
        "join" => {
            let (parts,): (&Value,) = from_args(args)?;
            let parts = iterate(parts)?.map(|part| part.to_string());
            Value::from(parts.collect::<Vec<_>>().join(text))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (start, part) = part(text, from, to);
            let is_last = method.starts_with('r');
            let found = part.and_then(|part| {
                let at = if is_last { part.rfind(what) } else { part.find(what) };
                at.map(|at| start + part[..at].chars().count())
            });
            match found {
                Some(at) => Value::from(at),
                None if method.ends_with("find") => Value::from(-1),
                None => return Err(invalid("substring not found")),
            }
        }
        "count" => {
            let (what, from, to): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, part) = part(text, from, to);
            Value::from(part.map_or(0, |part| part.matches(what).count()))
        }
        "startswith" | "endswith" => {
            let (what, from, to): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, part) = part(text, from, to);
            let is_there = |what: &Value| match (what.as_str(), part) {
                (None, _) => Err(invalid(format!("`{method}` takes a text or a tuple of texts"))),
                (Some(_), None) => Ok(false),
                (Some(what), Some(part)) if method == "startswith" => Ok(part.starts_with(what)),
                (Some(what), Some(part)) => Ok(part.ends_with(what)),
            };
            let several = matches!(what.kind(), ValueKind::Seq | ValueKind::Iterable);
            let mut found = false;
            for what in if several { what.try_iter()?.collect() } else { vec![what.clone()] } {
                found = found || is_there(&what)?;
            }
            Value::from(found)
        }
        "title" => {
            let () = from_args(args)?;
            let (mut out, mut in_word) = (String::with_capacity(text.len()), false);
            for c in text.chars() {
                match in_word {
                    true => out.extend(c.to_lowercase()),
                    false => out += &title_case(c),
                }
                in_word = is_cased(c);
            }
            Value::from(out)
        }
        "istitle" => {
            let () = from_args(args)?;
            let (mut in_word, mut has_words) = (false, false);
            // A capital begins each word, and stands nowhere else.
            let is_title = text.chars().all(|c| {
                let fits = !is_cased(c) || c.is_lowercase() == in_word;
                in_word = is_cased(c);
                has_words |= in_word;
                fits
            });
            Value::from(is_title && has_words)
        }
        "islower" | "isupper" => {
            let () = from_args(args)?;
            let (lower, upper) =
                (text.contains(char::is_lowercase), text.contains(char::is_uppercase));
            Value::from(if method == "islower" { lower && !upper } else { upper && !lower })
        }
        "expandtabs" => {
            let (size, kwargs): (Option<i64>, Kwargs) = from_args(args)?;
            let size = named(size, "tabsize", &kwargs)?;
            kwargs.assert_all_used()?;
            Value::from(expand_tabs(text, size.unwrap_or(8))?)
        }
        "isidentifier" => {
            let () = from_args(args)?;
            let mut chars = text.chars();
            let begins = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_');
            Value::from(begins && chars.all(|c| c.is_alphanumeric() || c == '_'))
        }
        "isdecimal" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        }
        // Of no kind, while `all` of nothing is true.
        "isspace" | "isdigit" | "isnumeric" | "isalnum" | "isalpha" if text.is_empty() => {
            let () = from_args(args)?;
            Value::from(false)
        }
        _ => return Ok(None),
    }))
}

/// Whether there are capitals of a letter, or it is one.
fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

/// A letter as a word begins with it: of those that are two in one, the first alone is a capital.
fn title_case(c: char) -> String {
    let pair = match c {
        'Ǆ' | 'ǅ' | 'ǆ' => 'ǅ',
        'Ǉ' | 'ǈ' | 'ǉ' => 'ǈ',
        'Ǌ' | 'ǋ' | 'ǌ' => 'ǋ',
        'Ǳ' | 'ǲ' | 'ǳ' => 'ǲ',
        c => {
            let mut capitals = c.to_uppercase();
            let first = capitals.next().into_iter();
            return first.chain(capitals.flat_map(char::to_lowercase)).collect();
        }
    };
    pair.to_string()
}

/// `sep` and `maxsplit` of `split`; a negative number is none.
fn split_arguments(args: &[Value]) -> Result<(Option<String>, Option<usize>), Error> {
    let (separator, most, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = named(separator, "sep", &kwargs)?;
    let most = named(most, "maxsplit", &kwargs)?;
    kwargs.assert_all_used()?;
    Ok((separator, most.and_then(|most| usize::try_from(most).ok())))
}

/// The words of a text; behind `most` of them the rest is one.
fn words(text: &str, most: Option<usize>) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        if most == Some(parts.len()) {
            parts.push(rest);
            break;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    parts
}

/// As [`words`], counted from the end.
fn words_from_behind(text: &str, most: Option<usize>) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text.trim_end());
    while !rest.is_empty() {
        if most == Some(parts.len()) {
            parts.push(rest);
            break;
        }
        let start = rest.rfind(char::is_whitespace);
        let start = start.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end();
    }
    parts.reverse();
    parts
}

/// The lines of a text by all the ends that Python knows.
pub(super) fn lines(text: &str, keep: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let mark = match rest[end..].strip_prefix("\r\n") {
            Some(_) => 2,
            None => rest[end..].chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keep { end + mark } else { end }]);
        rest = &rest[end + mark..];
    }
    lines
}

/// The text with spaces up to the next column of a tab in place of each.
fn expand_tabs(text: &str, size: i64) -> Result<String, Error> {
    let size = usize::try_from(size).unwrap_or(0);
    let tabs = text.matches('\t').count();
    if size.saturating_mul(tabs) > MAX_WIDTH {
        return Err(invalid(format!("{tabs} tabs cannot have {size} columns")));
    }
    let (mut out, mut column) = (String::with_capacity(text.len()), 0);
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

/// The width as a number of characters, and how many the text lacks.
fn missing(text: &str, width: i64) -> Result<(usize, usize), Error> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(invalid(format!("a text cannot be padded to {width} characters")));
    }
    Ok((width, width.saturating_sub(text.chars().count())))
}

fn padded(text: &str, fill: char, left: usize, right: usize) -> String {
    let fill = |n: usize| std::iter::repeat_n(fill, n);
    fill(left).chain(text.chars()).chain(fill(right)).collect()
}

/// The filter `format`, which is the operator `%` too.
///
/// # Errors
/// For values that the text has no place for, or not of that kind.
pub(super) fn format_percent(text: &str, args: Rest<Value>) -> Result<String, Error> {
    let (text, args) = with_reprs(text, as_python(&args));
    format_filter(FormatStyle::Printf, &text, &args)
}

/// The text with `%s` in place of each `%r`, which the interpreter does not know, and the values as they are
/// for it.
fn with_reprs(text: &str, mut args: Vec<Value>) -> (Cow<'_, str>, Vec<Value>) {
    static PLACES: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"%(?:\(([^)]*)\))?[-#0 +]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?[hlL]?(.)").ok()
    });
    let Some(places) = PLACES.as_ref().filter(|_| text.contains('r')) else {
        return (text.into(), args);
    };
    let written = |value: &Value| {
        let mut out = String::new();
        repr(&mut out, value, 0);
        Value::from(out)
    };
    let (mut out, mut copied, mut place) = (String::new(), 0, 0);
    for found in places.captures_iter(text) {
        let (Some(all), Some(kind)) = (found.get(0), found.get(4)) else { continue };
        if kind.as_str() == "%" {
            continue;
        }
        let is_star = |group| found.get(group).is_some_and(|number| number.as_str() == "*");
        place += usize::from(is_star(2)) + usize::from(is_star(3));
        if kind.as_str() == "r" {
            match found.get(1) {
                // A key of its own, for the value may be wanted in another form elsewhere.
                Some(key) => {
                    let own = format!("{} as repr", key.as_str());
                    let values = args.first().cloned().unwrap_or_default();
                    let value = values.get_item(&Value::from(key.as_str())).unwrap_or_default();
                    let new = Value::from_iter([(own.clone(), written(&value))]);
                    if let Some(first) = args.first_mut() {
                        *first = merge_maps([values, new]);
                    }
                    out.push_str(&text[copied..key.start()]);
                    out.push_str(&own);
                    out.push_str(&text[key.end()..kind.start()]);
                }
                None => {
                    if let Some(value) = args.get_mut(place) {
                        *value = written(value);
                    }
                    out.push_str(&text[copied..kind.start()]);
                }
            }
            out.push('s');
            copied = all.end();
        }
        place += 1;
    }
    out.push_str(&text[copied..]);
    (out.into(), args)
}

/// The arguments of a call, so that they print in Python's form.
fn as_python(args: &[Value]) -> Vec<Value> {
    let value =
        |value: &Value| if value.is_kwargs() { value.clone() } else { python(value.clone()) };
    args.iter().map(value).collect()
}

/// The filter `center`.
///
/// # Errors
/// For a width that no text needs.
pub(super) fn center(text: String, width: Option<i64>) -> Result<String, Error> {
    let (width, missing) = missing(&text, width.unwrap_or(80))?;
    let left = missing / 2 + (missing & width & 1);
    Ok(padded(&text, ' ', left, missing - left))
}

/// The part of a text between two characters, negative ones counted from the end, and how many characters
/// are before it; `None` where it would begin behind its end.
fn part(text: &str, from: Option<i64>, to: Option<i64>) -> (usize, Option<&str>) {
    let len = text.chars().count();
    let place = |at: i64| match usize::try_from(at) {
        Ok(at) => at,
        Err(_) => len.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let (from, to) = (from.map_or(0, place), to.map_or(len, place).min(len));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(at, _)| at);
    (from, (from <= to).then(|| &text[byte(from)..byte(to)]))
}
