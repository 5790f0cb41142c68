#![doc = include_str!("../EMBEDDING.md")]
#![forbid(unsafe_code)]

pub mod embedded;
mod error;
mod kernels;
mod report;
mod runtime;
mod stream;

pub use error::Error;
pub use kernels::{
    ChangedPack, KernelSet, KernelSetBuilder, default_cache_dir, default_state_dir,
    read_trust_policy,
};
pub use report::{AdapterReport, Completion, Embedding, RunReport};
pub use runtime::{Conversation, Prompt, Runtime, RuntimeBuilder};
pub use stream::TextStream;

pub use ruvllm_engine as engine;
pub use ruvllm_host as host;
#[cfg(feature = "server")]
pub use ruvllm_server as server;
pub use ruvllm_signing as signing;

pub use ruvllm_engine::chat::{Message, Renderer};
pub use ruvllm_engine::{
    Adapter, FinishReason, GenerateOptions, Isa, KvCodec, KvPolicy, LoadProgress, Model,
    ReadPattern, RopeExtension, RopeMethod, SamplingOptions, Session, SessionKey, SessionOptions,
    Timings, Usage,
};
pub use ruvllm_host::process::HelperProcess;
