//! What is served: a model, and the same model with further adapters, each a model of its own to clients.

use std::collections::BTreeSet;
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

/// A model that makes vectors of texts and nothing else, beside the one that is served.
pub trait TextEncoder: Send + Sync {
    /// The numbers of a vector.
    fn dim(&self) -> usize;

    /// The most tokens of a text.
    fn max_tokens(&self) -> usize;

    /// The size of the vocabulary; token ids are below it.
    fn vocab_size(&self) -> usize;

    /// The tokens of a text, with those that the model puts around it.
    ///
    /// # Errors
    /// [`EncoderFailure::Text`].
    fn tokens(&self, text: &str) -> Result<Vec<u32>, EncoderFailure>;

    /// The vector of a text's tokens. `waited_for` is asked now and then whether anybody still waits.
    ///
    /// # Errors
    /// [`EncoderFailure`].
    fn embed(
        &self,
        tokens: &[u32],
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<f32>, EncoderFailure>;
}

/// Why an encoder gives no vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncoderFailure {
    /// The text cannot be encoded.
    Text {
        /// A stable code in snake case.
        code: &'static str,
        /// Why, and what to do.
        message: String,
    },
    /// Computing failed.
    Computing {
        /// How.
        message: String,
    },
    /// Nobody waited any more.
    Cancelled,
}

/// The models that requests can name, with their ids; the first is taken where they name none.
pub(crate) struct Models {
    own: Vec<(String, Choice)>,
    encoders: Vec<(Arc<str>, Arc<dyn TextEncoder>)>,
}

impl Models {
    /// The model itself, whose first id stands in its answers, further ones, each with an adapter, and
    /// encoders.
    ///
    /// # Errors
    /// [`ServerError::ModelName`] where a further one has the id of another.
    pub(crate) fn new(
        ids: Vec<String>,
        adapter: Option<Adapter>,
        further: Vec<(String, Adapter)>,
        encoders: Vec<(String, Arc<dyn TextEncoder>)>,
    ) -> Result<Models, ServerError> {
        let name: Arc<str> = ids.first().map_or("", String::as_str).into();
        let own = Choice { name, adapter };
        let mut models: Vec<(String, Choice)> =
            ids.into_iter().map(|id| (id, own.clone())).collect();
        let adapters = further.iter().map(|(name, _)| name.as_str());
        let others: Vec<&str> =
            adapters.chain(encoders.iter().map(|(name, _)| name.as_str())).collect();
        distinct(models.iter().map(|(id, _)| id.as_str()), &others)?;
        for (name, adapter) in further {
            let choice = Choice { name: name.as_str().into(), adapter: Some(adapter) };
            models.push((name, choice));
        }
        let mut all = Models { own: models, encoders: Vec::new() };
        for (name, encoder) in encoders {
            all.encoders.push((name.into(), encoder));
        }
        Ok(all)
    }

    /// The encoder that a request names, if it names one.
    pub(crate) fn encoder(&self, id: Option<&str>) -> Option<(Arc<str>, Arc<dyn TextEncoder>)> {
        self.encoders.iter().find(|(name, _)| id == Some(&**name)).cloned()
    }

    fn ids(&self) -> Vec<&str> {
        let own = self.own.iter().map(|(id, _)| id.as_str());
        own.chain(self.encoders.iter().map(|(id, _)| &**id)).collect()
    }

    /// The model that a request names. One that is not served must not be answered by another.
    pub(crate) fn choose(&self, id: Option<&str>) -> Result<Choice, ApiError> {
        let named = self.own.iter().find(|(own, _)| id.is_none_or(|id| own == id));
        named.map(|(_, choice)| choice.clone()).ok_or_else(|| match self.encoder(id) {
            Some((name, _)) => {
                let message = format!("`{name}` makes vectors of texts: ask /v1/embeddings");
                ApiError::bad_request("model_makes_embeddings", message).of("model")
            }
            None => ApiError::model_not_found(id.unwrap_or_default(), &self.ids()),
        })
    }
}

/// Holds the names of further models against each other and the ids of the model itself.
///
/// # Errors
/// [`ServerError::ModelName`] where two are the same.
pub(crate) fn distinct<'a>(
    ids: impl Iterator<Item = &'a str>,
    further: &[&'a str],
) -> Result<(), ServerError> {
    let mut taken: BTreeSet<&str> = ids.collect();
    match further.iter().find(|name| !taken.insert(name)) {
        Some(name) => Err(ServerError::ModelName { name: (*name).to_owned() }),
        None => Ok(()),
    }
}

/// `GET /v1/models`.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let own = app.models.own.iter().map(|(id, choice)| describe(&app, id, choice));
    let encoders = app.models.encoders.iter();
    let encoders = encoders.map(|(id, encoder)| describe_encoder(&app, id, &**encoder));
    let data: Vec<Value> = own.chain(encoders).collect();
    Json(json!({"object": "list", "data": data}))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(match app.models.encoder(Some(&id)) {
        Some((id, encoder)) => describe_encoder(&app, &id, &*encoder),
        None => describe(&app, &id, &app.models.choose(Some(&id))?),
    }))
}

fn describe_encoder(app: &App, id: &str, encoder: &dyn TextEncoder) -> Value {
    json!({
        "id": id,
        "object": "model",
        "created": app.created,
        "owned_by": "ruvllm",
        "context_length": encoder.max_tokens(),
        "dimensions": encoder.dim(),
    })
}

fn describe(app: &App, id: &str, choice: &Choice) -> Value {
    let mut described = json!({
        "id": id,
        "object": "model",
        "created": app.created,
        "owned_by": "ruvllm",
        "context_length": app.engine.context(),
        "tool_format": app.template.as_ref().map(|_| app.teaching.format.name()),
    });
    // As vLLM says it.
    if *choice.name != *app.model {
        described["parent"] = json!(app.model);
    }
    described
}
