//! In place of keys as OpenSSH writes them, in a build without the feature `openssh`.

use crate::PackError;
use ed25519_dalek::SigningKey;

pub(crate) fn public_key(_: &str) -> Result<[u8; 32], PackError> {
    Err(absent())
}

pub(crate) fn secret_key(_: &str) -> Result<SigningKey, PackError> {
    Err(absent())
}

fn absent() -> PackError {
    PackError::Key {
        message: "this program has no keys of OpenSSH, since it was built without the feature \
                  `openssh`: give the key in another form"
            .to_owned(),
    }
}
