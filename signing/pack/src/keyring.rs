//! `keyring` and `rotate`: the signed document that carries publishers and revocations.
//!
//! Every change writes the next serial and takes the old signatures away, since they are over other
//! bytes: a keyring that was changed is worth nothing until its roots have signed it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ruvllm_manifest::Timestamp;
use ruvllm_signing::{
    Clock, Envelope, Keyring, KeyringTrust, PackError, PackPattern, Publisher, Retire, RootKeys,
    UnverifiedKeyring, VersionFloor, escape_untrusted, keyring_signature_file,
};
use serde::Serialize;

use crate::sign::{add_signatures, public_key, secret_keys};
use crate::trust::{NewPublisher, TrustedKey, without_key, without_packs};
use crate::{Report, ToolError, atomic};

/// What a keyring file holds.
#[derive(Clone, Debug, Serialize)]
pub struct KeyringReport {
    /// The file.
    pub file: PathBuf,
    /// The keyring's name.
    pub name: String,
    /// Its serial.
    pub serial: u64,
    /// When it was written.
    pub issued_at: String,
    /// When it ceases to count.
    pub expires_at: Option<String>,
    /// The root keys.
    pub roots: Vec<String>,
    /// How many of them must sign.
    pub threshold: usize,
    /// Each key of each publisher.
    pub publishers: Vec<TrustedKey>,
    /// The keys that never count: key, time and reason.
    pub revoked: Vec<(String, String, String)>,
    /// Ids of the keys that are said to have signed.
    pub signatures: Vec<String>,
    /// Whether the signatures were checked against trusted roots.
    pub verified: bool,
}

impl Report for KeyringReport {}

impl fmt::Display for KeyringReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = escape_untrusted(&self.file.to_string_lossy());
        writeln!(
            f,
            "keyring {}, serial {}, of {} ({file})",
            self.name, self.serial, self.issued_at
        )?;
        match &self.expires_at {
            Some(until) => writeln!(f, "expires {until}")?,
            None => writeln!(f, "does not expire")?,
        }
        writeln!(f, "{} of {} root(s) must sign:", self.threshold, self.roots.len())?;
        self.roots.iter().try_for_each(|root| writeln!(f, "    {root}"))?;
        for key in &self.publishers {
            let state = if key.revoked { " REVOKED" } else { "" };
            let native = if key.native { ", native code" } else { "" };
            let threads = if key.threads { ", threads" } else { "" };
            let graphs = if key.wasi_nn { ", graphs in kernels" } else { "" };
            let until = key.not_after.as_ref().map(|t| format!(", until {t}")).unwrap_or_default();
            writeln!(f, "{}  {}{state}", escape_untrusted(&key.name), key.key)?;
            writeln!(f, "    packs {}{native}{threads}{graphs}{until}", key.packs.join(" "))?;
        }
        for (key, since, reason) in &self.revoked {
            writeln!(f, "revoked  {key} since {since}: {}", escape_untrusted(reason))?;
        }
        let checked = if self.verified { "" } else { " (not checked)" };
        writeln!(f, "{} signature(s){checked}", self.signatures.len())?;
        if self.signatures.len() < self.threshold {
            writeln!(f, "next: have it signed with `ruvllm-pack keyring sign`")?;
        }
        Ok(())
    }
}

/// A keyring to begin.
#[derive(Clone, Debug)]
pub struct NewKeyring {
    /// Its name.
    pub name: String,
    /// The root keys: texts in any form, or files with them.
    pub roots: Vec<String>,
    /// How many of them must sign.
    pub threshold: usize,
    /// When it ceases to count.
    pub expires_at: Option<Timestamp>,
}

/// Writes a first keyring, without publishers, to a new file.
///
/// # Errors
/// [`ToolError::Pack`] for names and keys, [`ToolError::Io`], also where the file exists.
pub fn new(file: &Path, new: &NewKeyring) -> Result<KeyringReport, ToolError> {
    let name = new.name.parse().map_err(|e| invalid(format!("the name of the keyring: {e}")))?;
    let keyring = Keyring {
        name,
        serial: 1,
        issued_at: now(),
        expires_at: new.expires_at,
        roots: roots(&new.roots, new.threshold)?,
        publishers: Vec::new(),
        revoked: Vec::new(),
    };
    if file.exists() {
        let exists = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(ToolError::io("create", file)(exists));
    }
    write(file, &keyring)
}

/// Shows a keyring file. Nothing is verified.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn show(file: &Path) -> Result<KeyringReport, ToolError> {
    report(file, &read(file)?, false)
}

/// Adds a publisher; one with that key is given the packs, the grant and the times beside what it has.
///
/// # Errors
/// [`ToolError::Pack`], also where a publisher without a key is not there, or a new key is given no packs;
/// [`ToolError::Io`].
pub fn add(file: &Path, new: &NewPublisher) -> Result<KeyringReport, ToolError> {
    let packs: Vec<PackPattern> = new.packs.iter().map(|p| p.parse()).collect::<Result<_, _>>()?;
    let key = new.key.as_deref().map(public_key).transpose()?;
    let mut keyring = read(file)?.next(now());
    let mut known = false;
    for publisher in &mut keyring.publishers {
        if publisher.name == new.name && key.as_ref().is_none_or(|key| *key == publisher.key) {
            known = true;
            for pattern in &packs {
                if !publisher.packs.contains(pattern) {
                    publisher.packs.push(pattern.clone());
                }
            }
            publisher.native |= new.native;
            publisher.threads |= new.threads;
            publisher.wasi_nn |= new.wasi_nn;
            publisher.not_before = new.not_before.or(publisher.not_before);
            publisher.not_after = new.not_after.or(publisher.not_after);
        }
    }
    match (known, key) {
        (true, _) => {}
        (false, Some(_)) if packs.is_empty() => return Err(without_packs(&new.name)),
        (false, Some(key)) => keyring.publishers.push(Publisher {
            name: new.name.clone(),
            key,
            packs,
            native: new.native,
            threads: new.threads,
            wasi_nn: new.wasi_nn,
            not_before: new.not_before,
            not_after: new.not_after,
        }),
        (false, None) => return Err(without_key(&new.name)),
    }
    write(file, &keyring)
}

/// Revokes a key for good.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn revoke(file: &Path, key: &str, reason: &str) -> Result<KeyringReport, ToolError> {
    write(file, &read(file)?.revoke(public_key(key)?, reason.to_owned(), now())?)
}

/// Replaces the root keys. Old and new ones must sign.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn set_roots(
    file: &Path,
    keys: &[String],
    threshold: usize,
) -> Result<KeyringReport, ToolError> {
    write(file, &Keyring { roots: roots(keys, threshold)?, ..read(file)?.next(now()) })
}

/// A key to replace.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// The publisher.
    pub publisher: String,
    /// Its old key, where it has several.
    pub old_key: Option<String>,
    /// Its new key.
    pub new_key: String,
    /// What becomes of the old key.
    pub retire: Retire,
}

/// Gives a publisher a new key and retires the old.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn rotate(file: &Path, rotation: &Rotation) -> Result<KeyringReport, ToolError> {
    let old = rotation.old_key.as_deref().map(public_key).transpose()?;
    let new = public_key(&rotation.new_key)?;
    let Rotation { publisher, retire, .. } = rotation;
    write(file, &read(file)?.rotate(publisher, old.as_ref(), new, retire.clone(), now())?)
}

/// Signs a keyring with root keys, beside the signatures that are there.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn sign(file: &Path, key_files: &[PathBuf]) -> Result<KeyringReport, ToolError> {
    let bytes = fs::read(file).map_err(ToolError::io("read", file))?;
    let keyring = Keyring::parse(&bytes)?;
    add_signatures(&keyring_signature_file(file), &bytes, &secret_keys(key_files)?)?;
    report(file, &keyring, false)
}

/// What a keyring is verified against.
#[derive(Clone, Debug)]
pub struct KeyringCheck {
    /// The roots that are trusted.
    pub roots: Vec<String>,
    /// How many of them must have signed.
    pub threshold: usize,
    /// A directory that remembers the newest keyring seen.
    pub floors: Option<PathBuf>,
    /// The time to verify for, instead of now.
    pub at: Option<Timestamp>,
}

/// Verifies a keyring as a host would.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn verify(file: &Path, check: &KeyringCheck) -> Result<KeyringReport, ToolError> {
    let roots = roots(&check.roots, check.threshold)?;
    let trust = KeyringTrust {
        roots: &roots,
        revoked: &[],
        now: check.at.map_or(Clock::System, Clock::Fixed).now(),
        accepts_without_clock: false,
    };
    let unverified = UnverifiedKeyring::read_file(file)?;
    let verified = match &check.floors {
        Some(floors) => VersionFloor::open(floors)?.admit_keyring(unverified, &trust)?,
        None => unverified.verify(&trust)?,
    };
    report(file, verified.document(), true)
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

fn roots(keys: &[String], threshold: usize) -> Result<RootKeys, ToolError> {
    let keys: Result<Vec<_>, _> = keys.iter().map(|key| public_key(key)).collect();
    Ok(RootKeys::new(keys?, threshold)?)
}

fn read(file: &Path) -> Result<Keyring, ToolError> {
    let bytes = fs::read(file).map_err(ToolError::io("read", file))?;
    Ok(Keyring::parse(&bytes)?)
}

fn write(file: &Path, keyring: &Keyring) -> Result<KeyringReport, ToolError> {
    let json = keyring.to_json()?;
    let signatures = keyring_signature_file(file);
    match fs::remove_file(&signatures) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(ToolError::io("remove", &signatures)(e));
        }
        _ => {}
    }
    atomic::write(file, json.as_bytes())?;
    report(file, keyring, false)
}

fn report(file: &Path, keyring: &Keyring, verified: bool) -> Result<KeyringReport, ToolError> {
    let signatures = match fs::read(keyring_signature_file(file)) {
        Ok(bytes) => {
            Envelope::parse(&bytes)?.signatures().iter().map(|s| s.0.to_string()).collect()
        }
        Err(_) => Vec::new(),
    };
    let publishers = keyring.publishers.iter();
    let publishers = publishers.map(|p| TrustedKey::of(p, keyring.is_revoked(&p.key)));
    let revoked = keyring
        .revoked
        .iter()
        .map(|entry| (entry.key.to_string(), entry.since.to_string(), entry.reason.clone()));
    Ok(KeyringReport {
        file: file.to_owned(),
        name: keyring.name.to_string(),
        serial: keyring.serial,
        issued_at: keyring.issued_at.to_string(),
        expires_at: keyring.expires_at.map(|t| t.to_string()),
        roots: keyring.roots.keys().iter().map(|key| key.to_string()).collect(),
        threshold: keyring.roots.threshold(),
        publishers: publishers.collect(),
        revoked: revoked.collect(),
        signatures,
        verified,
    })
}

fn invalid(message: String) -> ToolError {
    ToolError::Pack(PackError::Policy { message })
}
