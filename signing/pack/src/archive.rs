//! `archive`: a pack as one file, and back.

use std::fmt;
use std::path::{Path, PathBuf};

use ruvllm_manifest::{MANIFEST_FILE, Sha256Hex};
use ruvllm_signing::{ARCHIVE_EXTENSION, UnverifiedPack, escape_untrusted};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{Report, ToolError, atomic, trial};

/// An archive that was written or unpacked. Nothing was verified.
#[derive(Clone, Debug, Serialize)]
pub struct ArchiveReport {
    /// What was written.
    pub output: PathBuf,
    /// How many files the pack has.
    pub files: usize,
    /// SHA-256 of the manifest, which names the pack.
    pub digest: Option<String>,
    /// Length of the archive in bytes, where one was written.
    pub bytes: Option<usize>,
}

impl Report for ArchiveReport {}

impl fmt::Display for ArchiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let output = escape_untrusted(&self.output.to_string_lossy());
        match self.bytes {
            Some(bytes) => writeln!(f, "wrote {output}, {} file(s), {bytes} bytes", self.files)?,
            None => writeln!(f, "unpacked {} file(s) to {output}", self.files)?,
        }
        self.digest.iter().try_for_each(|digest| writeln!(f, "digest {digest}"))
    }
}

/// Writes a pack as an archive. The same pack gives the same bytes. Without an output, the file goes
/// beside the pack and is named after it.
///
/// # Errors
/// [`ToolError::Pack`] or [`ToolError::Io`].
pub fn pack(input: &Path, output: Option<&Path>) -> Result<ArchiveReport, ToolError> {
    let (pack, digest) = read(input)?;
    let output = match output {
        Some(output) => output.to_owned(),
        None => {
            let full = std::fs::canonicalize(input).map_err(ToolError::io("read", input))?;
            full.with_extension(ARCHIVE_EXTENSION)
        }
    };
    let mut bytes = Vec::new();
    pack.write_archive(&mut bytes)?;
    atomic::write(&output, &bytes)?;
    let files = pack.files().count();
    Ok(ArchiveReport { output, files, digest, bytes: Some(bytes.len()) })
}

/// Writes a pack as a directory, which must not exist.
///
/// # Errors
/// [`ToolError::Pack`].
pub fn extract(input: &Path, directory: &Path) -> Result<ArchiveReport, ToolError> {
    let (pack, digest) = read(input)?;
    pack.write_dir(directory)?;
    let files = pack.files().count();
    Ok(ArchiveReport { output: directory.to_owned(), files, digest, bytes: None })
}

fn read(input: &Path) -> Result<(UnverifiedPack, Option<String>), ToolError> {
    let pack = trial::read(input)?;
    let digest = pack
        .file(MANIFEST_FILE)
        .map(|bytes| Sha256Hex::from_bytes(Sha256::digest(bytes).into()).to_string());
    Ok((pack, digest))
}
