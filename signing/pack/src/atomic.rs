//! Replacing a file so that a reader sees the old bytes or the new ones, also after a crash.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::ToolError;

/// Writes a file by way of a temporary one beside it. An old file's permissions are kept.
///
/// # Errors
/// [`ToolError::Io`].
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), ToolError> {
    try_write(path, bytes).map_err(ToolError::io("write", path))
}

fn try_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link to the file stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = (|| {
        if let Ok(old) = fs::metadata(&path) {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    })();
    written.inspect_err(|_| {
        // Best effort; the error to report is the first.
        let _ = fs::remove_file(&temporary);
    })
}
