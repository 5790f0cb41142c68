//! The trust policy as a TOML file, alone or with a keyring.

use crate::keyring::{KeyringTrust, RootKeys, UnverifiedKeyring};
use crate::policy::TrustPolicy;
use crate::publisher::{self, Publisher, PublisherEntry};
use crate::{Clock, PackError, PublicKey, VersionFloor, document};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const MAX_POLICY_BYTES: usize = 256 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    threshold: Option<usize>,
    without_clock: Option<String>,
    #[serde(default)]
    revoked: Vec<String>,
    publishers: Option<Vec<PublisherEntry>>,
    keyring: Option<KeyringEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyringEntry {
    file: String,
    roots: Vec<String>,
    threshold: Option<usize>,
}

/// What a policy file says, before its keyring is read.
struct Decoded {
    publishers: Vec<Publisher>,
    threshold: usize,
    revoked: Vec<PublicKey>,
    accepts_without_clock: bool,
    keyring: Option<(String, RootKeys)>,
}

impl TrustPolicy {
    /// Parses a policy file that names no keyring.
    ///
    /// # Errors
    /// [`PackError::Policy`] or [`PackError::WeakKey`] with what is wrong.
    pub fn from_toml(text: &str) -> Result<TrustPolicy, PackError> {
        let decoded = decode(text)?;
        if decoded.keyring.is_some() {
            let what = "the policy names a keyring; read it with TrustPolicy::read_file";
            return Err(invalid(what.to_owned()));
        }
        let policy = TrustPolicy::new(decoded.publishers, decoded.threshold)?;
        Ok(policy
            .with_revoked(decoded.revoked)
            .with_accepts_without_clock(decoded.accepts_without_clock))
    }

    /// Checks the text of a policy file as far as that is possible without the keyring that it may
    /// name.
    ///
    /// # Errors
    /// As for [`TrustPolicy::from_toml`].
    pub fn check_toml(text: &str) -> Result<(), PackError> {
        let decoded = decode(text)?;
        if decoded.keyring.is_some() {
            return publisher::check(&decoded.publishers);
        }
        TrustPolicy::new(decoded.publishers, decoded.threshold).map(drop)
    }

    /// Reads a policy file, and the keyring that it names.
    ///
    /// With `seen`, the keyring must not be older than the newest one that was used here, which is
    /// then recorded there. Without it a rollback of the keyring goes unnoticed.
    ///
    /// # Errors
    /// [`PackError::Io`], [`PackError::Policy`], [`PackError::WeakKey`], [`PackError::Keyring`],
    /// [`PackError::FloorDamaged`].
    pub fn read_file(
        path: &Path,
        seen: Option<&VersionFloor>,
        clock: Clock,
    ) -> Result<TrustPolicy, PackError> {
        let decoded = decode(&read(path)?)?;
        let Decoded { publishers, threshold, revoked, accepts_without_clock, keyring } = decoded;
        let policy = match keyring {
            None => TrustPolicy::new(publishers, threshold)?,
            Some((file, roots)) => {
                let file = path.parent().unwrap_or(Path::new("")).join(file);
                let unverified = UnverifiedKeyring::read_file(&file)?;
                let trust = KeyringTrust {
                    roots: &roots,
                    revoked: &revoked,
                    now: clock.now(),
                    accepts_without_clock,
                };
                let keyring = match seen {
                    Some(seen) => seen.admit_keyring(unverified, &trust)?,
                    None => unverified.verify(&trust)?,
                };
                TrustPolicy::merged(publishers, &keyring, threshold)?
            }
        };
        Ok(policy.with_revoked(revoked).with_accepts_without_clock(accepts_without_clock))
    }
}

fn read(path: &Path) -> Result<String, PackError> {
    let io = |e| PackError::io("read", path, e);
    let mut text = String::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_POLICY_BYTES as u64 + 1).read_to_string(&mut text).map_err(io)?;
    Ok(text)
}

fn decode(text: &str) -> Result<Decoded, PackError> {
    if text.len() > MAX_POLICY_BYTES {
        return Err(invalid(format!("longer than {MAX_POLICY_BYTES} bytes")));
    }
    let document: Document = document::read(text).map_err(invalid)?;
    if document.version != 1 {
        return Err(invalid(format!("version = {}; this runtime reads 1", document.version)));
    }
    let accepts_without_clock = match document.without_clock.as_deref() {
        None | Some("refuse") => false,
        Some("accept") => true,
        Some(_) => {
            return Err(invalid("without_clock: write \"refuse\" or \"accept\"".to_owned()));
        }
    };
    let publishers = document.publishers.unwrap_or_default();
    let keyring = document.keyring.map(|entry| {
        let roots = keys(&entry.roots, "roots")?;
        Ok::<_, PackError>((entry.file, RootKeys::new(roots, entry.threshold.unwrap_or(1))?))
    });
    Ok(Decoded {
        publishers: publishers.iter().map(PublisherEntry::decode).collect::<Result<_, _>>()?,
        threshold: document.threshold.unwrap_or(1),
        revoked: keys(&document.revoked, "revoked")?,
        accepts_without_clock,
        keyring: keyring.transpose()?,
    })
}

fn keys(texts: &[String], field: &str) -> Result<Vec<PublicKey>, PackError> {
    texts.iter().map(|text| publisher::key(text, field)).collect()
}

fn invalid(message: String) -> PackError {
    PackError::Policy { message }
}
