//! What is served, and whether it is.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// `GET /health`: requests can be computed. A process that cannot any more wants to be started anew.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if !app.scheduler.is_alive() {
        return Err(ApiError::internal("the scheduler has ended; start the server again"));
    }
    Ok(Json(json!({"status": "ok"})))
}

/// `GET /ready`: requests are taken.
pub(crate) async fn ready(state: State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if state.is_draining() {
        return Err(ApiError::draining());
    }
    let _healthy = health(state).await?;
    Ok(Json(json!({"status": "ready"})))
}

/// `GET /v1/models`.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [describe(&app)]}))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if id != app.model {
        return Err(ApiError::model_not_found(&id, &app.model));
    }
    Ok(Json(describe(&app)))
}

fn describe(app: &App) -> Value {
    json!({
        "id": app.model,
        "object": "model",
        "created": app.created,
        "owned_by": "ruvllm",
        "context_length": app.engine.context(),
    })
}
