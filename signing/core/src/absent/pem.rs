//! In place of keys as PEM, in a build without the feature `pem`.

use crate::PackError;
use ed25519_dalek::SigningKey;
use zeroize::Zeroizing;

pub(crate) fn public_key(_: &str) -> Result<[u8; 32], PackError> {
    Err(absent("give the key as `ed25519:` and base64"))
}

pub(crate) fn write_public_key(_: &[u8; 32]) -> Result<String, PackError> {
    Err(absent("write the key as `ed25519:` and base64"))
}

pub(crate) fn secret_key(_: &str) -> Result<SigningKey, PackError> {
    Err(absent("give the 32 bytes of the key, raw or as hex or base64"))
}

pub(crate) fn write_secret_key(_: &SigningKey) -> Result<Zeroizing<String>, PackError> {
    Err(absent("turn it on"))
}

fn absent(instead: &str) -> PackError {
    PackError::Key {
        message: format!(
            "this program has no keys as PEM, since it was built without the feature `pem`: {instead}"
        ),
    }
}
