//! `trust list|add|revoke`: a trust policy file as its operator keeps it.
//!
//! Comments, order and formatting of the file stay; a file that would no longer be a policy is not
//! written.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_manifest::Timestamp;
use ruvllm_signing::{PackError, PackPattern, PublicKey, Publisher, TrustPolicy, escape_untrusted};
use serde::Serialize;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use crate::sign::{VerifyOptions, public_key};
use crate::{Report, ToolError, atomic};

/// Who is trusted.
#[derive(Clone, Debug, Serialize)]
pub struct TrustReport {
    /// The policy's file; `None` for the policy that is built in.
    pub policy: Option<PathBuf>,
    /// How many publishers must sign.
    pub threshold: usize,
    /// Whether publishers with validity bounds count without a clock.
    pub accepts_without_clock: bool,
    /// Name and serial of the keyring in use.
    pub keyring: Option<(String, u64)>,
    /// Each key of each publisher.
    pub publishers: Vec<TrustedKey>,
    /// The keys that never count.
    pub revoked: Vec<String>,
}

/// A key of a publisher.
#[derive(Clone, Debug, Serialize)]
pub struct TrustedKey {
    /// The publisher's name.
    pub name: String,
    /// The public key.
    pub key: String,
    /// Which packs it may sign.
    pub packs: Vec<String>,
    /// Whether it may ship native code.
    pub native: bool,
    /// Whether its kernels may have threads.
    pub threads: bool,
    /// Whether its kernels may compute graphs of their pack.
    pub wasi_nn: bool,
    /// From when on it counts.
    pub not_before: Option<String>,
    /// From when on it no longer counts.
    pub not_after: Option<String>,
    /// Whether it was revoked.
    pub revoked: bool,
}

impl TrustedKey {
    pub(crate) fn of(publisher: &Publisher, revoked: bool) -> Self {
        TrustedKey {
            name: publisher.name.clone(),
            key: publisher.key.to_string(),
            packs: publisher.packs.iter().map(PackPattern::to_string).collect(),
            native: publisher.native,
            threads: publisher.threads,
            wasi_nn: publisher.wasi_nn,
            not_before: publisher.not_before.map(|t| t.to_string()),
            not_after: publisher.not_after.map(|t| t.to_string()),
            revoked,
        }
    }
}

impl Report for TrustReport {}

impl fmt::Display for TrustReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.policy {
            Some(file) => writeln!(f, "policy {}", escape_untrusted(&file.to_string_lossy()))?,
            None => writeln!(f, "policy (built in)")?,
        }
        writeln!(f, "{} publisher(s) must have signed", self.threshold)?;
        if let Some((name, serial)) = &self.keyring {
            writeln!(f, "keyring {name}, serial {serial}")?;
        }
        if self.accepts_without_clock {
            writeln!(f, "without a clock, publishers with validity bounds count")?;
        }
        for key in &self.publishers {
            let state = if key.revoked { " REVOKED" } else { "" };
            let native = if key.native { ", native code" } else { "" };
            let threads = if key.threads { ", threads" } else { "" };
            let graphs = if key.wasi_nn { ", graphs in kernels" } else { "" };
            writeln!(f, "{}  {}{state}", escape_untrusted(&key.name), key.key)?;
            write!(f, "    packs {}{native}{threads}{graphs}", key.packs.join(" "))?;
            if let Some(from) = &key.not_before {
                write!(f, ", from {from}")?;
            }
            if let Some(until) = &key.not_after {
                write!(f, ", until {until}")?;
            }
            writeln!(f)?;
        }
        self.revoked.iter().try_for_each(|key| writeln!(f, "revoked  {key}"))
    }
}

/// Lists the publishers of a policy and of its keyring.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn list(options: &VerifyOptions) -> Result<TrustReport, ToolError> {
    let policy = options.read_policy()?;
    let publishers = policy.publishers().iter();
    let publishers = publishers.map(|p| TrustedKey::of(p, policy.is_revoked(&p.key)));
    Ok(TrustReport {
        policy: options.policy.clone(),
        threshold: policy.threshold(),
        accepts_without_clock: policy.accepts_without_clock(),
        keyring: policy.keyring().map(|keyring| (keyring.name.clone(), keyring.serial)),
        publishers: publishers.collect(),
        revoked: policy.revoked().iter().map(PublicKey::to_string).collect(),
    })
}

/// A publisher to add, or what to add to one that is there.
#[derive(Clone, Debug)]
pub struct NewPublisher {
    /// What messages call it.
    pub name: String,
    /// The public key: its text in any form, or a file with it. A publisher that has it already is
    /// changed, any other gets it as another key. Without one, all keys of the publisher are changed.
    pub key: Option<String>,
    /// The packs it may sign, as patterns, beside those of before.
    pub packs: Vec<String>,
    /// Whether it may ship native code.
    pub native: bool,
    /// Whether its kernels may have threads.
    pub threads: bool,
    /// Whether its kernels may compute graphs of their pack.
    pub wasi_nn: bool,
    /// Signatures do not count before this time.
    pub not_before: Option<Timestamp>,
    /// Signatures do not count at and after this time.
    pub not_after: Option<Timestamp>,
}

/// A policy file that was changed.
#[derive(Clone, Debug, Serialize)]
pub struct TrustChange {
    /// The file.
    pub policy: PathBuf,
    /// What was done.
    pub action: &'static str,
    /// The keys it was done to.
    pub keys: Vec<String>,
}

impl Report for TrustChange {}

impl fmt::Display for TrustChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for key in &self.keys {
            writeln!(f, "{} {key}", self.action)?;
        }
        writeln!(f, "wrote {}", escape_untrusted(&self.policy.to_string_lossy()))
    }
}

/// Adds a publisher to a policy file, which is made where there is none; a publisher with that key is
/// given the packs, the grant and the times beside what it has.
///
/// # Errors
/// [`ToolError::Pack`] where the file is or would be no policy, a publisher without a key is not
/// there, or a new key is given no packs; [`ToolError::Io`].
pub fn add(file: &Path, new: &NewPublisher) -> Result<TrustChange, ToolError> {
    let key = new.key.as_deref().map(public_key).transpose()?;
    let mut document = match fs::read_to_string(file) {
        Ok(text) => parse(&text)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let mut document = DocumentMut::new();
            document["version"] = value(1);
            document
        }
        Err(e) => return Err(ToolError::io("read", file)(e)),
    };
    let publishers = document.entry("publishers").or_insert(Item::None);
    if publishers.is_none() || publishers.as_array().is_some_and(Array::is_empty) {
        *publishers = Item::ArrayOfTables(ArrayOfTables::new());
    }
    let Some(publishers) = publishers.as_array_of_tables_mut() else {
        return Err(invalid("write its publishers as [[publishers]] tables, then add more"));
    };
    let mut known: Vec<(&mut Table, PublicKey)> = Vec::new();
    for entry in publishers.iter_mut() {
        let field = |name: &str| entry.get(name).and_then(Item::as_str).unwrap_or_default();
        let of_entry = PublicKey::from_text(field("key"))?;
        if field("name") == new.name && key.as_ref().is_none_or(|key| *key == of_entry) {
            known.push((entry, of_entry));
        }
    }
    let change = |action, keys| TrustChange { policy: file.to_owned(), action, keys };
    let change = match (known.is_empty(), key) {
        (false, _) => {
            let keys = known.iter().map(|(_, key)| key.to_string()).collect();
            known.into_iter().try_for_each(|(entry, _)| give(entry, new))?;
            change("changed", keys)
        }
        (true, Some(_)) if new.packs.is_empty() => return Err(without_packs(&new.name)),
        (true, Some(key)) => {
            let mut entry = Table::new();
            entry["name"] = value(new.name.as_str());
            entry["key"] = value(key.to_string());
            give(&mut entry, new)?;
            publishers.push(entry);
            change("added", vec![key.to_string()])
        }
        (true, None) => return Err(without_key(&new.name)),
    };
    write(file, &document)?;
    Ok(change)
}

/// Puts what a publisher may sign, and when, beside what its entry says already.
fn give(entry: &mut Table, new: &NewPublisher) -> Result<(), ToolError> {
    let packs = entry.entry("packs").or_insert(value(Array::new()));
    let Some(packs) = packs.as_array_mut() else {
        return Err(invalid("`packs` is no array of patterns"));
    };
    for pattern in &new.packs {
        if packs.iter().all(|old| old.as_str() != Some(pattern)) {
            packs.push(pattern.as_str());
        }
    }
    let grants = [("native", new.native), ("threads", new.threads), ("wasi_nn", new.wasi_nn)];
    for (name, granted) in grants {
        if granted {
            entry[name] = value(true);
        }
    }
    for (name, time) in [("not_before", new.not_before), ("not_after", new.not_after)] {
        if let Some(time) = time {
            entry[name] = value(time.to_string());
        }
    }
    Ok(())
}

/// Only who is there can be given more without a key.
pub(crate) fn without_key(name: &str) -> ToolError {
    refused(format!(
        "no publisher is called `{}` yet: give its public key with --key",
        escape_untrusted(name)
    ))
}

pub(crate) fn without_packs(name: &str) -> ToolError {
    refused(format!(
        "say which packs `{}` may sign with this key: --pack PATTERN, such as acme-*",
        escape_untrusted(name)
    ))
}

/// Revokes a key, or every key of a publisher, in a policy file. The publisher stays listed, so that
/// the file says what was decided.
///
/// # Errors
/// [`ToolError::Pack`] where neither a key nor a publisher of that name is meant, or the key is
/// revoked already; [`ToolError::Io`].
pub fn revoke(file: &Path, who: &str) -> Result<TrustChange, ToolError> {
    let text = fs::read_to_string(file).map_err(ToolError::io("read", file))?;
    let mut document = parse(&text)?;
    let mut keys = Vec::new();
    let named = document.get("publishers").and_then(Item::as_array_of_tables);
    for entry in named.into_iter().flatten() {
        let field = |name: &str| entry.get(name).and_then(Item::as_str);
        if field("name") == Some(who) {
            keys.push(PublicKey::from_text(field("key").unwrap_or_default())?.to_string());
        }
    }
    if keys.is_empty() {
        keys.push(public_key(who)?.to_string());
    }
    let revoked = document.entry("revoked").or_insert(value(Array::new()));
    let Some(revoked) = revoked.as_array_mut() else {
        return Err(invalid("`revoked` is no array of keys"));
    };
    keys.retain(|key| revoked.iter().all(|old| old.as_str() != Some(key)));
    if keys.is_empty() {
        return Err(refused("the key is revoked already".to_owned()));
    }
    revoked.extend(keys.iter());
    write(file, &document)?;
    Ok(TrustChange { policy: file.to_owned(), action: "revoked", keys })
}

fn parse(text: &str) -> Result<DocumentMut, ToolError> {
    // The reader of policies first: its messages are those that `verify` gives.
    TrustPolicy::check_toml(text)?;
    text.parse().map_err(|e: toml_edit::TomlError| invalid(e.message()))
}

fn write(file: &Path, document: &DocumentMut) -> Result<(), ToolError> {
    let text = document.to_string();
    TrustPolicy::check_toml(&text)?;
    atomic::write(file, text.as_bytes())
}

/// For what the policy itself says nothing wrong of.
fn refused(message: String) -> ToolError {
    ToolError::Pack(PackError::Key { message })
}

fn invalid(message: &str) -> ToolError {
    ToolError::Pack(PackError::Policy { message: escape_untrusted(message) })
}
