//! The newest keyring that was used here; older ones are refused.
//!
//! The record lies beside the version floors and is replaced as they are. It also holds the roots of
//! that keyring, which from then on are the ones that the next must be signed by: a root that was
//! rotated out because it leaked must not be able to sign a successor.

use super::document::RootsEntry;
use super::{KeyringTrust, RootKeys, UnverifiedKeyring, VerifiedKeyring};
use crate::files::{self, Unreadable};
use crate::{PackError, VersionFloor};
use ruvllm_manifest::{PackName, Sha256Hex};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const MAX_RECORD_BYTES: u64 = 16 * 1024;

/// What is remembered of the newest keyring of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenKeyring {
    /// Its serial.
    pub serial: u64,
    /// SHA-256 of its bytes.
    pub digest: Sha256Hex,
    /// Its roots, which the next one must be signed by.
    pub roots: RootKeys,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    keyring: String,
    serial: u64,
    digest: String,
    roots: RootsEntry,
}

impl VersionFloor {
    /// The newest keyring of that name that was used here.
    ///
    /// # Errors
    /// [`PackError::FloorDamaged`] or [`PackError::Io`].
    pub fn seen_keyring(&self, name: &PackName) -> Result<Option<SeenKeyring>, PackError> {
        let path = self.keyring_path(name);
        let damaged =
            |message: &str| PackError::FloorDamaged { path: path.clone(), message: message.into() };
        let bytes = match files::read_regular(&path, MAX_RECORD_BYTES) {
            Ok(bytes) => bytes,
            Err(Unreadable::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(Unreadable::Io(e)) => return Err(PackError::io("read", &path, e)),
            Err(_) => return Err(damaged("it is not a small regular file")),
        };
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|_| damaged("it is not a keyring record"))?;
        if record.format != 1 || record.keyring != name.as_str() {
            return Err(damaged("it is the record of another keyring or format"));
        }
        let digest = record.digest.parse().map_err(|_| damaged("its digest is malformed"))?;
        let roots = record.roots.decode().map_err(|_| damaged("its roots are malformed"))?;
        Ok(Some(SeenKeyring { serial: record.serial, digest, roots }))
    }

    /// Verifies a keyring, by the roots of the newest one that was used here or, the first time, by
    /// those of `trust`; refuses one that is older; and records one that is newer.
    ///
    /// # Errors
    /// As for [`UnverifiedKeyring::verify`]; [`PackError::Keyring`] with code `keyring_rollback`
    /// where a newer one, or another of the same serial, was used here;
    /// [`PackError::FloorDamaged`]; [`PackError::Io`].
    pub fn admit_keyring(
        &self,
        unverified: UnverifiedKeyring,
        trust: &KeyringTrust<'_>,
    ) -> Result<VerifiedKeyring, PackError> {
        let _lock = self.lock()?;
        let document = unverified.parse()?;
        let seen = self.seen_keyring(&document.name)?;
        let rollback = |what| Err(PackError::keyring("keyring_rollback", what));
        if let Some(seen) = &seen {
            if document.serial < seen.serial {
                return rollback(format!(
                    "serial {}, and {} was used here: get the newest keyring",
                    document.serial, seen.serial
                ));
            }
            if document.serial == seen.serial && unverified.digest() != seen.digest {
                return rollback(format!(
                    "another keyring of serial {} was used here: every change needs a new serial",
                    seen.serial
                ));
            }
        }
        let roots = seen.as_ref().map_or(trust.roots, |seen| &seen.roots);
        let verified = unverified.verify(&KeyringTrust { roots, ..*trust })?;
        if seen.is_none_or(|seen| seen.serial < document.serial) {
            let path = self.keyring_path(&document.name);
            let record = Record {
                format: 1,
                keyring: document.name.to_string(),
                serial: document.serial,
                digest: verified.digest().to_string(),
                roots: (&document.roots).into(),
            };
            let io = |e| PackError::io("write", &path, e);
            let mut bytes = serde_json::to_vec(&record).map_err(|e| io(e.into()))?;
            bytes.push(b'\n');
            let temporary = self.directory().join(format!(".{}.keyring.tmp", document.name));
            files::replace(&path, &temporary, &bytes).map_err(io)?;
        }
        Ok(verified)
    }

    fn keyring_path(&self, name: &PackName) -> PathBuf {
        self.directory().join(format!("{name}.keyring"))
    }
}
