//! The server over HTTP, with the demo model and native kernels.

mod admin;
mod api;
mod bodies;
mod clients;
mod common;
mod dashboard;
#[cfg(unix)]
mod health;
mod lifecycle;
mod limits;
mod lora;
mod metrics;
mod reload;
mod streaming;
mod structured;
#[cfg(feature = "otel")]
mod traces;
