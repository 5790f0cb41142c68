//! What a build was made from: what compilers say that they have read, and the record that `build` leaves.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_signing::{SOURCES_FILE, Sources};

use crate::{ToolError, atomic};

/// Records in a pack crate that the pack in its `dist/` was made from these sources.
///
/// # Errors
/// [`ToolError::Pack`] and [`ToolError::Io`].
pub(crate) fn record(directory: &Path, sources: Sources) -> Result<(), ToolError> {
    atomic::write(&directory.join(SOURCES_FILE), sources.record(directory)?.as_bytes())
}

/// Changes the manifest of a build in place, and keeps the record of its sources.
///
/// # Errors
/// Those of `change`; [`ToolError::Io`].
pub(crate) fn keep_through<T>(
    directory: &Path,
    change: impl FnOnce() -> Result<T, ToolError>,
) -> Result<T, ToolError> {
    let recorded = Sources::recorded(directory);
    let changed = change()?;
    recorded.map_or(Ok(()), |sources| record(directory, sources))?;
    Ok(changed)
}

/// The files that a compiler's list of dependencies, a rule for `make`, says are read.
///
/// # Errors
/// [`ToolError::Io`].
pub(crate) fn dependencies(list: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let text = fs::read_to_string(list).map_err(ToolError::io("read", list))?;
    Ok(prerequisites(&text))
}

/// The prerequisites of the first rule of a makefile. A backslash keeps a space or a hash sign together with its
/// word, and goes on in the next line; elsewhere it is one, as in paths of Windows.
fn prerequisites(text: &str) -> Vec<PathBuf> {
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let rule = joined.lines().next().unwrap_or_default();
    // Behind the colon that a space follows: drives have one, too.
    let Some((_, rest)) = rule.split_once(": ") else { return Vec::new() };
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut rest = rest.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('\\', Some(&next @ (' ' | '#'))) | ('$', Some(&next @ '$')) => {
                word.push(next);
                rest.next();
            }
            (' ', _) => words.push(std::mem::take(&mut word)),
            _ => word.push(c),
        }
    }
    words.push(word);
    words.into_iter().filter(|word| !word.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compilers_have_read_is_taken_from_their_lists() {
        for (list, read) in [
            (
                "k.o: kernels/k.c \\\n  include/a\\ b.h ../c$$.h\n",
                &["kernels/k.c", "include/a b.h", "../c$.h"][..],
            ),
            ("/t/k.wasm: /p/src/k.rs /p/data/x\n\n/t/other: /p/y\n", &["/p/src/k.rs", "/p/data/x"]),
            ("C:\\t\\k.wasm: C:\\p\\k.rs D:\\a\\ b\n", &["C:\\p\\k.rs", "D:\\a b"]),
            ("k.o:\n", &[]),
        ] {
            let read: Vec<PathBuf> = read.iter().map(PathBuf::from).collect();
            assert_eq!(prerequisites(list), read, "{list}");
        }
    }
}
