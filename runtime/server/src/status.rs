//! `/status`: what the server is doing, for people who watch it.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_engine::MemoryReport;
use ruvllm_engine::scheduler::SchedulerStats;
use ruvllm_host::{Host, KernelSummary, OpStats};
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
    kernels: Vec<KernelStatus>,
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

/// Figures of a kernel, and what it is to its operation.
#[derive(Serialize)]
struct KernelStatus {
    #[serde(flatten)]
    figures: OpStats,
    state: KernelState,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum KernelState {
    /// Asked first.
    Selected,
    /// Asked where others fail.
    Fallback,
    /// Of the generation on trial alone.
    OnTrial,
    /// Out of service.
    Quarantined,
    /// Of an earlier generation.
    Retired,
}

fn kernels(host: &Host) -> Vec<KernelStatus> {
    let active = host.kernels();
    let with_state = |figures: OpStats| {
        let is_it = |kernel: &&KernelSummary| {
            let same = (&kernel.op, &kernel.id, kernel.generation);
            let pack = (&kernel.pack, &kernel.pack_version);
            same == (&figures.op, &figures.kernel, figures.generation)
                && pack == (&figures.pack, &figures.pack_version)
        };
        let state = match active.iter().find(is_it) {
            _ if !figures.current => KernelState::Retired,
            _ if figures.quarantined => KernelState::Quarantined,
            None => KernelState::OnTrial,
            Some(kernel) if kernel.selected => KernelState::Selected,
            Some(_) => KernelState::Fallback,
        };
        KernelStatus { figures, state }
    };
    host.stats().into_iter().map(with_state).collect()
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
            kernels: kernels(host),
            latency: app.metrics.token_times(),
        }))
    })
    .await
}
