//! What can be wrong with a manifest, as data.

use crate::escape_untrusted;
use serde::Serialize;
use std::fmt;
use thiserror::Error;

/// One thing that is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Violation {
    /// A stable code in snake case.
    pub code: &'static str,
    /// Where: a place in a document such as `kernels[0].hash`, or a path in a pack.
    pub location: String,
    /// What is wrong and what to do. Text from the pack in it is already escaped.
    pub message: String,
}

impl Violation {
    /// Builds a violation; the location and the message may quote the pack.
    pub fn new(code: &'static str, location: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self {
            code,
            location: escape_untrusted(location.as_ref()),
            message: escape_untrusted(message.as_ref()),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.location.is_empty() {
            write!(f, "{}: ", self.location)?;
        }
        write!(f, "{} [{}]", self.message, self.code)
    }
}

/// Why there is no [`crate::Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// The document is longer than any manifest may be.
    #[error("the manifest is {size} bytes long; at most {max} are read: split the pack")]
    TooLarge {
        /// Its length in bytes.
        size: usize,
        /// The longest that is read.
        max: usize,
    },
    /// The bytes are not one JSON document.
    #[error("the manifest is not valid JSON: {message}; write it with `ruvllm-pack build`")]
    Syntax {
        /// What the parser says.
        message: String,
    },
    /// The document breaks rules of the format.
    #[error("the manifest breaks {} rule(s) of the format:{}", .0.len(), Lines(.0))]
    Invalid(Vec<Violation>),
}

impl ManifestError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            ManifestError::TooLarge { .. } => "manifest_too_large",
            ManifestError::Syntax { .. } => "manifest_syntax",
            ManifestError::Invalid(_) => "manifest_invalid",
        }
    }

    /// Everything that is wrong, as violations.
    pub fn into_violations(self) -> Vec<Violation> {
        match self {
            ManifestError::Invalid(violations) => violations,
            other => {
                vec![Violation::new(other.code(), crate::MANIFEST_FILE, other.to_string())]
            }
        }
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
