//! What is served: a model, and the same model with further adapters, each a model of its own to clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use ruvllm_engine::Adapter;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ServerError};

/// Who answers a request.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// What answers call it.
    pub(crate) name: Arc<str>,
    /// What its sequences add to the projections of the weights.
    pub(crate) adapter: Option<Adapter>,
}

/// The models that requests can name, with their ids; the first is taken where they name none.
#[derive(Debug)]
pub(crate) struct Models(Vec<(String, Choice)>);

impl Models {
    /// The model itself, whose first id stands in its answers, and further ones, each with an adapter.
    ///
    /// # Errors
    /// [`ServerError::ModelName`] where a further one has the id of another.
    pub(crate) fn new(
        ids: Vec<String>,
        adapter: Option<Adapter>,
        further: Vec<(String, Adapter)>,
    ) -> Result<Models, ServerError> {
        let name: Arc<str> = ids.first().map_or("", String::as_str).into();
        let own = Choice { name, adapter };
        let mut models: Vec<(String, Choice)> =
            ids.into_iter().map(|id| (id, own.clone())).collect();
        for (name, adapter) in further {
            if models.iter().any(|(id, _)| *id == name) {
                return Err(ServerError::ModelName { name });
            }
            let choice = Choice { name: name.as_str().into(), adapter: Some(adapter) };
            models.push((name, choice));
        }
        Ok(Models(models))
    }

    /// The model that a request names. One that is not served must not be answered by another.
    pub(crate) fn choose(&self, id: Option<&str>) -> Result<Choice, ApiError> {
        let named = self.0.iter().find(|(own, _)| id.is_none_or(|id| own == id));
        named.map(|(_, choice)| choice.clone()).ok_or_else(|| {
            let ids: Vec<&str> = self.0.iter().map(|(id, _)| id.as_str()).collect();
            ApiError::model_not_found(id.unwrap_or_default(), &ids)
        })
    }
}

/// `GET /v1/models`.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> =
        app.models.0.iter().map(|(id, choice)| describe(&app, id, choice)).collect();
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(describe(&app, &id, &app.models.choose(Some(&id))?)))
}

fn describe(app: &App, id: &str, choice: &Choice) -> Value {
    let mut described = json!({
        "id": id,
        "object": "model",
        "created": app.created,
        "owned_by": "ruvllm",
        "context_length": app.engine.context(),
        "tool_format": app.template.as_ref().map(|_| app.tool_format.name()),
    });
    // As vLLM says it.
    if *choice.name != *app.model {
        described["parent"] = json!(app.model);
    }
    described
}
