//! What can go wrong, and the exit code that says so.

use std::io;
use std::path::{Path, PathBuf};

use ruvllm_host::{CallError, HostError};
use ruvllm_manifest::{ManifestError, Violation};
use ruvllm_signing::{PackError, escape_untrusted};
use thiserror::Error;

/// What is said of a pack with graphs where this build computes none.
pub(crate) const NO_GRAPHS: &str = "the pack holds graphs, and this ruvllm-pack was built without the feature \
    `graphs`, which tries them: install it with `--features graphs`";

/// Any failure of a command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A pack holds graphs, which this build cannot try.
    #[error("{NO_GRAPHS}")]
    NoGraphs,
    /// Keys, signatures or the files of a pack.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The host refuses the pack.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The manifest, written or read, breaks its rules.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// `pack.toml` cannot be used.
    #[error("{}: {message}", .path.display())]
    Spec {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// There is nothing to build kernels with.
    #[error("no toolchain for wasm32 here: {message}")]
    Toolchain {
        /// What was looked for and what to install.
        message: String,
    },
    /// The toolchain here is not the one that the pack's bytes come from.
    #[error(
        "the pack was built with {wanted}; here is {found}, whose bytes may differ: install the \
         first to check, or build without --check"
    )]
    ToolchainMismatch {
        /// What `pack.toml` names.
        wanted: String,
        /// What was found.
        found: String,
    },
    /// The compiler failed; its messages went to standard error.
    #[error("building the kernels failed ({status}): see the messages of {what} above")]
    Compile {
        /// What failed, such as `cargo`.
        what: &'static str,
        /// How it ended.
        status: String,
    },
    /// A pack cannot be begun like that.
    #[error("{message}")]
    New {
        /// What is wrong and what to do.
        message: String,
    },
    /// A kernel cannot be called like that.
    #[error("{message}")]
    Call {
        /// What is wrong and what to do.
        message: String,
    },
    /// A kernel that was called gave no result.
    #[error(transparent)]
    Kernel(#[from] CallError),
    /// A golden file cannot be used.
    #[error("{}: {message}", escape_untrusted(&.path.to_string_lossy()))]
    Golden {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// A module that was built cannot be a kernel.
    #[error("kernel {kernel}: {message}")]
    Module {
        /// Its id.
        kernel: String,
        /// What is wrong and what to do.
        message: String,
    },
    /// A rebuild gave other bytes.
    #[error("a rebuild differs from what is there: {}", .files.join(", "))]
    Differs {
        /// Paths in the pack.
        files: Vec<String>,
    },
    /// The file system said no.
    #[error("cannot {action} {}: {source}", escape_untrusted(&.path.to_string_lossy()))]
    Io {
        /// What was tried, such as `read`.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl ToolError {
    /// A stable identifier for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ToolError::NoGraphs => "graphs_unavailable",
            ToolError::Pack(error) => error.code(),
            ToolError::Host(error) => error.code(),
            ToolError::Manifest(error) => error.code(),
            ToolError::Spec { .. } => "spec_invalid",
            ToolError::Toolchain { .. } => "toolchain_missing",
            ToolError::ToolchainMismatch { .. } => "toolchain_mismatch",
            ToolError::Compile { .. } => "compile_failed",
            ToolError::New { .. } => "new_refused",
            ToolError::Call { .. } => "call_invalid",
            ToolError::Kernel(error) => error.code(),
            ToolError::Golden { .. } => "golden_invalid",
            ToolError::Module { .. } => "module_unusable",
            ToolError::Differs { .. } => "not_reproduced",
            ToolError::Io { .. } => "io",
        }
    }

    /// What a process should exit with: 1 when the thing looked at fails, 2 when it could not be
    /// looked at.
    pub fn exit_code(&self) -> u8 {
        match self {
            ToolError::Pack(
                PackError::Rejected(_) | PackError::Keyring { .. } | PackError::Rollback { .. },
            )
            | ToolError::Host(HostError::Refused { .. })
            | ToolError::Kernel(CallError::Failed { .. } | CallError::Exhausted { .. })
            | ToolError::Manifest(_)
            | ToolError::Compile { .. }
            | ToolError::Module { .. }
            | ToolError::Differs { .. } => 1,
            _ => 2,
        }
    }

    /// What is wrong in particular: location and sentence, each with a stable code.
    pub fn details(&self) -> Vec<(String, String, String)> {
        let violation = |v: &Violation| (v.code.to_owned(), v.location.clone(), v.message.clone());
        match self {
            ToolError::Pack(error) => error.violations().iter().map(violation).collect(),
            ToolError::Manifest(ManifestError::Invalid(found)) => {
                found.iter().map(violation).collect()
            }
            ToolError::Host(error) => error
                .refusals()
                .iter()
                .map(|r| (r.code.to_owned(), r.kernel.clone(), r.message.clone()))
                .collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ToolError {
        move |source| ToolError::Io { action, path: path.to_owned(), source }
    }
}
