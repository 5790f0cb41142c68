//! The book of generations: what is staged, published, kept and barred, and the reports of it.

use crate::error::HostError;
use crate::pack::PackId;
use crate::registry::{PreparedPack, RegistrySnapshot};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// What publishers know. Readers of snapshots never look here.
pub(crate) struct Generations {
    /// The highest number that was given.
    pub(super) last: u64,
    pub(super) staged: Vec<Staged>,
    pub(super) last_staged: u64,
    /// In the order of their numbers.
    pub(super) kept: VecDeque<Kept>,
    /// The number of one that is kept however old it grows.
    pub(super) retained: Option<u64>,
    /// Reasons by digest.
    pub(super) barred: BTreeMap<String, String>,
}

/// A generation, for as long as one can go back to it or somebody holds it.
pub(super) struct Kept {
    pub(super) number: u64,
    /// Newest first.
    pub(super) packs: Vec<Arc<PreparedPack>>,
    pub(super) snapshot: Weak<RegistrySnapshot>,
    /// Whether it was ever the active one.
    pub(super) activated: bool,
    /// The generation whose packs these are: itself, or an earlier one that was gone back to.
    pub(super) origin: u64,
}

/// One generation, as [`crate::Host::generations`] lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GenerationReport {
    /// Its number.
    pub generation: u64,
    /// What it is doing.
    pub state: GenerationState,
    /// Its packs, newest first.
    pub packs: Vec<PackId>,
    /// How many hold it beside the host: steps that run on it, mostly.
    pub holders: usize,
    /// The earlier generation whose packs these are, where it was published by going back.
    pub restores: Option<u64>,
}

/// What a generation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerationState {
    /// Steps run on it.
    Active,
    /// A share of the steps runs on it, on trial.
    Canary {
        /// The share.
        share: f64,
    },
    /// No step is given to it any more, and some still hold it.
    Draining,
    /// Nobody holds it. Its packs are kept for going back.
    Drained,
}

impl Generations {
    pub(crate) fn new(first: &Arc<RegistrySnapshot>) -> Self {
        let number = first.generation();
        let first = Kept {
            number,
            packs: Vec::new(),
            snapshot: Arc::downgrade(first),
            activated: true,
            origin: number,
        };
        Self {
            last: number,
            staged: Vec::new(),
            last_staged: 0,
            kept: [first].into(),
            retained: None,
            barred: BTreeMap::new(),
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Has all numbers that are given from now on be above `past`.
    #[cfg(feature = "supervisor")]
    pub(super) fn skip_to(&mut self, past: u64) {
        self.last = self.last.max(past);
    }

    /// # Errors
    /// [`HostError::Barred`].
    pub(super) fn admits(&self, pack: &PackId) -> Result<(), HostError> {
        match self.barred.get(&pack.digest) {
            None => Ok(()),
            Some(reason) => Err(HostError::Barred {
                pack: format!("{} {}", pack.name, pack.version),
                digest: pack.digest.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Forgets generations that nobody holds and that are too old to go back to.
    pub(super) fn trim(&mut self, keep: usize) {
        let activated = self.kept.iter().filter(|kept| kept.activated).count();
        // The active one is among them, and comes beside those that are kept.
        let mut surplus = activated.saturating_sub(keep + 1);
        let retained = self.retained;
        self.kept.retain(|kept| {
            let old = kept.activated && surplus > 0;
            surplus -= usize::from(old);
            let held = kept.snapshot.strong_count() > 0 || retained == Some(kept.number);
            held || kept.activated && !old
        });
    }
}

/// A pack that is ready to be published.
#[derive(Clone)]
pub(super) struct Staged {
    pub(super) pack: Arc<PreparedPack>,
    pub(super) report: StageReport,
}

/// A pack that is staged: compiled, proved and rehearsed, and published by nobody yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StageReport {
    /// The number under which it can be activated or discarded.
    pub id: u64,
    /// Which pack.
    #[serde(flatten)]
    pub pack: PackId,
    /// Kernels that were admitted.
    pub kernels: Vec<String>,
    /// Graphs that it holds; kernels of its own compute them, or who serves encoders of texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub graphs: Vec<String>,
    /// Kernels that are not used here, with the reasons.
    pub skipped: Vec<(String, Vec<String>)>,
    /// What the cache of machine code did for it.
    pub cache: CacheUse,
    /// Calls that its kernels computed in shapes that this host has seen, each held against the f64
    /// oracle.
    pub rehearsed: usize,
    /// The digest of the pack of this name and version that was active when it was staged, where that has
    /// other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

/// What became of a pack that was installed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstallReport {
    /// Its name.
    pub pack: String,
    /// Its version.
    pub version: String,
    /// `sha256:` and the hexadecimal hash of its manifest.
    pub digest: String,
    /// The generation that it opened.
    pub generation: u64,
    /// Kernels that were admitted.
    pub kernels: Vec<String>,
    /// Graphs that it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub graphs: Vec<String>,
    /// Kernels that are not used here, with the reasons: made for another executor or another mode, mostly.
    pub skipped: Vec<(String, Vec<String>)>,
    /// The version that it replaced.
    pub replaced: Option<String>,
    /// What the cache of machine code did for it.
    pub cache: CacheUse,
    /// Calls that its kernels computed in shapes that this host has seen.
    pub rehearsed: usize,
    /// The digest of the pack that it replaced, where that has the same version and other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

/// What the cache of machine code did for a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CacheUse {
    /// Kernels that were compiled and admitted at an earlier time.
    pub hits: usize,
    /// Kernels that were compiled and admitted now.
    pub misses: usize,
    /// Why the configured cache is not used.
    pub unusable: Option<String>,
}

impl StageReport {
    pub(super) fn installed(self, generation: u64, replaced: Option<PackId>) -> InstallReport {
        let Self { pack, kernels, graphs, skipped, cache, rehearsed, .. } = self;
        let changed = replaced.as_ref().and_then(|old| pack.changed_from(old));
        let replaced = replaced.map(|old| old.version);
        let PackId { name, version, digest } = pack;
        let pack = name;
        InstallReport {
            pack,
            version,
            digest,
            generation,
            kernels,
            graphs,
            skipped,
            replaced,
            cache,
            rehearsed,
            changed,
        }
    }
}

impl Generations {
    /// # Errors
    /// [`HostError::NotStaged`].
    pub(super) fn staged(&self, id: u64) -> Result<&Staged, HostError> {
        self.staged.iter().find(|s| s.report.id == id).ok_or(HostError::NotStaged { id })
    }

    /// # Errors
    /// [`HostError::StageFull`].
    pub(super) fn has_room(&self, limit: usize) -> Result<(), HostError> {
        if self.staged.len() < limit { Ok(()) } else { Err(HostError::StageFull { limit }) }
    }
}
