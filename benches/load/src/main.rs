//! Load for an OpenAI-compatible server: how much it gives, and what its streams notice.
//!
//! Works with any server of the API, so that two can be held against each other: texts are asked for
//! as streams from `/v1/completions`, the likeliest token each, and the time of each event is noted.
//! Tokens are counted as the server counts them. Each stream is a thread with a connection of its own.
//!
//! ```console
//! ruvllm serve -m model.gguf --listen 127.0.0.1:8080
//! cargo run --release -p ruvllm-load -- streams 1,2,4,8
//! cargo run --release -p ruvllm-load -- swarm 200 -n 32
//! cargo run --release -p ruvllm-load -- choices 4 --prompt 200
//! cargo run --release -p ruvllm-load -- idle-sessions 1000 --prompt 128
//! cargo run --release -p ruvllm-load -- swap one.rkp two.rkp --admin-key-file key
//! cargo run --release -p ruvllm-load -- soak 10 --pid $(pidof ruvllm)
//! ```
//!
//! The figures are of server and load together on one machine, where both run on one.
#![forbid(unsafe_code)]

mod choices;
mod client;
mod idle;
mod load;
mod prompts;
mod report;
mod soak;
mod stats;
mod swap;

use clap::{Args, Parser, Subcommand};
use client::Client;
use load::Pace;
use prompts::Prompts;
use report::{Report, Row};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use swap::Swap;

/// An error on its way to the user.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Loads an OpenAI-compatible server and measures what its streams notice.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    load: Load,
    #[command(subcommand)]
    scenario: Scenario,
}

/// What is asked for, and of whom.
#[derive(Args)]
struct Load {
    /// The server; plain HTTP.
    #[arg(short, long, global = true, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A file with the API key.
    #[arg(long, value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
    /// The model that requests name; none when absent.
    #[arg(short, long, global = true)]
    model: Option<String>,
    /// Words of each prompt, most of them a token.
    #[arg(short, long, value_name = "WORDS", global = true, default_value_t = 16)]
    prompt: usize,
    /// How many of these, from the first on, are the same in all prompts.
    #[arg(long, value_name = "WORDS", global = true, default_value_t = 0)]
    shared_prefix: usize,
    /// Take the words from this file.
    #[arg(long, value_name = "FILE", global = true)]
    prompt_file: Option<PathBuf>,
    /// Streams beside each other, where the scenario does not say.
    #[arg(long, value_name = "STREAMS", global = true, default_value_t = 8)]
    parallel: usize,
    /// Let texts end where the model ends them. Without it requests say `ignore_eos`, which is no part
    /// of the API, though usual.
    #[arg(long, global = true)]
    stop_at_eos: bool,
    #[command(flatten)]
    pace: Pace,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Scenario {
    /// Streams that each send a request after the other, for each number of streams.
    Streams {
        /// How many; a list.
        #[arg(value_delimiter = ',', required = true)]
        streams: Vec<usize>,
    },
    /// So many streams at once; any failed request is an error.
    Swarm {
        /// How many.
        streams: usize,
    },
    /// Conversations that are opened, rest, and are come back to.
    IdleSessions {
        /// How many.
        sessions: usize,
    },
    /// Questions whose choices are scored behind one context of --prompt words, and behind contexts of their
    /// own for comparison.
    Choices {
        /// How many a question has.
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        choices: u64,
    },
    /// Packs that are activated in turn while streams run.
    Swap(Swap),
    /// A mixed load for a long time; memory, handles or threads that grow are an error.
    Soak {
        /// For how long.
        minutes: f64,
        /// The server's process, on this machine.
        #[arg(long)]
        pid: u32,
    },
}

impl Load {
    fn prompts(&self) -> Result<Prompts, Failure> {
        Prompts::new(self.prompt_file.as_deref(), self.prompt, self.shared_prefix)
    }

    fn client(&self) -> Result<Client, Failure> {
        let key = self.key_file.as_deref().map(read_key).transpose()?;
        Ok(Client::new(&self.url, key)?.asking(self.model.clone(), self.stop_at_eos))
    }
}

fn read_key(path: &std::path::Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Measures, and says whether all went well.
fn run(cli: &Cli) -> Result<(Report, bool), Failure> {
    let load = &cli.load;
    let client = load.client()?;
    let report = match &cli.scenario {
        Scenario::Streams { streams } => {
            let prompts = load.prompts()?;
            let row = |&streams: &usize| {
                let answers = load::closed(&client, &prompts, &load.pace, streams);
                Row::of(format!("{streams} streams"), &answers)
            };
            Report { rows: streams.iter().map(row).collect(), findings: Vec::new() }
        }
        Scenario::Swarm { streams } => {
            let answers = load::closed(&client, &load.prompts()?, &load.pace, *streams);
            Report {
                rows: vec![Row::of(format!("swarm of {streams}"), &answers)],
                findings: Vec::new(),
            }
        }
        Scenario::IdleSessions { sessions } => idle::run(load, &client, *sessions)?,
        Scenario::Choices { choices } => choices::run(load, &client, *choices)?,
        Scenario::Swap(swap) => swap::run(load, &client, swap)?,
        Scenario::Soak { minutes, pid } => soak::run(load, &client, *minutes, *pid)?,
    };
    let well = report.rows.iter().all(|row| row.errors.is_empty());
    let flat = !report.findings.iter().any(|finding| finding.what.contains("growing"));
    Ok((report, well && flat))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let printed = run(&cli).and_then(|(report, well)| {
        let text = match cli.load.json {
            true => serde_json::to_string_pretty(&report)? + "\n",
            false => report.to_string(),
        };
        // A reader may go away.
        let _ = std::io::stdout().write_all(text.as_bytes());
        Ok(well)
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_guide_are_understood() {
        let guide = include_str!("../../../runtime/server/GUIDE.md");
        let lines: Vec<&str> =
            guide.lines().filter(|line| line.starts_with("ruvllm-load ")).collect();
        assert!(lines.len() >= 5, "{lines:?}");
        for line in lines {
            let words = line.split(" #").next().unwrap_or_default().split_whitespace();
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
