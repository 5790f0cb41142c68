//! What was done to the generations, on disk: a `redb` file of this user alone.
//!
//! Everything that has to agree is written in one transaction, which `redb` makes durable before it
//! returns, so a crash leaves all of it or nothing. The file has one writer: it is locked while it is
//! open.
//!
//! The order of writing and publishing. Publishing lasts as long as the process, so after a crash
//! only the file counts, and all that must never be read from it is a generation that was not found
//! healthy. Therefore the *healthy* set of packs is a value of its own, which changes in the
//! transaction that books a generation as healthy, and a restart publishes that set and no other.
//! Around it:
//!
//! 1. An *intent* is written before anything is published, so nothing ever served without a trace.
//! 2. Then the pointer changes, which takes no time and cannot fail half-way.
//! 3. Then the *confirmation* takes the intent away, so nothing is called active that was not.
//!
//! A crash between 1 and 3 leaves the intent, and the next start books it as interrupted. A pack that
//! is taken back is barred in the transaction of the intent: from then on no crash lets it in again.
//! What this does not protect against: a disk that acknowledges what it has not written, and whoever
//! can act as the same user.

use crate::files;
use crate::registry::PackId;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Entries by their numbers, as JSON.
const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
/// Reasons by digest.
const BARRED: TableDefinition<'_, &str, &str> = TableDefinition::new("barred");
/// Single values, as JSON.
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");
const HEALTHY: &str = "healthy";
const INTENT: &str = "intent";

/// Entries that are kept; older ones go.
const MAX_ENTRIES: u64 = 10_000;

/// How the names of files begin that are about to become the history.
const BEGUN: &str = ".history-";

/// Something that was done to the generations, or refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Counts up from 1.
    pub number: u64,
    /// When, in milliseconds since 1970 by the system's clock.
    pub time: u64,
    /// What.
    pub event: HistoryEvent,
    /// Who asked for it; empty where nobody did.
    pub operator: String,
    /// The pack that it is about, where it is about one.
    pub pack: Option<PackId>,
    /// The generation that it is about, where there is one.
    pub generation: Option<u64>,
    /// Why, or what was said.
    pub reason: String,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryEvent {
    /// A process began with this generation.
    Started,
    /// An earlier process ended before it could confirm its intent.
    Interrupted,
    /// A pack was staged.
    Staged,
    /// A staged pack was let go.
    Discarded,
    /// A pack was refused.
    Refused,
    /// Intent: a pack is about to be published to all steps.
    Activating,
    /// It was.
    Activated,
    /// Intent: a pack is about to be put on trial.
    Trying,
    /// It was.
    OnTrial,
    /// The trial was ended.
    TrialEnded,
    /// A generation was found healthy.
    Healthy,
    /// The health window of a generation ended, and too little was seen of it to tell.
    Unproven,
    /// Intent: an earlier generation is about to be published again, or a trial ended.
    RollingBack,
    /// It was.
    RolledBack,
    /// A barred pack was let in again.
    Cleared,
}

impl HistoryEvent {
    fn is_intent(self) -> bool {
        matches!(self, Self::Activating | Self::Trying | Self::RollingBack)
    }
}

/// An entry to be written, and what changes with it.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) event: HistoryEvent,
    pub(crate) operator: &'a str,
    pub(crate) pack: Option<PackId>,
    pub(crate) generation: Option<u64>,
    pub(crate) reason: &'a str,
    /// The set of packs that a restart publishes from here on.
    pub(crate) healthy: Option<&'a [PackId]>,
    /// Packs that are barred from here on, for the reason above.
    pub(crate) bar: &'a [PackId],
    /// The digest of a pack that is barred no longer.
    pub(crate) clear: Option<&'a str>,
}

impl<'a> Record<'a> {
    pub(crate) fn new(event: HistoryEvent, operator: &'a str) -> Self {
        let (pack, generation, reason) = (None, None, "");
        Self { event, operator, pack, generation, reason, healthy: None, bar: &[], clear: None }
    }
}

/// Why the history cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// Another process has it open.
    #[error("{} is in use by another process: one server at a time may keep it", .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file or its directory is open to others.
    #[error("{what}")]
    NotPrivate {
        /// Which, and how.
        what: String,
    },
    /// The database cannot be read or written.
    #[error("the history {}: {detail}", .path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What it says.
        detail: String,
    },
}

impl HistoryError {
    /// A stable identifier for logs, metrics and HTTP bodies.
    pub fn code(&self) -> &'static str {
        match self {
            HistoryError::Locked { .. } => "history_locked",
            HistoryError::NotPrivate { .. } => "history_not_private",
            HistoryError::Database { .. } => "history_database",
        }
    }
}

/// Puts an empty history at a path where there is none. The file gets its name when it is whole: a
/// database of which a crash has left a part opens no more.
fn begin(path: &Path) -> Result<(), DatabaseError> {
    let io = |e: std::io::Error| DatabaseError::Storage(e.into());
    let directory = path.parent().unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().prefix(BEGUN).tempfile_in(directory).map_err(io)?;
    drop(database(file.reopen().map_err(io)?)?);
    file.as_file().sync_all().map_err(io)?;
    match file.persist_noclobber(path) {
        // Another process was faster.
        Err(_) if path.exists() => Ok(()),
        Err(e) => Err(io(e.error)),
        Ok(_) => files::sync_names(directory).map_err(io),
    }
}

/// The database in a file, which may be empty.
fn database(file: File) -> Result<Database, DatabaseError> {
    FileBackend::new(file).and_then(|file| Database::builder().create_with_backend(file))
}

/// The open file.
pub(crate) struct History {
    path: PathBuf,
    database: Database,
}

impl History {
    /// Opens the history in a directory of this user alone, or begins one.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub(crate) fn open(directory: &Path) -> Result<Self, HistoryError> {
        let path = directory.join("history.redb");
        let failed = |detail: String| HistoryError::Database { path: path.clone(), detail };
        let io = |e: std::io::Error| failed(e.to_string());
        if !path.try_exists().map_err(io)? {
            begin(&path).map_err(|e| failed(e.to_string()))?;
        }
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        files::owner_only(&metadata).map_err(|what| HistoryError::NotPrivate {
            what: format!("{} {what}", path.display()),
        })?;
        let database = database(file).map_err(|e| match e {
            DatabaseError::DatabaseAlreadyOpen => HistoryError::Locked { path: path.clone() },
            other => failed(other.to_string()),
        })?;
        // Whoever else would begin one finds this, so what is left was left behind.
        for entry in directory.read_dir().map_err(io)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(BEGUN) {
                std::fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        let history = Self { path, database };
        history.transact(|write| {
            write.open_table(ENTRIES)?;
            write.open_table(BARRED)?;
            write.open_table(STATE)?;
            Ok(())
        })?;
        Ok(history)
    }

    /// Writes an entry and what changes with it, durably: all of it or nothing.
    pub(crate) fn write(&self, record: Record<'_>) -> Result<HistoryEntry, HistoryError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut entry = HistoryEntry {
            number: 0,
            time: now.as_millis() as u64,
            event: record.event,
            operator: record.operator.to_owned(),
            pack: record.pack,
            generation: record.generation,
            reason: record.reason.to_owned(),
        };
        self.transact(|write| {
            let mut entries = write.open_table(ENTRIES)?;
            entry.number = 1 + entries.last()?.map_or(0, |(number, _)| number.value());
            let json = self.json(&entry);
            entries.insert(entry.number, json.as_slice())?;
            entries.retain_in(..entry.number.saturating_sub(MAX_ENTRIES), |_, _| false)?;
            let mut state = write.open_table(STATE)?;
            if entry.event.is_intent() {
                state.insert(INTENT, json.as_slice())?;
            } else {
                state.remove(INTENT)?;
            }
            if let Some(healthy) = record.healthy {
                state.insert(HEALTHY, self.json(&healthy).as_slice())?;
            }
            let mut barred = write.open_table(BARRED)?;
            for pack in record.bar {
                barred.insert(pack.digest.as_str(), record.reason)?;
            }
            if let Some(digest) = record.clear {
                barred.remove(digest)?;
            }
            Ok(())
        })?;
        Ok(entry)
    }

    /// The newest entries, newest first.
    pub(crate) fn entries(&self, limit: usize) -> Result<Vec<HistoryEntry>, HistoryError> {
        let read = || -> Result<Vec<Vec<u8>>, redb::Error> {
            let entries = self.database.begin_read()?.open_table(ENTRIES)?;
            let newest = entries.iter()?.rev().take(limit);
            newest.map(|entry| Ok(entry?.1.value().to_vec())).collect()
        };
        let entries = read().map_err(|e| self.failed(e))?;
        entries.iter().map(|json| self.parse(json)).collect()
    }

    /// Whether a pack was ever active or on trial, or may have been: as far back as entries are kept.
    pub(crate) fn was_published(&self, digest: &str) -> Result<bool, HistoryError> {
        use HistoryEvent::{Activated, Interrupted, OnTrial};
        let entries = self.entries(usize::MAX)?;
        Ok(entries.iter().any(|entry| {
            let pack = entry.pack.as_ref().is_some_and(|pack| pack.digest == digest);
            pack && matches!(entry.event, Activated | OnTrial | Interrupted)
        }))
    }

    /// The set of packs that was last found healthy, newest first; `None` before the first.
    pub(crate) fn healthy(&self) -> Result<Option<Vec<PackId>>, HistoryError> {
        self.state(HEALTHY)
    }

    /// What an earlier process was about to do.
    pub(crate) fn intent(&self) -> Result<Option<HistoryEntry>, HistoryError> {
        self.state(INTENT)
    }

    /// Digests of barred packs, with the reasons.
    pub(crate) fn barred(&self) -> Result<Vec<(String, String)>, HistoryError> {
        let read = || -> Result<Vec<(String, String)>, redb::Error> {
            let barred = self.database.begin_read()?.open_table(BARRED)?;
            let pairs = barred.iter()?.map(|pair| {
                let (digest, reason) = pair?;
                Ok((digest.value().to_owned(), reason.value().to_owned()))
            });
            pairs.collect()
        };
        read().map_err(|e| self.failed(e))
    }

    fn state<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, HistoryError> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            let state = self.database.begin_read()?.open_table(STATE)?;
            Ok(state.get(key)?.map(|json| json.value().to_vec()))
        };
        let json = read().map_err(|e| self.failed(e))?;
        json.map(|json| self.parse(&json)).transpose()
    }

    fn transact(
        &self,
        work: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), HistoryError> {
        let write = || -> Result<(), redb::Error> {
            let write = self.database.begin_write()?;
            work(&write)?;
            Ok(write.commit()?)
        };
        write().map_err(|e| self.failed(e))
    }

    fn json(&self, value: &impl Serialize) -> Vec<u8> {
        // Strings and numbers under names: nothing of them can fail to be JSON.
        serde_json::to_vec(value).unwrap_or_default()
    }

    fn parse<T: DeserializeOwned>(&self, json: &[u8]) -> Result<T, HistoryError> {
        serde_json::from_slice(json).map_err(|e| self.failed(e))
    }

    fn failed(&self, error: impl std::fmt::Display) -> HistoryError {
        HistoryError::Database { path: self.path.clone(), detail: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(digest: &str) -> PackId {
        PackId { name: "p".into(), version: "1.0.0".into(), digest: digest.into() }
    }

    #[test]
    fn what_was_written_is_there_again_and_in_one_piece() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::open(dir.path()).unwrap();
        assert_eq!(history.healthy().unwrap(), None);
        let bar = [pack("bad")];
        let intent = Record {
            bar: &bar,
            reason: "it trapped",
            generation: Some(7),
            ..Record::new(HistoryEvent::RollingBack, "")
        };
        let intent = history.write(intent).unwrap();
        drop(history);
        let history = History::open(dir.path()).unwrap();
        assert_eq!(history.intent().unwrap(), Some(intent.clone()));
        assert_eq!(history.barred().unwrap(), [("bad".to_owned(), "it trapped".to_owned())]);
        let good = [pack("good")];
        let done = Record { healthy: Some(&good), ..Record::new(HistoryEvent::RolledBack, "") };
        let done = history.write(done).unwrap();
        assert_eq!(history.entries(9).unwrap(), [done, intent]);
        assert_eq!(history.intent().unwrap(), None);
        assert_eq!(history.healthy().unwrap().unwrap(), good);
        let cleared = Record { clear: Some("bad"), ..Record::new(HistoryEvent::Cleared, "me") };
        history.write(cleared).unwrap();
        assert!(history.barred().unwrap().is_empty());
        assert_eq!(history.entries(1).unwrap()[0].operator, "me");
    }

    #[test]
    fn a_beginning_that_a_crash_cut_short_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(".history-left");
        std::fs::write(&left, [0; 4096]).unwrap();
        let history = History::open(dir.path()).unwrap();
        history.write(Record::new(HistoryEvent::Started, "")).unwrap();
        drop(history);
        let names: Vec<_> =
            dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["history.redb"]);
        assert_eq!(History::open(dir.path()).unwrap().entries(9).unwrap().len(), 1);
    }

    #[test]
    fn the_file_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let _open = History::open(dir.path()).unwrap();
        let error = History::open(dir.path()).err().unwrap();
        assert_eq!(error.code(), "history_locked");
        assert!(error.to_string().contains("another process"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        drop(History::open(dir.path()).unwrap());
        let path = dir.path().join("history.redb");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(History::open(dir.path()).err().unwrap().code(), "history_not_private");
    }
}
