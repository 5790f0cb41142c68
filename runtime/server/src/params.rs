//! The parameters that chat and text completions have in common.

use std::collections::HashMap;

use ruvllm_engine::{GenerateOptions, SamplingOptions};
use serde_json::Value;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, parse};
use crate::models::Choice;

/// Stop strings of a request at most.
const STOPS: usize = 16;

/// How to answer, whatever the prompt.
pub(crate) struct Params {
    /// Who answers.
    pub(crate) model: Choice,
    /// Answers to each prompt.
    pub(crate) n: usize,
    /// Whether the answer comes in pieces.
    pub(crate) stream: bool,
    /// Whether a stream ends with token counts.
    pub(crate) include_usage: bool,
    /// Sampling and ends; `max_tokens` as [`max_tokens`] says.
    pub(crate) options: GenerateOptions,
}

impl Params {
    /// Takes the parameters; `max_tokens` holds where the request says nothing.
    pub(crate) fn take(
        fields: &mut Fields,
        app: &App,
        max_tokens: Option<usize>,
    ) -> Result<Params, ApiError> {
        let model = model(fields, app)?;
        let n = fields.take::<usize>("n")?.unwrap_or(1);
        let most = app.options.limits.max_choices;
        if n == 0 || n > most {
            return Err(ApiError::invalid("n", format!("`n` must be from 1 to {most}")));
        }
        let stream = fields.take("stream")?.unwrap_or(false);
        let include_usage = match fields.take::<Value>("stream_options")? {
            None => false,
            Some(_) if !stream => {
                let message = "`stream_options` is for streams; set `stream`";
                return Err(ApiError::invalid("stream_options", message));
            }
            // What else they may hold pads chunks against observers of their length.
            Some(mut options) => {
                let wanted = options.get_mut("include_usage").map(Value::take);
                let wanted = parse::<Option<bool>>("stream_options.include_usage", wanted.into())?;
                wanted.unwrap_or(false)
            }
        };
        let options = GenerateOptions {
            max_tokens: limit(fields, app, &["max_tokens", "max_completion_tokens"], max_tokens)?,
            sampling: sampling(fields, app)?,
            stop: stops(fields, "stop")?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
        };
        Ok(Params { model, n, stream, include_usage, options })
    }

    /// Takes the parameters of an API with one answer to each request, which names these two so.
    pub(crate) fn take_single(
        fields: &mut Fields,
        app: &App,
        max_tokens: &'static str,
        stop: &'static str,
    ) -> Result<Params, ApiError> {
        let model = model(fields, app)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let options = GenerateOptions {
            max_tokens: limit(fields, app, &[max_tokens], None)?,
            sampling: sampling(fields, app)?,
            stop: stops(fields, stop)?,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
        };
        Ok(Params { model, n: 1, stream, include_usage: false, options })
    }
}

/// The model that the request names, or the one that is served where it names none.
pub(crate) fn model(fields: &mut Fields, app: &App) -> Result<Choice, ApiError> {
    app.models.choose(fields.take::<String>("model")?.as_deref())
}

/// The most tokens of an answer: as asked by one of these names, at most what the operator allows.
fn limit(
    fields: &mut Fields,
    app: &App,
    names: &[&'static str],
    default: Option<usize>,
) -> Result<usize, ApiError> {
    // The newer name wins where a client sends both.
    let mut asked = None;
    for &name in names {
        asked = fields.take::<usize>(name)?.map(|tokens| (name, tokens)).or(asked);
    }
    let most = app.options.limits.max_tokens.unwrap_or(usize::MAX);
    match asked {
        Some((name, tokens)) if tokens > most => {
            Err(ApiError::invalid(name, format!("`{name}` may be {most} at most here")))
        }
        Some((_, tokens)) => Ok(tokens),
        None => Ok(default.unwrap_or(most).min(most)),
    }
}

/// OpenAI's defaults, and the engine's further filters switched off unless they are asked for.
fn sampling(fields: &mut Fields, app: &App) -> Result<SamplingOptions, ApiError> {
    Ok(SamplingOptions {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        top_k: fields.take("top_k")?.unwrap_or(0),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        repeat_penalty: fields.number("repeat_penalty", 0.01..=100.0)?.unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        logit_bias: logit_bias(fields, app)?,
        seed: fields.take::<i64>("seed")?.map(|seed| seed as u64),
        ..SamplingOptions::default()
    })
}

fn logit_bias(fields: &mut Fields, app: &App) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let Some(map) = fields.take::<HashMap<String, f32>>(NAME)? else { return Ok(Vec::new()) };
    let vocab = app.engine.model().vocab();
    let refuse = |message: String| Err(ApiError::invalid(NAME, message));
    let mut biases = Vec::with_capacity(map.len());
    for (token, bias) in map {
        match token.parse::<u32>() {
            Ok(id) if (id as usize) < vocab => biases.push((id, bias)),
            _ => return refuse(format!("`{token}` is no token; ids are from 0 to {}", vocab - 1)),
        }
        if !(-100.0..=100.0).contains(&bias) {
            return refuse(format!("the bias of token {token} must be from -100 to 100"));
        }
    }
    biases.sort_unstable_by_key(|&(token, _)| token);
    Ok(biases)
}

fn stops(fields: &mut Fields, name: &'static str) -> Result<Vec<String>, ApiError> {
    let stops: Vec<String> = match fields.take::<Value>(name)? {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(list) => parse(name, list)?,
    };
    if stops.len() > STOPS {
        return Err(ApiError::invalid(name, format!("`{name}` may have {STOPS} strings at most")));
    }
    Ok(stops)
}
