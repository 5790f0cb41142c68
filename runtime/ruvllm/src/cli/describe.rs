//! The command line as shells and `man` want it described, from its one definition.

use super::args::Cli;
use super::terminal::note;
use super::{Ended, Failure, setup};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;

/// Prints what completes commands and options in a shell.
pub(crate) fn completions(shell: Shell) -> Result<Ended, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ruvllm", &mut script);
    let _ = setup::emit(&String::from_utf8(script)?);
    Ok(Ended::Done)
}

/// Writes a manual page for the program and for each of its commands.
pub(crate) fn man(directory: &Path) -> Result<Ended, Failure> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    note!(
        "the manual is in {}: man -l {}",
        directory.display(),
        directory.join("ruvllm.1").display()
    );
    Ok(Ended::Done)
}
