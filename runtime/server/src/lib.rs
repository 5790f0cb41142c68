//! An OpenAI-compatible HTTP server over one engine.
//!
//! [`Server::start`] takes what is [`Served`] and [`ServerOptions`]. One thread of its own serves HTTP; what
//! takes longer than a glance (templates, tokens, grammars) goes to helper threads, and what is
//! computed goes to the engine's [scheduler](ruvllm_engine::scheduler), so that the engine's threads
//! keep their processors.
//!
//! Invariants: a request that is accepted is answered, or ends with an error that says why, within its
//! time limit; a client that goes away takes its sequences with it; a parameter that would change the
//! answer is obeyed or refused, never ignored; prompts are not logged unless the operator says so.
//! Only loopback addresses are served without keys. Kernels are changed on a listener of its own alone,
//! by holders of keys that open nothing else. Not protected against: a client that holds a key
//! and asks for as much as its limits allow.
#![forbid(unsafe_code)]

mod admin;
mod answer;
mod anthropic;
mod app;
mod bodies;
mod chat;
mod completions;
mod conversation;
mod cors;
mod dashboard;
mod embeddings;
mod error;
mod fields;
mod grammar;
mod health;
mod http;
mod json;
mod keys;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod options;
#[cfg(feature = "otel")]
mod otlp;
mod params;
mod reload;
mod responses;
mod sequences;
mod server;
mod spans;
mod status;
mod tls;
mod tokens;
mod tools;

pub use admin::AdminOptions;
pub use cors::CorsOrigin;
pub use error::ServerError;
pub use grammar::{GrammarCompiler, grammar_process};
pub use keys::ApiKey;
pub use models::{EncoderFailure, TextEncoder};
pub use options::{Limits, ServerOptions};
#[cfg(feature = "otel")]
pub use otlp::TraceExport;
pub use reload::{Configuration, Reloaded, Reloader};
pub use server::{Served, Server};
