//! Opening files that an attacker may have prepared, and writing files that survive a crash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// Why a file of a pack was not read.
pub(crate) enum Unreadable {
    Symlink,
    /// A directory, device, FIFO or socket where a file was expected.
    Special,
    /// Another file took its place while it was being opened.
    Changed,
    TooLarge,
    Io(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(e: io::Error) -> Self {
        Unreadable::Io(e)
    }
}

/// Reads a regular file of at most `max` bytes without following a symlink in its last component
/// and without ever waiting for another process, as opening a FIFO would.
pub(crate) fn read_regular(path: &Path, max: u64) -> Result<Vec<u8>, Unreadable> {
    let before = fs::symlink_metadata(path)?;
    if before.is_symlink() {
        return Err(Unreadable::Symlink);
    }
    if !before.is_file() {
        return Err(Unreadable::Special);
    }
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC,
    );
    let file = options.open(path).map_err(|e| {
        #[cfg(unix)]
        if e.raw_os_error() == Some(libc::ELOOP) {
            return Unreadable::Symlink;
        }
        Unreadable::Io(e)
    })?;
    let opened = file.metadata()?;
    if !opened.is_file() {
        return Err(Unreadable::Special);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if (before.dev(), before.ino()) != (opened.dev(), opened.ino()) {
            return Err(Unreadable::Changed);
        }
    }
    if opened.len() > max {
        return Err(Unreadable::TooLarge);
    }
    // The length is only a guess at the room; what is read decides, and it is bounded.
    let mut bytes = Vec::with_capacity(usize::try_from(opened.len()).unwrap_or(0));
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(Unreadable::TooLarge);
    }
    Ok(bytes)
}

/// How others could change what lies in a directory, if they could: by writing to it, or by moving it or a
/// directory above it away, which a sticky bit keeps them from. Elsewhere than on unix systems a user's own
/// directories are closed to others by default, and nothing is looked at.
#[cfg(unix)]
pub(crate) fn open_to_others(directory: &Path) -> io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    const STICKY: u32 = 0o1000;
    for (above, at) in fs::canonicalize(directory)?.ancestors().enumerate() {
        let mode = fs::metadata(at)?.mode();
        let open = if above == 0 { mode & 0o022 != 0 } else { mode & (0o002 | STICKY) == 0o002 };
        if open {
            let (at, mode) = (at.display(), mode & 0o7777);
            return Ok(Some(format!("others can write to {at} (mode {mode:o}): chmod go-w {at}")));
        }
    }
    Ok(None)
}

#[cfg(not(unix))]
pub(crate) fn open_to_others(_: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

/// Opens a regular file that the caller named, through symlinks if need be, and never waits for
/// another process.
///
/// # Errors
/// Those of the operating system, and [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        libc::O_NONBLOCK | libc::O_CLOEXEC,
    );
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Replaces a file so that after a crash at any point it holds either the old or the new bytes.
///
/// Callers hold a lock: `temporary` is the same for all of them.
pub(crate) fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    // The rename itself is durable once the directory is.
    #[cfg(unix)]
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
