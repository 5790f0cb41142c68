//! The `ruvllm` program, driven as a user drives it.

mod author;
mod chat;
mod compiling;
mod demo_files;
mod deploy;
mod describe;
#[cfg(feature = "graphs")]
mod encoders;
mod executors;
mod failing_kernels;
mod kv_quality;
mod library;
mod live_kernels;
mod lora;
mod memory;
mod packs;
#[cfg(unix)]
mod pages;
mod parity;
mod program;
#[cfg(unix)]
mod pty;
mod refusals;
mod rope_scaling;
mod run;
mod schemas;
mod serve;
mod serving;
mod templates;
mod terminal;
mod tokenize;
