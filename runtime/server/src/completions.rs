//! `POST /v1/completions`: texts that continue a prompt, and how likely prompts are.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use ruvllm_engine::scheduler::{Finished, PromptLogprobs, Token};
use serde_json::{Value, json};

use crate::answer::{self, Shape, reason};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, parse};
use crate::http::Caller;
use crate::logprobs::{Offset, TOP, TextLogprobs};
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
    let (sequences, params, echo, logprobs) = app
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
            let echo = fields.take("echo")?.unwrap_or(false);
            let prompt = fields.require("prompt")?;
            fields.finish()?;
            caller.log_prompt(&app, &prompt);
            let prompts = prompts(&app, prompt, "prompt")?;
            let (n, options) = (params.n, params.options.clone());
            let work = Work {
                model: params.model.clone(),
                operation: Operation::Completion,
                prompts: prompts.iter().map(|prompt| prompt.tokens.clone()).collect(),
                n,
                options,
                logprobs,
                prompt_logprobs: logprobs.filter(|_| echo),
                grammar: None,
            };
            let sequences = Sequences::start(&app, caller, work)?;
            let echo = echo.then_some(Echo { prompts, n });
            Ok((sequences, params, echo, logprobs.is_some()))
        })
        .await?;
    let shape = Texts { app: Arc::clone(&app), echo, logprobs, texts: Vec::new() };
    if params.stream {
        return answer::stream(sequences, shape, params.include_usage);
    }
    answer::whole(sequences, shape).await
}

/// A prompt of a request.
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// The text, where it was given as one.
    text: Option<String>,
}

impl Prompt {
    /// The text that an answer repeats.
    fn text(&self, app: &App) -> String {
        let decoded = || app.engine.model().tokenizer().decode(&self.tokens, false);
        self.text.clone().unwrap_or_else(decoded)
    }
}

/// One or more prompts: texts or token ids.
pub(crate) fn prompts(app: &App, prompt: Value, param: &str) -> Result<Vec<Prompt>, ApiError> {
    let tokenizer = app.engine.model().tokenizer();
    let tokens = |prompt: Value, param: &str| match prompt {
        Value::String(text) => {
            Ok(Prompt { tokens: tokenizer.encode(&text, true)?, text: Some(text) })
        }
        ids => {
            let tokens: Vec<u32> = parse(param, ids)?;
            check_tokens(app.engine.model().vocab(), &tokens, param)?;
            Ok(Prompt { tokens, text: None })
        }
    };
    each_prompt(prompt, param, tokens)
}

/// What `one` makes of a prompt, or of each where there are several: texts or token ids.
pub(crate) fn each_prompt<T>(
    prompt: Value,
    param: &str,
    one: impl Fn(Value, &str) -> Result<T, ApiError>,
) -> Result<Vec<T>, ApiError> {
    match prompt {
        Value::Array(list) if !list.iter().all(Value::is_number) => {
            let one = |(i, prompt)| one(prompt, &format!("{param}[{i}]"));
            list.into_iter().enumerate().map(one).collect()
        }
        prompt => Ok(vec![one(prompt, param)?]),
    }
}

/// The texts so far.
struct Texts {
    app: Arc<App>,
    echo: Option<Echo>,
    /// Whether log-probabilities are told.
    logprobs: bool,
    texts: Vec<TextSoFar>,
}

/// What answers begin with: their prompts.
struct Echo {
    prompts: Vec<Prompt>,
    /// Answers to each.
    n: usize,
}

#[derive(Default)]
struct TextSoFar {
    text: String,
    logprobs: TextLogprobs,
    offset: Offset,
}

impl Texts {
    fn text(&mut self, index: usize) -> &mut TextSoFar {
        if self.texts.len() <= index {
            self.texts.resize_with(index + 1, TextSoFar::default);
        }
        &mut self.texts[index]
    }

    /// The prompt that an answer begins with.
    fn echoed(&self, index: usize) -> Option<(String, &Prompt)> {
        let echo = self.echo.as_ref()?;
        let prompt = echo.prompts.get(index / echo.n)?;
        Some((prompt.text(&self.app), prompt))
    }

    /// Lists the token that ended a text that repeats its prompt: whoever reads what is behind a context up
    /// to the last token must not lose one of the prompt's where the model had nothing to add.
    fn note_end(&mut self, index: usize, finished: &Finished) {
        if let (Some(_), Some(token)) = (&self.echo, &finished.end_token) {
            let app = Arc::clone(&self.app);
            let so_far = self.text(index);
            so_far.logprobs.push(app.engine.model().tokenizer(), token, &mut so_far.offset);
        }
    }
}

impl Shape for Texts {
    const PREFIX: &'static str = "cmpl";
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];

    fn begin(&mut self, index: usize) -> Option<Value> {
        // With log-probabilities, the prompt is told once these are known.
        if self.logprobs {
            return None;
        }
        let (text, _) = self.echoed(index)?;
        Some(json!({"index": index, "text": text, "logprobs": null, "finish_reason": null}))
    }

    fn prompt(&mut self, index: usize, all: PromptLogprobs, streaming: bool) -> Option<Value> {
        let app = Arc::clone(&self.app);
        let tokenizer = app.engine.model().tokenizer();
        let (text, prompt) = self.echoed(index)?;
        let mut offset = Offset::in_prompt(tokenizer, &prompt.tokens, &text);
        let mut logprobs = TextLogprobs::default();
        for (&token, of) in prompt.tokens.iter().zip(&all) {
            logprobs.push_prompt(tokenizer, token, of.as_ref(), &mut offset);
        }
        let so_far = self.text(index);
        (so_far.logprobs, so_far.offset) = (logprobs, offset);
        streaming.then(|| {
            let logprobs = so_far.logprobs.take();
            json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null})
        })
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
        self.note_end(index, finished);
        vec![json!({
            "index": index, "text": finished.text, "logprobs": self.text(index).logprobs.take(),
            "finish_reason": reason(finished.reason),
        })]
    }

    fn whole(&mut self, index: usize, finished: &Finished) -> Value {
        self.note_end(index, finished);
        let echoed = self.echoed(index).map(|(text, _)| text).unwrap_or_default();
        let told = self.logprobs;
        let so_far = self.text(index);
        let text = echoed + &std::mem::take(&mut so_far.text) + &finished.text;
        json!({
            "index": index, "text": text, "logprobs": told.then(|| so_far.logprobs.take_all()),
            "finish_reason": reason(finished.reason),
        })
    }
}
