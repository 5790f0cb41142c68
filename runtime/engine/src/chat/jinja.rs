//! Templates as Hugging Face runs them: blocks are trimmed, values print, compare and become JSON as in Python
//! (`python`), whose string, list and dict methods exist (`methods`), as do its filters of texts (`filters`),
//! operators mean what they do in Python (`source`),
//! and so do `raise_exception`, `strftime_now` and loop controls.
//!
//! These differ from Jinja2 still, and no published template is known that has them:
//! - a power with a negative exponent (`2 ** -1`) is an error, while whole numbers end at 128 bits;
//! - a tuple equals the list of its items (`[] == ()`);
//! - `loop(x)` of a recursive loop takes `none` for an empty list, and does not count the letters of a
//!   text;
//! - `x | items`, `x | map(...)` and the like have a length and print their items, where Jinja2 has
//!   generators, which have none, and `unique` takes lists and dictionaries;
//! - `x | attr('a')` finds the keys of dictionaries, too, and `x.items()[0]` the first pair;
//! - macros have no `varargs` and `kwargs`, templates no `self`; the filter `urlize` and the method
//!   `encode` are missing.
//!
//! A template sees the messages and nothing else and has a budget of steps. What a step may cost of stack,
//! memory and time is not bounded here: [`super::process`] does that.

mod filters;
mod methods;
mod python;
mod source;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Rest, Value};
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::globals::cycler;
use regex::Regex;
use serde::Serialize;

use super::error::ChatError;

/// Steps that rendering may take; a thousand long messages use a tenth.
const STEPS: u64 = 5_000_000;
const NAME: &str = "chat_template";
/// The template for conversations with tools, where it is another.
const TOOL_USE: &str = "tool_use";

/// A compiled template, perhaps with another for tools.
#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// The name of the one for tools.
    tool_use: &'static str,
}

/// What `raise_exception` throws, told apart from failures of the template itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

impl Template {
    /// Compiles a template, which finds the texts of special tokens under their names.
    ///
    /// # Errors
    /// [`ChatError::Syntax`] when it does not parse.
    pub(super) fn new(
        source: &str,
        tool_use: Option<&str>,
        tokens: &BTreeMap<String, String>,
    ) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(STEPS));
        environment.set_formatter(python::print);
        environment.set_unknown_method_callback(methods::call);
        minijinja_contrib::add_to_environment(&mut environment);
        environment.add_function("cycler", |items: Rest<Value>| cycler(items.0));
        for (name, text) in tokens {
            environment.add_global(name.clone(), text.as_str().to_owned());
        }
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_function("strftime_now", |format: &str| strftime(format, SystemTime::now()));
        environment.add_function(source::TEXT, |value: Value| python::text(&value));
        environment.add_function(source::TUPLE, |items: Value| python::tuple(&items));
        environment.add_function(source::EACH, python::each);
        environment.add_filter(source::VALUE, |value: Value| value);
        environment.add_filter("tojson", python::to_json);
        environment.add_filter("string", python::text);
        environment.add_filter("join", python::join);
        environment.add_filter("list", python::list);
        environment.add_filter("items", python::items);
        environment.add_filter("dictsort", python::dict_sort);
        environment.add_filter("wordcount", python::word_count);
        environment.add_filter("round", python::round);
        environment.add_filter("center", methods::center);
        environment.add_filter("format", methods::format_percent);
        filters::add_to(&mut environment);
        environment.add_test("number", python::is_number);
        environment.add_test("iterable", python::is_iterable);
        environment.add_test("sequence", python::is_sequence);
        environment.add_test("callable", python::is_callable);
        let syntax = |error: minijinja::Error| ChatError::Syntax { reason: describe(&error) };
        let mut add = |name: &'static str, source: &str| {
            // Jinja2 knows one end of a line, whatever a file has.
            let source = source.replace("\r\n", "\n").replace('\r', "\n");
            let source = without_generation_marks(&source);
            let source = source::as_interpreted(&source).into_owned();
            environment.add_template_owned(name, source).map_err(syntax).map(|()| name)
        };
        let default = add(NAME, source)?;
        let tool_use = tool_use.map_or(Ok(default), |source| add(TOOL_USE, source))?;
        Ok(Self { environment, tool_use })
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`ChatError::Refused`] and [`ChatError::Render`].
    pub(super) fn render(
        &self,
        messages: impl Serialize,
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let context = context! {
            messages => python::python(Value::from_serialize(messages)),
            add_generation_prompt => add_generation_prompt,
            tools => python::python(Value::from_serialize(tools)),
            documents => Value::from(()),
        };
        let name = if tools.is_some_and(|tools| !tools.is_null()) { self.tool_use } else { NAME };
        let template = self.environment.get_template(name);
        template.and_then(|template| template.render(context)).map_err(|error| {
            let mut cause = std::error::Error::source(&error);
            while let Some(inner) = cause {
                if let Some(Refusal(reason)) = inner.downcast_ref() {
                    return ChatError::Refused { reason: reason.clone() };
                }
                cause = inner.source();
            }
            ChatError::Render { reason: describe(&error) }
        })
    }
}

fn describe(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}

fn raise_exception(reason: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raised").with_source(Refusal(reason)))
}

/// Makes the `{% generation %}` blocks of training templates, which mark what the model says, transparent.
fn without_generation_marks(source: &str) -> String {
    let Ok(marks) = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}") else {
        return source.into();
    };
    let replace = |found: &regex::Captures<'_>| match found.get(2) {
        Some(_) => format!("{{%{} endif {}%}}", &found[1], &found[3]),
        None => format!("{{%{} if true {}%}}", &found[1], &found[3]),
    };
    marks.replace_all(source, replace).into_owned()
}

/// Formats a time in UTC by the directives that templates use; others stay as they are.
fn strftime(format: &str, time: SystemTime) -> String {
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, day, day_of_year) = civil_date(days);
    let weekday = DAYS[(days % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let Some(mut directive) = chars.next() else {
            out.push('%');
            break;
        };
        let padded = directive != '-';
        if !padded {
            directive = chars.next().unwrap_or('-');
        }
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        let text = match directive {
            'Y' => number(year, 4),
            'y' => number(year % 100, 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'j' => number(day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.into(),
            'B' => month_name.into(),
            'b' | 'h' => month_name[..3].into(),
            'A' => weekday.into(),
            'a' => weekday[..3].into(),
            'F' => format!("{year:04}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'Z' => "UTC".into(),
            'z' => "+0000".into(),
            '%' => "%".into(),
            other => format!("%{other}"),
        };
        out.push_str(&text);
    }
    out
}

/// Year, month, day and day of the year of a count of days since 1970.
fn civil_date(mut days: u64) -> (u64, u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    loop {
        let len = if is_leap(year) { 366 } else { 365 };
        if days < len {
            break;
        }
        days -= len;
        year += 1;
    }
    let day_of_year = days + 1;
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    (year, month, days + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn dates_are_gregorian_utc() {
        assert_eq!(strftime("%d %b %Y", at(1_722_000_000)), "26 Jul 2024");
        assert_eq!(
            strftime("%A %F %T %j %-d%%", at(951_782_400)),
            "Tuesday 2000-02-29 00:00:00 060 29%"
        );
        assert_eq!(strftime("%a %d %B %y %I:%M %p", at(0)), "Thu 01 January 70 12:00 AM");
        assert_eq!(strftime("%Y-%m-%d", at(1_735_603_200)), "2024-12-31");
    }

    #[test]
    fn generation_marks_are_transparent() {
        let source = "a {%- generation -%} b {% endgeneration %}c";
        let template = Template::new(source, None, &BTreeMap::new()).unwrap();
        assert_eq!(template.render([0; 0], None, false).unwrap(), "ab c");
    }
}
