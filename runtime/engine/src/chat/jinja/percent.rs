//! The operator `%` behind a text, which formats in Python and only divides in the interpreter.
//!
//! Before it is compiled, a template is searched for `'text' % value`, and each is written as
//! `'text'|format(value)`, of which the value of a tuple is several. Behind anything but a text in quotes `%`
//! stays a division.

use std::borrow::Cow;
use std::ops::Range;

/// A replacement of a part of the source.
type Edit = (Range<usize>, &'static str);

/// The source with `format` in place of `%`.
pub(super) fn with_format_calls(source: &str) -> Cow<'_, str> {
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(start) = source[at..].find('{').map(|found| at + found) {
        let rest = &source[start..];
        at = if rest.starts_with("{#") {
            rest.find("#}").map_or(source.len(), |end| start + end + 2)
        } else if rest.starts_with("{{") {
            block(source, start + 2, "}}", &mut edits)
        } else if rest.starts_with("{%") {
            match raw(rest) {
                Some(len) => start + len,
                None => block(source, start + 2, "%}", &mut edits),
            }
        } else {
            start + 1
        };
    }
    if edits.is_empty() {
        return Cow::Borrowed(source);
    }
    edits.sort_by_key(|(range, _)| range.start);
    let (mut out, mut copied) = (String::with_capacity(source.len() + 16 * edits.len()), 0);
    for (range, new) in edits {
        out.push_str(&source[copied..range.start]);
        out.push_str(new);
        copied = range.end;
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

/// Goes through an expression or a tag from `at` on, up to behind its `end`.
fn block(source: &str, mut at: usize, end: &str, edits: &mut Vec<Edit>) -> usize {
    let bytes = source.as_bytes();
    let (mut depth, mut behind_text) = (0_usize, false);
    while let Some(&byte) = bytes.get(at) {
        if depth == 0 && bytes[at..].starts_with(end.as_bytes()) {
            return at + end.len();
        }
        match byte {
            b'\'' | b'"' => {
                at = behind_quote(bytes, at);
                behind_text = true;
                continue;
            }
            b'%' if behind_text => {
                if let Some((operand, is_tuple)) = operand(bytes, at + 1) {
                    edits.push((at..at + 1, if is_tuple { "|format" } else { "|format(" }));
                    if !is_tuple {
                        edits.push((operand.end..operand.end, ")"));
                    }
                }
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        behind_text &= byte.is_ascii_whitespace();
        at += 1;
    }
    at
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
    fn a_percent_sign_behind_a_text_becomes_a_call() {
        for (source, expected) in [
            ("{{ '%s' % x }}", "{{ '%s' |format( x) }}"),
            (
                "{{ '%s' % x.y[0].z(1)|upper ~ 'a' }}",
                "{{ '%s' |format( x.y[0].z(1)|upper) ~ 'a' }}",
            ),
            ("{{ \"%s-%d\" % (a, b) }}", "{{ \"%s-%d\" |format (a, b) }}"),
            ("{{ '%s' % (a) }}", "{{ '%s' |format( (a)) }}"),
            ("{% set x = '%d' % -n %}", "{% set x = '%d' |format( -n) %}"),
            ("{{ f('%s' % g('%s' % y)) }}", "{{ f('%s' |format( g('%s' |format( y)))) }}"),
            ("{{ '%s' % {'a': {}} }}", "{{ '%s' |format( {'a': {}}) }}"),
        ] {
            assert_eq!(with_format_calls(source), expected);
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
            assert_eq!(with_format_calls(same), same);
        }
    }
}
