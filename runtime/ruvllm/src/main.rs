//! The `ruvllm` program: a thin skin over the library of the same name.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
