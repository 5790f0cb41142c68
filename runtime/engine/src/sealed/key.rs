//! The key that saved state is sealed with: making, reading, never printing.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::error::EngineError;

const KEY_BYTES: usize = 32;
/// A key file has 64 digits and perhaps a newline.
const MAX_KEY_FILE: u64 = 1024;

/// A secret of 32 bytes that seals and opens saved state. Never printed, wiped from memory when
/// dropped.
///
/// ```
/// use ruvllm_engine::SessionKey;
///
/// # fn main() -> Result<(), ruvllm_engine::EngineError> {
/// let key = SessionKey::generate()?;
/// assert_eq!(key.to_hex().len(), 64);
/// # Ok(())
/// # }
/// ```
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct SessionKey([u8; KEY_BYTES]);

impl SessionKey {
    /// Makes a key from the operating system's randomness.
    ///
    /// # Errors
    /// [`EngineError::Entropy`] where there is none.
    pub fn generate() -> Result<SessionKey, EngineError> {
        let mut key = SessionKey([0; KEY_BYTES]);
        getrandom::fill(&mut key.0).map_err(|source| EngineError::Entropy { source })?;
        Ok(key)
    }

    /// The key of these bytes, which must be random: they are not stretched as a password would
    /// have to be.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> SessionKey {
        SessionKey(*bytes)
    }

    /// Reads a key file: 64 hexadecimal digits, or 32 raw bytes. `openssl rand -hex 32` makes one;
    /// only its owner may be able to read it.
    ///
    /// # Errors
    /// [`EngineError::FileNotFound`] and [`EngineError::Io`]; [`EngineError::KeyExposed`] where
    /// others than the owner may read or write the file; [`EngineError::KeyInvalid`], which holds
    /// nothing of the file's contents.
    pub fn from_file(path: &Path) -> Result<SessionKey, EngineError> {
        let io = |e| EngineError::io(path, e);
        let file = File::open(path).map_err(io)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(EngineError::KeyExposed { path: path.to_owned(), mode });
            }
        }
        // All of the room at once: growing would leave copies behind that are not wiped.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_KEY_FILE as usize + 1));
        file.take(MAX_KEY_FILE).read_to_end(&mut bytes).map_err(io)?;
        if let Ok(raw) = <&[u8; KEY_BYTES]>::try_from(bytes.as_slice()) {
            return Ok(SessionKey(*raw));
        }
        SessionKey::from_hex(bytes.trim_ascii())
            .ok_or_else(|| EngineError::KeyInvalid { path: path.to_owned() })
    }

    /// The key as 64 hexadecimal digits, for a file that only its owner can read.
    pub fn to_hex(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES));
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        text.extend(digits.filter_map(|digit| char::from_digit(digit.into(), 16)));
        text
    }

    fn from_hex(text: &[u8]) -> Option<SessionKey> {
        if text.len() != 2 * KEY_BYTES {
            return None;
        }
        let mut key = SessionKey([0; KEY_BYTES]);
        for (byte, pair) in key.0.iter_mut().zip(text.chunks_exact(2)) {
            let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
            // Two digits of base 16 fit.
            *byte = (high? << 4 | low?) as u8;
        }
        Some(key)
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file in `dir` with these contents that only its owner can read.
    fn file(dir: &Path, contents: &[u8]) -> PathBuf {
        let path = dir.join("session.key");
        std::fs::write(&path, contents).unwrap();
        #[cfg(unix)]
        chmod(&path, 0o600);
        path
    }

    #[cfg(unix)]
    fn chmod(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_key_is_read_from_digits_and_from_raw_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let key = SessionKey::generate().unwrap();
        let digits = key.to_hex();
        assert_eq!(digits.len(), 64);
        let spellings: [Vec<u8>; 4] = [
            digits.as_bytes().to_vec(),
            format!("{}\n", *digits).into_bytes(),
            digits.to_uppercase().into_bytes(),
            key.bytes().to_vec(),
        ];
        for contents in spellings {
            let read = SessionKey::from_file(&file(dir.path(), &contents)).unwrap();
            assert_eq!(read.bytes(), key.bytes());
        }
        assert_ne!(SessionKey::generate().unwrap().bytes(), key.bytes());
    }

    #[test]
    fn what_is_no_key_is_refused_without_repeating_it() {
        let dir = tempfile::tempdir().unwrap();
        let digits = "0123456789abcdef".repeat(4);
        let wrong = [
            String::new(),
            digits[..63].to_owned(),
            format!("{digits}0"),
            digits.replace('f', "g"),
            "+1".repeat(32),
            digits.repeat(1000),
        ];
        for contents in wrong {
            let error = SessionKey::from_file(&file(dir.path(), contents.as_bytes())).unwrap_err();
            assert_eq!(error.code(), "key_invalid", "{contents:.80}");
            assert!(!error.to_string().contains("0123456789"), "{error}");
        }
        let error = SessionKey::from_file(&dir.path().join("none")).unwrap_err();
        assert_eq!(error.code(), "file_not_found");
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), &[7; 32]);
        for mode in [0o640, 0o604, 0o620, 0o666] {
            chmod(&path, mode);
            let error = SessionKey::from_file(&path).unwrap_err();
            assert_eq!(error.code(), "key_exposed", "{mode:o}");
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        chmod(&path, 0o400);
        SessionKey::from_file(&path).unwrap();
    }

    #[test]
    fn a_key_is_never_printed() {
        let shown = format!("{:?}", SessionKey::from_bytes(&[0xab; 32]));
        assert_eq!(shown, "SessionKey { .. }");
    }
}
