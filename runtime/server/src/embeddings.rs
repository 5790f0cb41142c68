//! `POST /v1/embeddings`: a text as a vector.
//!
//! The vector of the model that is served is the mean over all tokens of the text of the hidden states behind
//! the final norm, scaled to length 1. Language models are not trained for that: it tells texts apart, but an
//! encoder, which is, does so better. Encoders are models of their own to clients and compute on a helper
//! thread, or wherever they have themselves computed.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine as _;
use ruvllm_engine::{GenerateOptions, unit_length};
use serde_json::{Value, json};

use crate::app::App;
use crate::completions::{each_prompt, prompts};
use crate::error::ApiError;
use crate::fields::{Fields, parse};
use crate::http::Caller;
use crate::models::{EncoderFailure, TextEncoder};
use crate::sequences::{Operation, Sequences, Step, Work};
use crate::tokens::check_tokens;

/// The handler.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let id = fields.take::<String>("model")?;
    match app.models.encoder(id.as_deref()) {
        Some((name, encoder)) => encoded(app, caller, fields, name, encoder).await,
        None => computed(app, caller, fields, id).await,
    }
}

/// What a request wants made of which input: whether the bytes of vectors, not numbers, and the input.
fn wanted(fields: &mut Fields, dim: usize) -> Result<(bool, Value), ApiError> {
    let format = fields.take::<String>("encoding_format")?;
    let base64 = match format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            let message = "`encoding_format` must be float or base64";
            return Err(ApiError::invalid("encoding_format", message));
        }
    };
    match fields.take::<usize>("dimensions")? {
        Some(wanted) if wanted != dim => {
            let message = format!(
                "`dimensions` may be {dim} alone: fewer numbers mean something only with a model that was trained for that"
            );
            Err(ApiError::bad_request("unsupported_parameter", message).of("dimensions"))
        }
        _ => Ok((base64, fields.require("input")?)),
    }
}

/// Vectors of the model that is served.
async fn computed(
    app: Arc<App>,
    caller: Caller,
    mut fields: Fields,
    id: Option<String>,
) -> Result<Json<Value>, ApiError> {
    let shared = Arc::clone(&app);
    let (mut sequences, base64) = app
        .aside(move || {
            let app = shared;
            let model = app.models.choose(id.as_deref())?;
            let (base64, input) = wanted(&mut fields, app.engine.model().config().dim)?;
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
        if let (index, Step::Embedding(mut mean)) = step? {
            unit_length(&mut mean);
            data[index] = embedding(index, mean, base64);
        }
    }
    Ok(answer(data, sequences.model(), sequences.usage().prompt))
}

/// Vectors of an encoder.
async fn encoded(
    app: Arc<App>,
    caller: Caller,
    mut fields: Fields,
    name: Arc<str>,
    encoder: Arc<dyn TextEncoder>,
) -> Result<Json<Value>, ApiError> {
    if app.is_draining() {
        return Err(ApiError::draining());
    }
    // Goes with this future, which is dropped where the client goes away.
    let waiting = Arc::new(());
    let waits = Arc::downgrade(&waiting);
    let shared = Arc::clone(&app);
    let answer = app
        .aside(move || {
            let (base64, input) = wanted(&mut fields, encoder.dim())?;
            fields.finish()?;
            caller.log_prompt(&shared, &input);
            let limits = &shared.options.limits;
            let failed = |failure: EncoderFailure, param: &str| match failure {
                EncoderFailure::Text { code, message } => {
                    ApiError::bad_request(code, message).of(param)
                }
                EncoderFailure::Computing { message } => {
                    ApiError::unhealthy("encoder_failed", message)
                }
                EncoderFailure::Cancelled => ApiError::timeout(limits.request_timeout),
            };
            let inputs = each_prompt(input, "input", |input, param| {
                let tokens = match input {
                    Value::String(text) => {
                        encoder.tokens(&text).map_err(|failure| failed(failure, param))?
                    }
                    ids => {
                        let tokens: Vec<u32> = parse(param, ids)?;
                        check_tokens(encoder.vocab_size(), &tokens, param)?;
                        tokens
                    }
                };
                Ok((tokens, param.to_owned()))
            })?;
            if inputs.len() > limits.max_choices {
                let (most, count) = (limits.max_choices, inputs.len());
                let message = format!("a request may have {most} inputs; this has {count}");
                return Err(ApiError::invalid("input", message));
            }
            let waited_for = || waits.strong_count() > 0 && Instant::now() < caller.until;
            let mut data = Vec::with_capacity(inputs.len());
            let mut count = 0;
            for (index, (tokens, param)) in inputs.iter().enumerate() {
                let vector = encoder.embed(tokens, &waited_for);
                let vector = vector.map_err(|failure| failed(failure, param))?;
                data.push(embedding(index, vector, base64));
                count += tokens.len();
            }
            Ok(answer(data, &name, count))
        })
        .await;
    drop(waiting);
    answer
}

fn embedding(index: usize, vector: Vec<f32>, base64: bool) -> Value {
    json!({"object": "embedding", "index": index, "embedding": written(vector, base64)})
}

fn answer(data: Vec<Value>, model: &str, tokens: usize) -> Json<Value> {
    Json(json!({
        "object": "list",
        "data": data,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }))
}

/// The vector as numbers, or as its bytes, little-endian f32.
fn written(vector: Vec<f32>, base64: bool) -> Value {
    if base64 {
        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        return base64::engine::general_purpose::STANDARD.encode(bytes).into();
    }
    vector.into()
}
