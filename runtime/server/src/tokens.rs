//! `/tokenize`, `/detokenize` and `/tokenizer_info`, in the forms of llama.cpp's server and of vLLM, which
//! evaluation harnesses use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;

/// `POST /tokenize`: `content` as token ids, or `prompt`, with a beginning-of-text token unless
/// `add_special_tokens` is false; with `with_pieces`, each with its text, or its bytes where they are no
/// text.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let shared = Arc::clone(&app);
    app.aside(move || {
        let app = shared;
        let (content, add_special): (String, bool) = match fields.take("prompt")? {
            Some(prompt) => (prompt, fields.take("add_special_tokens")?.unwrap_or(true)),
            None => (fields.require("content")?, fields.take("add_special")?.unwrap_or(false)),
        };
        drop(crate::params::model(&mut fields, &app)?);
        let parse_special = fields.take("parse_special")?.unwrap_or(true);
        let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
        fields.finish()?;
        let tokenizer = app.engine.model().tokenizer();
        let tokens = tokenizer.encode_with_special(&content, parse_special, add_special)?;
        let (count, context) = (tokens.len(), app.engine.context());
        let piece = |token: u32| {
            let bytes = tokenizer.token_bytes(token);
            let piece = str::from_utf8(&bytes).map_or_else(|_| json!(bytes), |text| json!(text));
            json!({"id": token, "piece": piece})
        };
        let tokens: Vec<Value> = match with_pieces {
            true => tokens.into_iter().map(piece).collect(),
            false => tokens.into_iter().map(Value::from).collect(),
        };
        Ok(Json(json!({"tokens": tokens, "count": count, "max_model_len": context})))
    })
    .await
}

/// `POST /detokenize`: the text of `tokens`, control tokens included.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let tokens: Vec<u32> = fields.require("tokens")?;
    drop(crate::params::model(&mut fields, &app)?);
    fields.finish()?;
    check_tokens(app.engine.model().vocab(), &tokens, "tokens")?;
    let text = app.engine.model().tokenizer().decode(&tokens, false);
    Ok(Json(json!({"content": text, "prompt": text})))
}

/// `GET /tokenizer_info`: the tokens that begin and end texts, and the chat template.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Json<Value> {
    let tokenizer = app.engine.model().tokenizer();
    let text = |token: Option<u32>| {
        token.map(|token| String::from_utf8_lossy(&tokenizer.token_bytes(token)).into_owned())
    };
    Json(json!({
        "tokenizer_class": "ruvllm",
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "model_max_length": app.engine.context(),
        "chat_template": app.template_source,
    }))
}

/// Refuses ids that a model with so many tokens does not have.
pub(crate) fn check_tokens(vocab: usize, tokens: &[u32], param: &str) -> Result<(), ApiError> {
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(token) => {
            let message = format!("{token} is no token; ids are from 0 to {}", vocab - 1);
            Err(ApiError::invalid(param, message))
        }
        None => Ok(()),
    }
}
