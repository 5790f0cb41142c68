//! From bytes to a keyring that the host's roots and its own have signed.

use super::{Keyring, MAX_KEYRING_BYTES, RootKeys};
use crate::{Envelope, MAX_ENVELOPE_BYTES, PackError, PublicKey};
use ruvllm_manifest::{Sha256Hex, Timestamp};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The bytes of a keyring and of its signatures, of which nothing is known yet.
#[derive(Clone, Debug)]
pub struct UnverifiedKeyring {
    bytes: Vec<u8>,
    envelope: Vec<u8>,
}

/// A keyring that enough roots have signed. Only [`UnverifiedKeyring::verify`] makes one.
#[derive(Clone, Debug)]
pub struct VerifiedKeyring {
    keyring: Keyring,
    digest: Sha256Hex,
}

/// What a host holds a keyring against.
#[derive(Clone, Copy, Debug)]
pub struct KeyringTrust<'a> {
    /// The roots that it trusts already.
    pub roots: &'a RootKeys,
    /// Keys that never count, not as roots either.
    pub revoked: &'a [PublicKey],
    /// The time, where there is a trustworthy clock.
    pub now: Option<Timestamp>,
    /// Whether a keyring that expires counts where there is none.
    pub accepts_without_clock: bool,
}

/// Where the signatures of a keyring file lie: beside it, with `.sig` appended.
pub fn keyring_signature_file(keyring: &Path) -> PathBuf {
    let mut name = keyring.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

impl UnverifiedKeyring {
    /// Takes the bytes of a keyring and of its envelope.
    pub fn new(bytes: Vec<u8>, envelope: Vec<u8>) -> UnverifiedKeyring {
        UnverifiedKeyring { bytes, envelope }
    }

    /// Reads a keyring file and the signatures beside it.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn read_file(path: &Path) -> Result<UnverifiedKeyring, PackError> {
        Ok(UnverifiedKeyring {
            bytes: read(path, MAX_KEYRING_BYTES)?,
            envelope: read(&keyring_signature_file(path), MAX_ENVELOPE_BYTES)?,
        })
    }

    /// SHA-256 of the document.
    pub fn digest(&self) -> Sha256Hex {
        Sha256Hex::from_bytes(Sha256::digest(&self.bytes).into())
    }

    /// The contents, of which nothing has been verified.
    ///
    /// # Errors
    /// As for [`Keyring::parse`].
    pub fn parse(&self) -> Result<Keyring, PackError> {
        Keyring::parse(&self.bytes)
    }

    /// Verifies the keyring against roots that the host trusts, and against its own.
    ///
    /// # Errors
    /// [`PackError::Keyring`]: what [`Keyring::parse`] and [`Envelope::parse`] refuse;
    /// `keyring_not_trusted` where too few roots have signed or a signature is false;
    /// `keyring_expired`; `clock_unknown` where it expires and nobody knows the time.
    pub fn verify(self, trust: &KeyringTrust<'_>) -> Result<VerifiedKeyring, PackError> {
        let keyring = self.parse()?;
        let envelope = Envelope::parse(&self.envelope).map_err(|e| match e {
            PackError::Rejected(found) => {
                let first = found.into_iter().next();
                let (code, message) = first.map_or(("envelope_syntax", String::new()), |v| {
                    (v.code, format!("its signatures: {}", v.message))
                });
                PackError::keyring(code, message)
            }
            other => other,
        })?;
        let revoked = |key: &PublicKey| {
            trust.revoked.contains(key) || keyring.revoked.iter().any(|entry| entry.key == *key)
        };
        self.check(&envelope, trust.roots, revoked, "that this host trusts")?;
        self.check(&envelope, &keyring.roots, revoked, "that it names itself")?;
        if let Some(until) = keyring.expires_at {
            match trust.now {
                Some(now) if now >= until => {
                    let what = format!("it was good until {until}, it is {now}: get a newer one");
                    return Err(PackError::keyring("keyring_expired", what));
                }
                None if !trust.accepts_without_clock => {
                    let what = format!(
                        "it is good until {until}, and this host has no clock to trust: set the \
                         clock, or accept that with without_clock = \"accept\""
                    );
                    return Err(PackError::keyring("clock_unknown", what));
                }
                _ => {}
            }
        }
        Ok(VerifiedKeyring { digest: self.digest(), keyring })
    }

    /// Whether a threshold of these roots has signed. A signature of another key does not count; one
    /// that names a root and is not its refuses the keyring.
    fn check(
        &self,
        envelope: &Envelope,
        roots: &RootKeys,
        revoked: impl Fn(&PublicKey) -> bool,
        which: &str,
    ) -> Result<(), PackError> {
        let not_trusted = |what| Err(PackError::keyring("keyring_not_trusted", what));
        let mut signers: Vec<&PublicKey> = Vec::new();
        for (id, signature) in envelope.signatures() {
            let hinted = roots.keys().iter().find(|key| key.key_id() == *id);
            if let Some(key) = hinted
                && !key.verify(&self.bytes, signature)
            {
                return not_trusted(format!(
                    "the signature of root {id} is not over these bytes: one of them was changed"
                ));
            }
            let signer = hinted
                .or_else(|| roots.keys().iter().find(|key| key.verify(&self.bytes, signature)));
            if let Some(key) = signer
                && !signers.contains(&key)
                && !revoked(key)
            {
                signers.push(key);
            }
        }
        let (have, need) = (signers.len(), roots.threshold());
        if have < need {
            return not_trusted(format!(
                "{have} signature(s) by the roots {which}, {need} needed: have it signed with \
                 `ruvllm-pack keyring sign`"
            ));
        }
        Ok(())
    }
}

impl VerifiedKeyring {
    /// The contents.
    pub fn document(&self) -> &Keyring {
        &self.keyring
    }

    /// SHA-256 of the document's bytes.
    pub fn digest(&self) -> Sha256Hex {
        self.digest
    }
}

fn read(path: &Path, max: usize) -> Result<Vec<u8>, PackError> {
    let io = |e| PackError::io("read", path, e);
    let mut bytes = Vec::new();
    // One byte more than the cap, so that the parser sees that there are too many.
    File::open(path).map_err(io)?.take(max as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}
