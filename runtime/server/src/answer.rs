//! From what becomes of sequences to an answer: one body, or a stream of server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use ruvllm_engine::FinishReason;
use ruvllm_engine::scheduler::{Finished, Token};
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
    mut shape: S,
    include_usage: bool,
) -> Result<Response, ApiError> {
    let head = Head::new::<S>(&sequences)?;
    let begin: Vec<Value> = (0..sequences.count()).filter_map(|i| shape.begin(i)).collect();
    let mut stream =
        Stream { head, sequences, shape, include_usage, ready: VecDeque::new(), ended: false };
    begin.into_iter().for_each(|choice| stream.chunk(choice));
    let events = futures_util::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

struct Stream<S> {
    head: Head,
    sequences: Sequences,
    shape: S,
    include_usage: bool,
    ready: VecDeque<Event>,
    ended: bool,
}

impl<S: Shape> Stream<S> {
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() && !self.ended {
            match self.sequences.next().await {
                Some(Ok((index, Step::Token(token)))) => {
                    let choice = self.shape.token(index, &token, true);
                    choice.into_iter().for_each(|choice| self.chunk(choice));
                }
                Some(Ok((index, Step::Done(finished)))) => {
                    let choices = self.shape.end(index, &finished);
                    choices.into_iter().for_each(|choice| self.chunk(choice));
                }
                Some(Ok((_, Step::Embedding(_)))) => {}
                Some(Err(error)) => {
                    self.ready.push_back(event(&error.body()));
                    self.ended = true;
                }
                None => {
                    if self.include_usage {
                        let mut body = self.head.body(S::OBJECTS[1], Vec::new());
                        body["usage"] = usage(self.sequences.usage());
                        self.ready.push_back(event(&body));
                    }
                    self.ready.push_back(Event::default().data("[DONE]"));
                    self.ended = true;
                }
            }
        }
        self.ready.pop_front()
    }

    fn chunk(&mut self, choice: Value) {
        let mut body = self.head.body(S::OBJECTS[1], vec![choice]);
        if self.include_usage {
            body["usage"] = Value::Null;
        }
        self.ready.push_back(event(&body));
    }
}

fn event(body: &Value) -> Event {
    Event::default().data(body.to_string())
}
