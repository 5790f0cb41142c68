//! `POST /v1/embeddings`: a text as a vector.
//!
//! The vector is the mean over all tokens of the text of the model's hidden states behind the final
//! norm, scaled to length 1. Language models are not trained for that: it tells texts apart, but a model
//! trained for embeddings does so better.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine as _;
use ruvllm_engine::{GenerateOptions, unit_length};
use serde_json::{Value, json};

use crate::app::App;
use crate::completions::prompts;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::Caller;
use crate::params::model;
use crate::sequences::{Operation, Sequences, Step, Work};

/// The handler.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let shared = Arc::clone(&app);
    let (mut sequences, base64) = app
        .aside(move || {
            let app = shared;
            let model = model(&mut fields, &app)?;
            let format = fields.take::<String>("encoding_format")?;
            let base64 = match format.as_deref() {
                None | Some("float") => false,
                Some("base64") => true,
                Some(_) => {
                    let message = "`encoding_format` must be float or base64";
                    return Err(ApiError::invalid("encoding_format", message));
                }
            };
            let dim = app.engine.model().config().dim;
            match fields.take::<usize>("dimensions")? {
                Some(wanted) if wanted != dim => {
                    let message = format!(
                        "`dimensions` may be {dim} alone: fewer numbers mean something only with a model that was trained for that"
                    );
                    return Err(ApiError::bad_request("unsupported_parameter", message)
                        .of("dimensions"));
                }
                _ => {}
            }
            let input = fields.require("input")?;
            fields.finish()?;
            caller.log_prompt(&app, &input);
            let prompts = prompts(&app, input, "input")?.into_iter().map(|prompt| prompt.tokens);
            let work = Work {
                model,
                operation: Operation::Embeddings,
                prompts: prompts.collect(),
                n: 1,
                options: GenerateOptions::default(),
                logprobs: None,
                prompt_logprobs: None,
                grammar: None,
            };
            Ok((Sequences::start(&app, caller, work)?, base64))
        })
        .await?;
    let mut data = vec![Value::Null; sequences.count()];
    while let Some(step) = sequences.next().await {
        if let (index, Step::Embedding(mean)) = step? {
            let vector = vector(mean, base64);
            data[index] = json!({"object": "embedding", "index": index, "embedding": vector});
        }
    }
    let tokens = sequences.usage().prompt;
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": **sequences.model(),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// The vector at length 1: as numbers, or as its bytes, little-endian f32.
fn vector(mut mean: Vec<f32>, base64: bool) -> Value {
    unit_length(&mut mean);
    if base64 {
        let bytes: Vec<u8> = mean.iter().flat_map(|x| x.to_le_bytes()).collect();
        return base64::engine::general_purpose::STANDARD.encode(bytes).into();
    }
    mean.into()
}
