//! llama.cpp, candle and ruvllm on the same files, side by side.
//!
//! Figures of two programs compare only when both met the same machine. So the engines take turns:
//! every round runs each of them once, odd rounds in the opposite order, and the tables show
//! medians. Each measurement is a process of its own, which this program starts from itself
//! ([`child`]), so no thread of one engine waits, spins or holds memory while another is measured.
//! Loading and a first run, in which engines allocate and repack, are not part of the times.
//!
//! Generation is bound by memory, whose speed changes within tens of milliseconds on shared machines.
//! So a few steps and passes over memory take turns, in the same process, and every figure of
//! generation is also given as a part of it: bytes of weights that a token needs, times tokens per
//! second, over bytes per second. Both are averages over all turns, because the best pass of a probe
//! is faster than anything that takes as long as a text.
//!
//! The engines run with their own defaults: llama.cpp as llama-bench sets it up, candle as its
//! `quantized_llama`, ruvllm as `ruvllm bench`. llama.cpp is compiled for the processor that it is
//! built on, because it chooses its instructions then. candle and ruvllm choose theirs when they run,
//! and are compiled as anyone gets them.
//!
//! A processor can be compared as if it had fewer instructions: llama.cpp is built for these, and
//! ruvllm keeps to them with `--isa`. What does not go together is refused.
//!
//! ```console
//! export CMAKE_C_FLAGS=-march=x86-64-v3 CMAKE_CXX_FLAGS=-march=x86-64-v3    # --isa avx2
//! export CMAKE_C_FLAGS=-march=alderlake CMAKE_CXX_FLAGS=-march=alderlake    # --isa avx2-vnni
//! export CMAKE_C_FLAGS=-march=x86-64-v4 CMAKE_CXX_FLAGS=-march=x86-64-v4    # --isa avx512
//! ```
//!
//! ```console
//! cd benches/peers                      # its .cargo/config.toml has the flags
//! LIBCLANG_PATH=/usr/lib/llvm-19/lib cargo run --release -- \
//!     --model tinyllama-q4_0.gguf --model tinyllama-q8_0.gguf --ruvllm ../../target/release/ruvllm
//! ```
//!
//! needs cmake, a C++ compiler and libclang. `make_shape.py` writes models of a real one's shape
//! that need no download; for `--depth 4096` give it `--context 8192`.

mod child;
mod machine;
mod model;
mod peer;
mod protocol;
mod rounds;
mod stats;
mod table;

use clap::{Parser, Subcommand};
use protocol::{Engine, Kv};
use std::path::PathBuf;
use std::process::ExitCode;

/// An error on its way to the user.
type Failure = Box<dyn std::error::Error>;

/// Runs llama.cpp, candle and ruvllm on the same GGUF files in turn and prints a comparison.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    child: Option<Child>,
}

/// What to compare.
#[derive(clap::Args, serde::Serialize)]
struct Options {
    /// GGUF files; may be given several times.
    #[arg(short, long, value_name = "FILE", required = true, num_args = 1..)]
    model: Vec<PathBuf>,
    /// Tokens of the prompt; 0 leaves prompts out.
    #[arg(short, long, value_name = "TOKENS", default_value_t = 512)]
    prompt: usize,
    /// Tokens to generate in each sequence; 0 leaves generation out.
    #[arg(short = 'n', long, value_name = "TOKENS", default_value_t = 128)]
    generate: usize,
    /// Tokens that are in the cache before; a list is measured one after another.
    #[arg(short, long, value_name = "TOKENS", default_value = "0", value_delimiter = ',')]
    depth: Vec<usize>,
    /// Sequences that generate together, a token of each in one batch; a list.
    #[arg(short, long, value_name = "SEQUENCES", default_value = "1", value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=256))]
    batch: Vec<u16>,
    /// Instructions that ruvllm uses at most, by the names that `ruvllm doctor` lists; all that the
    /// processor has when absent. llama.cpp has to be built for the same.
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
    /// Threads; one for each physical core that this process may use when absent.
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// How often everything is measured.
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// How keys and values are stored; candle has f32 only and is left out for `q8_0`.
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    kv: Kv,
    /// Which engines run.
    #[arg(short, long, value_enum, value_delimiter = ',', default_values_t = Engine::ALL)]
    engines: Vec<Engine>,
    /// The `ruvllm` program, to measure how soon it writes text with the demo model.
    #[arg(long, value_name = "PATH")]
    ruvllm: Option<PathBuf>,
    /// Write all measurements, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Child {
    /// Make one measurement; the program starts this itself.
    #[command(name = protocol::COMMAND, hide = true)]
    Measure {
        /// A `protocol::Request`.
        request: String,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.child {
        Some(Child::Measure { request }) => child::main(&request),
        None => rounds::main(&cli.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
