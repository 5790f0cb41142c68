//! Why something was refused.

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
    /// The record of the newest version seen cannot be believed.
    #[error(
        "the version floor {} is damaged ({message}): find out why, then write the pack's newest \
         trusted version there or remove the file",
        Shown(.path)
    )]
    FloorDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

impl PackError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            PackError::Io { .. } => "io",
            PackError::Rejected(_) => "pack_rejected",
            PackError::Key { .. } => "key_invalid",
            PackError::WeakKey => "key_weak",
            PackError::Entropy { .. } => "entropy",
            PackError::Policy { .. } => "policy_invalid",
            PackError::FloorDamaged { .. } => "floor_damaged",
        }
    }

    /// The violations of a refused pack; empty for other errors.
    pub fn violations(&self) -> &[Violation] {
        match self {
            PackError::Rejected(violations) => violations,
            _ => &[],
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        PackError::Io { action, path: path.to_owned(), source }
    }
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
