//! Files that the host keeps between runs: read whole under a cap, replaced whole, in directories
//! of this user alone.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

/// How the names of files begin that are being written. What a crash leaves of them, their writers remove.
pub(crate) const HALF_WRITTEN: &str = ".ruvllm-";

/// A file that one process at a time has locked. It stays when the lock goes.
pub(crate) struct Lock(File);

impl Lock {
    pub(crate) fn take(path: &Path) -> Result<Self, TryLockError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(TryLockError::Error)?;
        file.try_lock()?;
        Ok(Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough while a child process is being started, which has the file open until its
        // program begins. Where this fails, the lock goes then.
        let _ = self.0.unlock();
    }
}

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
    let mut file = tempfile::Builder::new().prefix(HALF_WRITTEN).tempfile_in(directory)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.persist(path)?;
    Ok(())
}

/// As [`replace`], of one that is still there after the power has failed.
#[cfg(feature = "supervisor")]
pub(crate) fn replace_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(HALF_WRITTEN).tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_names(directory)
}

/// Sees to it that the names in a directory are still there after the power has failed.
#[cfg(feature = "supervisor")]
pub(crate) fn sync_names(directory: &Path) -> io::Result<()> {
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = directory; // It cannot be opened there.
    Ok(())
}

/// Makes a directory of this user alone where it is missing.
///
/// # Errors
/// A sentence: why it is not to be used.
pub(crate) fn private_directory(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(|e| format!("cannot create {shown}: {e}"))?;
    let metadata =
        fs::symlink_metadata(directory).map_err(|e| format!("cannot look at {shown}: {e}"))?;
    if !metadata.is_dir() {
        return Err(format!("{shown} is not a directory (links are not followed)"));
    }
    owner_only(&metadata).map_err(|what| format!("{shown} {what}"))
}

/// Whether only this process's user can read and write there.
#[cfg(unix)]
pub(crate) fn owner_only(metadata: &fs::Metadata) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, me) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != me {
        return Err(format!("belongs to user {owner}, not to {me}: give another directory"));
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(format!("is open to others (mode {mode:o}): chmod go= it, or remove it"));
    }
    Ok(())
}

/// Elsewhere a user's own directories are closed to others by default.
#[cfg(not(unix))]
pub(crate) fn owner_only(_: &fs::Metadata) -> Result<(), String> {
    Ok(())
}
