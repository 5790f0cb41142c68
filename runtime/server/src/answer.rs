//! From what becomes of sequences to an answer: one body, or a stream of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use ruvllm_engine::FinishReason;
use ruvllm_engine::scheduler::{Finished, PromptLogprobs, Token};
use serde_json::{Value, json};

use crate::app::now;
use crate::error::ApiError;
use crate::keys::random_hex;
use crate::sequences::{Sequences, Step, Usage};

/// How one of the APIs writes choices.
pub(crate) trait Shape: Send + 'static {
    /// What its ids begin with.
    const PREFIX: &'static str;
    /// `object` of an answer and of a chunk of a stream.
    const OBJECTS: [&'static str; 2];

    /// The choice of a stream's first chunk, if there is one before the first token.
    fn begin(&mut self, index: usize) -> Option<Value>;
    /// Notes how likely a prompt was, where that was asked for; in a stream, what is told of it.
    fn prompt(&mut self, _: usize, _: PromptLogprobs, _streaming: bool) -> Option<Value> {
        None
    }
    /// Notes a token; in a stream, what of it is told at once.
    fn token(&mut self, index: usize, token: &Token, streaming: bool) -> Option<Value>;
    /// The choice of a stream's last chunk, and of one before it if need be.
    fn end(&mut self, index: usize, finished: &Finished) -> Vec<Value>;
    /// A whole choice.
    fn whole(&mut self, index: usize, finished: &Finished) -> Value;
}

/// `finish_reason`.
pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::MaxTokens | FinishReason::ContextFull => "length",
        FinishReason::EndOfGeneration | FinishReason::StopString | FinishReason::Cancelled => {
            "stop"
        }
    }
}

/// `usage`.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached.min(usage.prompt)},
    })
}

/// What all chunks of an answer have in common.
struct Head {
    id: String,
    created: u64,
    model: Arc<str>,
}

impl Head {
    fn new<S: Shape>(sequences: &Sequences) -> Result<Head, ApiError> {
        let model = Arc::clone(sequences.model());
        let id = random_hex::<12>().map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(Head { id: format!("{}-{id}", S::PREFIX), created: now(), model })
    }

    fn body(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": *self.model,
            "choices": choices,
        })
    }
}

/// Answers in one body once all sequences have ended.
pub(crate) async fn whole<S: Shape>(
    mut sequences: Sequences,
    mut shape: S,
) -> Result<Response, ApiError> {
    let head = Head::new::<S>(&sequences)?;
    let mut choices = vec![Value::Null; sequences.count()];
    while let Some(step) = sequences.next().await {
        match step? {
            (index, Step::Prompt(logprobs)) => {
                shape.prompt(index, logprobs, false);
            }
            (index, Step::Token(token)) => {
                shape.token(index, &token, false);
            }
            (index, Step::Done(finished)) => choices[index] = shape.whole(index, &finished),
            (_, Step::Embedding(_)) => {}
        }
    }
    let mut body = head.body(S::OBJECTS[0], choices);
    body["usage"] = usage(sequences.usage());
    Ok(Json(body).into_response())
}

/// Answers in chunks as tokens come. Dropped before its end, it cancels the sequences.
pub(crate) fn stream<S: Shape>(
    sequences: Sequences,
    shape: S,
    include_usage: bool,
) -> Result<Response, ApiError> {
    let head = Head::new::<S>(&sequences)?;
    Ok(events(sequences, Chunks { head, shape, include_usage }))
}

/// How an API writes a stream.
pub(crate) trait Writer: Send + 'static {
    /// What comes before anything is computed, of so many sequences.
    fn begin(&mut self, count: usize) -> Vec<Event>;
    /// What is told of a step; `usage` is of the request so far.
    fn step(&mut self, index: usize, step: Step, usage: Usage) -> Vec<Event>;
    /// What comes once all sequences have ended.
    fn end(&mut self, usage: Usage) -> Vec<Event>;
    /// What comes in place of that where something failed.
    fn failed(&mut self, error: &ApiError) -> Vec<Event>;
}

/// Answers in events as tokens come. Dropped before its end, it cancels the sequences.
pub(crate) fn events<W: Writer>(sequences: Sequences, mut writer: W) -> Response {
    let ready = writer.begin(sequences.count()).into();
    let stream = Stream { sequences, writer, ready, ended: false };
    let events = futures_util::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

struct Stream<W> {
    sequences: Sequences,
    writer: W,
    ready: VecDeque<Event>,
    ended: bool,
}

impl<W: Writer> Stream<W> {
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() && !self.ended {
            let step = self.sequences.next().await;
            let usage = self.sequences.usage();
            self.ended = !matches!(step, Some(Ok(_)));
            self.ready.extend(match step {
                Some(Ok((index, step))) => self.writer.step(index, step, usage),
                Some(Err(error)) => self.writer.failed(&error),
                None => self.writer.end(usage),
            });
        }
        self.ready.pop_front()
    }
}

/// The stream of an API whose answers have choices.
struct Chunks<S> {
    head: Head,
    shape: S,
    include_usage: bool,
}

impl<S: Shape> Chunks<S> {
    fn chunks(&self, choices: impl IntoIterator<Item = Value>) -> Vec<Event> {
        let chunk = |choice| {
            let mut body = self.head.body(S::OBJECTS[1], vec![choice]);
            if self.include_usage {
                body["usage"] = Value::Null;
            }
            event(&body)
        };
        choices.into_iter().map(chunk).collect()
    }
}

impl<S: Shape> Writer for Chunks<S> {
    fn begin(&mut self, count: usize) -> Vec<Event> {
        let choices: Vec<Value> = (0..count).filter_map(|i| self.shape.begin(i)).collect();
        self.chunks(choices)
    }

    fn step(&mut self, index: usize, step: Step, _: Usage) -> Vec<Event> {
        match step {
            Step::Prompt(logprobs) => {
                let choice = self.shape.prompt(index, logprobs, true);
                self.chunks(choice)
            }
            Step::Token(token) => {
                let choice = self.shape.token(index, &token, true);
                self.chunks(choice)
            }
            Step::Done(finished) => {
                let choices = self.shape.end(index, &finished);
                self.chunks(choices)
            }
            Step::Embedding(_) => Vec::new(),
        }
    }

    fn end(&mut self, counts: Usage) -> Vec<Event> {
        let mut last = Vec::new();
        if self.include_usage {
            let mut body = self.head.body(S::OBJECTS[1], Vec::new());
            body["usage"] = usage(counts);
            last.push(event(&body));
        }
        last.push(Event::default().data("[DONE]"));
        last
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![event(&error.body())]
    }
}

fn event(body: &Value) -> Event {
    Event::default().data(body.to_string())
}

/// An event of an API whose events have a type, which is their name, too.
pub(crate) fn named(body: &Value) -> Event {
    let name = body["type"].as_str().unwrap_or_default();
    Event::default().event(name).data(body.to_string())
}
