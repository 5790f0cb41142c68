//! What can go wrong with sealed files.

use std::io;

/// Why state was not sealed or not opened; [`EngineError::Sealed`](super::EngineError::Sealed) adds the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedError {
    /// The program has no cipher.
    #[error(
        "this program neither saves nor opens state, since it was built without the feature `encryption`"
    )]
    Disabled,
    /// The file is something else.
    #[error("this is no saved state; check the path")]
    NotSealed,
    /// The file has a version of the format that this program does not know.
    #[error(
        "saved state in version {found} of the format, but this program reads version {known}; use the program that wrote it, or delete it and compute the prompt again"
    )]
    Version {
        /// The version of the file.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// Not even the header opens.
    #[error(
        "the saved state does not open: it was sealed with another key, or for another purpose, or it is damaged; give the key that it was saved with, or delete it and compute the prompt again"
    )]
    Key,
    /// The header opens, so the key is right, but what follows does not.
    #[error("the saved state is damaged; delete it and compute the prompt again")]
    Damaged,
    /// The file ends before its contents do.
    #[error(
        "the saved state is truncated; copy the file again, or delete it and compute the prompt again"
    )]
    Truncated,
    /// A chunk has more bytes than the format allows.
    #[error(
        "a chunk of {bytes} bytes was to be sealed, but a chunk holds at most {most}; divide it"
    )]
    ChunkTooLarge {
        /// Its bytes.
        bytes: usize,
        /// Bytes that the format allows.
        most: usize,
    },
    /// More chunks than a stream can number.
    #[error("the state to be sealed has too many chunks; use larger ones")]
    TooManyChunks,
    /// The operating system gave no randomness.
    #[error("the operating system gave no randomness for a salt: {source}")]
    Entropy {
        /// What the system said.
        source: getrandom::Error,
    },
    /// There is no room on the medium, or no more for this user.
    #[error(
        "the disk is full or this user's quota is used up: {source}; free some space or choose another directory"
    )]
    StorageFull {
        /// What the system said.
        source: io::Error,
    },
    /// The operating system refused to write.
    #[error("cannot be written: {source}; choose a directory that this user can write to")]
    Write {
        /// What the system said.
        source: io::Error,
    },
    /// The operating system refused to read.
    #[error("cannot be read: {source}")]
    Read {
        /// What the system said.
        source: io::Error,
    },
}

impl SealedError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            SealedError::Disabled => "sealed_disabled",
            SealedError::NotSealed => "not_sealed",
            SealedError::Version { .. } => "sealed_version",
            SealedError::Key => "sealed_key",
            SealedError::Damaged => "sealed_damaged",
            SealedError::Truncated => "sealed_truncated",
            SealedError::ChunkTooLarge { .. } => "sealed_chunk_too_large",
            SealedError::TooManyChunks => "sealed_too_many_chunks",
            SealedError::Entropy { .. } => "entropy",
            SealedError::StorageFull { .. } => "storage_full",
            SealedError::Write { .. } => "storage_unwritable",
            SealedError::Read { .. } => "io",
        }
    }

    /// What the system said about writing.
    pub(crate) fn write(source: io::Error) -> SealedError {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                SealedError::StorageFull { source }
            }
            _ => SealedError::Write { source },
        }
    }

    /// What the system said about reading; the end of the file is an answer, too.
    pub(crate) fn read(source: io::Error) -> SealedError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => SealedError::Truncated,
            _ => SealedError::Read { source },
        }
    }
}
