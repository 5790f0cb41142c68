//! Whether a build is that of the sources that lie beside it.
//!
//! `build` writes `sources.sha256` into the pack crate, in the format that `sha256sum --check` reads: the
//! digest of the manifest that it made, and of every file that it was made from. A build that failed
//! writes nothing, so what lies in `dist/` then does not pass for it. Times are not looked at: a checkout
//! or a copy gives files any.
//!
//! Where the record is of another build than lies there, or there is none, nothing is known: so it is with
//! a pack that was built elsewhere and came with its sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use ruvllm_manifest::MANIFEST_FILE;
use ruvllm_signing::escape_untrusted;
use sha2::{Digest, Sha256};

use crate::build::DIST;
use crate::{ToolError, atomic};

/// The record's name in a pack crate.
const RECORD: &str = "sources.sha256";
/// What is read of a package besides what lies in [`DIRECTORIES`].
const FILES: [&str; 4] = [crate::spec::SPEC_FILE, "Cargo.toml", "Cargo.lock", "build.rs"];
/// Where the sources of a package lie.
const DIRECTORIES: [&str; 3] = ["src", "kernels", "include"];

/// The sources of a build as they were before it began: hexadecimal digests by path from the crate.
pub(crate) struct Sources(BTreeMap<String, String>);

impl Sources {
    /// Reads the sources of a pack crate and of the packages beside it that it is built from, all given
    /// by absolute paths.
    ///
    /// # Errors
    /// [`ToolError::Io`].
    pub(crate) fn read(directory: &Path, packages: &[PathBuf]) -> Result<Sources, ToolError> {
        let mut found = BTreeMap::new();
        let own = directory.to_owned();
        for package in packages.iter().chain([&own]) {
            let mut pending: Vec<PathBuf> = FILES.iter().map(|name| package.join(name)).collect();
            pending.extend(DIRECTORIES.iter().map(|name| package.join(name)));
            while let Some(path) = pending.pop() {
                // Not through links: they may lead around in a circle.
                if path.is_dir() && !path.is_symlink() {
                    let listed = fs::read_dir(&path).map_err(ToolError::io("list", &path))?;
                    pending.extend(listed.flatten().map(|entry| entry.path()));
                } else if let Some(name) = relative(directory, &path).filter(|_| path.is_file()) {
                    found.insert(name, digest(&path)?);
                }
            }
        }
        Ok(Sources(found))
    }

    /// Records that the pack in `dist/` was made from them.
    ///
    /// # Errors
    /// [`ToolError::Io`].
    pub(crate) fn record(mut self, directory: &Path) -> Result<(), ToolError> {
        self.0.insert(manifest_name(), digest(&directory.join(DIST).join(MANIFEST_FILE))?);
        self.write(directory)
    }

    fn write(&self, directory: &Path) -> Result<(), ToolError> {
        let lines = self.0.iter().map(|(path, digest)| format!("{digest}  {path}\n"));
        atomic::write(&directory.join(RECORD), lines.collect::<String>().as_bytes())
    }

    /// The record of a pack crate; `None` where there is none, or not one of this build.
    fn recorded(directory: &Path) -> Option<Sources> {
        let text = fs::read_to_string(directory.join(RECORD)).ok()?;
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        let mut all: BTreeMap<String, String> =
            lines.map(|(digest, path)| (path.to_owned(), digest.to_owned())).collect();
        let manifest = digest(&directory.join(DIST).join(MANIFEST_FILE)).ok()?;
        (all.remove(&manifest_name())? == manifest).then_some(Sources(all))
    }
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
    recorded.map_or(Ok(()), |sources| sources.record(directory))?;
    Ok(changed)
}

/// Refuses the build of a pack crate where its sources have changed since.
///
/// # Errors
/// [`ToolError::Stale`].
pub(crate) fn check(directory: &Path) -> Result<(), ToolError> {
    let Some(Sources(recorded)) = Sources::recorded(directory) else { return Ok(()) };
    let changed = recorded
        .into_iter()
        .filter(|(path, before)| digest(&directory.join(path)).ok().as_ref() != Some(before));
    let changed: Vec<String> = changed.map(|(path, _)| escape_untrusted(&path)).collect();
    if changed.is_empty() {
        return Ok(());
    }
    Err(ToolError::Stale { directory: directory.to_owned(), changed })
}

fn manifest_name() -> String {
    format!("{DIST}/{MANIFEST_FILE}")
}

fn digest(path: &Path) -> Result<String, ToolError> {
    let bytes = fs::read(path).map_err(ToolError::io("read", path))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The path to `to` from a directory, both absolute and without `..`, with `/` between its parts; `None`
/// where there is no such path that is UTF-8.
fn relative(from: &Path, to: &Path) -> Option<String> {
    let (from, to): (Vec<_>, Vec<_>) = (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    if common == 0 {
        return None;
    }
    let up = from[common..].iter().map(|_| "..");
    let down: Option<Vec<&str>> = to[common..]
        .iter()
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    Some(up.chain(down?).collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(directory: &Path, path: &str, text: &str) {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_build_is_stale_once_a_source_of_it_changes_and_only_then() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (pack, sdk) = (root.join("packs/mine"), root.join("sdk"));
        for (at, path) in [
            (&pack, "pack.toml"),
            (&pack, "kernels/k.rs"),
            (&pack, "src/deep/er.rs"),
            (&pack, "README.md"),
            (&pack, "dist/kernels.json"),
            (&sdk, "Cargo.toml"),
            (&sdk, "src/lib.rs"),
        ] {
            put(at, path, "first");
        }
        check(&pack).unwrap();
        let build = || {
            let sources = Sources::read(&pack, std::slice::from_ref(&sdk)).unwrap();
            sources.record(&pack).unwrap();
        };
        build();
        check(&pack).unwrap();
        put(&pack, "README.md", "second");
        check(&pack).unwrap();
        for (at, path, name) in [
            (&pack, "kernels/k.rs", "kernels/k.rs"),
            (&pack, "src/deep/er.rs", "src/deep/er.rs"),
            (&sdk, "src/lib.rs", "../../sdk/src/lib.rs"),
        ] {
            put(at, path, "second");
            let Err(ToolError::Stale { changed, .. }) = check(&pack) else { panic!("{path}") };
            assert_eq!(changed, [name]);
            put(at, path, "first");
            check(&pack).unwrap();
        }
        fs::remove_file(sdk.join("Cargo.toml")).unwrap();
        assert_eq!(check(&pack).unwrap_err().code(), "build_stale");
        // A record of another build says nothing of this one, and a new build makes a new one.
        put(&pack, "dist/kernels.json", "from elsewhere");
        check(&pack).unwrap();
        build();
        check(&pack).unwrap();
        // Figures that are put into the manifest change no source.
        keep_through(&pack, || {
            put(&pack, "dist/kernels.json", "with figures");
            Ok(())
        })
        .unwrap();
        put(&pack, "pack.toml", "second");
        assert_eq!(check(&pack).unwrap_err().code(), "build_stale");
    }
}
