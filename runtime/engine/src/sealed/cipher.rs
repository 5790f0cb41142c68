//! The cipher of sealed files, under a key of the file's own.

use aead_stream::{EncryptorBE32, NewStream as _, StreamBE32, StreamPrimitive as _};
use chacha20poly1305::ChaCha20Poly1305;
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::format::{MAGIC, SALT_BYTES, VERSION};
use crate::error::SealedError;

/// Seals the chunks of one file, in order.
pub(super) struct Sealer(EncryptorBE32<ChaCha20Poly1305>);

impl Sealer {
    pub(super) fn new(
        key: &[u8; 32],
        salt: &[u8; SALT_BYTES],
        purpose: &str,
    ) -> Result<Self, SealedError> {
        Ok(Self(stream(key, salt, purpose)?.encryptor()))
    }

    /// Encrypts a chunk in place and appends its tag.
    pub(super) fn seal(&mut self, chunk: &mut Vec<u8>) -> Result<(), SealedError> {
        self.0.encrypt_next_in_place(&[], chunk).map_err(|_| SealedError::TooManyChunks)
    }

    /// As [`Sealer::seal`], for the chunk that ends the stream.
    pub(super) fn seal_last(self, chunk: &mut Vec<u8>) -> Result<(), SealedError> {
        self.0.encrypt_last_in_place(&[], chunk).map_err(|_| SealedError::TooManyChunks)
    }
}

/// Opens the chunks of one file, in any order.
pub(super) struct Opener(StreamBE32<ChaCha20Poly1305>);

impl Opener {
    pub(super) fn new(
        key: &[u8; 32],
        salt: &[u8; SALT_BYTES],
        purpose: &str,
    ) -> Result<Self, SealedError> {
        stream(key, salt, purpose).map(Self)
    }

    /// Decrypts in place the chunk that is number `at` of its file, and the last or not, and drops its tag.
    pub(super) fn open(&self, at: u32, last: bool, chunk: &mut Vec<u8>) -> Result<(), SealedError> {
        self.0.decrypt_in_place(at, last, &[], chunk).map_err(|_| SealedError::Damaged)
    }
}

/// The stream of one file.
fn stream(
    key: &[u8; 32],
    salt: &[u8; SALT_BYTES],
    purpose: &str,
) -> Result<StreamBE32<ChaCha20Poly1305>, SealedError> {
    let mut file_key = Zeroizing::new([0; 32]);
    // The two fields before the purpose have fixed lengths, so nothing runs together.
    let info = [&MAGIC[..], &VERSION.to_le_bytes(), purpose.as_bytes()];
    Hkdf::<Sha256>::new(Some(salt), key)
        .expand_multi_info(&info, file_key.as_mut_slice())
        // Only for more than 8160 bytes.
        .map_err(|_| SealedError::Key)?;
    let file_key: &[u8; 32] = &file_key;
    // The key is this file's alone, so its nonces need nothing of their own.
    Ok(StreamBE32::new(file_key.into(), &Default::default()))
}
