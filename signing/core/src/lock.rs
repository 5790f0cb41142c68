//! `packs.lock`: the exact packs of a deployment. The file is TOML, which is the feature `toml`.
//!
//! ```toml
//! version = 1
//!
//! [packs.ruvllm-core-kernels]
//! version = "0.1.0"
//! digest = "sha256:5d5d..."
//! ```
//!
//! The digest is that of the manifest's bytes, which tie down every file. A lock says which packs may
//! be loaded, not whom to trust: a pack is verified first, then held against the lock.

use crate::{PackError, VerifiedPack, Violation, document};
use ruvllm_manifest::{MANIFEST_FILE, PackName, Sha256Hex, escape_untrusted};
use semver::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const MAX_LOCK_BYTES: u64 = 256 * 1024;

/// Pack names, each pinned to one version and digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackLock {
    packs: BTreeMap<PackName, LockedPack>,
}

/// What a pack name is pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedPack {
    /// The version.
    pub version: Version,
    /// SHA-256 of the manifest, see [`VerifiedPack::digest`].
    pub digest: Sha256Hex,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    packs: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    version: String,
    digest: String,
}

impl PackLock {
    /// A lock that pins nothing and so refuses every pack.
    pub fn new() -> PackLock {
        PackLock::default()
    }

    /// Reads a lock file.
    ///
    /// # Errors
    /// [`PackError::Io`] or [`PackError::Lock`].
    pub fn read(path: &Path) -> Result<PackLock, PackError> {
        let io = |e| PackError::io("read", path, e);
        let mut text = String::new();
        let file = File::open(path).map_err(io)?;
        file.take(MAX_LOCK_BYTES + 1).read_to_string(&mut text).map_err(io)?;
        PackLock::from_toml(&text)
    }

    /// Parses a lock file.
    ///
    /// # Errors
    /// [`PackError::Lock`] with what is wrong.
    pub fn from_toml(text: &str) -> Result<PackLock, PackError> {
        let invalid = |message: String| PackError::Lock { message };
        if text.len() as u64 > MAX_LOCK_BYTES {
            return Err(invalid(format!("longer than {MAX_LOCK_BYTES} bytes")));
        }
        let document: Document = document::read(text).map_err(invalid)?;
        if document.version != 1 {
            return Err(invalid(format!("version = {}; this runtime reads 1", document.version)));
        }
        let entry = |(name, entry): (String, Entry)| {
            let shown = escape_untrusted(&name);
            let at = |e: &dyn std::fmt::Display| invalid(format!("packs.{shown}: {e}"));
            let name: PackName = name.parse().map_err(|e| at(&e))?;
            let version = entry.version.parse().map_err(|e| at(&e))?;
            let digest = entry.digest.parse().map_err(|e| at(&e))?;
            Ok((name, LockedPack { version, digest }))
        };
        Ok(PackLock { packs: document.packs.into_iter().map(entry).collect::<Result<_, _>>()? })
    }

    /// The lock as a file holds it: packs in order of name, so that the same packs give the same
    /// bytes.
    ///
    /// # Errors
    /// [`PackError::Lock`] should the encoder fail.
    pub fn to_toml(&self) -> Result<String, PackError> {
        let packs = self.packs.iter().map(|(name, pack)| {
            let entry =
                Entry { version: pack.version.to_string(), digest: pack.digest.to_string() };
            (name.to_string(), entry)
        });
        document::write(&Document { version: 1, packs: packs.collect() })
            .map_err(|message| PackError::Lock { message })
    }

    /// Pins a pack; another pin of its name gives way. Gives what was there.
    pub fn insert(&mut self, pack: &VerifiedPack) -> Option<LockedPack> {
        let manifest = pack.manifest();
        let locked = LockedPack { version: manifest.version.clone(), digest: pack.digest() };
        self.packs.insert(manifest.name.clone(), locked)
    }

    /// The pins, in order of name.
    pub fn packs(&self) -> impl Iterator<Item = (&PackName, &LockedPack)> {
        self.packs.iter()
    }

    /// Checks that the pack is the one that its name is pinned to.
    ///
    /// # Errors
    /// [`PackError::Rejected`] with `pack_not_locked` where the lock does not name it, with
    /// `lock_mismatch` where it names another.
    pub fn check(&self, pack: &VerifiedPack) -> Result<(), PackError> {
        let manifest = pack.manifest();
        let (code, what) = match self.packs.get(&manifest.name) {
            None => (
                "pack_not_locked",
                format!(
                    "the lock file does not name `{}`: add it with `ruvllm-pack lock` if it \
                     belongs to the deployment",
                    manifest.name
                ),
            ),
            Some(locked)
                if locked.digest == pack.digest() && locked.version == manifest.version =>
            {
                return Ok(());
            }
            Some(locked) => (
                "lock_mismatch",
                format!(
                    "the lock file pins `{}` {} ({}), this is {} ({}): load the pinned pack, or \
                     lock this one",
                    manifest.name,
                    locked.version,
                    locked.digest,
                    manifest.version,
                    pack.digest()
                ),
            ),
        };
        Err(PackError::Rejected(vec![Violation::new(code, MANIFEST_FILE, what)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_reads_back_and_has_one_form() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let text = format!(
            "version = 1\n\n[packs.\"a.b\"]\nversion = \"1.0.0\"\ndigest = \"{digest}\"\n\n\
             [packs.core]\nversion = \"0.1.0\"\ndigest = \"{digest}\"\n"
        );
        let lock = PackLock::from_toml(&text).unwrap();
        assert_eq!(lock.packs().count(), 2);
        assert_eq!(lock.to_toml().unwrap(), text);
        assert_eq!(
            PackLock::from_toml(&PackLock::new().to_toml().unwrap()).unwrap().packs.len(),
            0
        );
    }

    #[test]
    fn anything_but_a_strict_lock_is_refused() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let good = format!("version = 1\n[packs.a]\nversion = \"1.0.0\"\ndigest = \"{digest}\"\n");
        assert!(PackLock::from_toml(&good).is_ok());
        for bad in [
            String::new(),
            good.replace("version = 1\n", "version = 2\n"),
            good.replace("sha256:0a", "sha256:0A"),
            good.replace("1.0.0", "1.0"),
            good.replace("packs.a", "packs.A"),
            good.replace("packs.a", "packs.\"a\\u001b\""),
            format!("{good}extra = 1\n"),
            format!("{good}digest = \"{digest}\"\n"),
        ] {
            let error = PackLock::from_toml(&bad).unwrap_err();
            assert_eq!(error.code(), "lock_invalid", "{bad}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
    }
}
