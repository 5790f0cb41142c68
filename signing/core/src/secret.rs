//! Ed25519 secret keys: making, reading, writing, signing.
//!
//! Invariants: a secret is never printed, not by `Debug` and not by an error; every buffer of this
//! crate that held one is wiped; a key file that others can read is refused, since such a key is no
//! longer a secret. What this does not protect against: swap, core dumps, and who can read this
//! process's memory.

use crate::key::{decode, not_a_key};
use crate::{PackError, PublicKey, Signature};
use ed25519_dalek::{Signer, SigningKey};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use zeroize::Zeroizing;

/// A key file is a few hundred bytes.
const MAX_KEY_FILE: u64 = 16 * 1024;

/// A secret key. Never printed, wiped from memory when dropped.
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Makes a key from the operating system's randomness.
    ///
    /// # Errors
    /// [`PackError::Entropy`] where there is none.
    pub fn generate() -> Result<SecretKey, PackError> {
        let mut seed = Zeroizing::new([0u8; 32]);
        getrandom::fill(seed.as_mut_slice())
            .map_err(|e| PackError::Entropy { message: e.to_string() })?;
        Ok(SecretKey(SigningKey::from_bytes(&seed)))
    }

    /// Reads a key in any form that is known: an unencrypted PKCS#8 PEM, an unencrypted OpenSSH
    /// private key, the 32 raw bytes of RFC 8032, or those as hex or base64.
    ///
    /// # Errors
    /// [`PackError::Key`], with what to do where the key is encrypted; the message holds nothing of
    /// the bytes.
    pub fn parse(bytes: &[u8]) -> Result<SecretKey, PackError> {
        if let Ok(seed) = <&[u8; 32]>::try_from(bytes) {
            return Ok(SecretKey(SigningKey::from_bytes(seed)));
        }
        let wanted = "an Ed25519 secret key: a PKCS#8 PEM, an OpenSSH private key, or 32 bytes, \
                      raw or as hex or base64";
        let text = std::str::from_utf8(bytes).map_err(|_| not_a_key(wanted))?.trim();
        if text.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----") {
            return SecretKey::from_openssh(text);
        }
        if text.starts_with("-----BEGIN") {
            return SecretKey::from_pem(text);
        }
        let seed = if text.len() == 64 { from_hex(text) } else { decode::<32>(text) };
        let seed = Zeroizing::new(seed.ok_or_else(|| not_a_key(wanted))?);
        Ok(SecretKey(SigningKey::from_bytes(&seed)))
    }

    /// Reads an unencrypted PKCS#8 PEM, as `ruvllm-pack keygen` and
    /// `openssl genpkey -algorithm ed25519` write it.
    ///
    /// # Errors
    /// As for [`SecretKey::parse`].
    pub fn from_pem(pem: &str) -> Result<SecretKey, PackError> {
        crate::pem::secret_key(pem).map(SecretKey)
    }

    /// Reads an unencrypted OpenSSH private key, as `ssh-keygen -t ed25519 -N ""` writes it.
    ///
    /// # Errors
    /// As for [`SecretKey::parse`].
    pub fn from_openssh(text: &str) -> Result<SecretKey, PackError> {
        crate::openssh::secret_key(text).map(SecretKey)
    }

    /// The key as PKCS#8 PEM, version 1 so that every OpenSSL reads it.
    ///
    /// # Errors
    /// [`PackError::Key`] should the encoder fail.
    pub fn to_pem(&self) -> Result<Zeroizing<String>, PackError> {
        crate::pem::write_secret_key(&self.0)
    }

    /// Reads a key file, see [`SecretKey::parse`].
    ///
    /// # Errors
    /// [`PackError::Io`], [`PackError::KeyExposed`] where others than the owner may read or write
    /// the file, or [`PackError::Key`].
    pub fn read_file(path: &Path) -> Result<SecretKey, PackError> {
        SecretKey::parse(&read_secret_file(path)?)
    }

    /// Writes the key to a new file that only its owner can read.
    ///
    /// # Errors
    /// [`PackError::Io`], also where the file is already there: keys are never overwritten.
    pub fn write_new_file(&self, path: &Path) -> Result<(), PackError> {
        let pem = self.to_pem()?;
        let io = |e| PackError::io("create", path, e);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(io)?;
        file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()).map_err(io)
    }

    /// The public key of this secret key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey::of(self.0.verifying_key())
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature::from_bytes(self.0.sign(message).to_bytes())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public_key())
    }
}

/// Reads the file of a secret of any kind: at most its first 16 KiB, which are more than any has.
///
/// # Errors
/// [`PackError::Io`], and [`PackError::KeyExposed`] where others than the owner may read or write the
/// file.
pub fn read_secret_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, PackError> {
    let io = |e| PackError::io("read", path, e);
    let file = File::open(path).map_err(io)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(PackError::KeyExposed { path: path.to_owned(), mode });
        }
    }
    read_all(file).map_err(io)
}

/// As [`read_secret_file`], of a file that need not be a secret.
pub(crate) fn read_key_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, PackError> {
    File::open(path).and_then(read_all).map_err(|e| PackError::io("read", path, e))
}

fn read_all(file: File) -> std::io::Result<Zeroizing<Vec<u8>>> {
    // All of the room at once: growing would leave copies behind that are not wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_KEY_FILE as usize + 1));
    file.take(MAX_KEY_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether bytes are a secret key, or say that they are one, of a kind that is not read here.
pub(crate) fn is_secret(bytes: &[u8]) -> bool {
    const MARK: &[u8] = b"PRIVATE KEY-----";
    SecretKey::parse(bytes).is_ok() || bytes.windows(MARK.len()).any(|part| part == MARK)
}

#[cfg(any(feature = "openssh", feature = "pem"))]
pub(crate) fn encrypted(command: &str) -> PackError {
    PackError::Key {
        message: format!(
            "the secret key is encrypted and passphrases are not asked for: decrypt a copy on a \
             disk that is safe for it (`{command}`), sign with the copy, then delete it"
        ),
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        // Two digits of base 16 fit.
        *byte = (high? << 4 | low?) as u8;
    }
    Some(bytes)
}
