//! Files that are there as a whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use crate::error::{EngineError, SealedError};

/// Writes a file that only its owner can read, in place of any that is there.
///
/// `write` fills a temporary file in the same directory, which takes the name once its bytes are on
/// the medium. Whoever reads meanwhile, or after a crash at any point, sees all of the old file or
/// all of the new one. On an error the old one is untouched and nothing of the new one stays.
///
/// # Errors
/// [`EngineError::Sealed`] with what `write` or the operating system said.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<(), SealedError>,
) -> Result<(), EngineError> {
    try_write(path, write).map_err(|source| EngineError::Sealed { path: path.to_owned(), source })
}

fn try_write(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<(), SealedError>,
) -> Result<(), SealedError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Owner-only from the moment it exists, and removed when it is dropped without a name.
    let temporary = tempfile::Builder::new()
        .prefix(".")
        .suffix(".tmp")
        .tempfile_in(directory)
        .map_err(SealedError::write)?;
    let mut file = BufWriter::new(temporary.as_file());
    write(&mut file)?;
    file.flush().map_err(SealedError::write)?;
    drop(file);
    temporary.as_file().sync_all().map_err(SealedError::write)?;
    temporary.persist(path).map_err(|e| SealedError::write(e.error))?;
    sync_directory(directory).map_err(SealedError::write)
}

/// Makes a rename in the directory durable.
#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Elsewhere a directory cannot be opened as a file, and the system orders renames itself.
#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, bytes: &[u8]) -> Result<(), EngineError> {
        write_atomically(path, |file| file.write_all(bytes).map_err(SealedError::write))
    }

    fn entries(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_is_replaced_and_only_its_owner_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        for bytes in [&b"old and long"[..], b"new"] {
            put(&path, bytes).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            assert_eq!(entries(dir.path()), 1);
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_failure_half_way_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        put(&path, b"old").unwrap();
        let error = write_atomically(&path, |file| {
            file.write_all(&[1; 100_000]).map_err(SealedError::write)?;
            Err(SealedError::write(io::ErrorKind::StorageFull.into()))
        })
        .unwrap_err();
        assert_eq!(error.code(), "storage_full");
        assert!(error.to_string().contains("state"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(dir.path()), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("file");
        std::fs::write(&blocked, b"").unwrap();
        for path in [dir.path().join("none/state"), blocked.join("state")] {
            let error = put(&path, b"x").unwrap_err();
            assert_eq!(error.code(), "storage_unwritable", "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
        assert_eq!(entries(dir.path()), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_closed_to_this_user_is_an_error() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let set = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.path(), permissions).unwrap();
        };
        set(0o500);
        // The superuser may write everywhere.
        let superuser = File::create(dir.path().join("probe")).is_ok();
        let result = put(&dir.path().join("state"), b"x");
        set(0o700);
        match result {
            Ok(()) => assert!(superuser),
            Err(error) => assert_eq!(error.code(), "storage_unwritable"),
        }
    }
}
