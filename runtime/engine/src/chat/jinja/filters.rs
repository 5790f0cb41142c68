//! Filters of texts, which make a text of any value in Python's form, and those that the interpreter lacks.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters as interpreted};

use super::python::{MAX_WIDTH, invalid, iterate, member, named, python, text};

/// Adds them all.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter("lower", |value: Value| text(&value).to_lowercase());
    environment.add_filter("upper", |value: Value| text(&value).to_uppercase());
    environment.add_filter("title", title);
    environment.add_filter("capitalize", capitalize);
    environment.add_filter("trim", trim);
    environment.add_filter("replace", replace);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordwrap", word_wrap);
    environment.add_filter("urlencode", url_encode);
    environment.add_filter("random", random);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("sum", sum);
    let of_items = [
        ("length", Value::from_function(interpreted::length)),
        ("count", Value::from_function(interpreted::length)),
        ("first", Value::from_function(interpreted::first)),
        ("last", Value::from_function(interpreted::last)),
        ("min", Value::from_function(interpreted::min)),
        ("max", Value::from_function(interpreted::max)),
        ("sort", Value::from_function(interpreted::sort)),
        ("reverse", Value::from_function(interpreted::reverse)),
        ("unique", Value::from_function(interpreted::unique)),
        ("batch", Value::from_function(interpreted::batch)),
        ("slice", Value::from_function(interpreted::slice)),
        ("groupby", Value::from_function(interpreted::groupby)),
    ];
    for (name, filter) in of_items {
        let filter = move |state: &State<'_, '_>, mut args: Rest<Value>| {
            if let Some(value) = args.first_mut() {
                if value.is_none() {
                    return Err(invalid(format!("none has no items for `{name}`")));
                }
                if value.is_undefined() {
                    *value = Value::from(Vec::<Value>::new());
                }
            }
            filter.call(state, &args)
        };
        environment.add_filter(name, filter);
    }
}

/// Each word begins with a capital; one ends at a space, a hyphen or an opening bracket.
fn title(value: Value) -> String {
    let mut begins = true;
    let case = |c: char| -> String {
        let cased = if begins { c.to_uppercase().collect() } else { c.to_lowercase().collect() };
        begins = c.is_whitespace() || "-({[<".contains(c);
        cased
    };
    text(&value).chars().map(case).collect()
}

fn capitalize(value: Value) -> String {
    let text = text(&value);
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars.flat_map(char::to_lowercase)).collect()
}

fn trim(value: Value, chars: Option<String>, kwargs: Kwargs) -> Result<String, Error> {
    let chars = named(chars, "chars", &kwargs)?;
    kwargs.assert_all_used()?;
    let text = text(&value);
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => text.trim().to_owned(),
    })
}

fn replace(value: Value, old: Value, new: Value, count: Option<i64>) -> String {
    let (value, old, new) = (text(&value), text(&old), text(&new));
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => value.replacen(&old, &new, count),
        None => value.replace(&old, &new),
    }
}

/// Cuts a text behind a word, or with `killwords` anywhere, where it is longer by more than the leeway.
fn truncate(value: &str, args: Rest<Value>) -> Result<String, Error> {
    type Arguments = (Option<usize>, Option<bool>, Option<String>, Option<usize>, Kwargs);
    let (length, killwords, end, leeway, kwargs): Arguments = from_args(&args)?;
    let length = named(length, "length", &kwargs)?.unwrap_or(255);
    let killwords = named(killwords, "killwords", &kwargs)?.unwrap_or(false);
    let end = named(end, "end", &kwargs)?.unwrap_or_else(|| "...".to_owned());
    let leeway = named(leeway, "leeway", &kwargs)?.unwrap_or(5);
    kwargs.assert_all_used()?;
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return Err(invalid(format!("`truncate` to {length} characters has no place for {end:?}")));
    };
    if value.chars().count() <= length.saturating_add(leeway) {
        return Ok(value.to_owned());
    }
    let mut kept: String = value.chars().take(kept).collect();
    if let Some(space) = kept.rfind(' ').filter(|_| !killwords) {
        kept.truncate(space);
    }
    Ok(kept + &end)
}

/// Breaks the lines of a text, each for itself, to a width in characters.
fn word_wrap(value: &str, args: Rest<Value>) -> Result<String, Error> {
    type Arguments = (Option<usize>, Option<bool>, Option<String>, Option<bool>, Kwargs);
    let (width, long_words, between, hyphens, kwargs): Arguments = from_args(&args)?;
    let width = named(width, "width", &kwargs)?.unwrap_or(79);
    let long_words = named(long_words, "break_long_words", &kwargs)?.unwrap_or(true);
    let between = named(between, "wrapstring", &kwargs)?.unwrap_or_else(|| "\n".to_owned());
    let hyphens = named(hyphens, "break_on_hyphens", &kwargs)?.unwrap_or(true);
    kwargs.assert_all_used()?;
    if width == 0 {
        return Err(invalid("`wordwrap` needs a width of at least 1"));
    }
    if value.chars().count().saturating_mul(between.len()) > 64 * MAX_WIDTH {
        return Err(invalid("`wordwrap` has a `wrapstring` too long for the text"));
    }
    let lines: Vec<String> = super::methods::lines(value, false)
        .into_iter()
        .map(|line| {
            wrapped(&line.chars().collect::<Vec<_>>(), width, long_words, hyphens).join(&between)
        })
        .collect();
    Ok(lines.join(&between))
}

/// The lines that Python's `textwrap` makes of one.
fn wrapped(line: &[char], width: usize, long_words: bool, hyphens: bool) -> Vec<String> {
    let is_space = |chunk: &[char]| chunk.iter().all(|c| c.is_whitespace());
    let mut chunks = chunks(line, hyphens);
    chunks.reverse();
    let mut lines = Vec::new();
    while !chunks.is_empty() {
        let (mut line, mut len): (Vec<&[char]>, usize) = (Vec::new(), 0);
        if !lines.is_empty() {
            chunks.pop_if(|chunk| is_space(chunk));
        }
        while let Some(chunk) = chunks.pop_if(|chunk| len + chunk.len() <= width) {
            len += chunk.len();
            line.push(chunk);
        }
        if let Some(&chunk) = chunks.last().filter(|chunk| chunk.len() > width) {
            if long_words {
                let left = width - len;
                // Behind the last hyphen that something else is before.
                let hyphen = chunk[..left]
                    .iter()
                    .rposition(|&c| c == '-')
                    .filter(|&at| hyphens && at > 0 && chunk[..at].iter().any(|&c| c != '-'));
                let (now, later) = chunk.split_at(hyphen.map_or(left, |at| at + 1));
                line.push(now);
                chunks.pop();
                chunks.push(later);
            } else if line.is_empty() {
                line.extend(chunks.pop());
            }
        }
        line.pop_if(|chunk| is_space(chunk));
        if !line.is_empty() {
            lines.push(line.concat().into_iter().collect());
        }
    }
    lines
}

/// The parts of a line between which it may be broken: words, what is between them, and with `hyphens` the
/// parts of a word.
fn chunks(line: &[char], hyphens: bool) -> Vec<&[char]> {
    let at = |i: usize| line.get(i).copied().unwrap_or(' ');
    let is_letter = |i: usize| at(i).is_alphabetic() || at(i) == '_';
    let is_word = |i: usize| at(i).is_alphanumeric() || at(i) == '_';
    let is_space = |i: usize| at(i).is_ascii_whitespace();
    let behind_hyphen = |i: usize| {
        let before = (i >= 2 && is_letter(i - 1) && is_letter(i - 2))
            || (i >= 3 && is_letter(i - 1) && at(i - 2) == '-' && is_letter(i - 3));
        before && is_letter(i + 1) && (is_letter(i + 2) || (at(i + 2) == '-' && is_letter(i + 3)))
    };
    // The end of a dash of two hyphens or more that begins here and is between words.
    let dash = |i: usize| {
        let len = line[i..].iter().take_while(|&&c| c == '-').count();
        let is_behind_word = i > 0 && (is_word(i - 1) || "!\"'&.,?".contains(at(i - 1)));
        (len >= 2 && is_behind_word && is_word(i + len)).then_some(i + len)
    };
    let (mut chunks, mut start) = (Vec::new(), 0);
    while start < line.len() {
        let mut end = start + 1;
        if is_space(start) {
            while end < line.len() && is_space(end) {
                end += 1;
            }
        } else if let Some(behind) = dash(start).filter(|_| hyphens) {
            end = behind;
        } else {
            while end < line.len()
                && !is_space(end)
                && !(hyphens
                    && (dash(end).is_some() || (at(end - 1) == '-' && behind_hyphen(end - 1))))
            {
                end += 1;
            }
        }
        chunks.push(&line[start..end]);
        start = end;
    }
    chunks
}

/// A text as a part of an address, or pairs as its query.
fn url_encode(value: Value) -> Result<String, Error> {
    let pairs: Vec<Value> = match value.kind() {
        ValueKind::Map => super::python::items(&value)?.try_iter()?.collect(),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.collect(),
        _ => return Ok(url_quoted(&text(&value), false)),
    };
    let mut out = String::new();
    for pair in pairs {
        let parts: Vec<Value> = pair.try_iter()?.take(3).collect();
        let [key, value] = &parts[..] else {
            return Err(invalid("`urlencode` takes a text, a dictionary or pairs"));
        };
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(&url_quoted(&text(key), true));
        out.push('=');
        out.push_str(&url_quoted(&text(value), true));
    }
    Ok(out)
}

fn url_quoted(text: &str, in_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A whole number, of a text in any base, or else the default.
fn int(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let (given, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    let default = default_or(Value::from(0), given, &kwargs)?;
    let base = given.get(1).map(|base| u32::try_from(base.clone())).transpose()?;
    let base = named(base, "base", &kwargs)?.unwrap_or(10);
    all_used(given, 2, &kwargs)?;
    let whole = |number: f64| match number.trunc() {
        number if number.is_nan() => Ok(default.clone()),
        // What an i128 holds, of which -2^127 is a float.
        number if (-(2_f64.powi(127))..2_f64.powi(127)).contains(&number) => {
            Ok(Value::from(number as i128))
        }
        _ => Err(invalid(format!("`int` has no whole number for {number}"))),
    };
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value),
        ValueKind::Number => whole(f64::try_from(value)?),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            match (whole_number(text, base), python_float(text)) {
                (Some(number), _) => Ok(Value::from(number)),
                (None, Some(number)) if number.is_finite() => whole(number),
                _ => Ok(default),
            }
        }
        _ => Ok(default),
    }
}

/// A number with a fraction, or else the default.
fn float(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let (given, kwargs): (&[Value], Kwargs) = from_args(&args)?;
    let default = default_or(Value::from(0.0), given, &kwargs)?;
    all_used(given, 1, &kwargs)?;
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Bool => Value::from(if value.is_true() { 1.0 } else { 0.0 }),
        // A whole number beyond 2^53 gets the nearest float, which the interpreter would refuse.
        ValueKind::Number if value.is_integer() => Value::from(i128::try_from(value)? as f64),
        ValueKind::Number => value,
        ValueKind::String => {
            python_float(value.as_str().unwrap_or_default()).map_or(default, Value::from)
        }
        _ => default,
    })
}

/// The first argument, which may be none.
fn default_or(other: Value, given: &[Value], kwargs: &Kwargs) -> Result<Value, Error> {
    match given.first() {
        Some(default) => Ok(default.clone()),
        None if kwargs.has("default") => kwargs.get("default"),
        None => Ok(other),
    }
}

/// Refuses arguments that a filter does not have.
fn all_used(given: &[Value], most: usize, kwargs: &Kwargs) -> Result<(), Error> {
    match given.len() > most {
        true => Err(Error::from(ErrorKind::TooManyArguments)),
        false => kwargs.assert_all_used(),
    }
}

/// Python's `int` of a text; a base of 0 is the one that the number's prefix says.
fn whole_number(text: &str, base: u32) -> Option<i128> {
    let text = without_underscores(text.trim())?;
    let digits = text.strip_prefix(['-', '+']).unwrap_or(&text);
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, of)| {
        let (start, digits) = digits.split_at_checked(2)?;
        (start.eq_ignore_ascii_case(prefix) && [0, of].contains(&base)).then_some((digits, of))
    });
    let (digits, base) = match prefixed {
        Some(prefixed) => prefixed,
        None if base == 0 => (digits, 10),
        None => (digits, base),
    };
    if !(2..=36).contains(&base) || !digits.starts_with(|c: char| c.is_digit(base)) {
        return None;
    }
    let number = i128::from_str_radix(digits, base).ok()?;
    Some(if text.starts_with('-') { -number } else { number })
}

/// Python's `float` of a text.
fn python_float(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

/// A number without the underscores that may stand between its digits, and nowhere else.
fn without_underscores(text: &str) -> Option<String> {
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let mut parts = text.split('_').peekable();
    while let Some(part) = parts.next() {
        if let Some(next) = parts.peek()
            && !(is_digit(part.chars().last()) && is_digit(next.chars().next()))
        {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

/// The sum of the items, or of one attribute of each, from `start` on: of numbers, or of lists.
fn sum(
    value: &Value,
    attribute: Option<Value>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let attribute = named(attribute, "attribute", &kwargs)?.filter(|value| !value.is_none());
    let start = named(start, "start", &kwargs)?.unwrap_or_else(|| Value::from(0));
    kwargs.assert_all_used()?;
    let items = iterate(value)?.map(|item| match &attribute {
        Some(attribute) => member(&item, attribute),
        None => Ok(item),
    });
    // Lists are put together once.
    if start.kind() == ValueKind::Seq {
        let mut all: Vec<Value> = start.try_iter()?.collect();
        for item in items {
            match item? {
                item if item.kind() == ValueKind::Seq => all.extend(item.try_iter()?),
                item => return Err(no_sum(&start, &item)),
            }
        }
        return Ok(python(Value::from(all)));
    }
    let mut sum = start;
    for item in items {
        let item = item?;
        sum = match (addend(&sum), addend(&item)) {
            (Some(Addend::Whole(a)), Some(Addend::Whole(b))) => {
                Value::from(a.checked_add(b).ok_or_else(|| invalid("the `sum` is too large"))?)
            }
            (Some(a), Some(b)) => Value::from(a.float() + b.float()),
            _ => return Err(no_sum(&sum, &item)),
        };
    }
    Ok(sum)
}

/// A number that `sum` adds.
enum Addend {
    Whole(i128),
    Float(f64),
}

impl Addend {
    fn float(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

fn addend(value: &Value) -> Option<Addend> {
    match value.kind() {
        ValueKind::Bool => Some(Addend::Whole(i128::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => {
            i128::try_from(value.clone()).ok().map(Addend::Whole)
        }
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Addend::Float),
        _ => None,
    }
}

fn no_sum(sum: &Value, item: &Value) -> Error {
    invalid(format!("`sum` cannot add values of kinds {} and {}", sum.kind(), item.kind()))
}

/// One of the items, or nothing of none.
fn random(value: Value) -> Result<Value, Error> {
    let items: Vec<Value> = iterate(&value)?.collect();
    // The standard library's hash maps have keys from the system's random numbers.
    let number = RandomState::new().hash_one(0_u8);
    let place = usize::try_from(number % (items.len().max(1) as u64)).unwrap_or(0);
    Ok(items.into_iter().nth(place).unwrap_or_default())
}
