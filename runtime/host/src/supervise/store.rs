//! The bytes of staged packs, so that a restart can bring back what was active.
//!
//! A directory of this user alone; each pack is an archive named by its digest. Lying there proves
//! nothing: a pack is verified anew when it is loaded.

use crate::files;
use ruvllm_signing::{ARCHIVE_EXTENSION, PackError, PackLimits, UnverifiedPack};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// A directory of packs.
pub(crate) struct PackStore {
    directory: PathBuf,
}

impl PackStore {
    /// The store in a directory, which is made where it is missing.
    ///
    /// # Errors
    /// A sentence: why this directory is not used.
    pub(crate) fn open(directory: PathBuf) -> Result<Self, String> {
        files::private_directory(&directory)?;
        Ok(Self { directory })
    }

    /// Keeps a pack, durably.
    ///
    /// # Errors
    /// [`PackError`].
    pub(crate) fn put(&self, digest: &str, pack: &UnverifiedPack) -> Result<(), PackError> {
        let path = self.path(digest);
        let mut archive = Vec::new();
        pack.write_archive(&mut archive)?;
        let io = |e| PackError::Io { action: "write", path: path.clone(), source: e };
        files::replace_durably(&path, &archive).map_err(io)
    }

    /// A pack that is kept; `None` where there is none of that digest.
    ///
    /// # Errors
    /// [`PackError`].
    pub(crate) fn get(&self, digest: &str) -> Result<Option<UnverifiedPack>, PackError> {
        let path = self.path(digest);
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => UnverifiedPack::read(&path, &PackLimits::default()).map(Some),
        }
    }

    /// Lets go of every pack but these, by digest, and of what a crash has left half-written.
    pub(crate) fn retain(&self, digests: &BTreeSet<String>) {
        let wanted: BTreeSet<PathBuf> = digests.iter().map(|digest| self.path(digest)).collect();
        let Ok(listed) = fs::read_dir(&self.directory) else { return };
        for path in listed.flatten().map(|entry| entry.path()) {
            if !wanted.contains(&path) {
                // One that stays costs its room and nothing else.
                let _ = fs::remove_file(path);
            }
        }
    }

    fn path(&self, digest: &str) -> PathBuf {
        let hex = digest.trim_start_matches("sha256:");
        self.directory.join(hex).with_extension(ARCHIVE_EXTENSION)
    }
}
