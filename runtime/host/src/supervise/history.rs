//! What was done to the generations, on disk: a file of this user alone.
//!
//! The file is small and changes as often as somebody acts, so every change writes it whole, beside the
//! one that is there, and the new one takes the name when it is durable. A crash, a full disk or any
//! other error on the way leaves the old one (or, where only its name could not be made durable, perhaps the
//! new one), and the next change is written as if nothing had been.
//!
//! Its first line is the BLAKE3 hash of the rest. A file that is empty, cut or changed by as much as a bit is
//! *damaged*, and that is an error, not a new beginning: packs that were barred would come back without
//! a word. Whoever starts the server can choose to begin anew, and the damaged file is kept under
//! another name. No file at all is a beginning: only its owner can remove it, and may.
//!
//! There is one writer: whoever holds the lock on a file beside it. That file stays, as the history itself
//! is another file after every change.
//!
//! The order of writing and publishing. Publishing lasts as long as the process, so after a crash
//! only the file counts, and all that must never be read from it is a generation that was not found
//! healthy. Therefore the *healthy* set of packs is a value of its own, which changes in the
//! write that books a generation as healthy, and a restart publishes that set and no other.
//! Around it:
//!
//! 1. An *intent* is written before anything is published, so nothing ever serves without a trace.
//! 2. Then the pointer changes, which takes no time and cannot fail half-way.
//! 3. Then the *confirmation* takes the intent away, so nothing is called active that was not.
//!
//! A crash between 1 and 3 leaves the intent, and the next start books it as interrupted. A pack that
//! is taken back is barred in the write of the intent: from then on no crash lets it in again.
//!
//! An entry that a newer release has written and this one does not know is kept as it is and not shown; opening says in the
//! log which those are.
//!
//! What this does not protect against: a disk that acknowledges what it has not written, and whoever
//! can act as the same user.

use super::spans::LOG;
use crate::files::{self, Lock};
use crate::pack::PackId;
use crate::threads::lock;
use ruvllm_signing::escape_untrusted;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The file, in its directory.
const NAME: &str = "history";
/// The file whose lock its writer holds.
const LOCK: &str = "history.lock";
/// The file of versions that kept a database.
const DATABASE: &str = "history.redb";
/// How files are named that were damaged, before a number.
const DAMAGED: &str = "history-damaged-";

/// Entries that are kept; older ones go.
const MAX_ENTRIES: usize = 10_000;

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
    /// A process ended because it was asked to, while packs were watched: none of them is suspected of it.
    Stopped,
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
    /// Trust, keys or certificates were read anew, and differ.
    Reloaded,
    /// Another kernel is asked first for an operation, because it was measured to be faster.
    ChoiceChanged,
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
    /// The file is not what was written.
    #[error(
        "the history of kernels {} is damaged ({detail}): put a copy of it back, or begin a new one with --reset-history, which keeps this file under another name and forgets which packs were barred",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The system does not let it be read or written.
    #[error("the history of kernels {}: {source}", .path.display())]
    Io {
        /// The file or its directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HistoryError {
    /// A stable identifier for logs, metrics and HTTP bodies.
    pub fn code(&self) -> &'static str {
        match self {
            HistoryError::Locked { .. } => "history_locked",
            HistoryError::NotPrivate { .. } => "history_not_private",
            HistoryError::Damaged { .. } => "history_damaged",
            HistoryError::Io { .. } => "history_io",
        }
    }
}

/// What the file holds.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    /// The set of packs that was last found healthy; `None` before the first.
    healthy: Option<Vec<PackId>>,
    /// What is about to be done.
    intent: Option<EntryOnDisk>,
    /// Reasons by digest.
    barred: BTreeMap<String, String>,
    /// Oldest first.
    entries: VecDeque<EntryOnDisk>,
}

/// An entry of the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum EntryOnDisk {
    /// One that this release knows.
    Known(HistoryEntry),
    /// One of a newer release.
    Unknown(Map<String, Value>),
}

impl EntryOnDisk {
    fn known(&self) -> Option<&HistoryEntry> {
        match self {
            EntryOnDisk::Known(entry) => Some(entry),
            EntryOnDisk::Unknown(_) => None,
        }
    }

    fn number(&self) -> u64 {
        match self {
            EntryOnDisk::Known(entry) => entry.number,
            EntryOnDisk::Unknown(entry) => entry.get("number").and_then(Value::as_u64).unwrap_or(0),
        }
    }

    /// What a newer release calls it.
    fn unknown_event(&self) -> Option<&str> {
        match self {
            EntryOnDisk::Known(_) => None,
            EntryOnDisk::Unknown(entry) => {
                Some(entry.get("event")?.as_str().unwrap_or("without a name"))
            }
        }
    }
}

impl Contents {
    fn known(&self) -> impl DoubleEndedIterator<Item = &HistoryEntry> {
        self.entries.iter().filter_map(EntryOnDisk::known)
    }

    /// Which entries are left out, if any are.
    fn note(&self) -> Option<String> {
        let all = || self.entries.iter().chain(&self.intent).filter_map(EntryOnDisk::unknown_event);
        let events: BTreeSet<String> = all().map(escape_untrusted).collect();
        (!events.is_empty()).then(|| {
            let events = events.into_iter().collect::<Vec<_>>().join(", ");
            format!("{} entries of a newer release are not shown: {events}", all().count())
        })
    }

    /// The bytes of the file.
    fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        Ok([first_line(&json).as_bytes(), &json].concat())
    }

    /// What was written, or what is wrong with the bytes.
    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("it is empty".to_owned());
        }
        let (line, json) = bytes.split_at_checked(first_line(&[]).len()).unwrap_or((bytes, &[]));
        if line != first_line(json).as_bytes() {
            return Err("its checksum is another".to_owned());
        }
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }
}

fn first_line(json: &[u8]) -> String {
    format!("{}\n", blake3::hash(json).to_hex())
}

/// The history, of which this is the one writer.
pub(crate) struct History {
    path: PathBuf,
    /// What the file holds.
    contents: Mutex<Contents>,
    _lock: Lock,
}

impl History {
    /// Opens the history in a directory of this user alone, or begins one, with the first write. With
    /// `reset`, one that is damaged gets another name, which is given back, and a new one is begun.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub(crate) fn open(
        directory: &Path,
        reset: bool,
    ) -> Result<(Self, Option<PathBuf>), HistoryError> {
        let path = directory.join(NAME);
        let io = |source| HistoryError::Io { path: path.clone(), source };
        let lock = Lock::take(&directory.join(LOCK)).map_err(|error| match error {
            TryLockError::WouldBlock => HistoryError::Locked { path: path.clone() },
            TryLockError::Error(error) => io(error),
        })?;
        // Nobody else writes here, so what is half-written was left behind by a crash.
        for entry in directory.read_dir().map_err(io)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(files::HALF_WRITTEN) {
                // One that stays costs its room and nothing else.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let mut kept = None;
        let database = directory.join(DATABASE);
        if !path.try_exists().map_err(io)? && database.try_exists().map_err(io)? {
            if !reset {
                let detail = format!("{DATABASE} is of an earlier version and cannot be read");
                return Err(HistoryError::Damaged { path: database, detail });
            }
            kept = Some(database);
        }
        let contents = match read(&path) {
            Err(HistoryError::Damaged { .. }) if reset => {
                kept = Some(keep(&path, directory).map_err(io)?);
                Contents::default()
            }
            contents => contents?,
        };
        if let Some(note) = contents.note() {
            tracing::warn!(target: LOG, "the history of kernels {}: {note}", path.display());
        }
        let contents = Mutex::new(contents);
        Ok((Self { path, contents, _lock: lock }, kept))
    }

    /// Writes an entry and what changes with it, durably: all of it or nothing.
    pub(crate) fn write(&self, record: Record<'_>) -> Result<HistoryEntry, HistoryError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut contents = lock(&self.contents);
        let mut new = contents.clone();
        let entry = HistoryEntry {
            number: 1 + new.entries.back().map_or(0, EntryOnDisk::number),
            time: now.as_millis() as u64,
            event: record.event,
            operator: record.operator.to_owned(),
            pack: record.pack,
            generation: record.generation,
            reason: record.reason.to_owned(),
        };
        new.entries.push_back(EntryOnDisk::Known(entry.clone()));
        while new.entries.len() > MAX_ENTRIES {
            new.entries.pop_front();
        }
        new.intent = entry.event.is_intent().then(|| EntryOnDisk::Known(entry.clone()));
        if let Some(healthy) = record.healthy {
            new.healthy = Some(healthy.to_vec());
        }
        for pack in record.bar {
            new.barred.insert(pack.digest.clone(), record.reason.to_owned());
        }
        if let Some(digest) = record.clear {
            new.barred.remove(digest);
        }
        new.to_bytes()
            .map_err(io::Error::from)
            .and_then(|bytes| files::replace_durably(&self.path, &bytes))
            .map_err(|source| HistoryError::Io { path: self.path.clone(), source })?;
        *contents = new;
        Ok(entry)
    }

    /// The newest entries, newest first.
    pub(crate) fn entries(&self, limit: usize) -> Vec<HistoryEntry> {
        lock(&self.contents).known().rev().take(limit).cloned().collect()
    }

    /// The highest number of a generation that was published, as far back as entries are kept; 0 where there
    /// is none. What was only asked for may be any number.
    pub(crate) fn last_generation(&self) -> u64 {
        use HistoryEvent::{Activated, OnTrial, RolledBack, Started};
        let contents = lock(&self.contents);
        let published = contents
            .known()
            .filter(|entry| matches!(entry.event, Started | Activated | OnTrial | RolledBack));
        published.filter_map(|entry| entry.generation).max().unwrap_or(0)
    }

    /// What became of a pack that is neither active nor on trial, as far back as entries are kept.
    pub(crate) fn past(&self, pack: &PackId) -> Past {
        let past = Past::Unpublished;
        let mut history = PackHistory { past, active: None, leaving: false, asked_to_end: false };
        for entry in lock(&self.contents).known() {
            history.apply(pack, entry);
        }
        match history.active {
            // Nothing here says why it does not serve any more, so nobody but an operator brings it back.
            Some(_) => Past::Withdrawn,
            None => history.past,
        }
    }

    /// The set of packs that was last found healthy, newest first; `None` before the first.
    pub(crate) fn healthy(&self) -> Option<Vec<PackId>> {
        lock(&self.contents).healthy.clone()
    }

    /// What an earlier process was about to do.
    pub(crate) fn intent(&self) -> Option<HistoryEntry> {
        lock(&self.contents).intent.as_ref().and_then(EntryOnDisk::known).cloned()
    }

    /// Reasons why packs are barred, by digest.
    pub(crate) fn barred(&self) -> BTreeMap<String, String> {
        lock(&self.contents).barred.clone()
    }
}

/// What became of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// It was never active or on trial.
    Unpublished,
    /// Its process ended while it served. `unproven` counts how often that happened, since somebody last found
    /// something out about it, before its window had ended and without anybody having asked for it.
    CutShort { unproven: u32 },
    /// It did harm, or somebody went back from it, ended its trial, or put another pack of its name in its place.
    Withdrawn,
}

/// What is known of a pack after some of the entries.
struct PackHistory {
    past: Past,
    active: Option<ActivePack>,
    /// Whether somebody is about to go back to an earlier generation.
    leaving: bool,
    /// Whether the process was asked to end.
    asked_to_end: bool,
}

/// A pack that is active or on trial.
#[derive(Clone, Copy)]
struct ActivePack {
    /// The generation of its trial.
    trial: Option<u64>,
    /// Whether its window has ended without harm.
    judged: bool,
}

impl PackHistory {
    fn apply(&mut self, id: &PackId, entry: &HistoryEntry) {
        use HistoryEvent::*;
        let about = entry.pack.as_ref().is_some_and(|pack| pack.digest == id.digest);
        let same_name = entry.pack.as_ref().is_some_and(|pack| pack.name == id.name);
        match entry.event {
            Activated if about => self.activate(None),
            OnTrial if about => self.activate(entry.generation),
            Stopped => self.asked_to_end = true,
            Healthy | Unproven if about => {
                if let Some(active) = &mut self.active {
                    active.judged = true;
                }
            }
            RollingBack => self.leaving = true,
            Refused => self.leaving = false,
            RolledBack => self.withdraw(),
            TrialEnded if self.active.is_some_and(|s| s.trial == entry.generation) => {
                self.withdraw();
            }
            Activated if same_name => self.withdraw(),
            // It was about to be published, or to be gone back from.
            Interrupted if about && !self.leaving => self.cut_short(false),
            Started if self.leaving => self.withdraw(),
            Started => {
                if let Some(active) = self.active {
                    self.cut_short(active.judged);
                }
                self.asked_to_end = false;
            }
            _ => {}
        }
    }

    fn activate(&mut self, trial: Option<u64>) {
        self.active = Some(ActivePack { trial, judged: false });
        // What is published by a process that was asked to end may still be what ends it.
        self.asked_to_end = false;
    }

    /// Whatever was published before and may serve is gone back from: what a restart brought back, too.
    fn withdraw(&mut self) {
        if self.active.take().is_some() || self.past != Past::Unpublished {
            self.past = Past::Withdrawn;
        }
        self.leaving = false;
    }

    fn cut_short(&mut self, judged: bool) {
        let before = match self.past {
            Past::CutShort { unproven } => unproven,
            _ => 0,
        };
        self.active = None;
        let unproven = match judged {
            true => 0,
            false => before + u32::from(!self.asked_to_end),
        };
        self.past = Past::CutShort { unproven };
    }
}

/// What a file holds; nothing where there is none.
fn read(path: &Path) -> Result<Contents, HistoryError> {
    let io = |source| HistoryError::Io { path: path.to_owned(), source };
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
        file => file.map_err(io)?,
    };
    files::owner_only(&file.metadata().map_err(io)?)
        .map_err(|what| HistoryError::NotPrivate { what: format!("{} {what}", path.display()) })?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io)?;
    Contents::from_bytes(&bytes)
        .map_err(|detail| HistoryError::Damaged { path: path.to_owned(), detail })
}

/// Gives a damaged history another name beside its own, which the next one takes over when it is whole.
fn keep(path: &Path, directory: &Path) -> io::Result<PathBuf> {
    let mut number = 1;
    loop {
        let kept = directory.join(format!("{DAMAGED}{number}"));
        match std::fs::hard_link(path, &kept) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            linked => return linked.and_then(|()| files::sync_names(directory)).map(|()| kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pack(digest: &str) -> PackId {
        PackId { name: "p".into(), version: "1.0.0".into(), digest: digest.into() }
    }

    fn open(directory: &Path) -> History {
        History::open(directory, false).unwrap().0
    }

    #[test]
    fn what_was_written_is_there_again_and_in_one_piece() {
        let dir = tempfile::tempdir().unwrap();
        let history = open(dir.path());
        assert_eq!(history.healthy(), None);
        let bar = [pack("bad")];
        let intent = Record {
            bar: &bar,
            reason: "it trapped",
            generation: Some(7),
            ..Record::new(HistoryEvent::RollingBack, "")
        };
        let intent = history.write(intent).unwrap();
        drop(history);
        let history = open(dir.path());
        assert_eq!(history.intent(), Some(intent.clone()));
        assert_eq!(history.barred(), [("bad".to_owned(), "it trapped".to_owned())].into());
        let good = [pack("good")];
        let done = Record { healthy: Some(&good), ..Record::new(HistoryEvent::RolledBack, "") };
        let done = history.write(done).unwrap();
        assert_eq!(history.entries(9), [done, intent]);
        assert_eq!(history.intent(), None);
        assert_eq!(history.healthy().unwrap(), good);
        let cleared = Record { clear: Some("bad"), ..Record::new(HistoryEvent::Cleared, "me") };
        history.write(cleared).unwrap();
        assert!(history.barred().is_empty());
        assert_eq!(history.entries(1)[0].operator, "me");
    }

    #[test]
    fn what_a_crash_left_half_written_goes_and_the_oldest_entries_do() {
        let dir = tempfile::tempdir().unwrap();
        let history = open(dir.path());
        lock(&history.contents).entries = (1..=MAX_ENTRIES as u64)
            .map(|number| {
                EntryOnDisk::Known(HistoryEntry {
                    number,
                    time: 0,
                    event: HistoryEvent::Started,
                    operator: String::new(),
                    pack: None,
                    generation: None,
                    reason: String::new(),
                })
            })
            .collect();
        history.write(Record::new(HistoryEvent::Started, "")).unwrap();
        drop(history);
        fs::write(dir.path().join(".ruvllm-left"), [0; 4096]).unwrap();
        let entries = open(dir.path()).entries(usize::MAX);
        let ends = (entries[0].number, entries[MAX_ENTRIES - 1].number);
        assert_eq!((entries.len(), ends), (MAX_ENTRIES, (MAX_ENTRIES as u64 + 1, 2)));
        let names = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        assert_eq!(names, [NAME, LOCK]);
    }

    #[test]
    fn entries_of_a_newer_release_are_kept_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let history = open(dir.path());
        let staged = history.write(Record::new(HistoryEvent::Staged, "me")).unwrap();
        history.write(Record::new(HistoryEvent::Discarded, "me")).unwrap();
        drop(history);
        let path = dir.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        let (_, json) = text.split_once('\n').unwrap();
        let newer = json.replace("\"discarded\"", "\"taught\",\"lesson\":[1]");
        let newer = newer.replace("\"intent\":null", "\"intent\":{\"event\":\"teaching\"}");
        fs::write(&path, first_line(newer.as_bytes()) + &newer).unwrap();
        let history = open(dir.path());
        let note = lock(&history.contents).note().unwrap();
        assert_eq!(note, "2 entries of a newer release are not shown: taught, teaching");
        assert_eq!((history.entries(9), history.intent()), (vec![staged.clone()], None));
        let started = history.write(Record::new(HistoryEvent::Started, "")).unwrap();
        assert_eq!(started.number, 3, "the number of what is not shown is taken");
        drop(history);
        assert!(fs::read_to_string(&path).unwrap().contains("\"taught\",\"lesson\":[1]"));
        assert_eq!(open(dir.path()).entries(9), [started, staged]);
    }

    #[test]
    fn what_became_of_a_pack_is_told_from_the_entries() {
        use HistoryEvent::*;
        let (ours, own) = (pack("ours"), "");
        let newer = PackId { version: "2.0.0".into(), ..pack("newer") };
        let other = PackId { name: "q".into(), ..pack("other") };
        let of_ours = |event, operator| (event, operator, Some(&ours));
        let by_me = |event| (event, "me", None);
        let start = (Started, own, None);
        let (activated, tried) = (of_ours(Activated, "directory"), of_ours(OnTrial, "directory"));
        let cut_short = |unproven| Past::CutShort { unproven };
        for (entries, past) in [
            (&[start][..], Past::Unpublished),
            (&[activated, start], cut_short(1)),
            (&[activated, start, activated, start], cut_short(2)),
            (&[tried, start], cut_short(1)),
            // Nothing was found out in its window, which is over.
            (&[activated, of_ours(Unproven, own), start], cut_short(0)),
            (&[activated, start, activated, of_ours(Healthy, own), start], cut_short(0)),
            // Between intent and confirmation.
            (&[of_ours(Activating, "me"), of_ours(Interrupted, "me"), start], cut_short(1)),
            (&[activated, by_me(RollingBack), (Interrupted, "me", None), start], Past::Withdrawn),
            (&[activated, by_me(RollingBack), by_me(Refused), start], cut_short(1)),
            (&[activated, by_me(RollingBack), by_me(RolledBack), start], Past::Withdrawn),
            (&[activated, start, by_me(RollingBack), by_me(RolledBack)], Past::Withdrawn),
            (&[tried, by_me(TrialEnded), start], Past::Withdrawn),
            (&[activated, of_ours(RollingBack, own), of_ours(RolledBack, own)], Past::Withdrawn),
            (
                &[activated, of_ours(RollingBack, own), of_ours(Interrupted, own), start],
                Past::Withdrawn,
            ),
            (&[activated, (Activated, "me", Some(&newer)), start], Past::Withdrawn),
            (&[activated, (Activated, "me", Some(&other)), start], cut_short(1)),
            (&[activated, by_me(RolledBack), of_ours(Activated, "me"), start], cut_short(1)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let history = open(dir.path());
            for &(event, operator, pack) in entries {
                let record = Record { pack: pack.cloned(), ..Record::new(event, operator) };
                history.write(record).unwrap();
            }
            assert_eq!(history.past(&ours), past, "{entries:?}");
        }
    }

    /// A history in which a pack is barred, and its bytes.
    fn barring(directory: &Path) -> Vec<u8> {
        let bar = [pack("bad")];
        let record = Record { bar: &bar, ..Record::new(HistoryEvent::RollingBack, "") };
        open(directory).write(record).unwrap();
        fs::read(directory.join(NAME)).unwrap()
    }

    #[test]
    fn a_file_that_is_damaged_anywhere_is_refused_by_name_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let whole = barring(dir.path());
        let mut random = 1u64;
        let mut below = |n: usize| {
            // The generator of Numerical Recipes; the high bits are the better ones.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % n
        };
        for variant in 0..300 {
            let mut bytes = whole.clone();
            let at = below(bytes.len());
            match variant % 5 {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes.truncate(at),
                2 => bytes.insert(at, below(256) as u8),
                3 => bytes[at..].fill(0),
                _ => bytes.extend_from_slice(&whole[..=at]),
            }
            fs::write(&path, &bytes).unwrap();
            let error = History::open(dir.path(), false).err().expect("refused");
            assert_eq!(error.code(), "history_damaged", "{variant}: {error}");
            let message = error.to_string();
            assert!(message.contains("--reset-history"), "{message}");
            assert!(message.contains(path.to_str().unwrap()), "{message}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        fs::write(&path, b"").unwrap();
        assert_eq!(History::open(dir.path(), false).err().unwrap().code(), "history_damaged");
        fs::write(&path, &whole).unwrap();
        assert_eq!(open(dir.path()).barred().len(), 1);
    }

    #[test]
    fn a_reset_keeps_what_is_damaged_and_changes_nothing_that_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let whole = barring(dir.path());
        let (history, kept) = History::open(dir.path(), true).unwrap();
        assert_eq!((history.barred().len(), kept), (1, None));
        drop(history);
        for cut in [0, 10] {
            fs::write(&path, &whole[..cut]).unwrap();
            let (history, kept) = History::open(dir.path(), true).unwrap();
            assert!(history.barred().is_empty());
            // Under a name of its own, each time.
            assert_eq!(fs::read(kept.unwrap()).unwrap(), whole[..cut]);
            // A crash before anything is written is no new beginning.
            assert_eq!(fs::read(&path).unwrap(), whole[..cut]);
            history.write(Record::new(HistoryEvent::Started, "")).unwrap();
        }
        assert_eq!(open(dir.path()).entries(9).len(), 1);
    }

    #[test]
    fn the_database_of_an_earlier_version_is_no_beginning_without_a_word() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join(DATABASE);
        fs::write(&database, b"redb").unwrap();
        let error = History::open(dir.path(), false).err().unwrap();
        assert_eq!(error.code(), "history_damaged");
        assert!(error.to_string().contains("earlier version"), "{error}");
        let (history, kept) = History::open(dir.path(), true).unwrap();
        assert_eq!(kept.unwrap(), database);
        history.write(Record::new(HistoryEvent::Started, "")).unwrap();
        drop(history);
        assert!(open(dir.path()).barred().is_empty() && database.exists());
    }

    #[test]
    fn the_file_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let _open = open(dir.path());
        let error = History::open(dir.path(), false).err().unwrap();
        assert_eq!(error.code(), "history_locked");
        assert!(error.to_string().contains("another process"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        barring(dir.path());
        let path = dir.path().join(NAME);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = History::open(dir.path(), false).err().unwrap();
        assert_eq!(error.code(), "history_not_private");
    }
}
