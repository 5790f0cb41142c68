//! The `ruvllm` program: a thin skin over the library of the same name.
#![forbid(unsafe_code)]
// What is printed goes through `cli::terminal`, which escapes it.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
