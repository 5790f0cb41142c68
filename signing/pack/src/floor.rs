//! `floor show|rollback`: the oldest versions that a host accepts.

use std::fmt;
use std::path::{Path, PathBuf};

use ruvllm_signing::{PackError, RollbackEntry, VersionFloor, escape_untrusted};
use semver::Version;
use serde::Serialize;

use crate::{Report, ToolError};

/// The floors of a directory.
#[derive(Clone, Debug, Serialize)]
pub struct FloorReport {
    /// The directory.
    pub directory: PathBuf,
    /// Pack, floor, and the versions that were active.
    pub packs: Vec<(String, Version, Vec<Version>)>,
    /// The rollbacks that operators asked for, oldest first.
    pub rollbacks: Vec<RollbackEntry>,
}

impl Report for FloorReport {}

impl fmt::Display for FloorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (pack, floor, history) in &self.packs {
            let history: Vec<String> = history.iter().map(Version::to_string).collect();
            writeln!(f, "{pack}  {floor} or newer  (was active: {})", history.join(", "))?;
        }
        if self.packs.is_empty() {
            writeln!(f, "no pack has been active here")?;
        }
        for entry in &self.rollbacks {
            let RollbackEntry { time, pack, from, to, .. } = entry;
            let [operator, reason] =
                [&entry.operator, &entry.reason].map(|text| escape_untrusted(text));
            writeln!(f, "rollback  {time}  {pack} {from} -> {to}  by {operator}: {reason}")?;
        }
        Ok(())
    }
}

/// Shows the version floors and the rollbacks of a directory.
///
/// # Errors
/// [`ToolError::Pack`], also where there is no such directory.
pub fn show(directory: &Path) -> Result<FloorReport, ToolError> {
    let floors = open(directory)?;
    let mut packs = Vec::new();
    for pack in floors.packs()? {
        if let Some(record) = floors.record(&pack)? {
            packs.push((pack.to_string(), record.floor, record.history));
        }
    }
    let rollbacks = floors.rollbacks()?;
    Ok(FloorReport { directory: directory.to_owned(), packs, rollbacks })
}

/// A rollback to do.
#[derive(Clone, Debug)]
pub struct Rollback {
    /// The pack.
    pub pack: String,
    /// The version to go back to; it must have been active here.
    pub to: Version,
    /// Who asks for it.
    pub operator: String,
    /// Why.
    pub reason: String,
}

/// A rollback that was done.
#[derive(Clone, Debug, Serialize)]
pub struct RollbackReport {
    /// What was logged.
    pub rollback: RollbackEntry,
}

impl Report for RollbackReport {}

impl fmt::Display for RollbackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RollbackEntry { pack, from, to, .. } = &self.rollback;
        writeln!(f, "{pack}: {from} -> {to}, logged")?;
        writeln!(f, "newer versions stay acceptable; pin packs in a lock file to keep one out")
    }
}

/// Lowers the floor of a pack to a version that was active here, and logs it.
///
/// # Errors
/// [`ToolError::Pack`].
pub fn rollback(directory: &Path, rollback: &Rollback) -> Result<RollbackReport, ToolError> {
    let floors = open(directory)?;
    let refused = |message| ToolError::Pack(PackError::Rollback { message });
    let pack = rollback.pack.parse().map_err(|e| refused(format!("the pack's name: {e}")))?;
    let Rollback { to, operator, reason, .. } = rollback;
    Ok(RollbackReport { rollback: floors.roll_back(&pack, to, operator, reason)? })
}

/// Opening would make the directory, and hide a mistyped name.
pub(crate) fn open(directory: &Path) -> Result<VersionFloor, ToolError> {
    std::fs::read_dir(directory).map_err(ToolError::io("list", directory))?;
    Ok(VersionFloor::open(directory)?)
}
