//! The commands. Text that was asked for goes to standard output, everything else to standard error.

mod args;
mod bench;
mod chat;
mod config_file;
mod describe;
mod device_class;
mod doctor;
#[cfg(feature = "graphs")]
mod encoders;
mod kernels;
mod log;
mod perplexity;
mod plot;
mod run;
mod serve;
mod setup;
mod stop;
mod supervise;
mod terminal;
mod tokenize;

use args::{Cli, Command};
use ruvllm::Renderer;
use ruvllm::host::CompilerProcess;
use ruvllm::server::GrammarCompiler;
use std::ffi::OsString;
use std::process::ExitCode;
use terminal::note;

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
    let line: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = helper(&line) {
        return code;
    }
    let result = config_file::parse(&line).and_then(|Cli { log, command }| {
        // Ends when the command has ended.
        let _log = log::start(log, &command)?;
        run(command)
    });
    match result {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Err(failure) => {
            note!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// What the program does where it has started itself, for work under limits: no command of its users, so it
/// is in no help, completion or manual.
fn helper(line: &[OsString]) -> Option<ExitCode> {
    match line.get(1)?.to_str()? {
        CompilerProcess::COMMAND => Some(ruvllm::host::compiler_process()),
        Renderer::COMMAND => Some(ruvllm::engine::chat::renderer_process()),
        GrammarCompiler::COMMAND => Some(ruvllm::server::grammar_process()),
        #[cfg(feature = "graphs")]
        ruvllm_graph::IsolatedProvider::COMMAND => Some(ruvllm_graph::graph_process()),
        _ => None,
    }
}

fn run(command: Command) -> Result<Ended, Failure> {
    match command {
        Command::Run(args) => run::main(&args),
        Command::Chat(args) => chat::main(&args),
        Command::Tokenize(args) => tokenize::main(&args),
        Command::Perplexity(args) => perplexity::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Serve(args) => serve::main(&args),
        Command::Kernels(args) => kernels::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Completions { shell } => describe::completions(shell),
        Command::Man { directory } => describe::man(&directory),
    }
}
