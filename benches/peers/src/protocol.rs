//! What parent and child say to each other: one request as an argument, one reply as a line of JSON
//! on standard output.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The hidden command that makes a child of this program.
pub(crate) const COMMAND: &str = "measure";

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Engine {
    /// llama.cpp, which the others are held against.
    #[value(name = "llama.cpp")]
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// candle's `quantized_llama`.
    #[value(name = "candle")]
    #[serde(rename = "candle")]
    Candle,
    /// ruvllm with the core pack's kernels in the sandbox.
    #[value(name = "ruvllm")]
    #[serde(rename = "ruvllm")]
    Ruvllm,
    /// ruvllm with the native twins of these kernels.
    #[value(name = "ruvllm-native")]
    #[serde(rename = "ruvllm-native")]
    RuvllmNative,
    /// ruvllm with these twins on vectors of 128 bits, which is all that WebAssembly has.
    #[value(name = "ruvllm-native-128")]
    #[serde(rename = "ruvllm-native-128")]
    RuvllmNative128,
}

impl Engine {
    pub(crate) const ALL: [Engine; 5] = [
        Engine::LlamaCpp,
        Engine::Candle,
        Engine::Ruvllm,
        Engine::RuvllmNative,
        Engine::RuvllmNative128,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::LlamaCpp => "llama.cpp",
            Engine::Candle => "candle",
            Engine::Ruvllm => "ruvllm",
            Engine::RuvllmNative => "ruvllm, native twins",
            Engine::RuvllmNative128 => "ruvllm, native twins of 128 bits",
        }
    }

    /// Whether it is there to show what the sandbox costs, and has nothing else of its own.
    pub(crate) fn is_twin(self) -> bool {
        matches!(self, Engine::RuvllmNative | Engine::RuvllmNative128)
    }
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum Kv {
    /// Half precision.
    #[value(name = "f16")]
    #[serde(rename = "f16")]
    F16,
    /// GGML `q8_0` blocks.
    #[value(name = "q8_0")]
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kv::F16 => "f16",
            Kv::Q8_0 => "q8_0",
        })
    }
}

/// A measurement to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) engine: Engine,
    pub(crate) model: PathBuf,
    /// Token ids to draw from: `0..vocab`.
    pub(crate) vocab: u32,
    pub(crate) threads: usize,
    /// The instructions that ruvllm keeps to, by name.
    pub(crate) isa: String,
    pub(crate) kv: Kv,
    pub(crate) task: Task,
}

/// What of the engine is measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// How fast it computes, after `depth` tokens that are there already.
    Speed { depth: usize, tests: Vec<Test> },
    /// How soon and with how much memory it has computed a prompt of so many tokens, from the start
    /// of the process.
    FirstToken { prompt: usize },
}

/// Something to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Test {
    /// A prompt of so many tokens at once.
    Prompt { tokens: usize },
    /// So many steps, each of one token for every one of `batch` sequences.
    Generate { steps: usize, batch: usize },
}

impl Test {
    /// Tokens that come out.
    pub(crate) fn tokens(self) -> usize {
        match self {
            Test::Prompt { tokens } => tokens,
            Test::Generate { steps, batch } => steps * batch,
        }
    }

    /// The field's name of it: `pp512`, `tg128`, and `4 x tg128` for four sequences.
    pub(crate) fn name(self) -> String {
        match self {
            Test::Prompt { tokens } => format!("pp{tokens}"),
            Test::Generate { steps, batch: 1 } => format!("tg{steps}"),
            Test::Generate { steps, batch } => format!("{batch} x tg{steps}"),
        }
    }
}

/// The time that a test took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    /// Bytes per second that the same number of threads read of the memory in turns with the steps, with
    /// the number of streams that was the fastest on average; for generation alone.
    pub(crate) memory: Option<f64>,
    /// The part of the computing threads' time that went into pack kernels or their twins; ruvllm's own.
    pub(crate) in_kernels: Option<f64>,
}

/// A child's answer; a failure is its reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// One result for each test.
    Speed(Vec<Result<Sample, String>>),
    /// The first token is there; the most memory that the process held at once, in bytes, where the
    /// system tells.
    FirstToken { peak_memory: Option<u64> },
    /// The engine could not be set up.
    Failed(String),
}
