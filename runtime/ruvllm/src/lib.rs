//! An LLM runtime in which every hot operation is a signed, sandboxed kernel that can be replaced.
//!
//! [`Runtime`] brings together a model, kernel packs and a trust policy, and generates text. It is
//! `Send + Sync`; each conversation has its own [`Conversation`] or session. What lies below is
//! public too: [`engine`] for models, sessions and sampling, [`host`] for kernels by op or by id,
//! [`signing`] for keys, policies and packs.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! let runtime = ruvllm::Runtime::builder().build()?; // the demo model and the core pack
//! let options = ruvllm::GenerateOptions::default();
//! runtime.generate(ruvllm::Prompt::Raw("Once upon a time"), &options, |text| {
//!     print!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), ruvllm::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod embedded;
mod error;
mod kernels;
mod report;
mod runtime;

pub use error::Error;
pub use kernels::{
    KernelSet, KernelSetBuilder, default_cache_dir, default_state_dir, read_trust_policy,
};
pub use report::{AdapterReport, Completion, RunReport};
pub use runtime::{Conversation, Prompt, Runtime, RuntimeBuilder};

pub use ruvllm_engine as engine;
pub use ruvllm_host as host;
#[cfg(feature = "server")]
pub use ruvllm_server as server;
pub use ruvllm_signing as signing;

pub use ruvllm_engine::chat::{Message, Renderer};
pub use ruvllm_engine::{
    Adapter, FinishReason, GenerateOptions, KvCodec, KvPolicy, RopeExtension, RopeMethod,
    SamplingOptions, Session, SessionKey, SessionOptions,
};
pub use ruvllm_host::process::HelperProcess;
