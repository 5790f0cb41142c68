//! Who is trusted, for which packs, and when.

use crate::{PackError, PublicKey};
use ruvllm_manifest::{PackName, Timestamp, escape_untrusted};
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// The publisher of [`TrustPolicy::builtin`].
pub const BUILTIN_PUBLISHER: &str = "ruvllm";

const BUILTIN_KEY: &str = include_str!("../keys/release.pub.pem");
const MAX_POLICY_BYTES: usize = 256 * 1024;
const MAX_PUBLISHERS: usize = 256;
const MAX_PATTERNS: usize = 256;

/// The publishers that a host trusts and how many of them must agree.
///
/// As a file it is TOML:
///
/// ```toml
/// version = 1
/// threshold = 1                          # optional, 1
///
/// [[publishers]]
/// name = "acme"
/// key = "ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk="
/// packs = ["acme-*"]                     # `*` stands for any run of characters
/// native = false                         # optional: may also ship native code
/// not_before = "2026-01-01T00:00:00Z"    # optional, inclusive
/// not_after = "2028-01-01T00:00:00Z"     # optional, exclusive
/// ```
#[derive(Clone, Debug)]
pub struct TrustPolicy {
    publishers: Vec<Publisher>,
    threshold: usize,
}

/// One trusted publisher: a key and what it may sign.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// What messages call it.
    pub name: String,
    /// Its key.
    pub key: PublicKey,
    /// The packs it may sign; none of them means no pack.
    pub packs: Vec<PackPattern>,
    /// Whether it may ship code that runs outside of the sandbox.
    pub native: bool,
    /// Signatures do not count before this time.
    pub not_before: Option<Timestamp>,
    /// Signatures do not count at and after this time.
    pub not_after: Option<Timestamp>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    threshold: Option<usize>,
    publishers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    key: String,
    packs: Vec<String>,
    #[serde(default)]
    native: bool,
    not_before: Option<String>,
    not_after: Option<String>,
}

impl TrustPolicy {
    /// A policy of these publishers, of whom `threshold` must have signed a pack.
    ///
    /// # Errors
    /// [`PackError::Policy`] where there is no publisher, two share a name or a key (two names for
    /// one key would make one signature count twice), or the threshold can not be met or is 0.
    pub fn new(publishers: Vec<Publisher>, threshold: usize) -> Result<TrustPolicy, PackError> {
        if !(1..=MAX_PUBLISHERS).contains(&publishers.len()) {
            return Err(invalid(format!("name 1 to {MAX_PUBLISHERS} publishers")));
        }
        for (i, publisher) in publishers.iter().enumerate() {
            let name = &publisher.name;
            let shown = escape_untrusted(name);
            if !(1..=64).contains(&name.len()) || shown != *name {
                return Err(invalid(format!("`{shown}`: use 1 to 64 printable bytes as a name")));
            }
            if publishers[..i].iter().any(|earlier| earlier.name == *name) {
                return Err(invalid(format!("two publishers are called `{name}`; rename one")));
            }
            if let Some(other) = publishers[..i].iter().find(|p| p.key == publisher.key) {
                let what = "have the same key; make them one with both pack patterns";
                return Err(invalid(format!("`{}` and `{name}` {what}", other.name)));
            }
            if publisher.packs.len() > MAX_PATTERNS {
                return Err(invalid(format!("`{name}`: at most {MAX_PATTERNS} pack patterns")));
            }
            if let (Some(from), Some(until)) = (publisher.not_before, publisher.not_after)
                && from >= until
            {
                return Err(invalid(format!(
                    "`{name}` is never valid: {from} is not before {until}"
                )));
            }
        }
        if !(1..=publishers.len()).contains(&threshold) {
            let count = publishers.len();
            return Err(invalid(format!("threshold = {threshold}; use 1 to {count} (publishers)")));
        }
        Ok(TrustPolicy { publishers, threshold })
    }

    /// Trust in the project's release key alone, for packs `ruvllm-*`, in the sandbox only.
    pub fn builtin() -> TrustPolicy {
        let key = PublicKey::from_pem(BUILTIN_KEY);
        let publishers = key.into_iter().map(|key| Publisher {
            name: BUILTIN_PUBLISHER.to_owned(),
            key,
            packs: vec![PackPattern("ruvllm-*".to_owned())],
            native: false,
            not_before: None,
            not_after: None,
        });
        // A test holds the embedded key to be good; were it not, nobody would be trusted.
        TrustPolicy { publishers: publishers.collect(), threshold: 1 }
    }

    /// Parses a policy file.
    ///
    /// # Errors
    /// [`PackError::Policy`] or [`PackError::WeakKey`] with what is wrong.
    pub fn from_toml(text: &str) -> Result<TrustPolicy, PackError> {
        if text.len() > MAX_POLICY_BYTES {
            return Err(invalid(format!("longer than {MAX_POLICY_BYTES} bytes")));
        }
        let document: Document =
            toml::from_str(text).map_err(|e| invalid(escape_lines(&e.to_string())))?;
        if document.version != 1 {
            return Err(invalid(format!("version = {}; this runtime reads 1", document.version)));
        }
        let time = |text: Option<String>| -> Result<Option<Timestamp>, PackError> {
            let parse = |text: String| {
                text.parse().map_err(|e| invalid(format!("`{}`: {e}", escape_untrusted(&text))))
            };
            text.map(parse).transpose()
        };
        let publishers: Result<Vec<_>, PackError> = document
            .publishers
            .into_iter()
            .map(|entry| {
                let key = entry.key.parse().map_err(|e| match e {
                    PackError::Key { message } => {
                        invalid(format!("`{}`: {message}", escape_untrusted(&entry.name)))
                    }
                    other => other,
                })?;
                Ok(Publisher {
                    name: entry.name,
                    key,
                    packs: entry.packs.iter().map(|p| p.parse()).collect::<Result<_, _>>()?,
                    native: entry.native,
                    not_before: time(entry.not_before)?,
                    not_after: time(entry.not_after)?,
                })
            })
            .collect();
        TrustPolicy::new(publishers?, document.threshold.unwrap_or(1))
    }

    /// The trusted publishers.
    pub fn publishers(&self) -> &[Publisher] {
        &self.publishers
    }

    /// How many different publishers must have signed.
    pub fn threshold(&self) -> usize {
        self.threshold
    }
}

impl Publisher {
    /// Whether it may sign packs of that name.
    pub fn may_sign(&self, name: &PackName) -> bool {
        self.packs.iter().any(|pattern| pattern.matches(name))
    }
}

fn invalid(message: String) -> PackError {
    PackError::Policy { message }
}

/// Parser messages have several lines and quote the file.
fn escape_lines(text: &str) -> String {
    text.lines().map(escape_untrusted).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SecretKey;

    fn policy(body: &str) -> Result<TrustPolicy, PackError> {
        TrustPolicy::from_toml(&format!("version = 1\n{body}"))
    }

    fn publisher(name: &str, more: &str) -> String {
        let key = SecretKey::generate().unwrap().public_key();
        format!("[[publishers]]\nname = \"{name}\"\nkey = \"{key}\"\npacks = [\"*\"]\n{more}\n")
    }

    #[test]
    fn the_builtin_policy_trusts_the_release_key_for_our_own_packs() {
        let policy = TrustPolicy::builtin();
        let publisher = &policy.publishers()[0];
        assert_eq!(publisher.name, BUILTIN_PUBLISHER);
        assert!(publisher.may_sign(&"ruvllm-core-kernels".parse().unwrap()));
        assert!(!publisher.may_sign(&"acme-kernels".parse().unwrap()));
        assert!(!publisher.native);
    }

    #[test]
    fn the_documented_file_parses() {
        let text = concat!(
            "version = 1\nthreshold = 1\n[[publishers]]\nname = \"acme\"\n",
            "key = \"ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk=\"\n",
            "packs = [\"acme-*\"]\nnative = false\nnot_before = \"2026-01-01T00:00:00Z\"\n",
            "not_after = \"2028-01-01T00:00:00Z\"\n",
        );
        let policy = TrustPolicy::from_toml(text).unwrap();
        assert_eq!(policy.publishers()[0].packs[0].to_string(), "acme-*");
        assert!(policy.publishers()[0].not_after.is_some());
    }

    #[test]
    fn patterns_match_whole_names() {
        let matches = |pattern: &str, name: &str| {
            pattern.parse::<PackPattern>().unwrap().matches(&name.parse().unwrap())
        };
        assert!(matches("acme-*", "acme-x"));
        assert!(!matches("acme-*", "acme"));
        assert!(!matches("acme-*", "not-acme-x"));
        assert!(matches("*", "anything"));
        assert!(matches("a*b*c", "a1b2b3c"));
        assert!(!matches("a*b*c", "a1b2"));
        assert!(!matches("a*a", "a"));
        assert!(matches("exact", "exact") && !matches("exact", "exactly"));
        assert!("Acme".parse::<PackPattern>().is_err() && "".parse::<PackPattern>().is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let one = publisher("a", "");
        assert!(policy(&one).is_ok());
        for (bad, why) in [
            ("publishers = []".to_owned(), "name 1 to"),
            (format!("threshold = 0\n{one}"), "threshold = 0"),
            (format!("threshold = 2\n{one}"), "threshold = 2"),
            (format!("{one}{one}"), "two publishers are called"),
            (format!("{one}{}", one.replace("name = \"a\"", "name = \"b\"")), "the same key"),
            (publisher("a", "extra = 1"), "unknown field"),
            (publisher("a", "native = \"yes\""), "invalid type"),
            (publisher("a\\u001b", ""), "printable"),
            (publisher("a", "not_before = \"tomorrow\""), "RFC 3339"),
            (
                publisher(
                    "a",
                    "not_before = \"2026-01-01T00:00:00Z\"\nnot_after = \"2025-01-01T00:00:00Z\"",
                ),
                "never valid",
            ),
            (one.replace("ed25519:", "rsa:"), "ed25519:<base64"),
        ] {
            let error = policy(&bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}\n{error}");
        }
        assert!(TrustPolicy::from_toml(&format!("version = 2\n{one}")).is_err());
        let identity = format!("ed25519:{}=", "AQAA".to_owned() + &"A".repeat(39));
        let weak = format!("[[publishers]]\nname = \"w\"\nkey = \"{identity}\"\npacks = [\"*\"]");
        assert_eq!(policy(&weak).unwrap_err().code(), "key_weak");
    }
}
