//! `/health` and `/ready`: whether requests can be answered, and whether they are taken.
//!
//! Three parts have to work for that, and each is asked. The HTTP thread answers by answering at all. A helper
//! thread must take a task in time. The scheduler's thread must not be at one step for longer than a request
//! may take in all, as nobody would get an answer from it, and to be ready for no longer than [`STEP`]. The
//! answer waits for nothing else, and never for longer than [`PATIENCE`].

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::app::App;
use crate::error::ApiError;

/// Time for a helper thread to take a task, without which requests are not answered.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest step of a scheduler that works as it should: it has a bounded number of tokens.
const STEP: Duration = Duration::from_secs(30);
/// Time in which one takes a task where not all of them are busy.
const PROMPTLY: Duration = Duration::from_millis(250);

/// `GET /health`: requests can be answered. A process for which this fails time and again wants to be started
/// anew.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.answers(PATIENCE, app.options.limits.request_timeout).await?;
    Ok(Json(json!({"status": "ok"})))
}

/// `GET /ready`: requests are taken, and answered without waiting for a helper thread.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if app.is_draining() {
        return Err(ApiError::draining());
    }
    app.answers(PROMPTLY, app.options.limits.request_timeout.min(STEP)).await?;
    Ok(Json(json!({"status": "ready"})))
}

impl App {
    /// Whether every part works that an answer needs: helper threads within `patience`, the scheduler with no
    /// step that is longer than `step`.
    async fn answers(self: &Arc<Self>, patience: Duration, step: Duration) -> Result<(), ApiError> {
        if !self.scheduler.is_alive() {
            let message = "the scheduler has ended; start the server again";
            return Err(ApiError::unhealthy("scheduler_ended", message));
        }
        let busy = self.scheduler.busy_for();
        if busy > step {
            let message = format!(
                "the scheduler has been at one step for {} seconds; start the server again if it does not end",
                busy.as_secs()
            );
            return Err(ApiError::unhealthy("scheduler_stuck", message));
        }
        if !Helpers::answer(self, patience).await {
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
/// for a thread whether or not somebody still waits for the answer.
#[derive(Default)]
pub(crate) struct Helpers {
    asked: AtomicBool,
    answered: Notify,
}

impl Helpers {
    async fn answer(app: &Arc<App>, patience: Duration) -> bool {
        let mut answered = pin!(app.helpers.answered.notified());
        // Before it is asked, so that no answer is missed.
        answered.as_mut().enable();
        if !app.helpers.asked.swap(true, Ordering::AcqRel) {
            let app = Arc::clone(app);
            tokio::spawn(async move {
                let answer = app.aside(|| Ok(())).await;
                app.helpers.asked.store(false, Ordering::Release);
                if answer.is_ok() {
                    app.helpers.answered.notify_waiters();
                }
            });
        }
        tokio::time::timeout(patience, answered).await.is_ok()
    }
}
