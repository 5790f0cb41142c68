//! The options of `ruvllm kernels`.

use crate::cli::args::KernelOptions;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = ENVIRONMENT)]
pub(crate) struct KernelsArgs {
    #[command(subcommand)]
    pub(crate) action: KernelsAction,
}

const ENVIRONMENT: &str = "A live server is one that was started with --admin-listen. Environment: \
RUVLLM_ADMIN_KEY, the administrator's key; RUVLLM_ADMIN_URL, in place of --server where a command \
needs a live server.";

#[derive(Debug, Subcommand)]
pub(crate) enum KernelsAction {
    /// List every kernel that this machine, or a live server, has admitted.
    List {
        #[command(flatten)]
        place: Place,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say which kernel runs an operation, and why not the others; or what a graph of a pack is, and whether it is
    /// right on this machine.
    Explain {
        /// The operation, such as `rmsnorm`, or a graph of a --pack.
        op: String,
        #[command(flatten)]
        place: Place,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Send a pack to a live server, which verifies, compiles and proves it; nothing runs it yet.
    Stage {
        /// A signed pack, a directory or an .rkp file.
        pack: PathBuf,
        #[command(flatten)]
        live: Live,
    },
    /// Make a staged pack active on a live server, or try it on a share of the steps.
    Activate {
        /// The number that `stage` gave it.
        id: u64,
        /// Put it on trial: from 0 to 1, how many of the steps run on it.
        #[arg(long)]
        share: Option<f64>,
        #[command(flatten)]
        live: Live,
    },
    /// Make the pack on trial active.
    Promote {
        #[command(flatten)]
        live: Live,
    },
    /// End the trial: all steps run on the active generation again.
    EndTrial {
        #[command(flatten)]
        live: Live,
    },
    /// Go back to an earlier generation.
    Rollback {
        /// Its number, as `list` has it; the one before the active one when absent.
        generation: Option<u64>,
        #[command(flatten)]
        live: Live,
    },
    /// Let go of a staged pack.
    Discard {
        /// The number that `stage` gave it.
        id: u64,
        #[command(flatten)]
        live: Live,
    },
    /// Let a pack in again that was taken back because it did harm.
    Clear {
        /// Its digest, as `list` has it, or as many of the first digits as tell it from other barred packs.
        #[arg(value_parser = digest)]
        digest: String,
        #[command(flatten)]
        live: Live,
    },
    /// Show what was done to a live server's kernels, when, by whom and why; newest first.
    History {
        /// How many entries.
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        live: Live,
    },
    /// Follow the history and the packs that are being watched, until Ctrl-C.
    Watch {
        #[command(flatten)]
        live: Live,
    },
}

/// This machine, or a live server.
#[derive(Debug, Args)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) kernels: KernelOptions,
    /// Ask the live server at this URL instead of this machine.
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "KernelOptions",
        help_heading = "Live server"
    )]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// A live server.
#[derive(Debug, Args)]
pub(crate) struct Live {
    /// Where it listens for administrators; http://127.0.0.1:8081 when absent.
    #[arg(long, value_name = "URL", help_heading = "Live server")]
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) access: Access,
    /// Print the server's answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a live server is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Live server")]
pub(crate) struct Access {
    /// A file with the administrator's key that only you can read; RUVLLM_ADMIN_KEY when absent.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Accept the server's certificate on the word of these (PEM), instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

/// The first digits of a digest, four of them at least.
fn digest(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    match (4..=64).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(text.to_owned()),
        false => Err("give a digest, or its first hexadecimal digits, at least four".to_owned()),
    }
}
