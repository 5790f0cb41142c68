//! Keys as OpenSSH writes them.

use crate::PackError;
use crate::key::not_a_key;
use crate::secret::encrypted;
use ed25519_dalek::SigningKey;

/// The 32 bytes of a line `ssh-ed25519 AAAA...`.
pub(crate) fn public_key(text: &str) -> Result<[u8; 32], PackError> {
    let wanted = "an Ed25519 key of OpenSSH, `ssh-ed25519 AAAA...`";
    let key = ssh_key::PublicKey::from_openssh(text).map_err(|_| not_a_key(wanted))?;
    let key = key.key_data().ed25519().ok_or_else(|| not_a_key(wanted))?;
    Ok(key.0)
}

/// The key in an unencrypted file of `ssh-keygen -t ed25519`.
pub(crate) fn secret_key(text: &str) -> Result<SigningKey, PackError> {
    let wanted = "an OpenSSH private key of type ed25519";
    let key = ssh_key::PrivateKey::from_openssh(text).map_err(|_| not_a_key(wanted))?;
    if key.is_encrypted() {
        return Err(encrypted("cp KEY PLAIN && ssh-keygen -p -N \"\" -f PLAIN"));
    }
    // The library wipes its own copies when they are dropped.
    let pair = key.key_data().ed25519().ok_or_else(|| not_a_key(wanted))?;
    let key = SigningKey::from_bytes(pair.private.as_ref());
    if key.verifying_key().as_bytes() != &pair.public.0 {
        return Err(not_a_key("a whole OpenSSH key: its two halves do not belong together"));
    }
    Ok(key)
}
