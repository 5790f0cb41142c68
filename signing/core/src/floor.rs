//! The newest version of each pack that has been active here; older ones are refused.
//!
//! A directory holds one small file for each pack name. A change is written to a temporary file,
//! flushed, and renamed over the old one under a lock, so that after a crash the floor is the old
//! or the new one, never neither. A floor that cannot be read refuses every version of its pack:
//! removing it is a decision for a person. A floor comes down only by
//! [`VersionFloor::roll_back`](crate::VersionFloor::roll_back).
//!
//! The record is JSON, format 2: `pack`, `floor`, and `history`, the versions that were active
//! here. Format 1, without the history, is read too.
//!
//! Beside it lies `<pack>.digests`, which bytes each version had, so that a host can say when somebody
//! gives one version to two packs. It decides nothing: hosts of before do not know it, and take the
//! floors of those that do.

use crate::files::{self, Unreadable};
use crate::{PackError, VerifiedPack};
use ruvllm_manifest::{InvalidSha256, PackName, Sha256Hex, Violation};
use semver::Version;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::path::{Path, PathBuf};

/// Room for a full history of the longest versions that occur.
const MAX_FLOOR_BYTES: u64 = 16 * 1024;
const MAX_HISTORY: usize = 64;

/// The version floors under a directory.
#[derive(Clone, Debug)]
pub struct VersionFloor {
    directory: PathBuf,
}

/// What is known of a pack's versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloorRecord {
    /// The oldest version that is accepted.
    pub floor: Version,
    /// Versions that were active here, from oldest activation to newest; at most 64 are kept.
    pub history: Vec<Version>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    pack: String,
    floor: Version,
    #[serde(default)]
    history: Vec<Version>,
}

/// The digests of a pack's versions, as they lie on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Digests {
    format: u32,
    pack: String,
    /// From oldest activation to newest.
    versions: Vec<(Version, String)>,
}

impl VersionFloor {
    /// Opens the floors in a directory, which is created, owner-only, where it is missing.
    ///
    /// # Errors
    /// [`PackError::FloorExposed`] where others could put older floors there, or [`PackError::Io`].
    pub fn open(directory: impl Into<PathBuf>) -> Result<VersionFloor, PackError> {
        let directory = directory.into();
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&directory).map_err(|e| PackError::io("create", &directory, e))?;
        match files::open_to_others(&directory) {
            Ok(None) => Ok(VersionFloor { directory }),
            Ok(Some(message)) => Err(PackError::FloorExposed { message }),
            Err(e) => Err(PackError::io("look at", &directory, e)),
        }
    }

    /// The floor of a pack; `None` where none of its versions has been active.
    ///
    /// # Errors
    /// [`PackError::FloorDamaged`] or [`PackError::Io`].
    pub fn get(&self, pack: &PackName) -> Result<Option<Version>, PackError> {
        Ok(self.record(pack)?.map(|record| record.floor))
    }

    /// The floor of a pack and the versions that were active here.
    ///
    /// # Errors
    /// [`PackError::FloorDamaged`] or [`PackError::Io`].
    pub fn record(&self, pack: &PackName) -> Result<Option<FloorRecord>, PackError> {
        let path = self.path(pack);
        let damaged =
            |message: &str| PackError::FloorDamaged { path: path.clone(), message: message.into() };
        let bytes = match files::read_regular(&path, MAX_FLOOR_BYTES) {
            Ok(bytes) => bytes,
            Err(Unreadable::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(Unreadable::Io(e)) => return Err(PackError::io("read", &path, e)),
            Err(_) => return Err(damaged("it is not a small regular file")),
        };
        let Record { format, pack: of, floor, history } =
            serde_json::from_slice(&bytes).map_err(|_| damaged("it is not a floor record"))?;
        if of != pack.as_str() {
            return Err(damaged("it is the record of another pack"));
        }
        match (format, history.is_empty()) {
            (1, true) => Ok(Some(FloorRecord { history: vec![floor.clone()], floor })),
            (2, false) => Ok(Some(FloorRecord { floor, history })),
            _ => Err(damaged("it is of another format")),
        }
    }

    /// What stands against a version of a pack: that a newer one has been active here.
    ///
    /// # Errors
    /// [`PackError::FloorDamaged`] or [`PackError::Io`].
    pub fn objection(
        &self,
        pack: &PackName,
        version: &Version,
    ) -> Result<Option<Violation>, PackError> {
        Ok(self.get(pack)?.filter(|floor| version.cmp_precedence(floor).is_lt()).map(|floor| {
            let what = format!(
                "version {version} is older than {floor}, which has been active here: use {floor} \
                 or newer"
            );
            Violation::new("version_below_floor", "version", what)
        }))
    }

    /// The packs that have a record here, in order of name.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn packs(&self) -> Result<Vec<PackName>, PackError> {
        let io = |e| PackError::io("list", &self.directory, e);
        let mut packs = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".floor"));
            packs.extend(name.and_then(|name| name.parse::<PackName>().ok()));
        }
        packs.sort();
        Ok(packs)
    }

    /// Raises the floor of a pack to the version that has become active. A version that is not
    /// newer leaves it as it is.
    ///
    /// # Errors
    /// [`PackError::FloorDamaged`] or [`PackError::Io`].
    pub fn raise(&self, pack: &VerifiedPack) -> Result<(), PackError> {
        self.raise_to(&pack.manifest().name, &pack.manifest().version)
    }

    /// As [`VersionFloor::raise`], for a pack that is no longer at hand.
    ///
    /// # Errors
    /// As for [`VersionFloor::raise`].
    pub fn raise_to(&self, pack: &PackName, version: &Version) -> Result<(), PackError> {
        let _lock = self.lock()?;
        let mut history = Vec::new();
        if let Some(record) = self.record(pack)? {
            if record.floor.cmp_precedence(version).is_ge() {
                return Ok(());
            }
            history = record.history;
        }
        history.retain(|old| old != version);
        history.push(version.clone());
        let surplus = history.len().saturating_sub(MAX_HISTORY);
        history.drain(..surplus);
        self.write(pack, &FloorRecord { floor: version.clone(), history })
    }

    /// Remembers the digest of a version that has become active, and gives the one that the same version
    /// had before where that is another: two packs were published as one version, or one was changed.
    ///
    /// # Errors
    /// [`PackError::FloorDamaged`] or [`PackError::Io`].
    pub fn note_digest(
        &self,
        pack: &PackName,
        version: &Version,
        digest: &Sha256Hex,
    ) -> Result<Option<Sha256Hex>, PackError> {
        let _lock = self.lock()?;
        let mut versions = self.digests(pack)?;
        let before = versions.iter().position(|(known, _)| known == version);
        let before = before.map(|at| versions.remove(at).1);
        if before.as_ref() == Some(digest) {
            return Ok(None);
        }
        versions.push((version.clone(), *digest));
        let surplus = versions.len().saturating_sub(MAX_HISTORY);
        let versions = versions.split_off(surplus);
        let versions = versions.into_iter().map(|(v, digest)| (v, digest.to_string())).collect();
        self.replace(pack, "digests", &Digests { format: 1, pack: pack.to_string(), versions })?;
        Ok(before)
    }

    /// The digests of a pack's versions that were active here.
    fn digests(&self, pack: &PackName) -> Result<Vec<(Version, Sha256Hex)>, PackError> {
        let path = self.file(pack, "digests");
        let damaged =
            |message: &str| PackError::FloorDamaged { path: path.clone(), message: message.into() };
        let bytes = match files::read_regular(&path, MAX_FLOOR_BYTES) {
            Ok(bytes) => bytes,
            Err(Unreadable::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Vec::new());
            }
            Err(Unreadable::Io(e)) => return Err(PackError::io("read", &path, e)),
            Err(_) => return Err(damaged("it is not a small regular file")),
        };
        let Digests { format, pack: of, versions } =
            serde_json::from_slice(&bytes).map_err(|_| damaged("it is no record of digests"))?;
        if of != pack.as_str() || format != 1 {
            return Err(damaged("it is the record of another pack, or of another format"));
        }
        let versions = versions.into_iter().map(|(version, digest)| Ok((version, digest.parse()?)));
        let versions: Result<_, InvalidSha256> = versions.collect();
        versions.map_err(|_| damaged("it holds what is no digest"))
    }

    /// Callers hold the lock.
    pub(crate) fn write(&self, pack: &PackName, record: &FloorRecord) -> Result<(), PackError> {
        let FloorRecord { floor, history } = record.clone();
        let record = Record { format: 2, pack: pack.to_string(), floor, history };
        self.replace(pack, "floor", &record)
    }

    /// Writes a record of a pack; callers hold the lock.
    fn replace(
        &self,
        pack: &PackName,
        kind: &str,
        record: &impl Serialize,
    ) -> Result<(), PackError> {
        let path = self.file(pack, kind);
        let io = |e| PackError::io("write", &path, e);
        let mut bytes = serde_json::to_vec(record).map_err(|e| io(e.into()))?;
        bytes.push(b'\n');
        files::replace(&path, &self.directory.join(format!(".{pack}.tmp")), &bytes).map_err(io)
    }

    /// Held until it is dropped. Pack names do not begin with a dot, so no floor has this name.
    pub(crate) fn lock(&self) -> Result<File, PackError> {
        let path = self.directory.join(".lock");
        let io = |e| PackError::io("lock", &path, e);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(io)?;
        file.lock().map_err(io)?;
        Ok(file)
    }

    fn path(&self, pack: &PackName) -> PathBuf {
        self.file(pack, "floor")
    }

    fn file(&self, pack: &PackName, kind: &str) -> PathBuf {
        self.directory.join(format!("{pack}.{kind}"))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn a_floor_only_rises_and_survives_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let name: PackName = "p".parse().unwrap();
        let floor = VersionFloor::open(dir.path().join("a/b")).unwrap();
        assert_eq!(floor.get(&name).unwrap(), None);
        floor.raise_to(&name, &version("1.2.0")).unwrap();
        floor.raise_to(&name, &version("1.1.9")).unwrap();
        floor.raise_to(&name, &version("1.2.0-rc.1")).unwrap();
        let floor = VersionFloor::open(dir.path().join("a/b")).unwrap();
        assert_eq!(floor.get(&name).unwrap(), Some(version("1.2.0")));
        assert_eq!(floor.get(&"q".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn what_a_crash_before_the_rename_leaves_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let name: PackName = "p".parse().unwrap();
        let floor = VersionFloor::open(dir.path()).unwrap();
        floor.raise_to(&name, &version("1.0.0")).unwrap();
        fs::write(dir.path().join(".p.tmp"), b"{\"format\":1,\"pa").unwrap();
        assert_eq!(floor.get(&name).unwrap(), Some(version("1.0.0")));
        floor.raise_to(&name, &version("2.0.0")).unwrap();
        assert_eq!(floor.get(&name).unwrap(), Some(version("2.0.0")));
    }

    #[test]
    fn a_record_of_format_1_is_read_and_written_again_as_format_2() {
        let dir = tempfile::tempdir().unwrap();
        let name: PackName = "p".parse().unwrap();
        let floor = VersionFloor::open(dir.path()).unwrap();
        let file = dir.path().join("p.floor");
        fs::write(&file, br#"{"format":1,"pack":"p","floor":"1.2.0"}"#).unwrap();
        assert_eq!(floor.get(&name).unwrap(), Some(version("1.2.0")));
        floor.raise_to(&name, &version("1.3.0")).unwrap();
        let record = floor.record(&name).unwrap().unwrap();
        assert_eq!(record.history, [version("1.2.0"), version("1.3.0")]);
        assert!(fs::read_to_string(&file).unwrap().contains("\"format\":2"));
        fs::write(&file, br#"{"format":1,"pack":"p","floor":"1.2.0","history":["1.0.0"]}"#)
            .unwrap();
        assert_eq!(floor.get(&name).unwrap_err().code(), "floor_damaged");
        for minor in 0..100 {
            floor.raise_to(&"q".parse().unwrap(), &Version::new(1, minor, 0)).unwrap();
        }
        let record = floor.record(&"q".parse().unwrap()).unwrap().unwrap();
        assert_eq!((record.history.len(), record.floor), (MAX_HISTORY, version("1.99.0")));
        assert_eq!(floor.packs().unwrap(), [name, "q".parse().unwrap()]);
    }

    #[test]
    fn the_same_version_with_other_bytes_is_told_once_and_floors_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let name: PackName = "p".parse().unwrap();
        let floor = VersionFloor::open(dir.path()).unwrap();
        let [a, b] = [[1; 32], [2; 32]].map(Sha256Hex::from_bytes);
        floor.raise_to(&name, &version("1.0.0")).unwrap();
        let record = fs::read(dir.path().join("p.floor")).unwrap();
        let note = |v: &str, digest| {
            let floor = VersionFloor::open(dir.path()).unwrap();
            floor.note_digest(&name, &version(v), digest).unwrap()
        };
        assert_eq!((note("1.0.0", &a), note("1.0.0", &a)), (None, None));
        assert_eq!(note("1.0.1", &b), None);
        assert_eq!((note("1.0.0", &b), note("1.0.0", &b)), (Some(a), None));
        assert_eq!(note("1.0.0", &a), Some(b));
        for minor in 0..100 {
            assert_eq!(note(&format!("2.{minor}.0"), &a), None);
        }
        assert_eq!(note("1.0.0", &b), None, "only so many are kept");
        assert_eq!(fs::read(dir.path().join("p.floor")).unwrap(), record);
        assert_eq!(floor.packs().unwrap(), std::slice::from_ref(&name));
        fs::write(dir.path().join("p.digests"), "{}").unwrap();
        let error = floor.note_digest(&name, &version("1.0.0"), &a).unwrap_err();
        assert_eq!(error.code(), "floor_damaged");
    }

    #[test]
    fn a_damaged_floor_is_an_error_not_a_missing_floor() {
        let dir = tempfile::tempdir().unwrap();
        let name: PackName = "p".parse().unwrap();
        let floor = VersionFloor::open(dir.path()).unwrap();
        let other = br#"{"format":1,"pack":"q","floor":"1.0.0"}"#;
        let long = vec![b' '; 20_000];
        for bad in [&b""[..], b"{}", b"1.0.0", other, &long] {
            fs::write(dir.path().join("p.floor"), bad).unwrap();
            assert_eq!(floor.get(&name).unwrap_err().code(), "floor_damaged");
            assert!(floor.raise_to(&name, &version("9.0.0")).is_err());
            assert_eq!(fs::read(dir.path().join("p.floor")).unwrap(), bad);
        }
    }

    #[test]
    fn concurrent_raises_end_at_the_highest() {
        let dir = tempfile::tempdir().unwrap();
        let name: PackName = "p".parse().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (dir, name) = (dir.path(), &name);
                scope.spawn(move || {
                    let floor = VersionFloor::open(dir).unwrap();
                    for minor in 0..8 {
                        floor.raise_to(name, &Version::new(1, minor, thread)).unwrap();
                    }
                });
            }
        });
        let floor = VersionFloor::open(dir.path()).unwrap();
        assert_eq!(floor.get(&name).unwrap(), Some(Version::new(1, 7, 3)));
    }
}
