//! What Python means by an expression and the interpreter does not is written otherwise before a template is
//! compiled.
//!
//! | written | the interpreter | becomes |
//! |---|---|---|
//! | `'text' % value` | divides | `'text'|format(value)`, of which the value of a tuple is several |
//! | `a ~ b` | writes lists and dictionaries as JSON | `__text(a) ~ __text(b)`, but for texts in quotes |
//! | `(a, b)` | has a list | `__tuple((a, b))` |
//! | `'' and 'b'` | has `False` for a constant that is nothing | `''|__value and 'b'` |
//! | `for x in a` | takes `none` for nothing, counts no letters of a text | `for x in __each(a)` |
//!
//! Behind anything but a text in quotes `%` stays a division. Lines stay where they are.

use std::borrow::Cow;
use std::ops::Range;

/// The function that makes a text of an operand of `~`.
pub(super) const TEXT: &str = "__text";
/// The function that makes a tuple of a list.
pub(super) const TUPLE: &str = "__tuple";
/// The function that gives what a loop goes through.
pub(super) const EACH: &str = "__each";
/// The filter that gives its value, which is then no constant to the compiler.
pub(super) const VALUE: &str = "__value";

/// A replacement of a part of the source.
struct Edit {
    range: Range<usize>,
    new: String,
    /// Whether it stands before others at its place: `__text(` holds `__tuple(`.
    is_outer: bool,
}

/// The source with calls in place of what the interpreter does otherwise.
pub(super) fn as_interpreted(source: &str) -> Cow<'_, str> {
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let rest = &source[start..];
        at = if rest.starts_with("{#") {
            rest.find("#}").map_or(source.len(), |end| start + end + 2)
        } else if rest.starts_with("{{") {
            Block::new(source, start + 2, "}}").read(&mut edits)
        } else if rest.starts_with("{%") {
            match raw(rest) {
                Some(len) => start + len,
                None => Block::new(source, start + 2, "%}").read(&mut edits),
            }
        } else {
            start + 1
        };
    }
    if edits.is_empty() {
        return Cow::Borrowed(source);
    }
    edits.sort_by_key(|edit| (edit.range.start, !edit.is_outer));
    let (mut out, mut copied) = (String::with_capacity(source.len() + 16 * edits.len()), 0);
    for edit in edits {
        out.push_str(&source[copied..edit.range.start]);
        out.push_str(&edit.new);
        copied = edit.range.end;
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

/// The length of a block of text as it is, if the source begins with one.
fn raw(source: &str) -> Option<usize> {
    let is_tag = |source: &str, name: &str| -> Option<usize> {
        let inner = source.strip_prefix("{%")?;
        let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start();
        let inner = inner.strip_prefix(name)?.trim_start();
        let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).strip_prefix("%}")?;
        Some(source.len() - inner.len())
    };
    let mut at = is_tag(source, "raw")?;
    while let Some(found) = source[at..].find("{%") {
        at += found;
        if let Some(len) = is_tag(&source[at..], "endraw") {
            return Some(at + len);
        }
        at += 2;
    }
    Some(source.len())
}

/// What the token before was, which decides what the next one can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// An operator, an opening bracket or nothing: a value comes.
    Operator,
    /// A text in quotes.
    Text,
    /// A number, the name of a constant or a closing bracket: perhaps the end of a constant.
    Constant,
    /// Any other name.
    Name,
    /// A dot or a bar: a name comes, whatever it reads.
    Member,
    /// `is`, perhaps with `not`: the name of a test comes.
    Is,
}

impl Before {
    fn is_value(self) -> bool {
        matches!(self, Self::Text | Self::Constant | Self::Name)
    }
}

/// What is between two brackets, as far as it is read.
#[derive(Default)]
struct Level {
    /// The place of the bracket, if it may be that of a tuple.
    tuple: Option<usize>,
    is_empty: bool,
    has_comma: bool,
    /// Where what would be an operand of `~` begins.
    operand: Option<usize>,
    /// Whether it is a text in quotes so far.
    is_text: bool,
    has_tilde: bool,
}

/// An expression or a tag, read token by token.
struct Block<'a> {
    source: &'a str,
    at: usize,
    end: &'static str,
    before: Before,
    /// The place behind the token before.
    behind: usize,
    levels: Vec<Level>,
    /// What comes behind the names that a tag sets, which are no tuple in brackets either.
    targets_until: Option<&'static str>,
    /// Up to the end of what a loop goes through: the place behind its `in`, and how many edits there
    /// were then.
    each: Option<(usize, usize)>,
}

impl<'a> Block<'a> {
    fn new(source: &'a str, at: usize, end: &'static str) -> Self {
        let levels = vec![Level::default()];
        let before = Before::Operator;
        Self { source, at, end, before, behind: at, levels, targets_until: None, each: None }
    }

    /// Reads up to its end, and gives the place behind.
    fn read(mut self, edits: &mut Vec<Edit>) -> usize {
        let bytes = self.source.as_bytes();
        if let Some(b'-' | b'+') = bytes.get(self.at) {
            self.at += 1;
        }
        let mut is_first = self.end == "%}";
        while let Some(&byte) = bytes.get(self.at) {
            if self.levels.len() == 1 && bytes[self.at..].starts_with(self.end.as_bytes()) {
                self.end_operand(edits);
                let inner = &self.source[..self.at];
                let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner).trim_end();
                self.end_each(inner.len(), edits);
                return self.at + self.end.len();
            }
            let start = self.at;
            if byte.is_ascii_whitespace() {
                self.at += 1;
                continue;
            }
            if matches!(byte, b'\'' | b'"') {
                self.begin_operand(start, true);
                self.at = behind_quote(bytes, start);
                self.before = Before::Text;
            } else if byte.is_ascii_digit() {
                self.begin_operand(start, false);
                self.at = behind_number(bytes, start);
                self.before = Before::Constant;
            } else if skip_name(bytes, start) > start {
                self.at = skip_name(bytes, start);
                self.before = self.name(&self.source[start..self.at], start, is_first, edits);
            } else {
                self.mark(byte, edits);
            }
            is_first = false;
            self.behind = self.at;
        }
        self.at
    }

    /// Takes a name from `start` on.
    fn name(&mut self, name: &str, start: usize, is_first: bool, edits: &mut Vec<Edit>) -> Before {
        match (self.before, name) {
            (Before::Member, _) => return Before::Name,
            (Before::Is, "not") => return Before::Is,
            (Before::Is, "in") => return Before::Operator,
            (Before::Is, "none" | "true" | "false") => return Before::Constant,
            (Before::Is, _) => return Before::Name,
            (_, "is") => return Before::Is,
            _ => {}
        }
        if self.levels.len() == 1
            && (name == "if" || (name == "recursive" && self.before.is_value()))
        {
            self.end_operand(edits);
            self.end_each(self.behind, edits);
        }
        let is_operator = match name {
            "and" | "or" | "not" | "in" | "if" | "elif" | "else" => true,
            "for" | "set" if is_first => {
                self.targets_until = Some(if name == "for" { "in" } else { "=" });
                true
            }
            "do" | "include" | "extends" | "import" | "from" | "with" => is_first,
            _ => false,
        };
        if is_operator {
            if name == "and" && matches!(self.before, Before::Text | Before::Constant) {
                self.insert(self.behind, format!("|{VALUE}"), false, edits);
            }
            if name == "in" && self.targets_until == Some("in") {
                self.each = Some((self.at, edits.len()));
            }
            self.targets_until = self.targets_until.filter(|end| *end != name);
            self.end_operand(edits);
            return Before::Operator;
        }
        // Behind `sameas` and the like comes the argument of a test, in the same operand.
        self.begin_operand(start, false);
        match name {
            "none" | "None" | "true" | "True" | "false" | "False" => Before::Constant,
            _ => Before::Name,
        }
    }

    /// Takes an operator or a bracket.
    fn mark(&mut self, byte: u8, edits: &mut Vec<Edit>) {
        let bytes = self.source.as_bytes();
        let start = self.at;
        let next = bytes.get(start + 1).copied();
        self.at += 1;
        self.before = match byte {
            b'(' | b'[' | b'{' => {
                self.begin_operand(start, false);
                let is_value = !self.before.is_value() && self.targets_until.is_none();
                let tuple = (byte == b'(' && is_value).then_some(start);
                self.levels.push(Level { tuple, is_empty: true, ..Level::default() });
                Before::Operator
            }
            b')' | b']' | b'}' => {
                self.end_operand(edits);
                // More are closed than opened in what does not parse.
                if self.levels.len() > 1
                    && let Some(level) = self.levels.pop()
                    && let Some(open) = level.tuple
                    && (level.has_comma || level.is_empty)
                {
                    self.insert(open, format!("{TUPLE}("), false, edits);
                    self.insert(self.at, ")".to_owned(), false, edits);
                }
                Before::Constant
            }
            b'.' => Before::Member,
            b'|' => {
                self.level().is_text = false;
                Before::Member
            }
            b'~' => {
                self.level().has_tilde = true;
                self.end_operand(edits);
                self.level().has_tilde = true;
                Before::Operator
            }
            b'%' if self.before == Before::Text => {
                self.level().is_text = false;
                match operand(bytes, self.at) {
                    Some((operand, is_tuple)) => {
                        let call = if is_tuple { "|format" } else { "|format(" };
                        let new = call.to_owned();
                        edits.push(Edit { range: start..self.at, new, is_outer: false });
                        if !is_tuple {
                            self.insert(operand.end, ")".to_owned(), false, edits);
                        }
                        // The arguments of the call are in the tuple's brackets.
                        if is_tuple { Before::Name } else { Before::Operator }
                    }
                    None => Before::Operator,
                }
            }
            // These bind more than `~` does.
            b'*' | b'/' | b'%' => {
                self.level().is_text = false;
                Before::Operator
            }
            // A sign.
            b'-' | b'+' if !self.before.is_value() => {
                self.begin_operand(start, false);
                Before::Operator
            }
            _ => {
                if matches!((byte, next), (b'=' | b'!' | b'<' | b'>', Some(b'='))) {
                    self.at += 1;
                } else if byte == b'=' {
                    self.targets_until = self.targets_until.filter(|end| *end != "=");
                }
                self.level().has_comma |= byte == b',';
                self.end_operand(edits);
                Before::Operator
            }
        };
    }

    fn level(&mut self) -> &mut Level {
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn begin_operand(&mut self, start: usize, is_text: bool) {
        let level = self.level();
        level.is_text = is_text && (level.operand.is_none() || level.is_text);
        level.operand.get_or_insert(start);
        level.is_empty = false;
    }

    /// Ends what may be an operand of `~` behind the token before.
    fn end_operand(&mut self, edits: &mut Vec<Edit>) {
        let behind = self.behind;
        let level = self.level();
        let (has_tilde, is_text) = (std::mem::take(&mut level.has_tilde), level.is_text);
        if let Some(start) = level.operand.take()
            && has_tilde
            && !is_text
        {
            self.insert(start, format!("{TEXT}("), true, edits);
            self.insert(behind, ")".to_owned(), false, edits);
        }
    }

    /// Ends what a loop goes through, if that is what is read, at a place.
    fn end_each(&mut self, at: usize, edits: &mut Vec<Edit>) {
        let Some((start, before)) = self.each.take() else { return };
        // Without anything in it, it must stay the error that it is.
        if self.source[start..at.max(start)].trim().is_empty() {
            return;
        }
        // It holds the calls that begin at the same place, which were noted behind it.
        let new = format!(" {EACH}(");
        edits.insert(before, Edit { range: start..start, new, is_outer: true });
        self.insert(at, ")".to_owned(), false, edits);
    }

    fn insert(&self, at: usize, new: String, is_outer: bool, edits: &mut Vec<Edit>) {
        edits.push(Edit { range: at..at, new, is_outer });
    }
}

/// The place behind a number that begins at `at`.
fn behind_number(bytes: &[u8], at: usize) -> usize {
    let mut end = skip_name(bytes, at);
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = skip_name(bytes, end + 1);
    }
    if matches!(bytes.get(end - 1), Some(b'e' | b'E'))
        && matches!(bytes.get(end), Some(b'-' | b'+'))
    {
        end = skip_name(bytes, end + 1);
    }
    end
}

/// The place behind a text in quotes that begins at `at`.
fn behind_quote(bytes: &[u8], at: usize) -> usize {
    let quote = bytes[at];
    let mut end = at + 1;
    while let Some(&byte) = bytes.get(end) {
        match byte {
            b'\\' => end += 2,
            byte if byte == quote => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

fn skip_space(bytes: &[u8], at: usize) -> usize {
    at + bytes[at.min(bytes.len())..].iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

fn skip_name(bytes: &[u8], at: usize) -> usize {
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_' || !byte.is_ascii();
    at + bytes[at.min(bytes.len())..].iter().take_while(is_name).count()
}

/// The place behind the bracket that closes the one at `at`, and whether there is a comma between them that
/// is in no bracket within.
fn behind_bracket(bytes: &[u8], mut at: usize) -> Option<(usize, bool)> {
    let (mut depth, mut has_comma) = (0_usize, false);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => {
                at = behind_quote(bytes, at);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some((at + 1, has_comma));
                }
            }
            b',' => has_comma |= depth == 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The operand that begins behind `at`: a value with all that is called, taken and filtered of it. Tells
/// whether it is a tuple.
fn operand(bytes: &[u8], at: usize) -> Option<(Range<usize>, bool)> {
    let start = skip_space(bytes, at);
    let mut end = start;
    while matches!(bytes.get(end), Some(b'-' | b'+')) {
        end = skip_space(bytes, end + 1);
    }
    let mut is_tuple = false;
    end = match bytes.get(end)? {
        b'\'' | b'"' => behind_quote(bytes, end),
        b'(' => {
            let (behind, has_comma) = behind_bracket(bytes, end)?;
            is_tuple = has_comma && end == start;
            behind
        }
        b'[' | b'{' => behind_bracket(bytes, end)?.0,
        _ => {
            let name = skip_name(bytes, end);
            if name == end {
                return None;
            }
            name
        }
    };
    loop {
        let next = skip_space(bytes, end);
        end = match bytes.get(next) {
            Some(b'.') => skip_name(bytes, skip_space(bytes, next + 1)),
            Some(b'[' | b'(') => behind_bracket(bytes, next)?.0,
            Some(b'|') => skip_name(bytes, skip_space(bytes, next + 1)),
            _ => return Some((start..end, is_tuple)),
        };
        is_tuple = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_means_becomes_calls() {
        for (source, expected) in [
            ("{{- a ~ 'b' ~ c.d[0] -}}", "{{- __text(a) ~ 'b' ~ __text(c.d[0]) -}}"),
            ("{{ 'a' ~ 'b'|upper }}", "{{ 'a' ~ __text('b'|upper) }}"),
            ("{{ a + 'x' ~ -b * 2 == c }}", "{{ a + 'x' ~ __text(-b * 2) == c }}"),
            ("{% if not a ~ b in c %}", "{% if not __text(a) ~ __text(b) in c %}"),
            (
                "{% set x = a ~ b if c else d ~ 1 %}",
                "{% set x = __text(a) ~ __text(b) if c else __text(d) ~ __text(1) %}",
            ),
            (
                "{{ f(a ~ b, c)[d ~ 'e':] ~ {'k': v ~ w} }}",
                "{{ __text(f(__text(a) ~ __text(b), c)[__text(d) ~ 'e':]) ~ __text({'k': __text(v) ~ __text(w)}) }}",
            ),
            ("{{ a ~ b is not none ~ c }}", "{{ __text(a) ~ __text(b is not none) ~ __text(c) }}"),
            ("{{ (1, 2) ~ () }}", "{{ __text(__tuple((1, 2))) ~ __text(__tuple(())) }}"),
            ("{{ 'a'.startswith(('b', 'c')) }}", "{{ 'a'.startswith(__tuple(('b', 'c'))) }}"),
            ("{% for (a, b) in c.items() -%}", "{% for (a, b) in __each( c.items()) -%}"),
            (
                "{%- for x in(a, b) if x in c recursive %}",
                "{%- for x in __each(__tuple((a, b))) if x in c recursive %}",
            ),
            (
                "{% for x in (a if b else c)recursive%}{% for x in recursive %}",
                "{% for x in __each( (a if b else c))recursive%}{% for x in __each( recursive) %}",
            ),
            ("{% for x in a ~ 'b'\n-%}", "{% for x in __each( __text(a) ~ 'b')\n-%}"),
            ("{% for x in 1, 2 %}", "{% for x in __each( 1, 2) %}"),
            (
                "{{ '' and (1) and [] and x and y }}",
                "{{ ''|__value and (1)|__value and []|__value and x and y }}",
            ),
        ] {
            assert_eq!(as_interpreted(source), expected);
        }
        for same in [
            "{% set (a, b) = c %}",
            "{% for x in %}",
            "{% macro m(a, b=1) %}{% call(x, y) f(1, 2) %}",
            "{{ (a) }}{{ f(a, b) }}{{ a.if(1, 2) }}{{ x is in (a) }}",
            "{{ a and b or 1 }}{# a ~ b #}{% raw %}{{ a ~ b }}{% endraw %}",
            "a ~ b { (1, 2) } ~",
            "{{ 'a' ~ 'b' 'c' }}",
            "{{ )) ~ 'a' ]",
        ] {
            assert_eq!(as_interpreted(same), same);
        }
    }

    #[test]
    fn a_percent_sign_behind_a_text_becomes_a_call() {
        for (source, expected) in [
            ("{{ '%s' % x }}", "{{ '%s' |format( x) }}"),
            (
                "{{ '%s' % x.y[0].z(1)|upper ~ 'a' }}",
                "{{ __text('%s' |format( x.y[0].z(1)|upper)) ~ 'a' }}",
            ),
            ("{{ \"%s-%d\" % (a, b) }}", "{{ \"%s-%d\" |format (a, b) }}"),
            ("{{ '%s' % (a) }}", "{{ '%s' |format( (a)) }}"),
            ("{% set x = '%d' % -n %}", "{% set x = '%d' |format( -n) %}"),
            ("{{ f('%s' % g('%s' % y)) }}", "{{ f('%s' |format( g('%s' |format( y)))) }}"),
            ("{{ '%s' % {'a': {}} }}", "{{ '%s' |format( {'a': {}}) }}"),
        ] {
            assert_eq!(as_interpreted(source), expected);
        }
        for same in [
            "{{ loop.index % 2 }}",
            "{% if x == 'a' %}'b' % c{% endif %}",
            "{% set x = 'a' %}",
            "{%- set x = \"it's\" -%}",
            "{# 'a' % b #}",
            "{% raw %}{{ 'a' % b }}{% endraw %}",
            "{{ 'a' + b % 2 }}",
            "{{ 'a",
            "{{ 'a' % ",
            "{{ 'a' % (b",
        ] {
            assert_eq!(as_interpreted(same), same);
        }
    }
}
