//! Keyrings for the attacks on them, and a host that remembers the newest.

use crate::tree;
use ruvllm_signing::{
    Keyring, KeyringTrust, PackError, Publisher, RootKeys, SecretKey, UnverifiedKeyring,
    VerifiedKeyring, VersionFloor, sign_manifest,
};

/// When the hosts of these tests live.
pub(crate) const NOW: &str = "2026-12-01T00:00:00Z";

pub(crate) fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

pub(crate) fn roots(keys: &[&SecretKey], threshold: usize) -> RootKeys {
    RootKeys::new(keys.iter().map(|key| key.public_key()).collect(), threshold).unwrap()
}

/// A keyring with one publisher that may sign everything.
pub(crate) fn keyring(serial: u64, roots: RootKeys) -> Keyring {
    let publisher = Publisher {
        name: "acme".to_owned(),
        key: key().public_key(),
        packs: vec!["*".parse().unwrap()],
        native: false,
        threads: false,
        wasi_nn: false,
        not_before: None,
        not_after: None,
    };
    Keyring {
        name: "fleet".parse().unwrap(),
        serial,
        issued_at: "2026-11-20T00:00:00Z".parse().unwrap(),
        expires_at: Some("2027-11-20T00:00:00Z".parse().unwrap()),
        roots,
        publishers: vec![publisher],
        revoked: Vec::new(),
    }
}

pub(crate) fn signed(keyring: &Keyring, keys: &[&SecretKey]) -> UnverifiedKeyring {
    let bytes = keyring.to_json().unwrap().into_bytes();
    let envelope = sign_manifest(&bytes, keys).unwrap().to_json().into_bytes();
    UnverifiedKeyring::new(bytes, envelope)
}

/// A host with a memory, whose policy names these roots.
pub(crate) struct KeyringHost {
    directory: tempfile::TempDir,
    roots: RootKeys,
}

impl KeyringHost {
    pub(crate) fn trusting(roots: RootKeys) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), roots }
    }

    pub(crate) fn admit(&self, keyring: UnverifiedKeyring) -> Result<VerifiedKeyring, PackError> {
        self.admit_at(keyring, Some(NOW))
    }

    pub(crate) fn admit_at(
        &self,
        keyring: UnverifiedKeyring,
        now: Option<&str>,
    ) -> Result<VerifiedKeyring, PackError> {
        let trust = KeyringTrust {
            roots: &self.roots,
            revoked: &[],
            now: now.map(|time| time.parse().unwrap()),
            accepts_without_clock: false,
        };
        VersionFloor::open(self.directory.path()).unwrap().admit_keyring(keyring, &trust)
    }

    /// The code with which it refuses the keyring. Its memory must not change.
    pub(crate) fn refuses(&self, keyring: UnverifiedKeyring) -> &'static str {
        self.refuses_at(keyring, Some(NOW))
    }

    pub(crate) fn refuses_at(&self, keyring: UnverifiedKeyring, now: Option<&str>) -> &'static str {
        let memory = || {
            let mut files = tree(self.directory.path());
            files.retain(|path, _| !path.ends_with(".lock"));
            files
        };
        let before = memory();
        let code = self.admit_at(keyring, now).unwrap_err().code();
        assert_eq!(memory(), before, "something was left behind");
        code
    }
}
