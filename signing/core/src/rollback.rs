//! Going back to an older version on purpose: explicit, logged, and only to what ran here before.
//!
//! The line in `rollbacks.log` is on disk before the floor comes down, so that no floor is ever
//! lower than the log explains. A crash between the two leaves a line of a rollback that did not
//! happen, never the other way round; a crash while the line is written leaves a torn line, which
//! readers skip.

use crate::floor::FloorRecord;
use crate::{PackError, VersionFloor};
use ruvllm_manifest::{PackName, Timestamp, escape_untrusted};
use semver::Version;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::SystemTime;

const LOG: &str = "rollbacks.log";
const MAX_TEXT: usize = 256;

/// A line of `rollbacks.log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackEntry {
    /// When, by the host's clock.
    pub time: String,
    /// Who asked for it.
    pub operator: String,
    /// Why.
    pub reason: String,
    /// The pack.
    pub pack: String,
    /// The floor before.
    pub from: Version,
    /// The floor after.
    pub to: Version,
}

impl VersionFloor {
    /// Lowers the floor of a pack to an older version that was active here, after logging who asked
    /// for it and why. Newer versions stay acceptable; to keep one out, pin packs in a lock file.
    ///
    /// # Errors
    /// [`PackError::Rollback`] where that version was never active here, is not older than the
    /// floor, or operator or reason are missing; [`PackError::FloorDamaged`]; [`PackError::Io`].
    pub fn roll_back(
        &self,
        pack: &PackName,
        to: &Version,
        operator: &str,
        reason: &str,
    ) -> Result<RollbackEntry, PackError> {
        let refused = |message: String| Err(PackError::Rollback { message });
        for (what, text) in [("operator", operator), ("reason", reason)] {
            let printable = escape_untrusted(text) == text;
            if text.trim().is_empty() || text.len() > MAX_TEXT || !printable {
                return refused(format!("give the {what} in 1 to {MAX_TEXT} printable bytes"));
            }
        }
        let _lock = self.lock()?;
        let Some(FloorRecord { floor, history }) = self.record(pack)? else {
            return refused(format!("no version of `{pack}` was active here"));
        };
        if !history.contains(to) {
            let known: Vec<String> = history.iter().map(Version::to_string).collect();
            let known = known.join(", ");
            return refused(format!("`{pack}` {to} was never active here; these were: {known}"));
        }
        if to.cmp_precedence(&floor).is_ge() {
            return refused(format!("`{pack}` is at {floor}, and {to} is not older"));
        }
        let entry = RollbackEntry {
            time: Timestamp::from(SystemTime::now()).to_string(),
            operator: operator.to_owned(),
            reason: reason.to_owned(),
            pack: pack.to_string(),
            from: floor,
            to: to.clone(),
        };
        self.append(&entry)?;
        self.write(pack, &FloorRecord { floor: to.clone(), history })?;
        Ok(entry)
    }

    /// The rollbacks of this directory, oldest first.
    ///
    /// # Errors
    /// [`PackError::Io`].
    pub fn rollbacks(&self) -> Result<Vec<RollbackEntry>, PackError> {
        let path = self.log_path();
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(PackError::io("read", &path, e)),
        }
    }

    fn append(&self, entry: &RollbackEntry) -> Result<(), PackError> {
        let path = self.log_path();
        let io = |e| PackError::io("write", &path, e);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path).map_err(io)?;
        let mut line = serde_json::to_string(entry).map_err(|e| io(e.into()))?;
        line.push('\n');
        if ends_torn(&mut file).map_err(io)? {
            line.insert(0, '\n');
        }
        file.write_all(line.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        // A new file is durable once its directory is.
        #[cfg(unix)]
        File::open(self.directory()).and_then(|d| d.sync_all()).map_err(io)?;
        Ok(())
    }

    fn log_path(&self) -> PathBuf {
        self.directory().join(LOG)
    }
}

/// Whether the last line has no end.
fn ends_torn(file: &mut File) -> std::io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn with_versions(versions: &[&str]) -> (tempfile::TempDir, VersionFloor, PackName) {
        let dir = tempfile::tempdir().unwrap();
        let floor = VersionFloor::open(dir.path()).unwrap();
        let name: PackName = "p".parse().unwrap();
        for version in versions {
            floor.raise_to(&name, &version.parse().unwrap()).unwrap();
        }
        (dir, floor, name)
    }

    #[test]
    fn a_rollback_is_logged_and_later_versions_stay_acceptable() {
        let (dir, floor, name) = with_versions(&["1.0.0", "1.1.0", "2.0.0"]);
        let to: Version = "1.1.0".parse().unwrap();
        let entry = floor.roll_back(&name, &to, "ann", "2.0.0 is slow").unwrap();
        assert_eq!((entry.from.to_string(), &entry.to), ("2.0.0".to_owned(), &to));
        assert_eq!(floor.get(&name).unwrap(), Some(to));
        assert_eq!(floor.rollbacks().unwrap(), [entry]);
        let text = fs::read_to_string(dir.path().join(LOG)).unwrap();
        assert!(text.contains("\"operator\":\"ann\"") && text.ends_with('\n'));
        floor.raise_to(&name, &"2.0.0".parse().unwrap()).unwrap();
        let first: Version = "1.0.0".parse().unwrap();
        floor.roll_back(&name, &first, "ann", "again").unwrap();
        assert_eq!(floor.rollbacks().unwrap().len(), 2);
    }

    #[test]
    fn what_never_ran_here_is_no_place_to_go_back_to() {
        let (dir, floor, name) = with_versions(&["1.0.0", "2.0.0"]);
        let back = |to: &str, operator: &str, reason: &str| {
            let to = to.parse().unwrap();
            floor.roll_back(&name, &to, operator, reason).unwrap_err().code()
        };
        assert_eq!(back("1.5.0", "ann", "why"), "rollback_refused");
        assert_eq!(back("2.0.0", "ann", "why"), "rollback_refused");
        assert_eq!(back("1.0.0", "", "why"), "rollback_refused");
        assert_eq!(back("1.0.0", "ann", " "), "rollback_refused");
        assert_eq!(back("1.0.0", "ann\n{}", "why"), "rollback_refused");
        let other = "q".parse().unwrap();
        let to = Version::new(1, 0, 0);
        assert!(floor.roll_back(&other, &to, "ann", "why").is_err());
        assert!(!dir.path().join(LOG).exists());
        assert_eq!(floor.get(&name).unwrap(), Some(Version::new(2, 0, 0)));
    }

    #[test]
    fn a_torn_line_does_not_swallow_the_next() {
        let (dir, floor, name) = with_versions(&["1.0.0", "2.0.0"]);
        fs::write(dir.path().join(LOG), b"{\"time\":\"20").unwrap();
        let entry = floor.roll_back(&name, &Version::new(1, 0, 0), "ann", "why").unwrap();
        assert_eq!(floor.rollbacks().unwrap(), [entry]);
    }

    #[test]
    fn a_log_that_cannot_be_written_leaves_the_floor_where_it_is() {
        let (dir, floor, name) = with_versions(&["1.0.0", "2.0.0"]);
        fs::create_dir(dir.path().join(LOG)).unwrap();
        assert_eq!(
            floor.roll_back(&name, &Version::new(1, 0, 0), "ann", "why").unwrap_err().code(),
            "io"
        );
        assert_eq!(floor.get(&name).unwrap(), Some(Version::new(2, 0, 0)));
    }
}
