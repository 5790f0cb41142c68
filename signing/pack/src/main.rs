//! `ruvllm-pack`: the command line of kernel authors and release managers.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ruvllm_pack::{ToolError, bench, build, inspect, oracle_test, print_error, print_report, sign};

/// Builds, signs, checks and measures kernel packs.
#[derive(Parser)]
#[command(
    version,
    after_help = "Exit codes:\n  \
    0  done, and what was looked at is in order\n  \
    1  what was looked at fails: a pack is refused, a test fails, a rebuild differs\n  \
    2  it could not be looked at: wrong usage, a file or a toolchain is missing\n\n\
    DIR is a pack (with kernels.json) or a pack crate (with pack.toml), whose dist/ is then meant."
)]
struct Cli {
    /// Print one JSON document instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a signing key.
    Keygen {
        /// Where the secret key goes; the file must not exist.
        #[arg(long, short, value_name = "FILE", default_value = "signing-key.pem")]
        out: PathBuf,
    },
    /// Compile every kernel of a pack crate and write the pack to its dist/.
    ///
    /// Needs a Rust that compiles to wasm32-unknown-unknown: with that target installed, or with
    /// its own sources. The pack must pass admission, or nothing is written.
    Build {
        /// The pack crate.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Write nothing; compare a rebuild with dist/, byte by byte.
        ///
        /// Where the toolchain is not the one that pack.toml records, this ends with exit code 2
        /// and the error code toolchain_mismatch.
        #[arg(long)]
        check: bool,
        /// Where cargo keeps its files.
        #[arg(long, value_name = "DIR")]
        target_dir: Option<PathBuf>,
    },
    /// Sign a pack; signatures of other keys stay.
    Sign {
        /// The secret key, as PKCS#8 PEM.
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The pack.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Check signatures, trust and every file of a pack.
    Verify {
        /// A trust policy; without one, only the project's release key is trusted.
        #[arg(long, value_name = "FILE")]
        trust: Option<PathBuf>,
        /// The pack.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Show what a pack says about itself and what its modules are, without running it.
    Inspect {
        /// A trust policy, as for verify.
        #[arg(long, value_name = "FILE")]
        trust: Option<PathBuf>,
        /// The pack.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Run every kernel in the sandbox and compare it with the f64 oracle.
    Test {
        /// The pack; it need not be signed.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Time every kernel in the sandbox against its native twin.
    Bench {
        /// The pack; it need not be signed.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Milliseconds to spend on each side of each line.
        #[arg(long, value_name = "MS", default_value_t = 200)]
        time: u64,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    let code = match cli.command {
        Command::Keygen { out } => finish(sign::keygen(&out), json),
        Command::Build { dir, check, target_dir } => {
            let options = build::Options { directory: dir, check, target_dir };
            finish(build::build(&options), json)
        }
        Command::Sign { key, dir } => finish(sign::sign(&key, &dir), json),
        Command::Verify { trust, dir } => finish(sign::verify(trust.as_deref(), &dir), json),
        Command::Inspect { trust, dir } => finish(inspect::inspect(trust.as_deref(), &dir), json),
        Command::Test { dir } => finish(oracle_test::test(&dir), json),
        Command::Bench { dir, time } => finish(bench::bench(&dir, time), json),
    };
    ExitCode::from(code)
}

fn finish<R: ruvllm_pack::Report>(result: Result<R, ToolError>, json: bool) -> u8 {
    match result {
        Ok(report) => print_report(&report, json),
        Err(error) => print_error(&error, json),
    }
}
