//! Files that the host keeps between runs: read whole under a cap, replaced whole.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Reads a regular file of at most `max` bytes.
pub(crate) fn read_small(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // Anything else than a file could keep its reader waiting.
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

/// Puts a file of these parts in place of any that is there. Whoever reads meanwhile sees all of
/// the old one or all of the new one.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".").tempfile_in(directory)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.persist(path)?;
    Ok(())
}
