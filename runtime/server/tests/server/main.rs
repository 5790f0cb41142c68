//! The server over HTTP, with the demo model and native kernels.

mod admin;
mod api;
mod bodies;
mod clients;
mod common;
mod dashboard;
mod echo;
mod encoders;
#[cfg(unix)]
mod health;
mod lifecycle;
mod limits;
mod lora;
mod messages;
mod metrics;
mod reload;
mod responses;
mod streaming;
mod structured;
#[cfg(feature = "otel")]
mod traces;
