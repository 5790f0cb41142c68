//! What is served: a model, and the same model with further adapters, each a model of its own to clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use ruvllm_engine::Adapter;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ServerError};

/// A model that requests can name.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) name: Arc<str>,
    /// What its sequences add to the projections of the weights.
    pub(crate) adapter: Option<Adapter>,
}

/// The models that requests can name; the first is taken where they name none.
#[derive(Debug)]
pub(crate) struct Models(Vec<Choice>);

impl Models {
    /// The model itself under each of these names, and further ones, each with an adapter.
    ///
    /// # Errors
    /// [`ServerError::ModelName`] where two have the same name.
    pub(crate) fn new(
        names: Vec<String>,
        adapter: Option<Adapter>,
        further: Vec<(String, Adapter)>,
    ) -> Result<Models, ServerError> {
        let own = |name: String| Choice { name: name.into(), adapter: adapter.clone() };
        let mut models: Vec<Choice> = names.into_iter().map(own).collect();
        for (name, adapter) in further {
            if models.iter().any(|model| *model.name == *name) {
                return Err(ServerError::ModelName { name });
            }
            models.push(Choice { name: name.into(), adapter: Some(adapter) });
        }
        Ok(Models(models))
    }

    /// Whether a model is not the one that the server was started with, under any of its names.
    fn is_further(&self, choice: &Choice) -> bool {
        let fingerprint = |choice: &Choice| choice.adapter.as_ref().map(Adapter::fingerprint);
        self.0.first().is_some_and(|own| fingerprint(own) != fingerprint(choice))
    }

    /// The model that a request names. One that is not served must not be answered by another.
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<Choice, ApiError> {
        let named = |choice: &&Choice| name.is_none_or(|name| *choice.name == *name);
        self.0.iter().find(named).cloned().ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|choice| &*choice.name).collect();
            ApiError::model_not_found(name.unwrap_or_default(), &names)
        })
    }
}

/// `GET /v1/models`.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> = app.models.0.iter().map(|choice| describe(&app, choice)).collect();
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(describe(&app, &app.models.choose(Some(&id))?)))
}

fn describe(app: &App, choice: &Choice) -> Value {
    let mut described = json!({
        "id": *choice.name,
        "object": "model",
        "created": app.created,
        "owned_by": "ruvllm",
        "context_length": app.engine.context(),
        "tool_format": app.template.as_ref().map(|_| app.tool_format.name()),
    });
    // As vLLM says it.
    if app.models.is_further(choice) {
        described["parent"] = json!(app.model);
    }
    described
}
