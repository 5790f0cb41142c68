//! `/health` and `/ready`: whether requests can be answered, and whether they are taken.
//!
//! Three parts have to work for that, and each is asked. The HTTP thread answers by answering at all. A helper
//! thread must take a task in time. The scheduler's thread must not be at one step for longer than a request
//! may take in all, as nobody would get an answer from it. The answer waits for nothing else, and never
//! for longer than [`PATIENCE`].

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::app::{App, aside};
use crate::error::ApiError;

/// Time for a helper thread to take a task, without which requests are not answered.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time in which one takes a task where not all of them are busy.
const PROMPTLY: Duration = Duration::from_millis(250);

/// `GET /health`: requests can be answered. A process for which this fails time and again wants to be started
/// anew.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.answers(PATIENCE).await?;
    Ok(Json(json!({"status": "ok"})))
}

/// `GET /ready`: requests are taken, and answered without waiting for a helper thread.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if app.is_draining() {
        return Err(ApiError::draining());
    }
    app.answers(PROMPTLY).await?;
    Ok(Json(json!({"status": "ready"})))
}

impl App {
    /// Whether every part works that an answer needs, helper threads within `patience`.
    async fn answers(&self, patience: Duration) -> Result<(), ApiError> {
        if !self.scheduler.is_alive() {
            let message = "the scheduler has ended; start the server again";
            return Err(ApiError::unhealthy("scheduler_ended", message));
        }
        let (busy, limit) = (self.scheduler.busy_for(), self.options.limits.request_timeout);
        if busy > limit {
            let message = format!(
                "the scheduler has been at one step for {} seconds, longer than a request may take (--request-timeout); start the server again if it does not end",
                busy.as_secs()
            );
            return Err(ApiError::unhealthy("scheduler_stuck", message));
        }
        if !self.helpers.answer(patience).await {
            let message = format!(
                "no helper thread was free within {} seconds; costly requests keep all of them busy",
                patience.as_secs_f64()
            );
            return Err(ApiError::unhealthy("helpers_busy", message));
        }
        Ok(())
    }
}

/// Asks the helper threads for a sign of life. One task at a time is enough for all who want to know: it waits
/// in the helpers' queue until one takes it, whether or not somebody still waits for the answer.
#[derive(Default)]
pub(crate) struct Helpers(Arc<Mutex<()>>);

impl Helpers {
    async fn answer(&self, patience: Duration) -> bool {
        let answer = async {
            let turn = Arc::clone(&self.0).lock_owned().await;
            aside(move || {
                drop(turn);
                Ok(())
            })
            .await
        };
        tokio::time::timeout(patience, answer).await.is_ok_and(|answer| answer.is_ok())
    }
}
