//! `keyring.json`: types, parser and rules.

use crate::error::without_values;
use crate::publisher::{self, Publisher, PublisherEntry};
use crate::{PackError, PublicKey};
use ruvllm_manifest::{PackName, Timestamp, escape_untrusted};
use serde::{Deserialize, Serialize};

/// The longest keyring that is read, in bytes.
pub const MAX_KEYRING_BYTES: usize = 256 * 1024;
/// The most root keys; as many as an envelope has signatures.
pub const MAX_ROOTS: usize = crate::MAX_SIGNATURES;
const MAX_REVOKED: usize = 1024;
const MAX_REASON: usize = 256;

/// A keyring's contents. Nothing about them has been verified; see
/// [`VerifiedKeyring`](crate::VerifiedKeyring).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    /// Whose it is; hosts remember the newest serial by this name.
    pub name: PackName,
    /// Rises by at least one with every change, from 1.
    pub serial: u64,
    /// When it was written. Information.
    pub issued_at: Timestamp,
    /// From this time on it is refused and its publishers do not count.
    pub expires_at: Option<Timestamp>,
    /// Who signs this keyring, and the next one.
    pub roots: RootKeys,
    /// The publishers.
    pub publishers: Vec<Publisher>,
    /// Keys that never count, also for what they signed before.
    pub revoked: Vec<RevokedKey>,
}

/// The keys that sign a keyring, and how many of them must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootKeys {
    keys: Vec<PublicKey>,
    threshold: usize,
}

/// A key that never counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedKey {
    /// The key.
    pub key: PublicKey,
    /// When it was revoked. Information: what it signed before does not count either.
    pub since: Timestamp,
    /// Why, for people.
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    name: String,
    serial: u64,
    issued_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    roots: RootsEntry,
    publishers: Vec<PublisherEntry>,
    revoked: Vec<RevokedEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RootsEntry {
    threshold: usize,
    keys: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokedEntry {
    key: String,
    since: String,
    reason: String,
}

impl RootKeys {
    /// Root keys of whom `threshold` must sign.
    ///
    /// # Errors
    /// [`PackError::Policy`] where there are none or more than [`MAX_ROOTS`], one appears twice, or
    /// the threshold is 0 or cannot be met.
    pub fn new(keys: Vec<PublicKey>, threshold: usize) -> Result<RootKeys, PackError> {
        let invalid = |message| Err(PackError::Policy { message });
        if !(1..=MAX_ROOTS).contains(&keys.len()) {
            return invalid(format!("roots: name 1 to {MAX_ROOTS} keys"));
        }
        if keys.iter().enumerate().any(|(i, key)| keys[..i].contains(key)) {
            return invalid("roots: a key appears twice; each counts once".to_owned());
        }
        if !(1..=keys.len()).contains(&threshold) {
            return invalid(format!("roots: threshold = {threshold}; use 1 to {}", keys.len()));
        }
        Ok(RootKeys { keys, threshold })
    }

    /// The keys.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// How many of them must sign.
    pub fn threshold(&self) -> usize {
        self.threshold
    }
}

impl RootsEntry {
    pub(super) fn decode(&self) -> Result<RootKeys, PackError> {
        let keys = self.keys.iter().map(|text| publisher::key(text, "roots"));
        RootKeys::new(keys.collect::<Result<_, _>>()?, self.threshold)
    }
}

impl From<&RootKeys> for RootsEntry {
    fn from(roots: &RootKeys) -> RootsEntry {
        let keys = roots.keys.iter().map(PublicKey::to_string).collect();
        RootsEntry { threshold: roots.threshold, keys }
    }
}

impl Keyring {
    /// Parses the bytes of a `keyring.json`: one strict JSON document.
    ///
    /// # Errors
    /// [`PackError::Keyring`] with code `keyring_too_large`, `keyring_syntax`, `keyring_version` or
    /// `keyring_invalid`; [`PackError::WeakKey`].
    pub fn parse(bytes: &[u8]) -> Result<Keyring, PackError> {
        if bytes.len() > MAX_KEYRING_BYTES {
            let what = format!("{} bytes; at most {MAX_KEYRING_BYTES} are read", bytes.len());
            return Err(PackError::keyring("keyring_too_large", what));
        }
        // Unknown and duplicate fields as well as trailing bytes are errors of this parser.
        let document: Document = serde_json::from_slice(bytes)
            .map_err(|e| PackError::keyring("keyring_syntax", without_values(&e.to_string())))?;
        if document.version != 1 {
            let what = format!("format {}; this runtime reads 1", document.version);
            return Err(PackError::keyring("keyring_version", what));
        }
        decode(&document).map_err(|e| match e {
            PackError::Policy { message } => PackError::keyring("keyring_invalid", message),
            other => other,
        })
    }

    /// The keyring as `keyring.json` holds it.
    ///
    /// # Errors
    /// As for [`Keyring::parse`], for what that would refuse.
    pub fn to_json(&self) -> Result<String, PackError> {
        let document = Document {
            version: 1,
            name: self.name.to_string(),
            serial: self.serial,
            issued_at: self.issued_at.to_string(),
            expires_at: self.expires_at.map(|t| t.to_string()),
            roots: (&self.roots).into(),
            publishers: self.publishers.iter().map(PublisherEntry::from).collect(),
            revoked: self
                .revoked
                .iter()
                .map(|entry| RevokedEntry {
                    key: entry.key.to_string(),
                    since: entry.since.to_string(),
                    reason: entry.reason.clone(),
                })
                .collect(),
        };
        let mut text = serde_json::to_string_pretty(&document)
            .map_err(|e| PackError::keyring("keyring_syntax", e.to_string()))?;
        text.push('\n');
        Keyring::parse(text.as_bytes())?;
        Ok(text)
    }
}

fn decode(document: &Document) -> Result<Keyring, PackError> {
    let invalid = |message: String| PackError::Policy { message };
    let name: PackName = document.name.parse().map_err(|e| invalid(format!("name: {e}")))?;
    if document.serial == 0 {
        return Err(invalid("serial: count from 1".to_owned()));
    }
    let roots = document.roots.decode()?;
    let publishers: Vec<Publisher> =
        document.publishers.iter().map(PublisherEntry::decode).collect::<Result<_, _>>()?;
    publisher::check(&publishers)?;
    if document.revoked.len() > MAX_REVOKED {
        return Err(invalid(format!("revoked: at most {MAX_REVOKED} keys")));
    }
    let mut revoked: Vec<RevokedKey> = Vec::with_capacity(document.revoked.len());
    for entry in &document.revoked {
        let key = publisher::key(&entry.key, "revoked")?;
        if revoked.iter().any(|other| other.key == key) {
            return Err(invalid(format!("revoked: {key} appears twice; keep one")));
        }
        if roots.keys().contains(&key) {
            return Err(invalid(format!("{key} is a root and revoked; take it out of the roots")));
        }
        if entry.reason.len() > MAX_REASON || escape_untrusted(&entry.reason) != entry.reason {
            let what = format!("at most {MAX_REASON} printable bytes as a reason");
            return Err(invalid(format!("revoked: {what}")));
        }
        let since = publisher::time(&entry.since)?;
        revoked.push(RevokedKey { key, since, reason: entry.reason.clone() });
    }
    Ok(Keyring {
        name,
        serial: document.serial,
        issued_at: publisher::time(&document.issued_at)?,
        expires_at: document.expires_at.as_deref().map(publisher::time).transpose()?,
        roots,
        publishers,
        revoked,
    })
}
