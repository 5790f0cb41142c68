//! Reading a pack once, under caps, into owned bytes.
//!
//! Nothing here believes anything: names, kinds and sizes are checked, contents are not. Links are
//! not followed and special files are not opened. A hard link is a file like any other, since only
//! its bytes count. A directory that changes while it is read can only give other bytes, which
//! then fail verification.

use crate::files::{self, Unreadable};
use crate::{MANIFEST_FILE, MAX_ENVELOPE_BYTES, PackError, SIGNATURE_FILE, Violation};
use ruvllm_manifest::{
    InvalidPath, MAX_FILE_BYTES, MAX_GRAPH_FILE_BYTES, MAX_KERNELS, MAX_MANIFEST_BYTES, PackPath,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Caps on what is read of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Files and directories together.
    pub max_entries: usize,
    /// Length in bytes of a file other than manifest and signatures.
    pub max_file_bytes: u64,
    /// Length in bytes of all files together.
    pub max_total_bytes: u64,
}

impl Default for PackLimits {
    /// Room for the largest manifest of small modules: 256 kernels, 16 MiB a file, 64 MiB in all.
    fn default() -> Self {
        Self {
            max_entries: 4 * MAX_KERNELS,
            max_file_bytes: MAX_FILE_BYTES,
            max_total_bytes: 64 << 20,
        }
    }
}

impl PackLimits {
    /// Room for packs that hold graphs with their weights: 512 MiB a file, 1 GiB in all.
    pub fn with_graphs() -> Self {
        Self {
            max_file_bytes: MAX_GRAPH_FILE_BYTES,
            max_total_bytes: 2 * MAX_GRAPH_FILE_BYTES,
            ..Self::default()
        }
    }
}

/// The bytes of a pack of which nothing is known yet.
#[derive(Clone)]
pub struct UnverifiedPack {
    pub(crate) files: BTreeMap<PackPath, Cow<'static, [u8]>>,
}

impl UnverifiedPack {
    /// Reads a pack directory.
    ///
    /// The directory itself may be reached by a symlink, since the caller named it; nothing inside
    /// may be one.
    ///
    /// # Errors
    /// [`PackError::Rejected`] with everything that is wrong, [`PackError::Io`] where the system
    /// refuses a file or a directory.
    pub fn read_dir(directory: &Path, limits: &PackLimits) -> Result<UnverifiedPack, PackError> {
        let mut collector = Collector::new(limits);
        let mut pending = vec![(directory.to_owned(), String::new())];
        while let Some((path, prefix)) = pending.pop() {
            let listed = list(&path, limits.max_entries.saturating_sub(collector.entries))?;
            for entry in listed {
                if !collector.admit_entry() {
                    return collector.finish();
                }
                let Some(name) = entry.file_name().and_then(|name| name.to_str()) else {
                    let shown = entry.to_string_lossy().into_owned();
                    let what = "the name is not UTF-8; remove the file";
                    collector.refuse("path_not_utf8", &shown, what);
                    continue;
                };
                let name = format!("{prefix}{name}");
                let Some(pack_path) = collector.path(&name) else { continue };
                let io = |e| PackError::io("read", &entry, e);
                if fs::symlink_metadata(&entry).map_err(io)?.is_dir() {
                    pending.push((entry, name + "/"));
                    continue;
                }
                let max = collector.cap_of(&pack_path);
                match files::read_regular(&entry, max) {
                    Ok(bytes) => collector.add(pack_path, Cow::Owned(bytes)),
                    Err(Unreadable::Io(e)) => return Err(PackError::io("read", &entry, e)),
                    Err(Unreadable::Symlink) => {
                        let what = "a pack holds no symlinks; put the file itself there";
                        collector.refuse("symlink", &name, what);
                    }
                    Err(Unreadable::Special) => {
                        let what = "neither a regular file nor a directory; remove it";
                        collector.refuse("special_file", &name, what);
                    }
                    Err(Unreadable::Changed) => {
                        let what =
                            "replaced while it was read; read a directory that nobody writes";
                        collector.refuse("file_changed", &name, what);
                    }
                    Err(Unreadable::TooLarge) => collector.too_large(&name, max),
                }
                if collector.is_full() {
                    return collector.finish();
                }
            }
        }
        collector.finish()
    }

    /// Takes a pack from memory, such as one that is embedded in a program.
    ///
    /// # Errors
    /// [`PackError::Rejected`] with everything that is wrong.
    pub fn from_files(
        files: impl IntoIterator<Item = (String, Cow<'static, [u8]>)>,
        limits: &PackLimits,
    ) -> Result<UnverifiedPack, PackError> {
        let mut collector = Collector::new(limits);
        for (name, bytes) in files {
            if !collector.admit_entry() {
                break;
            }
            let Some(path) = collector.path(&name) else { continue };
            let max = collector.cap_of(&path);
            if bytes.len() as u64 > max {
                collector.too_large(&name, max);
            } else {
                collector.add(path, bytes);
            }
            if collector.is_full() {
                break;
            }
        }
        collector.finish()
    }

    /// Every file by its path, for inspection. Nothing about them has been verified.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_ref()))
    }

    /// One file by its path. Nothing about it has been verified.
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        let path: PackPath = path.parse().ok()?;
        self.files.get(&path).map(AsRef::as_ref)
    }
}

impl fmt::Debug for UnverifiedPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.files().map(|(path, bytes)| (path, bytes.len()))).finish()
    }
}

/// The entries of a directory in order of name. One more than `max` is enough to know that there
/// are too many.
fn list(directory: &Path, max: usize) -> Result<Vec<PathBuf>, PackError> {
    let io = |e| PackError::io("list", directory, e);
    let entries: Result<Vec<PathBuf>, _> = fs::read_dir(directory)
        .map_err(io)?
        .take(max.saturating_add(1))
        .map(|entry| entry.map(|e| e.path()).map_err(io))
        .collect();
    let mut entries = entries?;
    entries.sort();
    Ok(entries)
}

/// Files that passed, violations of those that did not.
pub(crate) struct Collector<'l> {
    limits: &'l PackLimits,
    files: BTreeMap<PackPath, Cow<'static, [u8]>>,
    by_folded: HashMap<String, PackPath>,
    entries: usize,
    total: u64,
    violations: Vec<Violation>,
}

impl<'l> Collector<'l> {
    pub(crate) fn new(limits: &'l PackLimits) -> Self {
        Self {
            limits,
            files: BTreeMap::new(),
            by_folded: HashMap::new(),
            entries: 0,
            total: 0,
            violations: Vec::new(),
        }
    }

    fn refuse(&mut self, code: &'static str, path: &str, what: &str) {
        // A path is at most a few hundred bytes on disk, but a caller may pass anything.
        let shown: String = path.chars().take(256).collect();
        self.violations.push(Violation::new(code, shown, what));
    }

    /// Counts a file or directory; false where there are too many.
    pub(crate) fn admit_entry(&mut self) -> bool {
        self.entries += 1;
        let ok = self.entries <= self.limits.max_entries;
        if !ok {
            let what = format!("more than {} files; split the pack", self.limits.max_entries);
            self.refuse("pack_too_many_files", "", &what);
        }
        ok
    }

    pub(crate) fn path(&mut self, name: &str) -> Option<PackPath> {
        match name.parse() {
            Ok(path) => Some(path),
            Err(e) => {
                let code = match e {
                    InvalidPath::Escapes => "path_escapes",
                    InvalidPath::Form => "path_invalid",
                };
                self.refuse(code, name, &format!("{e}; rename or remove the file"));
                None
            }
        }
    }

    pub(crate) fn cap_of(&self, path: &PackPath) -> u64 {
        match path.as_str() {
            MANIFEST_FILE => MAX_MANIFEST_BYTES as u64,
            SIGNATURE_FILE => MAX_ENVELOPE_BYTES as u64,
            _ => self.limits.max_file_bytes,
        }
    }

    pub(crate) fn too_large(&mut self, name: &str, max: u64) {
        let what = format!("more than {max} bytes; make it smaller");
        self.refuse("file_too_large", name, &what);
    }

    pub(crate) fn add(&mut self, path: PackPath, bytes: Cow<'static, [u8]>) {
        if let Some(other) = self.by_folded.get(&path.folded()) {
            let what = format!("the same as `{other}` where case is ignored; rename one");
            self.refuse("path_case_duplicate", path.as_str(), &what);
            return;
        }
        self.total += bytes.len() as u64;
        if self.total > self.limits.max_total_bytes {
            self.pack_too_large();
            return;
        }
        self.by_folded.insert(path.folded(), path.clone());
        self.files.insert(path, bytes);
    }

    /// Whether so many bytes more stay within the cap of the whole pack; says so where they do not.
    pub(crate) fn has_room(&mut self, size: u64) -> bool {
        let ok = self.total.saturating_add(size) <= self.limits.max_total_bytes;
        if !ok {
            self.pack_too_large();
        }
        ok
    }

    fn pack_too_large(&mut self) {
        let what =
            format!("more than {} bytes in all; split the pack", self.limits.max_total_bytes);
        self.refuse("pack_too_large", "", &what);
    }

    /// Ends with one more violation.
    pub(crate) fn stop(
        mut self,
        code: &'static str,
        path: &str,
        what: &str,
    ) -> Result<UnverifiedPack, PackError> {
        self.refuse(code, path, what);
        self.finish()
    }

    fn is_full(&self) -> bool {
        self.total > self.limits.max_total_bytes
    }

    pub(crate) fn finish(self) -> Result<UnverifiedPack, PackError> {
        if self.violations.is_empty() {
            Ok(UnverifiedPack { files: self.files })
        } else {
            Err(PackError::Rejected(self.violations))
        }
    }
}
