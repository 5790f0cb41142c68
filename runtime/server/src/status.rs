//! `/status`: what the server is doing, for people who watch it.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_engine::MemoryReport;
use ruvllm_engine::scheduler::SchedulerStats;
use ruvllm_host::OpStats;
use serde::Serialize;

use crate::app::{App, Listener, now};
use crate::error::ApiError;
use crate::http::Caller;
use crate::metrics::TokenTimes;

/// What is told, read at one moment after another.
#[derive(Serialize)]
pub(crate) struct Status {
    server: ServerStatus,
    scheduler: SchedulerStats,
    memory: MemoryReport,
    /// The active generation of kernels.
    generation: u64,
    kernels: Vec<OpStats>,
    latency: TokenTimes,
}

#[derive(Serialize)]
struct ServerStatus {
    version: &'static str,
    model: String,
    uptime_seconds: u64,
    draining: bool,
    /// Whether the listener that was asked has the admin API.
    admin: bool,
}

/// `GET /status`.
pub(crate) async fn status(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Status>, ApiError> {
    // The figures of the memory are there once no step is computed.
    let shared = Arc::clone(&app);
    app.aside(move || {
        let app = shared;
        let host = app.engine.host();
        Ok(Json(Status {
            server: ServerStatus {
                version: env!("CARGO_PKG_VERSION"),
                model: app.model.clone(),
                uptime_seconds: now().saturating_sub(app.created),
                draining: app.is_draining(),
                admin: caller.listener == Listener::Admin,
            },
            scheduler: app.scheduler.stats(),
            memory: app.engine.memory(),
            generation: host.generation(),
            kernels: host.stats(),
            latency: app.metrics.token_times(),
        }))
    })
    .await
}
