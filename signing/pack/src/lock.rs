//! `lock`: pins the exact packs of a deployment, and checks them.

use std::fmt;
use std::path::{Path, PathBuf};

use ruvllm_signing::{PackLock, escape_untrusted};
use serde::Serialize;

use crate::sign::VerifyOptions;
use crate::{Report, ToolError, atomic};

/// What was pinned, or found out about the pins.
#[derive(Clone, Debug, Serialize)]
pub struct LockReport {
    /// The lock file.
    pub lock: PathBuf,
    /// Whether the file was only checked.
    pub checked: bool,
    /// Each pack.
    pub packs: Vec<LockLine>,
}

/// One pack of a lock.
#[derive(Clone, Debug, Serialize)]
pub struct LockLine {
    /// Where it was read from.
    pub path: PathBuf,
    /// Its name, version and digest, where it could be verified.
    pub pack: Option<(String, String, String)>,
    /// What stands against it: code and message.
    pub objection: Option<(String, String)>,
}

impl Report for LockReport {
    fn passed(&self) -> bool {
        self.packs.iter().all(|line| line.objection.is_none())
    }
}

impl fmt::Display for LockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.checked { "as pinned" } else { "pinned" };
        for line in &self.packs {
            let path = escape_untrusted(&line.path.to_string_lossy());
            match (&line.objection, &line.pack) {
                (Some((code, message)), _) => writeln!(f, "{path}: {message} [{code}]")?,
                (None, Some((name, version, digest))) => {
                    writeln!(f, "{verb}  {name} {version}  {digest}  ({path})")?;
                }
                (None, None) => {}
            }
        }
        let file = escape_untrusted(&self.lock.to_string_lossy());
        if !self.checked {
            writeln!(f, "wrote {file}")?;
        }
        Ok(())
    }
}

/// Verifies packs and writes a lock file that pins them and nothing else.
///
/// # Errors
/// [`ToolError::Pack`] for the first pack that is refused, where nothing is written; where two packs
/// have one name; [`ToolError::Io`].
pub fn lock(
    options: &VerifyOptions,
    packs: &[PathBuf],
    file: &Path,
) -> Result<LockReport, ToolError> {
    let policy = options.read_policy()?;
    let mut lock = PackLock::new();
    let mut lines = Vec::new();
    for path in packs {
        let pack = options.verify(&policy, path)?;
        let manifest = pack.manifest();
        let digest = pack.digest();
        if lock.insert(&pack).is_some_and(|other| other.digest != digest) {
            let message = format!("two packs are called `{}`; lock one of them", manifest.name);
            return Err(ToolError::Pack(ruvllm_signing::PackError::Lock { message }));
        }
        let named = (manifest.name.to_string(), manifest.version.to_string(), digest.to_string());
        lines.push(LockLine { path: path.clone(), pack: Some(named), objection: None });
    }
    atomic::write(file, lock.to_toml()?.as_bytes())?;
    Ok(LockReport { lock: file.to_owned(), checked: false, packs: lines })
}

/// Verifies packs and holds each against a lock file.
///
/// # Errors
/// [`ToolError::Pack`] where the policy or the lock file cannot be used, [`ToolError::Io`].
pub fn check(
    options: &VerifyOptions,
    packs: &[PathBuf],
    file: &Path,
) -> Result<LockReport, ToolError> {
    let policy = options.read_policy()?;
    let lock = PackLock::read(file)?;
    let line = |path: &PathBuf| {
        let verified = options.verify(&policy, path).and_then(|pack| {
            lock.check(&pack)?;
            Ok(pack)
        });
        let (pack, objection) = match verified {
            Ok(pack) => {
                let manifest = pack.manifest();
                let named = (
                    manifest.name.to_string(),
                    manifest.version.to_string(),
                    pack.digest().to_string(),
                );
                (Some(named), None)
            }
            Err(error) => {
                let code = error.details().into_iter().next().map(|(code, ..)| code);
                let code = code.unwrap_or_else(|| error.code().to_owned());
                (None, Some((code, error.to_string())))
            }
        };
        LockLine { path: path.clone(), pack, objection }
    };
    let lines = packs.iter().map(line).collect();
    Ok(LockReport { lock: file.to_owned(), checked: true, packs: lines })
}
