//! Machine code kept between runs, so that a kernel is compiled and proved once a machine.
//!
//! An entry says: under this id, which stands for the module, its manifest entry, the engine, its
//! settings and the processor, this host compiled this code, and it passed admission. Loading an
//! entry executes it, so none is believed for lying in the right place. Every entry carries a MAC
//! (keyed BLAKE3) under a random key that only the owner of the directory can read, over its id
//! and its code; it is checked over the buffer that is loaded afterwards. Entries that are missing,
//! damaged, foreign or stale are compiled anew and replaced; nothing here is ever fatal.
//!
//! A directory that belongs to somebody else, or that others can write or read, is not used at
//! all. What this does not protect against: whoever can act as the same user.

use super::executor::{Artifact, OWN_PAGES};
use crate::files;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The first bytes of an entry; the number is the format's.
const MAGIC: [u8; 8] = *b"RVAOT002";
/// The first bytes of another file of the directory.
const SEAL: [u8; 8] = *b"RVSEAL01";
const MAC_BYTES: usize = 32;
const KEY_BYTES: usize = 32;
const KEY_FILE: &str = "host.key";
const SUFFIX: &str = "aot";
/// Bytes of the own pages of a kernel: their number, then two bytes each, then zeros.
const PAGES_BYTES: usize = 1 + 2 * OWN_PAGES;
/// Magic, MAC, id, flags, own pages.
const HEADER: usize = 8 + MAC_BYTES + 32 + 1 + PAGES_BYTES;
/// An entry with more than this is not read: the gate lets no module through that makes as much.
const MAX_ENTRY: u64 = 64 << 20;
/// Bytes of all entries together above which the oldest go.
const MAX_TOTAL: u64 = 512 << 20;

/// Stands for everything that an entry must agree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId([u8; 32]);

/// Gathers what an entry must agree with. Every field is preceded by its length, so that no two
/// lists of fields run together to the same bytes.
pub(crate) struct EntryIdBuilder(blake3::Hasher);

impl EntryIdBuilder {
    pub(crate) fn new() -> Self {
        Self(blake3::Hasher::new())
    }

    pub(crate) fn field(mut self, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.0.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        self
    }

    /// A number, of 64 bits.
    pub(crate) fn number(self, n: impl Into<u64>) -> Self {
        self.field(n.into().to_le_bytes())
    }

    pub(crate) fn finish(self) -> EntryId {
        EntryId(self.0.finalize().into())
    }
}

/// What the cache holds of a kernel.
pub(crate) struct CachedCode {
    pub(crate) artifact: Artifact,
    /// Whether its numbers were held against an oracle when it was admitted.
    pub(crate) verified: bool,
    /// See [`crate::instance::InstanceTemplate`]; at most [`OWN_PAGES`].
    pub(crate) own_pages: Vec<u16>,
}

/// A directory of entries, and the key that they are authenticated with.
#[derive(Clone)]
pub(crate) struct AotCache {
    directory: PathBuf,
    key: [u8; KEY_BYTES],
}

impl AotCache {
    /// Opens the cache in a directory, which is made, owner-only, where it is missing.
    ///
    /// # Errors
    /// A sentence: why this directory is not used.
    pub(crate) fn open(directory: &Path) -> Result<Self, String> {
        files::private_directory(directory)?;
        let key = host_key(directory)?;
        Ok(Self { directory: directory.to_owned(), key })
    }

    /// The entry of that id, if it is there and is this host's own.
    pub(crate) fn get(&self, id: &EntryId) -> Option<CachedCode> {
        let mut bytes = files::read_small(&self.path(id), MAX_ENTRY).ok()?;
        let (header, code) = bytes.split_at_checked(HEADER)?;
        let (magic, rest) = header.split_at_checked(MAGIC.len())?;
        let (mac, rest) = rest.split_at_checked(MAC_BYTES)?;
        let (named, facts) = rest.split_at_checked(id.0.len())?;
        if magic != MAGIC || named != id.0 {
            return None;
        }
        let given = blake3::Hash::from_slice(mac).ok()?;
        // Compared in constant time by the type.
        if self.mac(id, facts, code) != given {
            return None;
        }
        let (&flags, pages) = facts.split_first()?;
        let (&count, pages) = pages.split_first()?;
        let own_pages = pages.chunks_exact(2).take(count.into());
        let own_pages = own_pages.map(|page| u16::from_le_bytes([page[0], page[1]])).collect();
        let verified = flags == 1;
        Some(CachedCode { artifact: Artifact(bytes.split_off(HEADER)), verified, own_pages })
    }

    /// Keeps what was compiled and admitted. Whoever reads meanwhile sees all of it or nothing.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn put(&self, id: &EntryId, entry: &CachedCode) -> io::Result<()> {
        let mut facts = [0; 1 + PAGES_BYTES];
        let count = entry.own_pages.len().min(OWN_PAGES);
        facts[..2].copy_from_slice(&[entry.verified.into(), count as u8]);
        for (place, page) in facts[2..].chunks_exact_mut(2).zip(&entry.own_pages) {
            place.copy_from_slice(&page.to_le_bytes());
        }
        let code = &entry.artifact.0;
        let mac = self.mac(id, &facts, code);
        files::replace(&self.path(id), &[&MAGIC, mac.as_bytes(), &id.0, &facts, code])
    }

    /// Takes an entry out that turned out to be of no use.
    pub(crate) fn forget(&self, id: &EntryId) {
        // It may be gone already, and one that stays is replaced when the kernel is compiled.
        let _ = fs::remove_file(self.path(id));
    }

    /// Lets the oldest entries go where there are too many bytes of them.
    pub(crate) fn trim(&self) {
        let Ok(listed) = fs::read_dir(&self.directory) else { return };
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = listed
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == SUFFIX))
            .filter_map(|path| {
                let metadata = fs::symlink_metadata(&path).ok()?;
                Some((metadata.modified().ok()?, metadata.len(), path))
            })
            .collect();
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in entries {
            if total <= MAX_TOTAL {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }

    /// What [`AotCache::write_sealed`] wrote under a name; `None` where there is no such file.
    ///
    /// # Errors
    /// A sentence: why the file is not used. It is longer than `max` bytes, or not what this host wrote.
    pub(crate) fn read_sealed(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, String> {
        let path = self.directory.join(name);
        let mut bytes = match files::read_small(&path, max) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(|error| error.to_string())?,
        };
        let parts = bytes.split_at_checked(SEAL.len() + MAC_BYTES);
        let Some((head, contents)) = parts.filter(|(head, _)| head.starts_with(&SEAL)) else {
            return Err("it is cut short or of another version".to_owned());
        };
        let given = blake3::Hash::from_slice(&head[SEAL.len()..]);
        // Compared in constant time by the type.
        if given.ok() != Some(self.seal(name, contents)) {
            return Err("it is damaged, or another host wrote it".to_owned());
        }
        Ok(Some(bytes.split_off(SEAL.len() + MAC_BYTES)))
    }

    /// Puts a file in place of any of its name, under a MAC of name and contents. Whoever reads meanwhile sees all
    /// of the old one or all of the new one.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write_sealed(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let mac = self.seal(name, contents);
        files::replace(&self.directory.join(name), &[&SEAL, mac.as_bytes(), contents])
    }

    /// Locks a file of the directory; `None` where another process has.
    pub(crate) fn lock(&self, name: &str) -> Option<files::Lock> {
        files::Lock::take(&self.directory.join(name)).ok()
    }

    fn seal(&self, name: &str, contents: &[u8]) -> blake3::Hash {
        let mut mac = blake3::Hasher::new_keyed(&self.key);
        mac.update(&SEAL).update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        mac.update(contents).finalize()
    }

    fn mac(&self, id: &EntryId, facts: &[u8], code: &[u8]) -> blake3::Hash {
        // Id and facts have fixed lengths, so code follows without one.
        let mut mac = blake3::Hasher::new_keyed(&self.key);
        mac.update(&MAGIC).update(&id.0).update(facts).update(code).finalize()
    }

    fn path(&self, id: &EntryId) -> PathBuf {
        self.directory.join(blake3::Hash::from_bytes(id.0).to_hex().as_str()).with_extension(SUFFIX)
    }
}

/// The key of the directory, made from the system's randomness where there is none yet.
fn host_key(directory: &Path) -> Result<[u8; KEY_BYTES], String> {
    let path = directory.join(KEY_FILE);
    let failed = |what: &str, e: io::Error| format!("cannot {what} {}: {e}", path.display());
    for _ in 0..4 {
        match fs::symlink_metadata(&path) {
            Ok(metadata) => {
                files::owner_only(&metadata)
                    .map_err(|what| format!("{} {what}", path.display()))?;
                let bytes = files::read_small(&path, KEY_BYTES as u64).unwrap_or_default();
                if let Ok(key) = bytes.try_into() {
                    return Ok(key);
                }
                // Damaged. Nothing that was made under it can be told from a forgery any more, so
                // a new one costs only compiling.
                fs::remove_file(&path).map_err(|e| failed("replace", e))?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("look at", e)),
        }
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(|e| format!("no randomness for a key: {e}"))?;
        let made =
            tempfile::Builder::new().prefix(".").tempfile_in(directory).and_then(|mut file| {
                file.write_all(&key)?;
                file.as_file().sync_all()?;
                file.persist_noclobber(&path).map_err(|e| e.error)
            });
        match made {
            Ok(_) => return Ok(key),
            // Another process was faster: its key is the key.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed("create", e)),
        }
    }
    Err(format!("{} changes while it is read", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> EntryId {
        EntryIdBuilder::new().field([n]).finish()
    }

    fn entry(code: &[u8]) -> CachedCode {
        CachedCode { artifact: Artifact(code.to_vec()), verified: true, own_pages: vec![3, 700] }
    }

    #[test]
    fn an_entry_comes_back_under_its_own_id_only() {
        let dir = tempfile::tempdir().unwrap();
        let cache = AotCache::open(&dir.path().join("a/b")).unwrap();
        assert!(cache.get(&id(1)).is_none());
        cache.put(&id(1), &entry(b"code")).unwrap();
        let again = AotCache::open(&dir.path().join("a/b")).unwrap();
        let found = again.get(&id(1)).unwrap();
        assert_eq!((found.artifact.0.as_slice(), found.verified), (&b"code"[..], true));
        assert_eq!(found.own_pages, [3, 700]);
        assert!(again.get(&id(2)).is_none());
        fs::rename(again.path(&id(1)), again.path(&id(2))).unwrap();
        assert!(again.get(&id(2)).is_none(), "an entry under another's name");
    }

    #[test]
    fn no_byte_of_an_entry_can_change() {
        let dir = tempfile::tempdir().unwrap();
        let cache = AotCache::open(&dir.path().join("c")).unwrap();
        cache.put(&id(1), &entry(b"code")).unwrap();
        let path = cache.path(&id(1));
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(cache.get(&id(1)).is_none(), "byte {at}");
            fs::write(&path, &good[..at]).unwrap();
            assert!(cache.get(&id(1)).is_none(), "cut at {at}");
        }
        fs::write(&path, &good).unwrap();
        assert!(cache.get(&id(1)).is_some());
    }

    #[test]
    fn an_id_is_of_lengths_and_bytes_alone() {
        let id = EntryIdBuilder::new().field("ab").number(7u32).finish();
        let mut bytes = 2u64.to_le_bytes().to_vec();
        bytes.extend(b"ab");
        bytes.extend([8, 7].into_iter().flat_map(u64::to_le_bytes));
        assert_eq!(id.0, *blake3::hash(&bytes).as_bytes());
    }

    #[test]
    fn fields_do_not_run_together() {
        let two = |a: &str, b: &str| EntryIdBuilder::new().field(a).field(b).finish();
        assert_ne!(two("ab", "c"), two("a", "bc"));
    }

    #[test]
    fn a_damaged_key_is_replaced_and_its_entries_are_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("c");
        let cache = AotCache::open(&directory).unwrap();
        cache.put(&id(1), &entry(b"code")).unwrap();
        fs::write(directory.join(KEY_FILE), b"short").unwrap();
        let again = AotCache::open(&directory).unwrap();
        assert!(again.get(&id(1)).is_none());
        again.put(&id(1), &entry(b"code")).unwrap();
        assert!(again.get(&id(1)).is_some());
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_or_key_that_others_can_touch_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("c");
        AotCache::open(&directory).unwrap();
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for mode in [0o770, 0o702, 0o704] {
            chmod(&directory, mode);
            assert!(AotCache::open(&directory).err().unwrap().contains("open to others"));
        }
        chmod(&directory, 0o700);
        chmod(&directory.join(KEY_FILE), 0o640);
        assert!(AotCache::open(&directory).err().unwrap().contains("open to others"));
        chmod(&directory.join(KEY_FILE), 0o600);
        symlink(&directory, dir.path().join("link")).unwrap();
        assert!(
            AotCache::open(&dir.path().join("link")).err().unwrap().contains("not a directory")
        );
        assert!(AotCache::open(&directory).is_ok());
    }
}
