//! Reading JSON values by rule, reporting instead of failing.
//!
//! A value that does not decode is reported and dropped; decoding goes on with its neighbours, so
//! that an author sees all mistakes at once.

use crate::Violation;
use crate::check::limit;
use crate::json::Json;
use indexmap::IndexMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// More violations than this are counted, not kept.
const MAX_VIOLATIONS: usize = 200;

/// Violations in the order they were found.
#[derive(Default)]
pub(crate) struct Report {
    violations: Vec<Violation>,
    dropped: usize,
}

impl Report {
    pub(crate) fn add(&mut self, code: &'static str, at: impl AsRef<str>, what: impl AsRef<str>) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(Violation::new(code, at, what));
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn extend(&mut self, violations: impl IntoIterator<Item = Violation>) {
        for violation in violations {
            self.add(violation.code, &violation.location, &violation.message);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.violations.is_empty()
    }

    pub(crate) fn finish(mut self) -> Vec<Violation> {
        if self.dropped > 0 {
            let what = format!("{} more; correct those above first", self.dropped);
            self.violations.push(Violation::new("too_many_violations", "", what));
        }
        self.violations
    }
}

/// The members of an object; each is taken once, what is left over is unknown.
pub(crate) struct Fields<'j> {
    at: String,
    members: Vec<(&'j str, &'j Json)>,
    known: Vec<&'static str>,
}

impl<'j> Fields<'j> {
    pub(crate) fn of(r: &mut Report, at: &str, json: &'j Json) -> Option<Self> {
        let members = members(r, at, json)?;
        Some(Self { at: at.to_owned(), members, known: Vec::new() })
    }

    /// Where a member is.
    pub(crate) fn at(&self, name: &str) -> String {
        join(&self.at, name)
    }

    pub(crate) fn optional(&mut self, name: &'static str) -> Option<&'j Json> {
        self.known.push(name);
        let index = self.members.iter().position(|(key, _)| *key == name)?;
        Some(self.members.remove(index).1)
    }

    pub(crate) fn required(&mut self, r: &mut Report, name: &'static str) -> Option<&'j Json> {
        let value = self.optional(name);
        if value.is_none() {
            r.add("missing_field", self.at(name), "the field is missing; add it");
        }
        value
    }

    pub(crate) fn text(
        &mut self,
        r: &mut Report,
        name: &'static str,
        length: RangeInclusive<usize>,
    ) -> Option<String> {
        let value = self.required(r, name)?;
        text(r, &self.at(name), value, length).map(str::to_owned)
    }

    pub(crate) fn name(
        &mut self,
        r: &mut Report,
        name: &'static str,
        rule: NameRule,
    ) -> Option<String> {
        let value = self.required(r, name)?;
        let value = text(r, &self.at(name), value, 0..=limit::TEXT)?;
        rule.check(r, &self.at(name), value).then(|| value.to_owned())
    }

    pub(crate) fn parsed<T: FromStr<Err: Display>>(
        &mut self,
        r: &mut Report,
        name: &'static str,
        code: &'static str,
    ) -> Option<T> {
        let value = self.required(r, name)?;
        parsed(r, &self.at(name), value, code)
    }

    pub(crate) fn integer(
        &mut self,
        r: &mut Report,
        name: &'static str,
        range: RangeInclusive<u64>,
        code: &'static str,
    ) -> Option<u64> {
        let value = self.required(r, name)?;
        integer(r, &self.at(name), value, range, code)
    }

    pub(crate) fn small(
        &mut self,
        r: &mut Report,
        name: &'static str,
        range: RangeInclusive<u32>,
        code: &'static str,
    ) -> Option<u32> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.integer(r, name, wide, code).and_then(|x| u32::try_from(x).ok())
    }

    pub(crate) fn non_negative(
        &mut self,
        r: &mut Report,
        name: &'static str,
        code: &'static str,
    ) -> Option<f64> {
        let value = self.required(r, name)?;
        non_negative(r, &self.at(name), value, code)
    }

    pub(crate) fn finish(self, r: &mut Report) {
        for (key, _) in &self.members {
            let what =
                format!("the field is unknown; remove it (known: {})", self.known.join(", "));
            r.add("unknown_field", join(&self.at, key), what);
        }
    }
}

/// The members of an object without those whose key came before.
pub(crate) fn members<'j>(
    r: &mut Report,
    at: &str,
    json: &'j Json,
) -> Option<Vec<(&'j str, &'j Json)>> {
    let Json::Object(all) = json else {
        wrong_type(r, at, json, "an object");
        return None;
    };
    if all.len() > limit::MEMBERS {
        r.add("object_size", at, format!("at most {} members are read", limit::MEMBERS));
        return None;
    }
    let mut members: Vec<(&str, &Json)> = Vec::with_capacity(all.len());
    for (key, value) in all {
        if members.iter().any(|(earlier, _)| earlier == key) {
            r.add("duplicate_key", join(at, key), "the key appears twice; keep one");
        } else {
            members.push((key, value));
        }
    }
    Some(members)
}

pub(crate) fn join(at: &str, name: &str) -> String {
    // A location stays readable whatever a stranger used as a key.
    let short: String = name.chars().take(64).collect();
    if at.is_empty() { short } else { format!("{at}.{short}") }
}

pub(crate) fn wrong_type(r: &mut Report, at: &str, json: &Json, wanted: &str) {
    r.add("wrong_type", at, format!("found {}; write {wanted}", json.kind()));
}

pub(crate) fn text<'j>(
    r: &mut Report,
    at: &str,
    json: &'j Json,
    length: RangeInclusive<usize>,
) -> Option<&'j str> {
    let Json::String(value) = json else {
        wrong_type(r, at, json, "a string");
        return None;
    };
    if !length.contains(&value.len()) {
        let (min, max) = (length.start(), length.end());
        r.add("string_length", at, format!("{} bytes; use {min} to {max}", value.len()));
        return None;
    }
    if value.chars().any(char::is_control) {
        r.add("control_character", at, "the text has a control character; remove it");
        return None;
    }
    Some(value)
}

pub(crate) fn parsed<T: FromStr<Err: Display>>(
    r: &mut Report,
    at: &str,
    json: &Json,
    code: &'static str,
) -> Option<T> {
    let value = text(r, at, json, 0..=limit::TEXT)?;
    value.parse().map_err(|e| r.add(code, at, format!("`{value}`: {e}"))).ok()
}

pub(crate) fn integer(
    r: &mut Report,
    at: &str,
    json: &Json,
    range: RangeInclusive<u64>,
    code: &'static str,
) -> Option<u64> {
    match json {
        Json::Unsigned(x) if range.contains(x) => Some(*x),
        Json::Unsigned(_) | Json::Negative(_) => {
            r.add(code, at, format!("use {} to {}", range.start(), range.end()));
            None
        }
        other => {
            wrong_type(r, at, other, "an integer");
            None
        }
    }
}

pub(crate) fn number(json: &Json) -> Option<f64> {
    match json {
        Json::Unsigned(x) => Some(*x as f64),
        Json::Negative(x) => Some(*x as f64),
        Json::Float(x) => Some(*x),
        _ => None,
    }
}

pub(crate) fn non_negative(
    r: &mut Report,
    at: &str,
    json: &Json,
    code: &'static str,
) -> Option<f64> {
    match number(json) {
        Some(x) if x.is_finite() && x >= 0.0 => Some(x),
        Some(_) => {
            r.add(code, at, "use a finite number of at least 0");
            None
        }
        None => {
            wrong_type(r, at, json, "a number");
            None
        }
    }
}

pub(crate) fn boolean(r: &mut Report, at: &str, json: &Json) -> Option<bool> {
    if let Json::Bool(x) = json {
        return Some(*x);
    }
    wrong_type(r, at, json, "true or false");
    None
}

pub(crate) fn array<'j>(
    r: &mut Report,
    at: &str,
    json: &'j Json,
    length: RangeInclusive<usize>,
    code: &'static str,
) -> Option<&'j [Json]> {
    let Json::Array(items) = json else {
        wrong_type(r, at, json, "an array");
        return None;
    };
    if !length.contains(&items.len()) {
        let (min, max) = (length.start(), length.end());
        r.add(code, at, format!("{} elements; use {min} to {max}", items.len()));
        return None;
    }
    Some(items)
}

/// Decodes every item; `None` where one failed.
pub(crate) fn each<T>(
    r: &mut Report,
    at: &str,
    items: &[Json],
    mut item: impl FnMut(&mut Report, &str, &Json) -> Option<T>,
) -> Option<Vec<T>> {
    let decoded: Vec<Option<T>> =
        items.iter().enumerate().map(|(i, json)| item(r, &format!("{at}[{i}]"), json)).collect();
    decoded.into_iter().collect()
}

/// Decodes every member of a map; `None` where one failed.
pub(crate) fn map_of<T>(
    r: &mut Report,
    at: &str,
    json: &Json,
    key_rule: NameRule,
    mut value: impl FnMut(&mut Report, &str, &Json) -> Option<T>,
) -> Option<IndexMap<String, T>> {
    let members = members(r, at, json)?;
    let decoded: Vec<Option<(String, T)>> = members
        .into_iter()
        .map(|(key, json)| {
            let at = join(at, key);
            let key_ok = key_rule.check(r, &at, key);
            let value = value(r, &at, json)?;
            key_ok.then(|| (key.to_owned(), value))
        })
        .collect();
    decoded.into_iter().collect()
}

/// The alphabets of names.
#[derive(Clone, Copy)]
pub(crate) enum NameRule {
    /// `[a-z_][a-z0-9_]*`: symbols, tensors, parameters.
    Symbol,
    /// `[A-Za-z0-9_][A-Za-z0-9_.-]*`: kernel ids, names of shapes in benchmarks.
    Id,
    /// `[a-z_][a-z0-9_.-]*`: ops and categories.
    Lower,
    /// `[A-Za-z_][A-Za-z0-9_.]*`: exports of a module.
    Export,
    /// `[a-z][a-z0-9-]*`: WebAssembly features.
    Feature,
    /// `[a-z][a-z0-9_-]*`: targets of native libraries.
    Target,
}

impl NameRule {
    fn accepts(self, name: &str) -> bool {
        let first = |b: u8| match self {
            NameRule::Symbol | NameRule::Lower => b.is_ascii_lowercase() || b == b'_',
            NameRule::Id => b.is_ascii_alphanumeric() || b == b'_',
            NameRule::Export => b.is_ascii_alphabetic() || b == b'_',
            NameRule::Feature | NameRule::Target => b.is_ascii_lowercase(),
        };
        let rest = |b: u8| match self {
            NameRule::Symbol => b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_',
            NameRule::Id => b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'),
            NameRule::Lower => {
                b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-')
            }
            NameRule::Export => b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'),
            NameRule::Feature => b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-',
            NameRule::Target => {
                b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-')
            }
        };
        let bytes = name.as_bytes();
        (1..=limit::NAME).contains(&bytes.len())
            && first(bytes[0])
            && bytes[1..].iter().all(|&b| rest(b))
    }

    fn pattern(self) -> &'static str {
        match self {
            NameRule::Symbol => "[a-z_][a-z0-9_]*",
            NameRule::Id => "[A-Za-z0-9_][A-Za-z0-9_.-]*",
            NameRule::Lower => "[a-z_][a-z0-9_.-]*",
            NameRule::Export => "[A-Za-z_][A-Za-z0-9_.]*",
            NameRule::Feature => "[a-z][a-z0-9-]*",
            NameRule::Target => "[a-z][a-z0-9_-]*",
        }
    }

    pub(crate) fn check(self, r: &mut Report, at: &str, name: &str) -> bool {
        let ok = self.accepts(name);
        if !ok {
            let pattern = self.pattern();
            let what = format!("the name must match {pattern}, at most {} bytes", limit::NAME);
            r.add("name_invalid", at, what);
        }
        ok
    }
}
