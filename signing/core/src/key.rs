//! Ed25519 public keys and signatures (RFC 8032) and their text forms.
//!
//! Verification is strict: small-order keys and points, and encodings that another spelling of the
//! same point would share, are refused, so that one signature speaks for one key and one message.

use crate::PackError;
use crate::secret::{is_secret, read_key_file};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::VerifyingKey;
use ruvllm_manifest::escape_untrusted;
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

const PREFIX: &str = "ed25519:";
/// The extension of files that hold a public key, as `ruvllm-pack keygen` writes them.
pub const PUBLIC_KEY_EXTENSION: &str = "pub";

/// The longest text of a public key that is looked at, in bytes.
const MAX_TEXT: usize = 4096;

/// A public key that can be trusted to verify: it is on the curve, of large order, and in its one
/// canonical encoding. Written `ed25519:<base64>`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PublicKey(VerifyingKey);

/// SHA-256 of the 32 bytes of a public key, written as 64 hex digits. In an envelope it is a hint
/// which key to try; it proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId([u8; 32]);

/// A signature, written as base64.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature([u8; 64]);

impl PublicKey {
    /// Of a secret key, whose public half is never weak.
    pub(crate) fn of(key: VerifyingKey) -> PublicKey {
        PublicKey(key)
    }

    /// Takes the 32 bytes of RFC 8032.
    ///
    /// # Errors
    /// [`PackError::Key`] where they are no point of the curve, [`PackError::WeakKey`] where the
    /// point has small order or the encoding is not canonical.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<PublicKey, PackError> {
        let key = VerifyingKey::from_bytes(bytes).map_err(|_| not_a_key("a public key"))?;
        if key.is_weak() || !is_canonical(bytes) {
            return Err(PackError::WeakKey);
        }
        Ok(PublicKey(key))
    }

    /// Reads a PEM `PUBLIC KEY` (SubjectPublicKeyInfo, RFC 8410).
    ///
    /// # Errors
    /// As for [`PublicKey::from_bytes`].
    pub fn from_pem(pem: &str) -> Result<PublicKey, PackError> {
        PublicKey::from_bytes(&crate::pem::public_key(pem)?)
    }

    /// Reads any text form: `ed25519:<base64>`, a PEM `PUBLIC KEY`, or a line of OpenSSH
    /// (`ssh-ed25519 AAAA... comment`).
    ///
    /// # Errors
    /// As for [`PublicKey::from_bytes`].
    pub fn from_text(text: &str) -> Result<PublicKey, PackError> {
        let text = text.trim();
        if text.len() > MAX_TEXT {
            return Err(not_a_key("a public key: the text is too long"));
        }
        if text.starts_with("-----BEGIN") {
            return PublicKey::from_pem(text);
        }
        if text.starts_with("ssh-") || text.starts_with("ecdsa-") || text.starts_with("sk-") {
            return PublicKey::from_bytes(&crate::openssh::public_key(text)?);
        }
        text.parse()
    }

    /// Reads the file of a public key, in any form that [`PublicKey::from_text`] reads.
    ///
    /// # Errors
    /// [`PackError::Io`]; [`PackError::WeakKey`]; [`PackError::Key`], also where the file holds a secret
    /// key, of which the message tells nothing.
    pub fn read_file(path: &Path) -> Result<PublicKey, PackError> {
        let bytes = read_key_file(path)?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        let key = PublicKey::from_text(text);
        if key.is_err() && is_secret(&bytes) {
            let file = escape_untrusted(&path.to_string_lossy());
            let beside = path.with_extension(PUBLIC_KEY_EXTENSION);
            let instead = if beside.is_file() {
                format!("give {} instead", escape_untrusted(&beside.to_string_lossy()))
            } else {
                format!("give what `ruvllm-pack pubkey {file}` prints")
            };
            let message =
                format!("{file} holds a secret key, which is for signing alone: {instead}");
            return Err(PackError::Key { message });
        }
        key
    }

    /// Writes a PEM `PUBLIC KEY`.
    ///
    /// # Errors
    /// [`PackError::Key`] should the encoder fail.
    pub fn to_pem(&self) -> Result<String, PackError> {
        crate::pem::write_public_key(self.as_bytes())
    }

    /// The 32 bytes of RFC 8032.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// The key's id.
    pub fn key_id(&self) -> KeyId {
        KeyId(Sha256::digest(self.as_bytes()).into())
    }

    /// Whether the signature is this key's over exactly these bytes.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        self.0.verify_strict(message, &signature).is_ok()
    }
}

/// Whether the y coordinate is below the field's prime 2^255 - 19.
fn is_canonical(bytes: &[u8; 32]) -> bool {
    let all_ones = bytes[31] & 0x7f == 0x7f && bytes[1..31].iter().all(|&b| b == 0xff);
    !(all_ones && bytes[0] >= 0xed)
}

pub(crate) fn not_a_key(wanted: &str) -> PackError {
    PackError::Key { message: format!("this is not {wanted}; `ruvllm-pack keygen` writes one") }
}

impl FromStr for PublicKey {
    type Err = PackError;

    /// Parses `ed25519:<base64>`.
    fn from_str(s: &str) -> Result<PublicKey, PackError> {
        const WANTED: &str = "a public key of the form ed25519:<base64 of 32 bytes>";
        let base64 = s.strip_prefix(PREFIX).ok_or_else(|| not_a_key(WANTED))?;
        let bytes = decode::<32>(base64).ok_or_else(|| not_a_key(WANTED))?;
        PublicKey::from_bytes(&bytes)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Strict base64: one spelling for each value.
pub(crate) fn decode<const N: usize>(base64: &str) -> Option<[u8; N]> {
    // The length first, so that a long text is not decoded to be thrown away.
    if base64.len() != N.div_ceil(3) * 4 {
        return None;
    }
    STANDARD.decode(base64).ok()?.try_into().ok()
}

impl KeyId {
    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for KeyId {
    type Err = PackError;

    fn from_str(s: &str) -> Result<KeyId, PackError> {
        // A digest has one spelling; the manifest crate already knows it.
        let digest: ruvllm_manifest::Sha256Hex = format!("sha256:{s}").parse().map_err(|_| {
            PackError::Key { message: "write a key id as 64 lower-case hex digits".to_owned() }
        })?;
        Ok(KeyId(*digest.as_bytes()))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Signature {
    /// Wraps the 64 bytes of RFC 8032.
    pub const fn from_bytes(bytes: [u8; 64]) -> Signature {
        Signature(bytes)
    }

    /// The 64 bytes, as OpenSSL reads and writes them.
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// Parses base64.
    pub fn from_base64(text: &str) -> Option<Signature> {
        decode(text).map(Signature)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
