//! `POST /v1/completions`: texts that continue a prompt.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use ruvllm_engine::scheduler::{Finished, Token};
use serde_json::{Value, json};

use crate::answer::{self, Shape, reason};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, parse};
use crate::http::Caller;
use crate::logprobs::{TOP, TextLogprobs};
use crate::params::Params;
use crate::sequences::{Operation, Sequences, Work};
use crate::tokens::check_tokens;

/// Tokens of an answer where the request does not say, as with OpenAI.
const TOKENS: usize = 16;

/// The handler.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let shared = Arc::clone(&app);
    let (sequences, params) = app
        .aside(move || {
            let app = shared;
            let params = Params::take(&mut fields, &app, Some(TOKENS))?;
            let logprobs = fields.take::<usize>("logprobs")?;
            if logprobs.is_some_and(|top| top > TOP) {
                return Err(ApiError::invalid(
                    "logprobs",
                    format!("`logprobs` may be {TOP} at most"),
                ));
            }
            let prompt = fields.require("prompt")?;
            fields.finish()?;
            caller.log_prompt(&app, &prompt);
            let prompts = prompts(&app, prompt, "prompt")?;
            let (n, options) = (params.n, params.options.clone());
            let operation = Operation::Completion;
            let model = params.model.clone();
            let work = Work { model, operation, prompts, n, options, logprobs, grammar: None };
            Ok((Sequences::start(&app, caller, work)?, params))
        })
        .await?;
    let shape = Texts { app: Arc::clone(&app), texts: Vec::new() };
    if params.stream {
        return answer::stream(sequences, shape, params.include_usage);
    }
    answer::whole(sequences, shape).await
}

/// One or more prompts: texts or token ids.
pub(crate) fn prompts(app: &App, prompt: Value, param: &str) -> Result<Vec<Vec<u32>>, ApiError> {
    let tokenizer = app.engine.model().tokenizer();
    let tokens = |prompt: Value, param: &str| match prompt {
        Value::String(text) => Ok(tokenizer.encode(&text, true)?),
        ids => {
            let ids: Vec<u32> = parse(param, ids)?;
            check_tokens(app, &ids, param)?;
            Ok(ids)
        }
    };
    match prompt {
        Value::Array(list) if !list.iter().all(Value::is_number) => {
            let one = |(i, prompt)| tokens(prompt, &format!("{param}[{i}]"));
            list.into_iter().enumerate().map(one).collect()
        }
        prompt => Ok(vec![tokens(prompt, param)?]),
    }
}

/// The texts so far.
struct Texts {
    app: Arc<App>,
    texts: Vec<TextSoFar>,
}

#[derive(Default)]
struct TextSoFar {
    text: String,
    logprobs: TextLogprobs,
    offset: usize,
}

impl Texts {
    fn text(&mut self, index: usize) -> &mut TextSoFar {
        if self.texts.len() <= index {
            self.texts.resize_with(index + 1, TextSoFar::default);
        }
        &mut self.texts[index]
    }
}

impl Shape for Texts {
    const PREFIX: &'static str = "cmpl";
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];

    fn begin(&mut self, _: usize) -> Option<Value> {
        None
    }

    fn token(&mut self, index: usize, token: &Token, streaming: bool) -> Option<Value> {
        let app = Arc::clone(&self.app);
        let so_far = self.text(index);
        so_far.logprobs.push(app.engine.model().tokenizer(), token, &mut so_far.offset);
        if !streaming {
            so_far.text += &token.text;
            return None;
        }
        let logprobs = so_far.logprobs.take();
        if token.text.is_empty() && logprobs.is_null() {
            return None;
        }
        Some(json!({
            "index": index, "text": token.text, "logprobs": logprobs, "finish_reason": null,
        }))
    }

    fn end(&mut self, index: usize, finished: &Finished) -> Vec<Value> {
        vec![json!({
            "index": index, "text": finished.text, "logprobs": null,
            "finish_reason": reason(finished.reason),
        })]
    }

    fn whole(&mut self, index: usize, finished: &Finished) -> Value {
        let so_far = self.text(index);
        let text = std::mem::take(&mut so_far.text) + &finished.text;
        json!({
            "index": index, "text": text, "logprobs": so_far.logprobs.take(),
            "finish_reason": reason(finished.reason),
        })
    }
}
