//! Keys as PEM: SubjectPublicKeyInfo and PKCS#8 (RFC 8410).

use crate::PackError;
use crate::key::not_a_key;
use crate::secret::encrypted;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey};
use ed25519_dalek::pkcs8::{KeypairBytes, PublicKeyBytes};
use zeroize::{Zeroize, Zeroizing};

/// The 32 bytes of a `PUBLIC KEY`.
pub(crate) fn public_key(pem: &str) -> Result<[u8; 32], PackError> {
    let bytes = PublicKeyBytes::from_public_key_pem(pem)
        .map_err(|_| not_a_key("a PEM with an Ed25519 PUBLIC KEY"))?;
    Ok(bytes.0)
}

pub(crate) fn write_public_key(bytes: &[u8; 32]) -> Result<String, PackError> {
    PublicKeyBytes(*bytes)
        .to_public_key_pem(LineEnding::LF)
        .map_err(|e| PackError::Key { message: format!("cannot write the public key: {e}") })
}

/// The key in an unencrypted `PRIVATE KEY`.
pub(crate) fn secret_key(pem: &str) -> Result<SigningKey, PackError> {
    if pem.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") {
        return Err(encrypted("openssl pkey -in KEY -out PLAIN"));
    }
    let wanted = "an unencrypted PKCS#8 PEM with an Ed25519 PRIVATE KEY";
    let mut pair = KeypairBytes::from_pkcs8_pem(pem).map_err(|_| not_a_key(wanted))?;
    let key = SigningKey::try_from(&pair).map_err(|_| not_a_key(wanted));
    pair.secret_key.zeroize();
    key
}

pub(crate) fn write_secret_key(key: &SigningKey) -> Result<Zeroizing<String>, PackError> {
    let mut pair = KeypairBytes { secret_key: key.to_bytes(), public_key: None };
    let pem = pair.to_pkcs8_pem(LineEnding::LF);
    pair.secret_key.zeroize();
    pem.map_err(|_| PackError::Key { message: "cannot write the secret key".to_owned() })
}
