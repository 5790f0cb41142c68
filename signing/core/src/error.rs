//! Why something was refused.

use crate::archive::DIST;
use ruvllm_manifest::{Violation, escape_untrusted};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Any failure of this crate. No variant ever holds secret material.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PackError {
    /// The file system said no.
    #[error("cannot {action} {}: {source}", Shown(.path))]
    Io {
        /// What was tried, such as `read`.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The pack breaks rules; all that were found, in order.
    #[error("the pack is refused, {} violation(s):{}", .0.len(), Lines(.0))]
    Rejected(Vec<Violation>),
    /// What was named is something else than a pack.
    #[error("{} {message}", Shown(.path))]
    NotAPack {
        /// What was named.
        path: PathBuf,
        /// What it is, and what to do.
        message: &'static str,
    },
    /// The build in a pack crate is not that of its sources.
    #[error(
        "{} is older than its sources ({}): run `ruvllm-pack build {}` first, or name {0} to take it as it is",
        Shown(&.directory.join(DIST)),
        first(.changed),
        Shown(.directory)
    )]
    Stale {
        /// The pack crate.
        directory: PathBuf,
        /// The sources that have changed since, from the crate on.
        changed: Vec<String>,
    },
    /// Nothing says what the build in a pack crate was made from.
    #[error(
        "nothing says which sources {0} was built from: run `ruvllm-pack build {1}` first, or name {0} to take it as \
         it is",
        Shown(&.directory.join(DIST)),
        Shown(.directory)
    )]
    Unrecorded {
        /// The pack crate.
        directory: PathBuf,
    },
    /// The text or file holds no key that can be used.
    #[error("{message}")]
    Key {
        /// What is wrong and what to do.
        message: String,
    },
    /// The public key has small order or another encoding than its own: anyone could sign for it.
    #[error(
        "the public key is weak and cannot be trusted; make a new one with `ruvllm-pack keygen`"
    )]
    WeakKey,
    /// The operating system gave no randomness.
    #[error("the operating system gave no randomness for a key: {message}")]
    Entropy {
        /// What the system said.
        message: String,
    },
    /// The trust policy says something that cannot be meant.
    #[error("the trust policy is not valid: {message}")]
    Policy {
        /// What is wrong and what to do.
        message: String,
    },
    /// Others than its owner can read or change the file of a secret key.
    #[error(
        "the secret key {} is open to others (mode {mode:04o}): run `chmod 600` on it, and make a \
         new key if somebody may have read this one",
        Shown(.path)
    )]
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The keyring is refused.
    #[error("the keyring is refused: {message} [{code}]")]
    Keyring {
        /// A stable code.
        code: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The lock file says something that cannot be meant.
    #[error("the lock file is not valid: {message}")]
    Lock {
        /// What is wrong and what to do.
        message: String,
    },
    /// A rollback that was asked for is not one.
    #[error("no rollback: {message}")]
    Rollback {
        /// What is wrong and what to do.
        message: String,
    },
    /// The record of the newest version seen cannot be believed.
    #[error(
        "the record {} is damaged ({message}): find out why, then restore it from a backup or \
         remove the file",
        Shown(.path)
    )]
    FloorDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Others could put older floors in place of the host's.
    #[error("version floors are not safe there: {message}, or give another directory")]
    FloorExposed {
        /// Which directory is open to others, and what to do.
        message: String,
    },
}

impl PackError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            PackError::Io { .. } => "io",
            PackError::Rejected(_) | PackError::NotAPack { .. } => "pack_rejected",
            PackError::Stale { .. } => "build_stale",
            PackError::Unrecorded { .. } => "build_unrecorded",
            PackError::Key { .. } => "key_invalid",
            PackError::WeakKey => "key_weak",
            PackError::Entropy { .. } => "entropy",
            PackError::Policy { .. } => "policy_invalid",
            PackError::FloorDamaged { .. } => "floor_damaged",
            PackError::FloorExposed { .. } => "floor_exposed",
            PackError::KeyExposed { .. } => "key_exposed",
            PackError::Keyring { code, .. } => code,
            PackError::Lock { .. } => "lock_invalid",
            PackError::Rollback { .. } => "rollback_refused",
        }
    }

    /// The violations of a refused pack; empty for other errors.
    pub fn violations(&self) -> &[Violation] {
        match self {
            PackError::Rejected(violations) => violations,
            _ => &[],
        }
    }

    pub(crate) fn keyring(code: &'static str, message: impl Into<String>) -> Self {
        PackError::Keyring { code, message: message.into() }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        PackError::Io { action, path: path.to_owned(), source }
    }
}

/// The first of some files, and how many more there are.
fn first(changed: &[String]) -> String {
    match changed {
        [] => String::new(),
        [one] => format!("{one} has changed"),
        [one, more @ ..] => format!("{one} and {} more have changed", more.len()),
    }
}

/// A parser's message for people: escaped, and without long values of the document, which may be
/// something that was put into the wrong field.
pub(crate) fn without_values(message: &str) -> String {
    const SHORT: usize = 20;
    let parts = message.split('"').enumerate().map(|(i, part)| {
        // Every second part was between quotes.
        if i % 2 == 1 && part.len() > SHORT { "..." } else { part }
    });
    escape_untrusted(&parts.collect::<Vec<_>>().join("\""))
}

struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_untrusted(&self.0.to_string_lossy()))
    }
}

struct Lines<'a>(&'a [Violation]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in self.0 {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}
