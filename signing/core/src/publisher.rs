//! A publisher: a key and what it may sign. The same entry in a policy and in a keyring.

use crate::{PackError, PublicKey};
use ruvllm_manifest::{PackName, Timestamp, escape_untrusted};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

pub(crate) const MAX_PUBLISHERS: usize = 256;
const MAX_PATTERNS: usize = 256;

/// One key of a trusted publisher and what it may sign.
///
/// A publisher that changes its key has two entries of the same name for a while; together they
/// count once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher {
    /// What messages call it.
    pub name: String,
    /// Its key.
    pub key: PublicKey,
    /// The packs it may sign; none of them means no pack.
    pub packs: Vec<PackPattern>,
    /// Whether it may ship code that runs outside of the sandbox.
    pub native: bool,
    /// Whether its kernels may have threads, over a memory that they share.
    pub threads: bool,
    /// Whether its kernels may compute graphs of their pack.
    pub wasi_nn: bool,
    /// Signatures do not count before this time.
    pub not_before: Option<Timestamp>,
    /// Signatures do not count at and after this time.
    pub not_after: Option<Timestamp>,
}

impl Publisher {
    /// Whether it may sign packs of that name.
    pub fn may_sign(&self, name: &PackName) -> bool {
        self.packs.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether its signatures count at some times only.
    pub fn has_bounds(&self) -> bool {
        self.not_before.is_some() || self.not_after.is_some()
    }
}

/// Which pack names: literal but for `*`, which stands for any run of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackPattern(String);

impl PackPattern {
    /// Whether the name is one of those.
    pub fn matches(&self, name: &PackName) -> bool {
        let mut parts = self.0.split('*');
        // split gives at least one part.
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.as_str().strip_prefix(first) else { return false };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
        for part in middle {
            // The earliest place leaves the most for what follows.
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl FromStr for PackPattern {
    type Err = PackError;

    fn from_str(s: &str) -> Result<PackPattern, PackError> {
        let ok = (1..=64).contains(&s.len())
            && s.bytes()
                .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'*'));
        if ok {
            return Ok(PackPattern(s.to_owned()));
        }
        Err(invalid(format!(
            "`{}` matches no pack name; use a-z, 0-9, '.', '_', '-' and '*'",
            escape_untrusted(s)
        )))
    }
}

impl fmt::Display for PackPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A publisher as documents write it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublisherEntry {
    name: String,
    key: String,
    packs: Vec<String>,
    #[serde(default)]
    native: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    threads: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    wasi_nn: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
}

impl PublisherEntry {
    /// Decodes the entry; the message says what is wrong and where.
    pub(crate) fn decode(&self) -> Result<Publisher, PackError> {
        Ok(Publisher {
            name: self.name.clone(),
            key: key(&self.key, &self.name)?,
            packs: self.packs.iter().map(|p| p.parse()).collect::<Result<_, _>>()?,
            native: self.native,
            threads: self.threads,
            wasi_nn: self.wasi_nn,
            not_before: self.not_before.as_deref().map(time).transpose()?,
            not_after: self.not_after.as_deref().map(time).transpose()?,
        })
    }
}

impl From<&Publisher> for PublisherEntry {
    fn from(publisher: &Publisher) -> PublisherEntry {
        PublisherEntry {
            name: publisher.name.clone(),
            key: publisher.key.to_string(),
            packs: publisher.packs.iter().map(PackPattern::to_string).collect(),
            native: publisher.native,
            threads: publisher.threads,
            wasi_nn: publisher.wasi_nn,
            not_before: publisher.not_before.map(|t| t.to_string()),
            not_after: publisher.not_after.map(|t| t.to_string()),
        }
    }
}

/// Reads a key of a document, in any text form.
pub(crate) fn key(text: &str, owner: &str) -> Result<PublicKey, PackError> {
    PublicKey::from_text(text).map_err(|e| match e {
        PackError::Key { message } => invalid(format!("`{}`: {message}", escape_untrusted(owner))),
        other => other,
    })
}

pub(crate) fn time(text: &str) -> Result<Timestamp, PackError> {
    text.parse().map_err(|e| invalid(format!("`{}`: {e}", escape_untrusted(text))))
}

/// Checks what can be said of a list of publishers without knowing who reads it.
///
/// One key under two names would make one signature count twice.
pub(crate) fn check(publishers: &[Publisher]) -> Result<(), PackError> {
    if publishers.len() > MAX_PUBLISHERS {
        return Err(invalid(format!("name at most {MAX_PUBLISHERS} publishers")));
    }
    for (i, publisher) in publishers.iter().enumerate() {
        let name = &publisher.name;
        let shown = escape_untrusted(name);
        if !(1..=64).contains(&name.len()) || shown != *name {
            return Err(invalid(format!("`{shown}`: use 1 to 64 printable bytes as a name")));
        }
        match publishers[..i].iter().find(|other| other.key == publisher.key) {
            Some(other) if other.name == *name => {
                let what = "and have the same key; remove one";
                return Err(invalid(format!("two publishers are called `{name}` {what}")));
            }
            Some(other) => {
                let what = "have the same key; make them one with both pack patterns";
                return Err(invalid(format!("`{}` and `{name}` {what}", other.name)));
            }
            None => {}
        }
        if publisher.packs.len() > MAX_PATTERNS {
            return Err(invalid(format!("`{name}`: at most {MAX_PATTERNS} pack patterns")));
        }
        if let (Some(from), Some(until)) = (publisher.not_before, publisher.not_after)
            && from >= until
        {
            return Err(invalid(format!("`{name}` is never valid: {from} is not before {until}")));
        }
    }
    Ok(())
}

/// How many different publishers these are; keys of one name are one publisher.
pub(crate) fn count<'p>(publishers: impl IntoIterator<Item = &'p Publisher>) -> usize {
    publishers.into_iter().map(|p| &p.name).collect::<std::collections::BTreeSet<_>>().len()
}

fn invalid(message: String) -> PackError {
    PackError::Policy { message }
}
