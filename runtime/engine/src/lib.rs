//! Models, tokenizers, sampling, KV cache and generation.
//!
//! A [`Model`] is the read-only part: weights in place over a mapped file ([`gguf`], [`hf`]), one
//! [`config`] for every family, tokenizer and chat template. An [`Engine`] adds threads and the
//! kernels of a host; a [`Session`] is one sequence with its KV cache, perhaps with an [`Adapter`],
//! and a [`step`] computes tokens of several sessions at once. The [`scheduler`] turns prompt tokens
//! into text, for many requests at the same time or for one on the caller's thread
//! ([`Session::generate`]); [`perplexity()`] and [`bench()`] measure.
//!
//! Invariants: files are checked when they are opened, so computing never meets a shape or a byte
//! range that it did not expect; a failed step leaves its session as it was. The engine names
//! operations, never who executes them. Not protected against: another process that truncates a
//! mapped model file.
#![deny(unsafe_code)]

pub mod adapter;
pub mod bench;
pub mod chat;
pub mod config;
pub mod constraint;
mod decoder;
pub mod engine;
pub mod error;
mod files;
pub mod generate;
pub mod gguf;
pub mod hf;
mod kernels;
pub mod kv;
mod kv_policy;
pub mod logprobs;
pub mod memory;
pub mod model;
mod open_adapter;
pub mod perplexity;
pub mod probe;
pub mod rope;
pub mod sampler;
pub mod scheduler;
pub mod sealed;
pub mod session;
pub mod step;
mod storage;
mod tensors;
mod text;
pub mod tokenizer;
mod weights;

#[cfg(test)]
mod tests;

pub use adapter::Adapter;
pub use bench::{BenchOptions, BenchRow, bench};
pub use config::ModelConfig;
pub use constraint::{TokenConstraint, TokenMask};
pub use engine::{Engine, EngineConfig, LoadProgress, MemoryReport};
pub use error::EngineError;
pub use generate::{Event, Finish, FinishReason, GenerateOptions, Timings, Usage, unit_length};
pub use kernels::operations;
pub use kv::KvStats;
pub use kv_policy::{KvCodec, KvPolicy};
pub use logprobs::{Logprobs, TokenLogprob};
pub use memory::{Reservation, Use};
pub use model::{Model, open_tokenizer};
pub use perplexity::{Perplexity, PerplexityChange, perplexity};
pub use probe::ProbeText;
pub use rope::{RopeExtension, RopeMethod};
pub use sampler::{Sampler, SamplingOptions};
pub use scheduler::{Scheduler, SchedulerConfig};
pub use sealed::SessionKey;
pub use session::{Session, SessionOptions};
pub use step::StepInput;

pub use ruvllm_native::Isa;
pub use ruvllm_native::gemm::ReadPattern;
