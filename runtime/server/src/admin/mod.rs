//! The API that changes kernels while others are served; it is there on the admin listener alone.
//!
//! Every change is made by the [`Supervisor`](ruvllm_host::Supervisor), under the name of the key that
//! asks for it. Reports are the host's own, serialised as they are.

mod options;
mod supervised;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRef, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use ruvllm_host::{
    Explanation, GenerationReport, HealthReport, HistoryEntry, HostError, InstallReport,
    KernelSummary, StageReport, Supervisor, SwapCounters,
};
use ruvllm_signing::{PackLimits, UnverifiedPack};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::{Caller, content_type, read_body};
use crate::reload::Reloaded;
pub use options::AdminOptions;
pub(crate) use supervised::Supervised;

/// What handlers here share.
#[derive(Clone)]
struct Admin {
    app: Arc<App>,
    kernels: Supervised,
}

impl FromRef<Admin> for Arc<App> {
    fn from_ref(admin: &Admin) -> Arc<App> {
        Arc::clone(&admin.app)
    }
}

/// The addresses that administrators use beside those of clients.
pub(crate) fn routes(app: Arc<App>, kernels: Supervised) -> Router {
    Router::new()
        .route("/admin/v1/kernels", get(kernels_report))
        .route("/admin/v1/kernels/explain", get(explain))
        .route("/admin/v1/packs", post(stage))
        .route("/admin/v1/packs/{id}", delete(discard))
        .route("/admin/v1/packs/{id}/activate", post(activate))
        .route("/admin/v1/trial/promote", post(promote))
        .route("/admin/v1/trial", delete(end_trial))
        .route("/admin/v1/rollback", post(roll_back))
        .route("/admin/v1/barred/{digest}", delete(clear))
        .route("/admin/v1/history", get(history))
        .route("/admin/v1/reload", post(reload))
        .with_state(Admin { app, kernels })
}

/// Everything that can be known of kernels and their generations.
#[derive(Serialize)]
struct KernelsReport {
    /// The active one.
    generation: u64,
    /// The one that is gone back to where none is named; null where there is none.
    previous: Option<u64>,
    /// The one that the program began with. Those before it lack some of its packs.
    first: u64,
    generations: Vec<GenerationReport>,
    staged: Vec<StageReport>,
    health: Vec<HealthReport>,
    window_seconds: f64,
    barred: Vec<Barred>,
    counters: SwapCounters,
    kernels: Vec<KernelSummary>,
}

#[derive(Serialize)]
struct Barred {
    digest: String,
    reason: String,
}

/// `GET /admin/v1/kernels`.
async fn kernels_report(State(admin): State<Admin>) -> Result<Json<KernelsReport>, ApiError> {
    let report = |supervisor: &Supervisor| {
        let host = supervisor.host();
        let barred = host.barred().into_iter().map(|(digest, reason)| Barred { digest, reason });
        Ok(Json(KernelsReport {
            generation: host.generation(),
            previous: supervisor.previous_generation(),
            first: supervisor.first_generation(),
            generations: host.generations(),
            staged: host.staged(),
            health: supervisor.health(),
            window_seconds: supervisor.limits().window.as_secs_f64(),
            barred: barred.collect(),
            counters: supervisor.counters(),
            kernels: host.kernels(),
        }))
    };
    admin.kernels.read(report).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explained {
    op: Option<String>,
}

/// `GET /admin/v1/kernels/explain`: which kernel answers `op`, and why; of every operation when absent.
async fn explain(
    State(admin): State<Admin>,
    query: Result<Query<Explained>, QueryRejection>,
) -> Result<Json<Vec<Explanation>>, ApiError> {
    let Query(Explained { op }) = query.map_err(bad_query)?;
    let explain = move |supervisor: &Supervisor| {
        let explanations = supervisor.host().explain_named(op.as_deref());
        match op {
            Some(op) if explanations.is_empty() => Err(ApiError::unknown_op(&op)),
            _ => Ok(Json(explanations)),
        }
    };
    admin.kernels.read(explain).await
}

/// `POST /admin/v1/packs`: verifies, compiles and proves the archive that is the body.
async fn stage(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<(StatusCode, Json<StageReport>), ApiError> {
    if !content_type(&request).eq_ignore_ascii_case("application/octet-stream") {
        return Err(ApiError::not_an_archive());
    }
    let (body, held) = read_body(request, &admin.app, pack_bytes()).await?;
    let stage = move |supervisor: &Supervisor| {
        let pack = UnverifiedPack::read_archive(&body[..], &PackLimits::default())
            .map_err(|error| ApiError::bad_request(error.code(), error.to_string()))?;
        // The bytes are in the pack now, which lives as long as this.
        drop(body);
        let _held = held;
        Ok((StatusCode::CREATED, Json(supervisor.stage(pack, &caller.client)?)))
    };
    admin.kernels.stage(stage).await
}

/// The longest body that can hold a pack within the default limits: in front of each file there is a
/// block of 512 bytes, behind it at most another one, and two at the end.
pub(crate) fn pack_bytes() -> usize {
    let PackLimits { max_entries, max_total_bytes, .. } = PackLimits::default();
    max_total_bytes as usize + 1024 * (max_entries + 1)
}

/// `DELETE /admin/v1/packs/{id}`: lets go of a staged pack.
async fn discard(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let id = number("id", &id)?;
    let discard = move |supervisor: &Supervisor| match supervisor.discard(id, &caller.client)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(HostError::NotStaged { id }.into()),
    };
    admin.kernels.withdraw(discard).await
}

/// `POST /admin/v1/packs/{id}/activate`: makes a staged pack active, or with `share` puts it on trial.
async fn activate(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    mut fields: Fields,
) -> Result<Json<InstallReport>, ApiError> {
    let id = number("id", &id)?;
    let share: Option<f64> = fields.take("share")?;
    fields.finish()?;
    let activate = move |supervisor: &Supervisor| {
        let report = match share {
            Some(share) => supervisor.start_canary(id, share, &caller.client),
            None => supervisor.activate(id, &caller.client),
        };
        Ok(Json(report?))
    };
    admin.kernels.change(activate).await
}

/// `POST /admin/v1/trial/promote`: makes the generation on trial the active one.
async fn promote(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    let promote = move |supervisor: &Supervisor| {
        Ok(Json(json!({"generation": supervisor.promote_canary(&caller.client)?})))
    };
    admin.kernels.change(promote).await
}

/// `DELETE /admin/v1/trial`: ends the trial.
async fn end_trial(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Value>, ApiError> {
    let end = move |supervisor: &Supervisor| {
        Ok(Json(json!({"generation": supervisor.end_canary(&caller.client)?})))
    };
    admin.kernels.withdraw(end).await
}

/// `POST /admin/v1/rollback`: goes back to generation `to`, or to the one before the active one.
async fn roll_back(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    mut fields: Fields,
) -> Result<Json<GenerationReport>, ApiError> {
    let to = fields.take("to")?;
    fields.finish()?;
    let back = move |supervisor: &Supervisor| Ok(Json(supervisor.roll_back(to, &caller.client)?));
    admin.kernels.withdraw(back).await
}

/// Digits of a digest that are enough where no other barred pack begins with them.
const LEAST_DIGITS: usize = 4;

/// The barred pack, of these with their reasons, whose digest begins so.
fn barred(barred: &[(String, String)], prefix: &str) -> Result<String, ApiError> {
    let hex = prefix.strip_prefix("sha256:").unwrap_or(prefix).to_ascii_lowercase();
    let begins =
        |digest: &&str| digest.strip_prefix("sha256:").is_some_and(|d| d.starts_with(&hex));
    let mut found = barred.iter().map(|(digest, _)| digest.as_str()).filter(begins);
    match (found.next(), found.next()) {
        (Some(digest), None) if hex.len() >= LEAST_DIGITS => Ok(digest.to_owned()),
        (Some(_), Some(_)) if hex.len() >= LEAST_DIGITS => Err(ApiError::ambiguous_digest(prefix)),
        _ => Err(ApiError::not_barred(prefix)),
    }
}

/// `DELETE /admin/v1/barred/{digest}`: lets a barred pack in again. The first digits of its digest are enough.
async fn clear(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(digest): Path<String>,
) -> Result<StatusCode, ApiError> {
    let clear = move |supervisor: &Supervisor| {
        let whole = barred(&supervisor.host().barred(), &digest)?;
        match supervisor.clear(&whole, &caller.client)? {
            true => Ok(StatusCode::NO_CONTENT),
            false => Err(ApiError::not_barred(&digest)),
        }
    };
    admin.kernels.withdraw(clear).await
}

/// `POST /admin/v1/reload`: reads trust policy, keys and certificates anew.
async fn reload(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Reloaded>, ApiError> {
    let app = admin.app;
    admin.kernels.withdraw(move |_| Ok(Json(app.reload(&caller.client)?))).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    #[serde(default = "Span::default_limit")]
    limit: usize,
    #[serde(default)]
    after: u64,
}

impl Span {
    fn default_limit() -> usize {
        100
    }
}

#[derive(Serialize)]
struct HistoryReport {
    entries: Vec<HistoryEntry>,
    counters: SwapCounters,
}

/// `GET /admin/v1/history`: of the newest `limit` entries those with a number above `after`, newest first.
async fn history(
    State(admin): State<Admin>,
    query: Result<Query<Span>, QueryRejection>,
) -> Result<Json<HistoryReport>, ApiError> {
    let Query(Span { limit, after }) = query.map_err(bad_query)?;
    let read = move |supervisor: &Supervisor| {
        let mut entries = supervisor.history(limit);
        entries.retain(|entry| entry.number > after);
        Ok(Json(HistoryReport { entries, counters: supervisor.counters() }))
    };
    admin.kernels.read(read).await
}

fn number(name: &str, text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| ApiError::invalid(name, format!("`{name}` must be a number")))
}

fn bad_query(rejection: QueryRejection) -> ApiError {
    ApiError::bad_request("invalid_query", rejection.body_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barred_pack_is_named_by_as_many_digits_as_tell_it_from_others() {
        let digest = |begin: &str| format!("sha256:{begin:0<64}");
        let list = ["12345", "12346", "abcd"].map(|begin| (digest(begin), String::new()));
        let found = |prefix: &str| barred(&list, prefix).map_err(|error| error.code());
        assert_eq!(found("12345"), Ok(digest("12345")));
        assert_eq!(found("sha256:ABCD"), Ok(digest("abcd")));
        assert_eq!(found(&digest("12346")), Ok(digest("12346")));
        assert_eq!(found("1234"), Err("ambiguous_digest"));
        for unknown in ["abc", "", "sha256:", "9999", &"0".repeat(65)] {
            assert_eq!(found(unknown), Err("not_barred"), "{unknown}");
        }
    }
}
