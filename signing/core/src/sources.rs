//! Whether a build is that of the sources that lie beside it.
//!
//! `build` writes `sources.sha256` into the pack crate, in the format that `sha256sum --check` reads: the
//! digest of the manifest that it made, and of every file that it was made from: those in the places where
//! sources lie, and whatever else the compiler says that it has read. A file that is added in such a place
//! later is a change, too. A build that failed writes nothing, so what lies in `dist/` then does not pass for
//! it. Times are not looked at: a checkout or a copy gives files any.
//!
//! Where the record is of another build than lies there, or there is none, nothing is known. That is refused,
//! unless somebody has signed the pack: one may come with its sources and without a record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::archive::{CRATE_FILE, DIST};
use crate::files::open_regular;
use crate::{MANIFEST_FILE, PackError, SIGNATURE_FILE, escape_untrusted};

/// The record's name in a pack crate.
pub const SOURCES_FILE: &str = "sources.sha256";
/// What is read of a package besides what lies in [`DIRECTORIES`].
const FILES: [&str; 4] = [CRATE_FILE, "Cargo.toml", "Cargo.lock", "build.rs"];
/// Where the sources of a package lie.
const DIRECTORIES: [&str; 3] = ["src", "kernels", "include"];

/// The sources of a build: hexadecimal digests by path from the crate.
pub struct Sources(BTreeMap<String, String>);

impl Sources {
    /// Reads the sources of a pack crate and of the packages beside it that it is built from, all given
    /// by absolute paths.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn read(directory: &Path, packages: &[PathBuf]) -> Result<Sources, PackError> {
        let mut sources = Sources(BTreeMap::new());
        for (name, path) in places(directory, packages)? {
            sources.0.insert(name, digest(&path)?);
        }
        Ok(sources)
    }

    /// Adds what the compiler has read besides, but for what lies in `made`, where compilers leave files.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn add(
        &mut self,
        directory: &Path,
        read: &[PathBuf],
        made: &Path,
    ) -> Result<(), PackError> {
        let made = fs::canonicalize(made).map_err(|e| PackError::io("open", made, e))?;
        for path in read {
            let path = directory.join(path);
            let path = fs::canonicalize(&path).map_err(|e| PackError::io("open", &path, e))?;
            let name = relative(directory, &path).filter(|name| !self.0.contains_key(name));
            if let Some(name) = name.filter(|_| path.is_file() && !path.starts_with(&made)) {
                self.0.insert(name, digest(&path)?);
            }
        }
        Ok(())
    }

    /// What the record of them says, to be written to [`SOURCES_FILE`] of the crate whose `dist/` was made
    /// from them.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn record(mut self, directory: &Path) -> Result<String, PackError> {
        self.0.insert(manifest_name(), digest(&directory.join(DIST).join(MANIFEST_FILE))?);
        Ok(self.0.iter().map(|(path, digest)| format!("{digest}  {path}\n")).collect())
    }

    /// The record of a pack crate; `None` where there is none, or not one of this build.
    pub fn recorded(directory: &Path) -> Option<Sources> {
        let text = fs::read_to_string(directory.join(SOURCES_FILE)).ok()?;
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        let mut all: BTreeMap<String, String> =
            lines.map(|(digest, path)| (path.to_owned(), digest.to_owned())).collect();
        let manifest = digest(&directory.join(DIST).join(MANIFEST_FILE)).ok()?;
        (all.remove(&manifest_name())? == manifest).then_some(Sources(all))
    }
}

/// Refuses the build of a pack crate where its sources have changed since, or nothing says what they were
/// and nobody has signed it.
///
/// # Errors
/// [`PackError::Stale`], [`PackError::Unrecorded`] and [`PackError::Io`].
pub(crate) fn check(given: &Path) -> Result<(), PackError> {
    // As the record was made: paths lead from where the crate lies, not from a link to it.
    let directory = fs::canonicalize(given).map_err(|e| PackError::io("open", given, e))?;
    let dist = directory.join(DIST);
    let Some(Sources(recorded)) = Sources::recorded(&directory) else {
        if dist.join(SIGNATURE_FILE).is_file() {
            return Ok(());
        }
        return Err(PackError::Unrecorded { directory: given.to_owned() });
    };
    let packages = recorded.keys().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let packages: Vec<PathBuf> =
        packages.filter_map(|path| fs::canonicalize(directory.join(path)).ok()).collect();
    let mut changed: BTreeSet<String> = places(&directory, &packages)?
        .into_keys()
        .filter(|path| !recorded.contains_key(path))
        .collect();
    let differs = |(path, before): &(String, String)| {
        digest(&directory.join(path)).ok().as_ref() != Some(before)
    };
    changed.extend(recorded.into_iter().filter(differs).map(|(path, _)| path));
    if changed.is_empty() {
        return Ok(());
    }
    let changed = changed.iter().map(|path| escape_untrusted(path)).collect();
    Err(PackError::Stale { directory: given.to_owned(), changed })
}

/// The files in the places where the sources of a pack crate and of packages beside it lie, by their paths
/// from the crate. All are given by absolute paths.
fn places(directory: &Path, packages: &[PathBuf]) -> Result<BTreeMap<String, PathBuf>, PackError> {
    let mut found = BTreeMap::new();
    for package in packages.iter().map(PathBuf::as_path).chain([directory]) {
        let mut pending: Vec<PathBuf> =
            FILES.iter().chain(&DIRECTORIES).map(|name| package.join(name)).collect();
        while let Some(path) = pending.pop() {
            // Not through links: they may lead around in a circle.
            if path.is_dir() && !path.is_symlink() {
                let listed = fs::read_dir(&path).map_err(|e| PackError::io("list", &path, e))?;
                pending.extend(listed.flatten().map(|entry| entry.path()));
            } else if let Some(name) = relative(directory, &path).filter(|_| path.is_file()) {
                found.insert(name, path);
            }
        }
    }
    Ok(found)
}

fn manifest_name() -> String {
    format!("{DIST}/{MANIFEST_FILE}")
}

fn digest(path: &Path) -> Result<String, PackError> {
    // A record may name anything.
    let mut bytes = Vec::new();
    open_regular(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|e| PackError::io("read", path, e))?;
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
            (&pack, "target/made.rs"),
            (&root, "table"),
            (&pack, "dist/kernels.json"),
            (&sdk, "Cargo.toml"),
            (&sdk, "src/lib.rs"),
        ] {
            put(at, path, "first");
        }
        let unrecorded = || check(&pack).unwrap_err().code() == "build_unrecorded";
        assert!(unrecorded());
        let build = || {
            let mut sources = Sources::read(&pack, std::slice::from_ref(&sdk)).unwrap();
            let read = ["kernels/k.rs", "../../table", "target/made.rs"].map(PathBuf::from);
            sources.add(&pack, &read, &pack.join("target")).unwrap();
            fs::write(pack.join(SOURCES_FILE), sources.record(&pack).unwrap()).unwrap();
        };
        build();
        check(&pack).unwrap();
        put(&pack, "README.md", "second");
        put(&pack, "target/made.rs", "second");
        check(&pack).unwrap();
        for (at, path, name) in [
            (&pack, "kernels/k.rs", "kernels/k.rs"),
            (&pack, "src/deep/er.rs", "src/deep/er.rs"),
            (&sdk, "src/lib.rs", "../../sdk/src/lib.rs"),
            (&root, "table", "../../table"),
        ] {
            put(at, path, "second");
            let Err(PackError::Stale { changed, .. }) = check(&pack) else { panic!("{path}") };
            assert_eq!(changed, [name]);
            put(at, path, "first");
            check(&pack).unwrap();
        }
        for (at, path, name) in
            [(&pack, "build.rs", "build.rs"), (&sdk, "src/new.rs", "../../sdk/src/new.rs")]
        {
            put(at, path, "added");
            let Err(PackError::Stale { changed, .. }) = check(&pack) else { panic!("{path}") };
            assert_eq!(changed, [name]);
            fs::remove_file(at.join(path)).unwrap();
            check(&pack).unwrap();
        }
        fs::remove_file(sdk.join("Cargo.toml")).unwrap();
        assert_eq!(check(&pack).unwrap_err().code(), "build_stale");
        // A record of another build says nothing of this one, and a new build makes a new one.
        put(&pack, "dist/kernels.json", "from elsewhere");
        assert!(unrecorded());
        // One that somebody signed came with its sources.
        put(&pack, "dist/kernels.json.sig", "signed");
        check(&pack).unwrap();
        fs::remove_file(pack.join("dist/kernels.json.sig")).unwrap();
        put(&sdk, "Cargo.toml", "first");
        build();
        check(&pack).unwrap();
        put(&pack, "pack.toml", "second");
        assert_eq!(check(&pack).unwrap_err().code(), "build_stale");
    }
}
