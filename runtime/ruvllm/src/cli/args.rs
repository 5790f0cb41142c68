//! The command line, as types.

use super::device_class::DeviceClassOption;
use super::kernels::KernelsArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ruvllm::engine::memory::parse_size;
use ruvllm::host::ExecutorKind;
use ruvllm::server::ServerOptions;
use ruvllm::{Isa, KvPolicy, ReadPattern};
use std::path::PathBuf;

/// Runs language models with signed, sandboxed kernels.
#[derive(Debug, Parser)]
#[command(name = "ruvllm", version, about, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Write a log to standard error: selections of kernels at `debug`, requests to a server at
    /// `info`, failed calls at `warn`. `serve` logs at `info` when absent.
    #[arg(long, value_enum, value_name = "LEVEL", global = true)]
    pub(crate) log: Option<LogLevel>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// What failed.
    Warn,
    /// What was asked of a server, too.
    Info,
    /// Decisions, too.
    Debug,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 the request failed, with the reason on standard \
error; 2 wrong usage; 130 stopped by Ctrl-C.";

const VARIABLES: &str = "Every option can also be given in the environment, as RUVLLM_LISTEN for \
--listen: options of the command line win over variables, and those over the file of --config. \
The values of a list are separated by `;`, and a switch is true or false. --admin-key is \
RUVLLM_ADMIN_KEYS, since RUVLLM_ADMIN_KEY is an administrator's secret.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate text from a prompt; the text alone goes to standard output.
    Run(RunArgs),
    /// Converse, with a line editor at a terminal; otherwise one line of standard input is one message.
    /// `/help` lists what can be entered besides messages.
    Chat(ChatArgs),
    /// Read text from standard input and print its token ids on one line.
    Tokenize(TokenizeArgs),
    /// Measure a model's perplexity on a text.
    Perplexity(PerplexityArgs),
    /// Measure prompt processing and generation, in tokens per second.
    Bench(BenchArgs),
    /// Answer requests over HTTP, in the form of OpenAI's API.
    #[command(after_help = VARIABLES)]
    Serve(Box<ServeArgs>),
    /// Show the kernels in use and why each was chosen; change those of a live server.
    Kernels(KernelsArgs),
    /// Say what this machine is, which code runs on it, and what its memory gives.
    Doctor(DoctorArgs),
    /// Print a script that completes this program's commands and options in a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a manual page for each command to a directory, as ruvllm-run.1.
    Man {
        /// The directory; made if it is not there.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// Which kernels run, and on whose word.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Kernels")]
pub(crate) struct KernelOptions {
    /// Which kernels do the work.
    #[arg(long, value_enum, default_value_t = Kernels::Sandbox)]
    pub(crate) kernels: Kernels,
    /// The kind of machine, which decides how kernels are compiled and what they may use; `doctor` shows each
    /// value.
    #[arg(long, value_enum, value_name = "CLASS", default_value_t = DeviceClassOption::Server)]
    pub(crate) device_class: DeviceClassOption,
    /// The only executor that kernels may run on; for each kernel the first that the device class prefers when
    /// absent.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) executor: Option<Executor>,
    /// WAMR's shared library, libiwasm, in builds with the feature `wamr`; the one of the feature
    /// `wamr-bundled` when absent.
    #[arg(long, value_name = "FILE")]
    pub(crate) wamr_lib: Option<PathBuf>,
    /// WAMR's compiler, of the library's release: kernels on WAMR are compiled by it instead of interpreted.
    #[arg(long, value_name = "FILE", requires = "wamr_lib")]
    pub(crate) wamrc: Option<PathBuf>,
    /// A signed kernel pack, a directory or an .rkp file, to load over the built-in core pack; may
    /// be given several times.
    #[arg(long, value_name = "DIR|FILE")]
    pub(crate) pack: Vec<PathBuf>,
    /// Whether further packs may come later; `serve` knows.
    #[arg(skip)]
    pub(crate) later: bool,
    /// Trust policy (TOML) that names the publishers to accept, instead of the built-in one.
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// A lock file: packs that it does not pin by digest are refused.
    #[arg(long, value_name = "FILE")]
    pub(crate) lock: Option<PathBuf>,
    /// Where the newest versions of packs that were active are remembered, older ones being refused,
    /// and what was changed on a live server; the user's state directory when absent.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Let this kernel answer an operation, as OP=KERNEL; may be given several times.
    ///
    /// OP is an operation (`rmsnorm`) or one with its types (`rmsnorm(f32,f32)->f32`); KERNEL is an
    /// id, `PACK/ID`, or a native twin such as `native:rmsnorm_f32`.
    #[arg(long, value_name = "OP=KERNEL", value_parser = pin, conflicts_with = "kernels")]
    pub(crate) pin: Vec<(String, String)>,
    /// Fail a request whose kernel fails, instead of answering it with the next kernel.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Take kernels whose results do not depend on the processor, and products whose results do not
    /// depend on how many tokens are computed together; slower.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// The instructions of native code, as `doctor` lists them; the best of the processor when absent.
    #[arg(long, value_name = "NAME", value_parser = isa)]
    pub(crate) isa: Option<Isa>,
    /// Compute from the weights as the file has them, in memory that is shared with other processes,
    /// instead of rearranging them at load: the same text, several times slower.
    #[arg(long, help_heading = "Model")]
    pub(crate) no_repack: bool,
    /// Multiply 16-bit float weights as bf16 in prompts, where the processor is faster so (`doctor`
    /// says): a little less exact; `perplexity` says how much.
    #[arg(long, help_heading = "Model")]
    pub(crate) bf16: bool,
    /// Where compiled kernels are kept between runs; the user's cache directory when absent.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Keep no compiled kernels and use none.
    #[arg(long, conflicts_with = "cache_dir")]
    pub(crate) no_cache: bool,
}

/// The `--kernels` choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernels {
    /// Signed WASM kernels in the sandbox, native ones as fallback.
    Sandbox,
    /// Whichever kernel or twin is the fastest for an operation and size, as its calls showed, here and in earlier runs.
    Fastest,
    /// The native twins of the same kernels.
    Native,
}

impl Kernels {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernels::Sandbox => "sandbox",
            Kernels::Fastest => "fastest",
            Kernels::Native => "native",
        }
    }
}

/// The `--executor` choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Executor {
    /// Compiles kernels to machine code.
    Wasmtime,
    /// Interprets kernels, or has them compiled by `wamrc`.
    Wamr,
}

impl Executor {
    pub(crate) fn kind(self) -> ExecutorKind {
        match self {
            Executor::Wasmtime => ExecutorKind::Wasmtime,
            Executor::Wamr => ExecutorKind::Wamr,
        }
    }
}

/// Which model runs, and how it is laid out; `K` is the choice of how keys and values are stored.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelOptions<K: Args = KvOption> {
    /// GGUF file or Hugging Face directory; the built-in demo model when absent.
    #[arg(short, long, value_name = "FILE|DIR")]
    pub(crate) model: Option<PathBuf>,
    /// A LoRA adapter to add to the model: a GGUF adapter or a PEFT directory; times SCALE, 1 when
    /// absent.
    #[arg(long, value_name = "FILE|DIR[=SCALE]", value_parser = lora)]
    pub(crate) lora: Option<(PathBuf, f32)>,
    /// Threads; one for each physical core that this process may use when absent.
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) kv: K,
    /// The most memory for keys and values, adapters, kernels and working memory together, such as
    /// 512M or 4G; half of the machine's when absent.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<usize>,
    /// Write keys and values of resting sequences for which there is no memory to this directory,
    /// encrypted, instead of computing them again.
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// Context length in tokens; the model's own when absent, and at most that without
    /// --rope-scaling.
    #[arg(short, long, value_name = "TOKENS")]
    pub(crate) ctx: Option<usize>,
    /// Stretch the rotation of positions, for a context that is longer than the model was trained
    /// for.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = RopeScaling::None)]
    pub(crate) rope_scaling: RopeScaling,
    /// How many times the trained context; what --ctx needs when absent.
    #[arg(long, value_name = "FACTOR", requires = "rope_scaling", value_parser = rope_factor)]
    pub(crate) rope_factor: Option<f64>,
    /// How weights are read from memory where one token is computed: STREAMS-none, STREAMS-near or
    /// STREAMS-far, with 1, 2 or 4 streams for each thread, fetched when they are needed, one kilobyte
    /// ahead or 24; when absent, what is measured to be the fastest with the model's own weights, as the
    /// log says at `debug` (`doctor` shows it for weights of 4 and of 8 bits).
    #[arg(long, value_name = "PATTERN", value_parser = read_pattern, conflicts_with = "no_repack")]
    pub(crate) read_pattern: Option<ReadPattern>,
    #[command(flatten)]
    pub(crate) kernels: KernelOptions,
}

/// How keys and values are stored.
#[derive(Clone, Debug, Args)]
pub(crate) struct KvOption {
    /// How keys and values are stored: f16, q8_0, q4_0, f32, mix, or tiers.
    ///
    /// Tiers are codecs from the newest tokens to the oldest, each but the last with the number of
    /// tokens that it holds: f16:256+q8_0:256+q4_0. Keys and values may differ:
    /// k=f16:256+q4_0c,v=f16:256+q4_0; q8_0c and q4_0c group the numbers of keys by channel.
    /// `,rotate` at the end rotates heads by a Hadamard transform. `mix` is
    /// k=f16:256+q8_0:256+q4_0c,v=f16:256+q8_0:256+q4_0,rotate.
    #[arg(long = "kv", value_name = "POLICY", default_value = "f16")]
    pub(crate) policy: KvPolicy,
}

/// Several ways in which keys and values are stored, to be compared.
#[derive(Clone, Debug, Args)]
pub(crate) struct KvOptions {
    /// How keys and values are stored, as `run --help` says; given several times, the text is measured
    /// with each and the results are compared with the first.
    #[arg(long = "kv", value_name = "POLICY", default_value = "f16")]
    pub(crate) policies: Vec<KvPolicy>,
}

/// The `--rope-scaling` choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RopeScaling {
    /// No context beyond the model's own.
    None,
    /// Position interpolation: every frequency divided by the factor.
    Linear,
    /// NTK-aware: a larger base, which keeps the highest frequency.
    Ntk,
    /// YaRN: high frequencies kept, low ones divided, attention sharpened.
    Yarn,
    /// As Llama 3.1: high frequencies kept, low ones divided.
    Llama3,
}

/// How the next token is chosen. The defaults are those of the field's common tools.
#[derive(Clone, Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Randomness; 0 always takes the most probable token.
    #[arg(long, default_value_t = 0.8, value_parser = non_negative)]
    pub(crate) temperature: f32,
    /// Choose among the K most probable tokens; 0 for all.
    #[arg(long, default_value_t = 40)]
    pub(crate) top_k: usize,
    /// Choose among the most probable tokens that together reach this probability.
    #[arg(long, default_value_t = 0.95, value_parser = probability)]
    pub(crate) top_p: f32,
    /// Drop tokens less probable than this share of the most probable one.
    #[arg(long, default_value_t = 0.05, value_parser = probability)]
    pub(crate) min_p: f32,
    /// Divide the logits of the last 64 tokens by this; 1 leaves them alone.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    pub(crate) repeat_penalty: f32,
    /// Seed of the random numbers; drawn anew when absent, and then shown.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// End the text before this string; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// How a summary is printed on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatsFormat {
    /// A few lines for people.
    Text,
    /// One line of JSON.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct EndlessOption {
    /// Go on when the context is full: forget the older half of what follows the first SINKS tokens, 4
    /// when absent, rounded up to whole blocks. Not with --deterministic, whose promise would not hold.
    #[arg(
        long = "endless",
        value_name = "SINKS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "4",
        conflicts_with = "deterministic"
    )]
    pub(crate) sinks: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The prompt; `-` is standard input. When absent it is read from standard input if that is no
    /// terminal, and is "Once upon a time" otherwise or if nothing comes.
    pub(crate) prompt: Option<String>,
    /// What would be further prompts.
    #[arg(hide = true)]
    pub(crate) beyond: Vec<String>,
    /// Read the prompt from this file; `-` is standard input. The end of its last line is not part of the prompt.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelOptions,
    /// The most tokens to generate; until the model ends its text or the context is full when
    /// absent.
    #[arg(short = 'n', long = "tokens", value_name = "TOKENS")]
    pub(crate) tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Use the prompt as it is, without the model's chat template.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Go on past the model's end-of-text token.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) endless: EndlessOption,
    /// Keep what was read and written in this file, encrypted, and take from it what the prompt has in
    /// common with it instead of computing that again.
    #[arg(long, value_name = "FILE", requires = "session_key")]
    pub(crate) session: Option<PathBuf>,
    /// The key of --session: a file that only you can read, with 32 random bytes or 64 hexadecimal
    /// digits, as `openssl rand -hex 32` prints them.
    #[arg(long, value_name = "FILE", requires = "session")]
    pub(crate) session_key: Option<PathBuf>,
    /// Print what the run did and what it cost. Times of kernels whose calls are brief are estimates.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) stats: Option<StatsFormat>,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelOptions,
    /// A system message to begin with.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Keep nothing of what is entered at a terminal. Otherwise it is in the file `chat-history` of
    /// --state-dir, for the next time.
    #[arg(long)]
    pub(crate) no_history: bool,
    /// The most tokens of one answer.
    #[arg(short = 'n', long = "tokens", default_value_t = 512, value_name = "TOKENS")]
    pub(crate) tokens: usize,
    #[command(flatten)]
    pub(crate) endless: EndlessOption,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// GGUF file (a vocabulary alone is enough) or Hugging Face directory.
    #[arg(short, long, value_name = "FILE|DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Add the beginning-of-text token, and whatever else the model adds to a prompt.
    #[arg(long)]
    pub(crate) bos: bool,
    /// Read control tokens such as `<|im_start|>` in the text as tokens, not as text.
    #[arg(long)]
    pub(crate) special: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelOptions<KvOptions>,
    /// The text; `-` is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print the result as JSON: an object, or an array of one for each --kv.
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw perplexity against bits per value, a point for each --kv, to this SVG file.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// How a table is printed on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableFormat {
    /// A Markdown table.
    Md,
    /// A JSON array with llama-bench's field names.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelOptions,
    /// Tokens of the prompt; 0 leaves this test out.
    #[arg(short = 'p', long, default_value_t = 512, value_name = "TOKENS")]
    pub(crate) n_prompt: usize,
    /// Tokens to generate; 0 leaves this test out.
    #[arg(short = 'n', long, default_value_t = 128, value_name = "TOKENS")]
    pub(crate) n_gen: usize,
    /// Tokens that are in the cache before each test.
    #[arg(short = 'd', long, default_value_t = 0, value_name = "TOKENS")]
    pub(crate) n_depth: usize,
    /// Sequences that are generated together, a token of each in one step; several numbers, as 1,4,8,
    /// are a test each. Tokens per second are those of all sequences.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub(crate) parallel: Vec<u16>,
    /// How often each test is run.
    #[arg(short = 'r', long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repetitions: u16,
    /// How to print the results.
    #[arg(short, long, value_enum, default_value_t = TableFormat::Md)]
    pub(crate) output: TableFormat,
}

/// Options with a heading can be given in the configuration file, too; see `config_file`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Read options from this TOML file, as --print-config writes it; those of the command line win.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check options, files, kernels, model and adapters, and do not serve.
    #[arg(long)]
    pub(crate) check: bool,
    /// Print a configuration file with every option, what it does and its default, and the values of the
    /// device class; of the other options only --device-class may be given.
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Make an API key: print the secret for the client, and the entry for --api-key.
    #[arg(long, value_name = "NAME", exclusive = true)]
    pub(crate) new_key: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
    /// How the log is written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, help_heading = "Server")]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    pub(crate) model: ModelOptions,
    /// Serve the model with this LoRA adapter, too, as a model of its own: requests choose it by NAME. A
    /// GGUF adapter or a PEFT directory, times SCALE, 1 when absent; may be given several times.
    #[arg(
        long,
        value_name = "NAME=FILE|DIR[=SCALE]",
        value_parser = lora_model,
        help_heading = "Model"
    )]
    pub(crate) lora_model: Vec<(String, PathBuf, f32)>,
    /// Serve an encoder of texts, too, as a model of its own for /v1/embeddings: the graph of a pack that
    /// --trust takes, a directory or an .rkp file; with #GRAPH the one of that id. May be given several times.
    #[cfg(feature = "graphs")]
    #[arg(
        long,
        value_name = "NAME=PACK[#GRAPH]",
        value_parser = embedding_model,
        help_heading = "Graphs"
    )]
    pub(crate) embedding_model: Vec<EmbeddingModel>,
    /// Send traces of requests, sequences and changes of kernels to the OpenTelemetry collector at this
    /// base URL, as http://127.0.0.1:4318, by OTLP over HTTP; to nobody when absent.
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", help_heading = "Traces")]
    pub(crate) otlp_endpoint: Option<String>,
}

/// How a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// A line for people.
    Text,
    /// A line of JSON.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) kernels: KernelOptions,
    /// Measure with this many threads.
    #[arg(short, long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn pin(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((op, kernel)) if !op.is_empty() && !kernel.is_empty() => {
            Ok((op.to_owned(), kernel.to_owned()))
        }
        _ => Err("give OP=KERNEL, such as rmsnorm=native:rmsnorm_f32".to_owned()),
    }
}

/// A path, and the scale after its last `=`; what is no number there is part of the path.
fn lora(text: &str) -> Result<(PathBuf, f32), String> {
    let scaled =
        text.rsplit_once('=').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    match scaled.unwrap_or((text, 1.0)) {
        (path, scale) if !path.is_empty() && scale.is_finite() => Ok((path.into(), scale)),
        _ => Err("give FILE or FILE=SCALE, such as adapter.gguf=0.5".to_owned()),
    }
}

/// An encoder of texts.
#[cfg(feature = "graphs")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EmbeddingModel {
    /// What requests call it.
    pub(crate) name: String,
    /// Where its pack is.
    pub(crate) pack: PathBuf,
    /// Which of its graphs; the only one when absent.
    pub(crate) graph: Option<String>,
}

/// A name, a pack, and behind a `#` the id of one of its graphs.
#[cfg(feature = "graphs")]
fn embedding_model(text: &str) -> Result<EmbeddingModel, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    match text.split_once('=') {
        Some((name, rest)) if !name.is_empty() && name.chars().all(plain) && !rest.is_empty() => {
            let (pack, graph) = match rest.rsplit_once('#') {
                Some((pack, graph)) if !pack.is_empty() => (pack, Some(graph.to_owned())),
                _ => (rest, None),
            };
            Ok(EmbeddingModel { name: name.to_owned(), pack: pack.into(), graph })
        }
        _ => Err("give NAME=PACK or NAME=PACK#GRAPH, such as minilm=packs/minilm, with a name of letters, \
                  digits, and - _ . : / @"
            .to_owned()),
    }
}

/// A name, and behind its `=` what [`lora`] reads.
fn lora_model(text: &str) -> Result<(String, PathBuf, f32), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    match text.split_once('=') {
        Some((name, rest)) if !name.is_empty() && name.chars().all(plain) => {
            let (path, scale) = lora(rest)?;
            Ok((name.to_owned(), path, scale))
        }
        _ => {
            Err("give NAME=FILE or NAME=FILE=SCALE, such as pirate=adapter.gguf=0.5, with a name \
                  of letters, digits, and - _ . : / @"
                .to_owned())
        }
    }
}

fn isa(text: &str) -> Result<Isa, String> {
    let listed = || {
        let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
        names.join(", ")
    };
    match Isa::named(text) {
        Some(isa) if isa.is_available() => Ok(isa),
        Some(isa) => Err(format!("this processor does not have {isa}; it has {}", listed())),
        None => Err(format!("give one of {}", listed())),
    }
}

fn read_pattern(text: &str) -> Result<ReadPattern, String> {
    ReadPattern::named(text).ok_or_else(|| {
        let names = ReadPattern::ALL.map(|(name, _)| name);
        format!("give one of {}", names.join(", "))
    })
}

fn rope_factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 1.0 => Ok(value),
        _ => Err("give a number from 1 on".to_owned()),
    }
}

fn number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("give a finite number".to_owned()),
    }
}

fn non_negative(text: &str) -> Result<f32, String> {
    number(text).and_then(|v| if v >= 0.0 { Ok(v) } else { Err("give 0 or more".to_owned()) })
}

fn positive(text: &str) -> Result<f32, String> {
    number(text).and_then(|v| if v > 0.0 { Ok(v) } else { Err("give more than 0".to_owned()) })
}

fn probability(text: &str) -> Result<f32, String> {
    number(text).and_then(|v| {
        if (0.0..=1.0).contains(&v) { Ok(v) } else { Err("give a number from 0 to 1".to_owned()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn pins_name_an_operation_and_a_kernel() {
        assert_eq!(pin("rope=my/rope_f32").unwrap(), ("rope".into(), "my/rope_f32".into()));
        let typed = pin("rope(f32,f32)->f32=k").unwrap();
        assert_eq!(typed, ("rope(f32,f32)->f32".into(), "k".into()));
        assert!(pin("rope").is_err() && pin("=k").is_err() && pin("rope=").is_err());
    }

    #[test]
    fn adapters_are_paths_with_a_scale_behind_them() {
        assert_eq!(lora("a.gguf"), Ok(("a.gguf".into(), 1.0)));
        assert_eq!(lora("dir=1/a.gguf=-0.5"), Ok(("dir=1/a.gguf".into(), -0.5)));
        assert_eq!(lora("a=b"), Ok(("a=b".into(), 1.0)));
        assert!(lora("").is_err() && lora("=2").is_err() && lora("a=inf").is_err());
        let named = |name: &str, path: &str, scale| Ok((name.to_owned(), path.into(), scale));
        assert_eq!(lora_model("p=a.gguf"), named("p", "a.gguf", 1.0));
        assert_eq!(lora_model("me/p:1=dir=x/a=0.5"), named("me/p:1", "dir=x/a", 0.5));
        for wrong in ["a.gguf", "=a.gguf", "p=", "a b=a.gguf", "p=a=inf"] {
            assert!(lora_model(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_at_the_command_line() {
        for bad in [
            "--top-p=1.5",
            "--min-p=-1",
            "--temperature=nan",
            "--repeat-penalty=0",
            "-t0",
            "--rope-factor=2",
        ] {
            assert!(Cli::try_parse_from(["ruvllm", "run", bad]).is_err(), "{bad}");
        }
    }
}
