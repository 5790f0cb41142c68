//! `/tokenize` and `/detokenize`, in the form of llama.cpp's server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;

/// `POST /tokenize`: `content` as token ids; with `with_pieces`, each with its text, or its bytes where
/// they are no text.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let shared = Arc::clone(&app);
    app.aside(move || {
        let app = shared;
        let content: String = fields.require("content")?;
        let add_special = fields.take("add_special")?.unwrap_or(false);
        let parse_special = fields.take("parse_special")?.unwrap_or(true);
        let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
        fields.finish()?;
        let tokenizer = app.engine.model().tokenizer();
        let tokens = tokenizer.encode_with_special(&content, parse_special, add_special)?;
        if !with_pieces {
            return Ok(Json(json!({"tokens": tokens})));
        }
        let piece = |&token: &u32| {
            let bytes = tokenizer.token_bytes(token);
            let piece = str::from_utf8(&bytes).map_or_else(|_| json!(bytes), |text| json!(text));
            json!({"id": token, "piece": piece})
        };
        Ok(Json(json!({"tokens": tokens.iter().map(piece).collect::<Vec<_>>()})))
    })
    .await
}

/// `POST /detokenize`: the text of `tokens`, control tokens included.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    let tokens: Vec<u32> = fields.require("tokens")?;
    fields.finish()?;
    check_tokens(&app, &tokens, "tokens")?;
    Ok(Json(json!({"content": app.engine.model().tokenizer().decode(&tokens, false)})))
}

/// Refuses ids that the model does not have.
pub(crate) fn check_tokens(app: &App, tokens: &[u32], param: &str) -> Result<(), ApiError> {
    let vocab = app.engine.model().vocab();
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(token) => {
            let message = format!("{token} is no token; ids are from 0 to {}", vocab - 1);
            Err(ApiError::invalid(param, message))
        }
        None => Ok(()),
    }
}
