//! `ruvllm-pack`: the command line of kernel authors and release managers.
#![forbid(unsafe_code)]

mod trust_commands;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, Subcommand};
use ruvllm_host::DeviceClass;
use ruvllm_pack::graph::GRAPH_TOML_FIELDS;
use ruvllm_pack::{
    Lang, PACK_TOML_FIELDS, ToolError, as_compiler, as_graph_process, bench, build, call, diff,
    explain, graph, inspect, oracle_test, print_error, print_report, reference, scaffold, sign,
    unknown_op,
};

/// Makes, builds, signs, checks and measures kernel packs.
///
/// From nothing to a pack that runs: new, build, test, bench, keygen, sign; then `ruvllm run --pack`.
#[derive(Parser)]
#[command(
    name = "ruvllm-pack",
    version,
    after_help = "Exit codes:\n  \
    0  done, and what was looked at is in order\n  \
    1  what was looked at fails: a pack is refused, a test fails, a rebuild differs\n  \
    2  it could not be looked at: wrong usage, a file or a toolchain is missing\n\n\
    DIR is a pack (with kernels.json) or a pack crate (with pack.toml), whose dist/ is then meant. Where it \
    is only read, it may also be an .rkp file."
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
    /// Begin a pack that builds, tests and benches at once.
    ///
    /// The directory is made; its last part is the pack's name: a-z, 0-9, '.', '_' and '-'. A pack in Rust
    /// gets a copy of the SDK and a lock file, a pack in C the one header, so that it builds offline. The
    /// README in it says how to go on.
    New {
        /// The directory of the new pack.
        #[arg(value_name = "NAME")]
        dir: PathBuf,
        /// The language of the kernels.
        #[arg(long, value_enum, default_value_t = LangArg::Rust)]
        lang: LangArg,
        /// Begin with a worked kernel of this operation; may be given several times. Without it and without
        /// --custom: rmsnorm.
        #[arg(long, value_name = "OP", value_parser = op)]
        op: Vec<ruvllm_abi::Op>,
        /// Begin with a kernel of an operation of your own, which hosts call by name.
        #[arg(long)]
        custom: bool,
        /// Who the manifest says has made the pack.
        #[arg(long, value_name = "TEXT")]
        author: Option<String>,
        /// The public key, or the file of it that keygen wrote; it can also be put into pack.toml later.
        #[arg(long, value_name = "KEY")]
        signing_key: Option<String>,
    },
    /// Make a signing key: a secret key in FILE, and beside it the public key, my.pub for my.pem.
    ///
    /// Whoever is to trust your packs needs the public key alone. Neither file may exist.
    Keygen {
        /// Where the secret key goes.
        #[arg(long, short, value_name = "FILE", default_value = "signing-key.pem")]
        out: PathBuf,
    },
    /// Print the public key of a key file, for pack.toml and for trust policies.
    Pubkey {
        /// A secret or public key in any form that `sign` or `trust add` take.
        #[arg(value_name = "FILE", default_value = "signing-key.pem")]
        file: PathBuf,
    },
    /// Compile every kernel of a pack crate and write the pack to its dist/.
    ///
    /// For Rust (`lang = "rust"` in pack.toml) this needs a Rust that compiles to wasm32-unknown-unknown:
    /// with that target installed, or with its own sources; each kernel is a binary of the crate. For C
    /// (`lang = "c"`) it needs clang and its linker; each kernel is kernels/<id>.c. The pack must pass
    /// admission, or nothing is written.
    ///
    /// The same sources and toolchain give the same bytes anywhere. Name the toolchain in pack.toml, as
    /// this command prints it, and --check holds others to it: [toolchain] with rustc, std ("target" or
    /// "sources") and linker, or with clang and linker.
    #[command(after_long_help = PACK_TOML_FIELDS)]
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
    /// Make a pack of graphs, such as an ONNX encoder of texts, from their files.
    ///
    /// It goes into dist/ beside graph.toml, where `sign` takes it from.
    #[command(after_long_help = GRAPH_TOML_FIELDS)]
    Graph {
        /// What says which files, and what is expected of them.
        #[arg(default_value = "graph.toml")]
        spec: PathBuf,
    },
    #[command(flatten)]
    Trust(trust_commands::TrustCommand),
    /// Show what a pack says about itself and what its modules are, without running it.
    Inspect {
        /// A trust policy, as for verify.
        #[arg(long, visible_alias = "policy", value_name = "FILE")]
        trust: Option<PathBuf>,
        /// The pack.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Compare two packs: what changes for somebody who takes B for A.
    Diff {
        /// The pack that is there.
        a: PathBuf,
        /// The pack that would come in its place.
        b: PathBuf,
        /// End with exit code 1 where they differ.
        #[arg(long)]
        exit_code: bool,
    },
    /// Say whether this host would admit a pack: every gate with its verdict.
    Explain {
        #[command(flatten)]
        against: trust_commands::Against,
        /// The device class of the host.
        #[arg(long, value_name = "CLASS", default_value = "server", value_parser = device_class())]
        device_class: DeviceClass,
        /// A lock file that must pin the pack.
        #[arg(long, value_name = "FILE")]
        lock: Option<PathBuf>,
        /// The pack: a directory or an .rkp file.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Run every kernel in the sandbox and compare it with the f64 oracle.
    ///
    /// Odd shapes and sizes, no rows, tiny, huge and subnormal numbers, NaN and infinity: the calls on which
    /// hosts admit kernels, judged as hosts judge them. Then the largest call that the kernel's memory holds
    /// and one above it, and the calls in golden/<kernel>/*.json of the
    /// pack crate, which are all that says what is right for a custom operation:
    ///
    /// { "inputs": { "x": { "shape": [1, 2], "values": [3, 4] } }, "params": { "a": 2 },
    /// "output": { "shape": [1, 2], "values": [6, 8] }, "tolerance": { "rel": 1e-6, "abs": 0 } }
    Test {
        /// Draw the calls from this number: from the "admission seed" of a refusal, to see it again. Without
        /// it nobody can know them before.
        #[arg(long, value_name = "N")]
        seed: Option<u64>,
        /// The pack; it need not be signed.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Call one kernel with inputs of your own, and print its output as JSON.
    ///
    /// The kernel answers alone, in the sandbox, whether its operation is one of the catalogue or your own.
    /// A tensor is JSON, { "shape": [1, 2], "values": [3, "NaN"] }, or a .npy file; numbers become what the
    /// manifest has, such as f16 or blocks. A golden file is a whole call.
    Call {
        /// The pack; it need not be signed.
        #[arg(value_name = "DIR")]
        pack: PathBuf,
        /// The id of the kernel.
        kernel: String,
        /// A whole call as a golden file has it (.json), or a tensor (.json, .npy), which without a name is
        /// the next in the manifest's order; may be given several times.
        #[arg(long, short, value_name = "[NAME=]FILE")]
        input: Vec<String>,
        /// A param, or an extent that no input has; may be given several times.
        #[arg(long, short, value_name = "NAME=VALUE", value_parser = named_number)]
        param: Vec<(String, f64)>,
        /// Call kernel_backward instead, with the gradient of the output in this file, and print the gradients
        /// of the inputs.
        #[arg(long, value_name = "FILE")]
        backward: Option<PathBuf>,
        /// Write the output to this file instead, .json or .npy; gradients go to files beside it, such as
        /// out.x.npy for out.npy.
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Time every kernel in the sandbox against the kernel in use and against its native twin.
    ///
    /// In use is the kernel of the core pack. A live server compares both on its own calls, and takes a pack
    /// back whose kernel takes 1.5 times as long: the last lines say whether it would. Variants of a kernel
    /// are timed one by one; a note names those that a live server would not ask on this machine. The twin
    /// runs with the widest vectors of this processor and, where that is more, with vectors of 128 bits,
    /// which is what WebAssembly has.
    Bench {
        /// The pack; it need not be signed.
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// Milliseconds to spend on each side of each line.
        #[arg(long, value_name = "MS", default_value_t = 200)]
        time: u64,
        /// Put the figures into the manifest: benchmarks.toml of the pack crate keeps them for later
        /// builds. The pack has to be signed again.
        #[arg(long)]
        write: bool,
    },
    /// Print the reference of all commands as Markdown.
    Reference,
    /// Print a script that completes this program's commands and options in a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command to a directory, as ruvllm-pack-build.1.
    Man {
        /// The directory; made if it is not there.
        dir: PathBuf,
    },
}

/// The `--lang` choice.
#[derive(Clone, Copy, clap::ValueEnum)]
enum LangArg {
    /// Rust, with the SDK's safe views.
    Rust,
    /// C, with the header ruvllm_kernel.h.
    C,
}

/// An operation by its name.
fn op(name: &str) -> Result<ruvllm_abi::Op, String> {
    ruvllm_abi::Op::from_name(name).ok_or_else(|| {
        format!("{}; for one of your own leave out --op and use --custom", unknown_op(name))
    })
}

/// A number with its name.
fn named_number(text: &str) -> Result<(String, f64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let value = value.parse().map_err(|_| format!("{value:?} is no number"))?;
    Ok((name.to_owned(), value))
}

/// Device classes by their names.
fn device_class() -> impl TypedValueParser<Value = DeviceClass> {
    PossibleValuesParser::new(DeviceClass::ALL.map(DeviceClass::name)).map(|name| {
        DeviceClass::ALL.into_iter().find(|class| class.name() == name).unwrap_or_default()
    })
}

fn main() -> ExitCode {
    if let Some(code) = as_compiler().or_else(as_graph_process) {
        return code;
    }
    let cli = Cli::parse();
    let json = cli.json;
    let code = match cli.command {
        Command::New { dir, lang, op, custom, author, signing_key } => {
            let lang = match lang {
                LangArg::Rust => Lang::Rust,
                LangArg::C => Lang::C,
            };
            let options =
                scaffold::Options { directory: dir, lang, ops: op, custom, author, signing_key };
            finish(scaffold::new(&options), json)
        }
        Command::Keygen { out } => finish(sign::keygen(&out), json),
        Command::Pubkey { file } => finish(sign::pubkey(&file), json),
        Command::Build { dir, check, target_dir } => {
            let options = build::Options { directory: dir, check, target_dir };
            finish(build::build(&options), json)
        }
        Command::Graph { spec } => finish(graph::graph(&spec), json),
        Command::Trust(command) => command.run(json),
        Command::Inspect { trust, dir } => finish(inspect::inspect(trust.as_deref(), &dir), json),
        Command::Test { seed, dir } => finish(oracle_test::test(&dir, seed), json),
        Command::Call { pack, kernel, input: inputs, param: params, backward, out } => {
            let options = call::Options { pack, kernel, inputs, params, backward, out };
            finish(call::call(&options), json)
        }
        Command::Diff { a, b, exit_code } => finish(diff::diff(&a, &b, exit_code), json),
        Command::Explain { against, device_class, lock, dir } => {
            finish(explain::explain(&against.options(lock), device_class, &dir), json)
        }
        Command::Bench { dir, time, write } => finish(bench::bench(&dir, time, write), json),
        Command::Reference => {
            // A reader may go away.
            let _ = std::io::stdout().write_all(reference::markdown(&Cli::command()).as_bytes());
            0
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ruvllm-pack", &mut script);
            // A reader may go away.
            let _ = std::io::stdout().write_all(&script);
            0
        }
        Command::Man { dir } => {
            let written = std::fs::create_dir_all(&dir)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &dir))
                .map_err(|source| ToolError::Io { action: "write", path: dir.clone(), source });
            match written {
                Ok(()) => 0,
                Err(error) => print_error(&error, json),
            }
        }
    };
    ExitCode::from(code)
}

fn finish<R: ruvllm_pack::Report>(result: Result<R, ToolError>, json: bool) -> u8 {
    match result {
        Ok(report) => print_report(&report, json),
        Err(error) => print_error(&error, json),
    }
}
