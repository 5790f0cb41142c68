//! A pack as one file, `.rkp`: a plain tar of its files in order of path, and nothing else.
//!
//! Invariants: one pack gives one sequence of bytes, so that two archives can be compared and their
//! hashes published; reading stops at the first thing that is not as this module writes it; it
//! streams, and holds no more than [`PackLimits`] allow whatever a header claims; there is no
//! compression, so an archive never grows when it is read. What comes out is an [`UnverifiedPack`]
//! like that of a directory, under the same rules for paths and sizes.

use crate::pack::{Collector, PackLimits, UnverifiedPack};
use crate::ustar::{self, BLOCK, BadHeader};
use crate::{MANIFEST_FILE, PackError, Violation, files, sources};
use std::borrow::Cow;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

/// The extension of archives.
pub const ARCHIVE_EXTENSION: &str = "rkp";

/// Room that is set aside before a file's contents have arrived: a header may claim anything.
const FIRST_ROOM: usize = 64 * 1024;

/// The file that makes a directory a pack crate, from which `ruvllm-pack build` makes a pack.
pub const CRATE_FILE: &str = "pack.toml";
/// Where `ruvllm-pack build` puts the pack in its crate.
pub const DIST: &str = "dist";

/// Where the pack lies in a directory that somebody named: there, or in `dist/` where that is what
/// `ruvllm-pack build` has made of a pack crate.
pub fn pack_directory(named: &Path) -> Cow<'_, Path> {
    let has = |directory: &Path, name: &str| fs::symlink_metadata(directory.join(name)).is_ok();
    let dist = named.join(DIST);
    let is_crate =
        !has(named, MANIFEST_FILE) && has(named, CRATE_FILE) && has(&dist, MANIFEST_FILE);
    if is_crate { dist.into() } else { named.into() }
}

impl UnverifiedPack {
    /// Reads a pack: from a directory, from `dist/` of a pack crate, or from an archive.
    ///
    /// # Errors
    /// As for [`UnverifiedPack::read_dir`] and [`UnverifiedPack::read_archive`];
    /// [`PackError::NotAPack`] where a directory has no manifest; [`PackError::Stale`] where the sources of a
    /// pack crate have changed since it was built, [`PackError::Unrecorded`] where nothing says what they
    /// were and nobody has signed the build.
    pub fn read(path: &Path, limits: &PackLimits) -> Result<UnverifiedPack, PackError> {
        let io = |e| PackError::io("read", path, e);
        if fs::metadata(path).map_err(io)?.is_dir() {
            let directory = pack_directory(path);
            // Somebody who names a crate means what its sources say.
            if *directory != *path {
                sources::check(path)?;
            }
            if fs::symlink_metadata(directory.join(MANIFEST_FILE)).is_err() {
                let message = if path.join(CRATE_FILE).is_file() {
                    "is a pack crate that has not been built: run `ruvllm-pack build` there"
                } else {
                    "is no pack, there is no kernels.json in it: name the directory that \
                     `ruvllm-pack build` has made"
                };
                return Err(PackError::NotAPack { path: path.to_owned(), message });
            }
            return UnverifiedPack::read_dir(&directory, limits);
        }
        let file = files::open_regular(path).map_err(io)?;
        read(io::BufReader::new(file), limits, path)
    }

    /// Reads an archive.
    ///
    /// # Errors
    /// [`PackError::Rejected`] with `archive_header`, `archive_entry_kind`, `archive_order`,
    /// `archive_padding`, `archive_truncated` or `archive_trailing` where it is not an archive as
    /// [`UnverifiedPack::write_archive`] writes it, or with what [`UnverifiedPack::read_dir`]
    /// refuses; [`PackError::NotAPack`] where it is a file of another kind; [`PackError::Io`].
    pub fn read_archive(
        reader: impl Read,
        limits: &PackLimits,
    ) -> Result<UnverifiedPack, PackError> {
        read(reader, limits, Path::new("the archive"))
    }

    /// Writes the pack as an archive. The same pack gives the same bytes.
    ///
    /// # Errors
    /// [`PackError::Rejected`] where a path is too long for an archive; [`PackError::Io`].
    pub fn write_archive(&self, mut writer: impl Write) -> Result<(), PackError> {
        let io = |e| PackError::io("write", Path::new("the archive"), e);
        for (path, bytes) in self.files() {
            let header = ustar::header(path, bytes.len() as u64).ok_or_else(|| {
                let what = "the path has no place in a ustar header; shorten it";
                PackError::Rejected(vec![Violation::new("archive_path", path, what)])
            })?;
            let padding = [0; BLOCK];
            writer.write_all(&header).map_err(io)?;
            writer.write_all(bytes).map_err(io)?;
            writer.write_all(&padding[..padding_of(bytes.len())]).map_err(io)?;
        }
        writer.write_all(&[0; 2 * BLOCK]).map_err(io)?;
        writer.flush().map_err(io)
    }

    /// Writes the pack as a directory, which must not exist. Where that fails nothing is left.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn write_dir(&self, directory: &Path) -> Result<(), PackError> {
        fs::create_dir(directory).map_err(|e| PackError::io("create", directory, e))?;
        let write = || {
            for (path, bytes) in self.files() {
                // The paths of a pack stay below its directory; their type says so.
                let path = directory.join(path);
                let io = |e| PackError::io("write", &path, e);
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(io)?;
                }
                fs::write(&path, bytes).map_err(io)?;
            }
            Ok(())
        };
        write().inspect_err(|_| {
            // Best effort; the error to report is the first.
            let _ = fs::remove_dir_all(directory);
        })
    }
}

fn padding_of(length: usize) -> usize {
    length.next_multiple_of(BLOCK) - length
}

fn read(
    mut reader: impl Read,
    limits: &PackLimits,
    path: &Path,
) -> Result<UnverifiedPack, PackError> {
    let io = |e| PackError::io("read", path, e);
    let mut start = Vec::with_capacity(BLOCK);
    reader.by_ref().take(BLOCK as u64).read_to_end(&mut start).map_err(io)?;
    if ustar::is_foreign(&start) {
        let message = "is not a pack archive: `ruvllm-pack archive` makes one of a pack";
        return Err(PackError::NotAPack { path: path.to_owned(), message });
    }
    let mut reader = start.as_slice().chain(reader);
    let mut collector = Collector::new(limits);
    let mut last = String::new();
    loop {
        let mut block = [0; BLOCK];
        if !fill(&mut reader, &mut block).map_err(io)? {
            return collector.stop("archive_truncated", "", "it ends before its end; get it again");
        }
        if block == [0; BLOCK] {
            break;
        }
        let at = format!("after `{last}`");
        let entry = match ustar::parse(&block) {
            Ok(entry) => entry,
            Err(BadHeader::Form(what)) => return collector.stop("archive_header", &at, what),
            Err(BadHeader::Kind(kind)) => {
                let what = format!("{kind}; an archive of a pack holds files alone");
                return collector.stop("archive_entry_kind", &at, &what);
            }
            Err(BadHeader::Path) => {
                return collector.stop("path_not_utf8", &at, "the name is not UTF-8");
            }
        };
        if !collector.admit_entry() {
            return collector.finish();
        }
        // A path that is refused has no place in the order; nothing after it matters.
        let Some(pack_path) = collector.path(&entry.path) else { return collector.finish() };
        if entry.path < last {
            let what = "the files are not in order of path; use `ruvllm-pack archive`";
            return collector.stop("archive_order", &entry.path, what);
        }
        let max = collector.cap_of(&pack_path);
        if entry.size > max {
            collector.too_large(&entry.path, max);
            return collector.finish();
        }
        if !collector.has_room(entry.size) {
            return collector.finish();
        }
        // At most the cap, which a caller chose; and the room grows with what has arrived.
        let size =
            usize::try_from(entry.size).map_err(|_| io(io::ErrorKind::OutOfMemory.into()))?;
        let mut bytes = Vec::with_capacity(size.min(FIRST_ROOM));
        reader.by_ref().take(entry.size).read_to_end(&mut bytes).map_err(io)?;
        let mut padding = [0; BLOCK];
        let padding = &mut padding[..padding_of(size)];
        if bytes.len() < size || !fill(&mut reader, padding).map_err(io)? {
            let what = "the archive ends within the file; get it again";
            return collector.stop("archive_truncated", &entry.path, what);
        }
        if padding.iter().any(|&b| b != 0) {
            let what = "the padding after the file is not zero";
            return collector.stop("archive_padding", &entry.path, what);
        }
        collector.add(pack_path, Cow::Owned(bytes));
        last = entry.path;
    }
    let mut end = [0; BLOCK];
    if !fill(&mut reader, &mut end).map_err(io)? {
        return collector.stop("archive_truncated", "", "it ends before its end; get it again");
    }
    if end != [0; BLOCK] || reader.read(&mut [0]).map_err(io)? != 0 {
        let what = "there are bytes after the archive's end; use `ruvllm-pack archive`";
        return collector.stop("archive_trailing", "", what);
    }
    collector.finish()
}

/// Fills the buffer; false where the bytes end before.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
