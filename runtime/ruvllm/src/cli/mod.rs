//! The commands. Text that was asked for goes to standard output, everything else to standard error.

mod args;
mod bench;
mod chat;
mod config_file;
mod doctor;
mod kernels;
mod perplexity;
mod plot;
mod run;
mod serve;
mod setup;
mod stop;
mod supervise;
mod tokenize;

use args::{Cli, Command, LogFormat, LogLevel};
use clap::Parser as _;
use std::ffi::OsString;
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
    let Cli { log, mut command } = Cli::parse();
    if let Command::Serve(args) = &mut command
        && let Some(path) = &args.config
    {
        let given: Vec<OsString> = std::env::args_os().skip_while(|arg| arg != "serve").collect();
        match config_file::merge(path, &given[1..]) {
            Ok(merged) => *args = merged,
            Err(failure) => return fail(&failure),
        }
    }
    let (level, format) = match &command {
        Command::Serve(args) => (Some(log.unwrap_or(LogLevel::Info)), args.log_format),
        _ => (log, LogFormat::Text),
    };
    if let Some(level) = level {
        start_log(level, format);
    }
    let result = match command {
        Command::Run(args) => run::main(&args),
        Command::Chat(args) => chat::main(&args),
        Command::Tokenize(args) => tokenize::main(&args),
        Command::Perplexity(args) => perplexity::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Serve(args) => serve::main(&args),
        Command::Kernels(args) => kernels::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::CompileKernel => return ruvllm::host::compiler_process(),
    };
    match result {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    eprintln!("error: {failure}");
    ExitCode::FAILURE
}

/// Sends the log to standard error.
fn start_log(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // What the executor says of itself is no decision of ours.
    let ours = move |metadata: &Metadata<'_>| metadata.target().starts_with("ruvllm");
    let writer = io::stderr.with_filter(ours);
    let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(writer);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
