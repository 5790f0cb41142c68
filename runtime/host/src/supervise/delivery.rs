//! Packs that are delivered through a directory: what appears there is staged and activated.
//!
//! Whoever runs many servers copies a pack to a place that all of them see instead of asking each.
//! Such places are network mounts and ConfigMaps as often as local disks, and only local disks tell
//! of changes that others make; so the directory is looked at, every few seconds.
//!
//! What counts as a pack: a file whose name ends in `.rkp`, a directory with a `kernels.json`, or the
//! `dist/` of a pack crate that was built, of which nothing else is looked at. Names
//! that begin with a dot or end as temporary ones do are not looked at. A name may be a link, as
//! those of a ConfigMap are; a link inside of a pack is refused, as everywhere.
//!
//! When it is delivered:
//! 1. Once two looks in a row have seen the same sizes, times and names: until then somebody may be
//!    copying. Where that is not enough, as with the cached attributes of some network mounts, a part
//!    of a pack fails verification, and is read again when more of it has come.
//! 2. Of the packs of one name that some publisher vouches for, the one of the highest version, and
//!    no other, whatever becomes of it. It must not be older than the active one of its name.
//! 3. What is refused is tried again when its bytes change, when the trust policy or the lock does, and
//!    after a restart. What only could not be done, for want of room on a disk say, is tried again after a
//!    while that doubles each time.
//! 4. A pack that is barred is never tried. One that the history has as active or on trial before is not
//!    delivered again where an operator went back from it, ended its trial or put another in its place, and
//!    where it did harm. A line of the log says how an operator activates it all the same.
//! 5. One that served when its process ended, and that the restart did not bring back because it was not
//!    found healthy yet, is delivered again. Where processes have ended in its window [`ATTEMPTS`] times
//!    without being asked to, perhaps because of it, it is left to an operator: to one who stages it, or who
//!    touches it or copies it here anew while the server runs, which is one more attempt.
//! 6. While any trial runs, deliveries wait.
//!
//! With a share, a pack is put on trial first. When the window of such a trial ends well, the pack is
//! activated, and watched anew; trials of others are left to them. Taking a pack out of the directory
//! changes nothing. What is wrong is logged when it begins, and not with every look.

use super::history::Past;
use super::spans::LOG;
use super::supervisor::{Supervisor, SupervisorError};
use super::supervisor_watch::Watchdog;
use crate::error::HostError;
use crate::pack::PackId;
use crate::ticker::Ticker;
use blake3::{Hash, Hasher};
use ruvllm_signing::{
    ARCHIVE_EXTENSION, CRATE_FILE, MANIFEST_FILE, PackError, PackLimits, UnverifiedPack,
    escape_untrusted, pack_directory,
};
use semver::Version;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tracing::Span;

/// Whom the history names for what came through the directory.
const OPERATOR: &str = "directory";

/// How names end under which something is being written.
const TEMPORARY: [&str; 5] = ["~", ".tmp", ".temp", ".part", ".partial"];

/// How many processes may end in a pack's window before it is not delivered any more.
const ATTEMPTS: u32 = 3;

/// How often the wait for another attempt doubles: to about an hour, at one look every two seconds.
const DOUBLINGS: u32 = 11;

/// Delivers the packs that appear in a directory.
pub struct Delivery {
    supervisor: Arc<Supervisor>,
    directory: PathBuf,
    share: Option<f64>,
    entries: BTreeMap<PathBuf, WatchedPack>,
    /// The generation of a trial that was begun here.
    trial: Option<u64>,
    /// Packs that are left to an operator because processes ended in their windows, by digest, each as it lay
    /// here then.
    suspected: BTreeMap<String, Hash>,
    /// Pack crates that have not been built, which were said to be so.
    unbuilt: BTreeSet<PathBuf>,
    /// How often it had changed whose packs are taken when they were looked at last.
    acceptance: u64,
    notice: Notice,
}

/// What may be a pack.
struct WatchedPack {
    trace: Hash,
    /// Whether it was read since it changed last.
    read: bool,
    /// Of its bytes, where they could be read.
    content: Option<Hash>,
    /// Which pack these bytes are, where a publisher vouches for them.
    pack: Option<Delivered>,
    notice: Notice,
}

/// A pack that was verified.
struct Delivered {
    id: PackId,
    version: Version,
    /// Whether it is not to be tried again.
    settled: bool,
    /// How often it could not be delivered.
    failures: u32,
    /// Looks until it is tried again.
    wait: u32,
}

/// The last thing that was logged of something, which is not said twice.
#[derive(Default)]
struct Notice(String);

impl Delivery {
    /// Delivers from a directory, through a trial with a share of the steps where one is given.
    /// Nothing is read before [`Delivery::look`].
    pub fn new(supervisor: Arc<Supervisor>, directory: PathBuf, share: Option<f64>) -> Self {
        let (entries, trial, suspected, unbuilt, notice) = Default::default();
        let acceptance = supervisor.acceptance_changes();
        Self {
            supervisor,
            directory,
            share,
            entries,
            trial,
            suspected,
            unbuilt,
            acceptance,
            notice,
        }
    }

    /// Looks into the directory every so often, on a thread of its own.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn watch(mut self, period: Duration) -> io::Result<Watchdog> {
        let ticker = Ticker::new("ruvllm-delivery", period).impatient();
        ticker.start(move || self.look())?;
        Ok(Watchdog { _tickers: vec![ticker] })
    }

    /// Looks into the directory once, and delivers what is to be delivered: takes as long as staging
    /// that does.
    pub fn look(&mut self) {
        let Listed { packs: listed, unbuilt } = match list(&self.directory) {
            Ok(listed) => listed,
            Err(error) => {
                let shown = shown(&self.directory);
                return self.notice.warn(format!("cannot look for packs in {shown}: {error}"));
            }
        };
        self.notice = Notice::default();
        for path in unbuilt.difference(&self.unbuilt) {
            tracing::warn!(
                target: LOG,
                "{} is a pack crate that has not been built, and nothing of it is delivered before \
                 `ruvllm-pack build` was run there",
                shown(path)
            );
        }
        self.unbuilt = unbuilt;
        self.entries.retain(|path, _| listed.contains(path));
        let acceptance = self.supervisor.acceptance_changes();
        if self.acceptance != acceptance {
            self.acceptance = acceptance;
            for entry in self.entries.values_mut() {
                (entry.read, entry.content) = (false, None);
            }
        }
        for path in listed {
            self.examine(path);
        }
        self.promote();
        for path in self.highest() {
            if self.supervisor.canary().is_ok() {
                break;
            }
            self.deliver(&path);
        }
    }

    /// Reads what has come to rest, and verifies it.
    fn examine(&mut self, path: PathBuf) {
        let now = trace(&path);
        let shown = shown(&path);
        let entry = match self.entries.entry(path.clone()) {
            Slot::Vacant(slot) => {
                slot.insert(WatchedPack::new(now));
                return;
            }
            Slot::Occupied(slot) => slot.into_mut(),
        };
        if entry.trace != now {
            (entry.trace, entry.read) = (now, false);
            return;
        }
        if entry.read {
            return;
        }
        let read = read(&path);
        if let Err(error @ PackError::Io { .. }) = &read {
            return entry.notice.warn(error.to_string());
        }
        if trace(&path) != now {
            return;
        }
        entry.read = true;
        let content = read.as_ref().ok().map(|(_, content)| *content);
        if content.is_some() && content == entry.content {
            let suspected = |pack: &&mut Delivered| self.suspected.contains_key(&pack.id.digest);
            if let Some(pack) = entry.pack.as_mut().filter(suspected) {
                pack.settled = false;
            }
            return;
        }
        entry.content = content;
        // Against the floor when it is staged: what is older than the active one may lie here.
        match read.and_then(|(pack, _)| self.supervisor.verify(pack, None)) {
            Ok(pack) => {
                let (id, version) = (PackId::of(&pack), pack.manifest().version.clone());
                entry.pack = Some(Delivered { id, version, settled: false, failures: 0, wait: 0 });
            }
            Err(error) => {
                entry.pack = None;
                if entry.notice.is_new(error.to_string()) {
                    tracing::warn!(target: LOG, "{shown} is not delivered");
                    self.supervisor.refused(&Span::none(), None, OPERATOR, &error.into());
                }
            }
        }
    }

    /// Where the pack of the highest version of each name lies.
    fn highest(&self) -> Vec<PathBuf> {
        let mut highest: BTreeMap<&str, (&Version, &Path)> = BTreeMap::new();
        for (path, entry) in &self.entries {
            let Some(pack) = &entry.pack else { continue };
            let mine = (&pack.version, path.as_path());
            let best = highest.entry(&pack.id.name).or_insert(mine);
            *best = mine.max(*best);
        }
        highest.into_values().map(|(_, path)| path.to_owned()).collect()
    }

    /// Activates the pack whose trial was begun here and has ended well.
    fn promote(&mut self) {
        let Some(trial) = self.trial else { return };
        if self.supervisor.canary().is_ok_and(|canary| canary.generation == trial) {
            if self.supervisor.health().iter().any(|watched| watched.canary) {
                return;
            }
            if let Err(error) = self.supervisor.promote_canary(OPERATOR) {
                tracing::error!(target: LOG, "the trial is left to an operator: {error}");
            }
        }
        self.trial = None;
    }

    /// Stages and activates a pack, or puts it on trial, unless something stands against that.
    fn deliver(&mut self, path: &Path) {
        let (supervisor, share) = (&self.supervisor, self.share);
        let Some(entry) = self.entries.get_mut(path).filter(|entry| entry.read) else { return };
        let Some(pack) = &mut entry.pack else { return };
        if pack.settled {
            return;
        }
        if pack.wait > 0 {
            pack.wait -= 1;
            return;
        }
        let (shown, name) = (shown(path), format!("{} {}", pack.id.name, pack.id.version));
        match supervisor.state_of(pack) {
            PackState::New => {}
            PackState::Active => return,
            PackState::Barred(reason) => {
                let digest = &pack.id.digest;
                let reason = escape_untrusted(&reason);
                return entry.notice.warn(format!(
                    "{name} in {shown} is barred ({reason}); to try it again: `ruvllm kernels \
                     clear {digest}`, then `ruvllm kernels stage {shown}`"
                ));
            }
            PackState::Older(active) => {
                return entry.notice.warn(format!(
                    "{name} in {shown} is older than the active {active} and is not delivered; to \
                     stage it: `ruvllm kernels stage {shown}`"
                ));
            }
            PackState::Withdrawn => {
                pack.settled = true;
                return entry.notice.warn(format!(
                    "{name} in {shown} was published here before and taken back, and is not \
                     delivered again; to stage it: `ruvllm kernels stage {shown}`, where the server \
                     has --admin-listen"
                ));
            }
            PackState::Suspected => {
                let was = self.suspected.entry(pack.id.digest.clone()).or_insert(entry.trace);
                if *was == entry.trace {
                    pack.settled = true;
                    return entry.notice.warn(format!(
                        "{name} in {shown} is not delivered again: {ATTEMPTS} times the process ended \
                         before it was found healthy, perhaps because of it; deliver a later version, \
                         or, to try this one once more, run `touch {shown}` or copy it here anew while \
                         the server runs"
                    ));
                }
                *was = entry.trace;
            }
        }
        let unverified = match read(path) {
            Ok((unverified, content)) if entry.content == Some(content) => unverified,
            _ => {
                entry.read = false;
                return;
            }
        };
        let published = supervisor.stage(unverified, OPERATOR).and_then(|staged| match share {
            Some(share) => supervisor.start_canary(staged.id, share, OPERATOR),
            None => supervisor.activate(staged.id, OPERATOR),
        });
        match published {
            Ok(report) => {
                self.trial = share.map(|_| report.generation);
                entry.notice = Notice::default();
                tracing::info!(target: LOG, generation = report.generation, "{name} from {shown}");
            }
            Err(error) => {
                pack.settled = is_verdict(&error);
                pack.failures += 1;
                pack.wait = 1 << pack.failures.min(DOUBLINGS);
                if entry.notice.is_new(error.to_string()) {
                    tracing::warn!(target: LOG, "{name} in {shown} is not delivered");
                }
            }
        }
    }
}

/// How a pack stands to what is and was published.
enum PackState {
    New,
    Active,
    /// Why.
    Barred(String),
    /// Than this active version of its name.
    Older(Version),
    /// Published before, and taken back.
    Withdrawn,
    /// Too many processes ended in its window.
    Suspected,
}

impl Supervisor {
    fn state_of(&self, pack: &Delivered) -> PackState {
        let active = self.host.snapshot().pack_ids();
        if active.contains(&pack.id) {
            return PackState::Active;
        }
        let barred = self.host.barred().into_iter().find(|(digest, _)| *digest == pack.id.digest);
        if let Some((_, reason)) = barred {
            return PackState::Barred(reason);
        }
        let same_name = active.iter().find(|active| active.name == pack.id.name);
        let version = same_name.and_then(|active| active.version.parse::<Version>().ok());
        if let Some(version) = version.filter(|version| *version > pack.version) {
            return PackState::Older(version);
        }
        match self.history.past(&pack.id) {
            Past::Withdrawn => PackState::Withdrawn,
            Past::CutShort { unproven } if unproven >= ATTEMPTS => PackState::Suspected,
            Past::CutShort { .. } | Past::Unpublished => PackState::New,
        }
    }
}

impl WatchedPack {
    fn new(trace: Hash) -> Self {
        Self { trace, read: false, content: None, pack: None, notice: Notice::default() }
    }
}

impl Notice {
    fn warn(&mut self, message: String) {
        if self.is_new(message) {
            tracing::warn!(target: LOG, "{}", self.0);
        }
    }

    /// Whether something else was said last; from here on it is this.
    fn is_new(&mut self, message: String) -> bool {
        let new = self.0 != message;
        self.0 = message;
        new
    }
}

/// Whether the same bytes would fail again.
fn is_verdict(error: &SupervisorError) -> bool {
    matches!(
        error,
        SupervisorError::Pack(PackError::Rejected(_))
            | SupervisorError::Host(HostError::Refused { .. } | HostError::CanaryShare { .. })
    )
}

/// What lies in a directory.
struct Listed {
    /// What may be packs, in order of name.
    packs: Vec<PathBuf>,
    /// Pack crates that hold no build; the directory may be one itself.
    unbuilt: BTreeSet<PathBuf>,
}

fn list(directory: &Path) -> io::Result<Listed> {
    let (mut packs, mut unbuilt) = (Vec::new(), BTreeSet::new());
    let is_unbuilt = |path: &Path| {
        let built = pack_directory(path);
        fs::symlink_metadata(path.join(CRATE_FILE)).is_ok()
            && fs::symlink_metadata(built.join(MANIFEST_FILE)).is_err()
    };
    if is_unbuilt(directory) {
        unbuilt.insert(directory.to_owned());
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || TEMPORARY.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        // Through links. What cannot be looked at is gone already, or a link that leads nowhere.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let path = if metadata.is_dir() { pack_directory(&path).into_owned() } else { path };
        let is_pack = match metadata.is_dir() {
            true => fs::symlink_metadata(path.join(MANIFEST_FILE)).is_ok(),
            false => path.extension().is_some_and(|extension| extension == ARCHIVE_EXTENSION),
        };
        if is_pack {
            packs.push(path);
        } else if metadata.is_dir() && is_unbuilt(&path) {
            unbuilt.insert(path);
        }
    }
    packs.sort();
    Ok(Listed { packs, unbuilt })
}

/// A pack, and the hash of its bytes.
fn read(path: &Path) -> Result<(UnverifiedPack, Hash), PackError> {
    let pack = UnverifiedPack::read(path, &PackLimits::default())?;
    let mut hasher = Hasher::new();
    pack.write_archive(&mut hasher)?;
    Ok((pack, hasher.finalize()))
}

/// What can be told of a pack without opening it.
fn trace(path: &Path) -> Hash {
    let mut hasher = Hasher::new();
    let mut pending = vec![path.to_owned()];
    // More than a pack may have is refused when it is read.
    for _ in 0..=PackLimits::default().max_entries {
        let Some(at) = pending.pop() else { break };
        // Through a link at the top, as reading goes.
        let found = if at == path { fs::metadata(&at) } else { fs::symlink_metadata(&at) };
        let is_dir = found.as_ref().is_ok_and(Metadata::is_dir);
        let seen = found.as_ref().map(stamp).map_err(io::Error::kind);
        hasher.update(format!("{at:?} {seen:?}\n").as_bytes());
        if is_dir {
            let listed = fs::read_dir(&at).into_iter().flatten().flatten();
            pending.extend(listed.map(|entry| entry.path()));
            pending.sort();
        }
    }
    hasher.finalize()
}

/// What changes with a file's bytes.
#[cfg(unix)]
fn stamp(metadata: &Metadata) -> impl std::fmt::Debug {
    use std::os::unix::fs::MetadataExt;
    // The time of the last change too: copying may set the other one.
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.len(), metadata.modified().ok(), metadata.ino(), changed)
}

/// What changes with a file's bytes.
#[cfg(not(unix))]
fn stamp(metadata: &Metadata) -> impl std::fmt::Debug {
    (metadata.len(), metadata.modified().ok())
}

fn shown(path: &Path) -> String {
    escape_untrusted(&path.to_string_lossy())
}
