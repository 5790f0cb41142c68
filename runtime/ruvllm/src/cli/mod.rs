//! The commands. Text that was asked for goes to standard output, everything else to standard error.

mod args;
mod bench;
mod chat;
mod doctor;
mod kernels;
mod perplexity;
mod plot;
mod run;
mod setup;
mod stop;
mod tokenize;

use args::{Cli, Command, LogLevel};
use clap::Parser as _;
use std::io;
use std::process::ExitCode;
use tracing::Metadata;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;

/// A command's failure: what is printed after `error: `.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// How a command that did not fail ended.
pub(crate) enum Ended {
    /// It did what was asked.
    Done,
    /// Ctrl-C stopped it; what it had produced is out.
    Interrupted,
}

pub(crate) fn main() -> ExitCode {
    let Cli { log, command } = Cli::parse();
    if let Some(level) = log {
        start_log(level);
    }
    let result = match command {
        Command::Run(args) => run::main(&args),
        Command::Chat(args) => chat::main(&args),
        Command::Tokenize(args) => tokenize::main(&args),
        Command::Perplexity(args) => perplexity::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Kernels(args) => kernels::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::CompileKernel => return ruvllm::host::compiler_process(),
    };
    match result {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Sends the log to standard error.
fn start_log(level: LogLevel) {
    let level = match level {
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // What the executor says of itself is no decision of ours.
    let ours = move |metadata: &Metadata<'_>| metadata.target().starts_with("ruvllm");
    let writer = io::stderr.with_filter(ours);
    tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer).init();
}
