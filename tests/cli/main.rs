//! The `ruvllm` program, driven as a user drives it.

mod failing_kernels;
mod parity;
mod program;
mod refusals;
mod run;
mod tokenize;
