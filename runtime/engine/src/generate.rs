//! Generation: from prompt tokens to text, piece by piece.
//!
//! Text is handed over as soon as it cannot be part of a stop string any more, in whole
//! characters. The caller can break off at every event; what was computed stays in the session.
//! A `Writer` is what a sequence needs beside its session; the [scheduler](crate::scheduler) has
//! one for each of its sequences.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::constraint::TokenMask;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::model::Model;
use crate::sampler::{Candidates, Sampler, SamplingOptions};
use crate::session::Session;
use crate::tokenizer::DetokenizerStream;

/// What to generate and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Generation ends before the first of these in the text; empty ones do not count.
    pub stop: Vec<String>,
    /// Whether to go on where the model would end; its end tokens are then never chosen.
    pub ignore_eos: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            sampling: SamplingOptions::default(),
            stop: Vec::new(),
            ignore_eos: false,
        }
    }
}

/// What happens during generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// So many tokens of the prompt are computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen; its text may follow later.
    Token(u32),
    /// More text.
    Text(String),
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model chose a token that ends its turn.
    EndOfGeneration,
    /// A stop string came up.
    StopString,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The caller broke off.
    Cancelled,
}

impl FinishReason {
    /// The name in statistics, such as `context_full`.
    pub const fn name(self) -> &'static str {
        match self {
            FinishReason::EndOfGeneration => "end_of_generation",
            FinishReason::StopString => "stop_string",
            FinishReason::MaxTokens => "max_tokens",
            FinishReason::ContextFull => "context_full",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Token counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt that were computed.
    pub prompt_tokens: usize,
    /// Tokens that were chosen, an end token not counted.
    pub completion_tokens: usize,
}

/// How long the parts of a generation took, in seconds, and the rates that follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timings {
    /// Opening the model.
    pub load_seconds: f64,
    /// From the call to the first chosen token.
    pub time_to_first_token_seconds: f64,
    /// Computing the prompt.
    pub prefill_seconds: f64,
    /// Prompt tokens per second; 0 without any.
    pub prefill_tokens_per_second: f64,
    /// Computing and choosing the tokens after the first.
    pub decode_seconds: f64,
    /// Tokens after the first, per second; 0 without any.
    pub decode_tokens_per_second: f64,
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Timings.
    pub timings: Timings,
}

impl Engine {
    /// Continues `session` with `prompt` and generates from there, reporting to `on_event`.
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn generate(
        &self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        session.generate(prompt, options, on_event)
    }
}

impl Session {
    /// Appends `prompt` and generates from there, reporting to `on_event`. The chosen tokens are
    /// in the session afterwards, the last one perhaps not.
    ///
    /// # Errors
    /// [`EngineError::PromptEmpty`], [`EngineError::PromptTooLong`],
    /// [`EngineError::InvalidOption`], [`EngineError::NonFiniteLogits`], and failures of kernels.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Finish, EngineError> {
        let engine = self.engine().clone();
        let model = engine.model();
        let mut writer = Writer::new(model, options)?;
        let mut clock = Clock::default();
        let start = Instant::now();

        let total = prompt.len();
        let progress = &mut |done| on_event(Event::Prefill { done, total });
        let cancelled = self.prefill_with(prompt, progress)?.is_break();
        clock.prefill = start.elapsed();
        clock.first = clock.prefill;

        let mut last = None;
        let reason = loop {
            if cancelled {
                break FinishReason::Cancelled;
            }
            if writer.is_full() {
                break FinishReason::MaxTokens;
            }
            if let Some(last) = last {
                if self.is_full() {
                    break FinishReason::ContextFull;
                }
                self.decode(last)?;
                clock.decoded += 1;
            }
            let token = writer.choose(self.logits(), self.tokens(), None)?;
            if last.replace(token).is_none() {
                clock.first = start.elapsed();
            }
            let Some((piece, stopped)) = writer.write(model, token) else {
                break FinishReason::EndOfGeneration;
            };
            if on_event(Event::Token(token)).is_break() {
                break FinishReason::Cancelled;
            }
            if !piece.is_empty() && on_event(Event::Text(piece)).is_break() {
                break FinishReason::Cancelled;
            }
            if stopped {
                break FinishReason::StopString;
            }
        };
        clock.total = start.elapsed();

        if !matches!(reason, FinishReason::StopString | FinishReason::Cancelled) {
            let rest = writer.rest();
            if !rest.is_empty() {
                // Nothing is left to break off.
                let _ = on_event(Event::Text(rest));
            }
        }
        let usage = Usage { prompt_tokens: total, completion_tokens: writer.written() };
        Ok(Finish { reason, usage, timings: clock.timings(model.load_time(), total) })
    }
}

/// What turns the logits of one sequence into text: it chooses tokens, and sees where the text ends.
pub(crate) struct Writer {
    sampler: Sampler,
    stream: DetokenizerStream,
    stops: StopStrings,
    max_tokens: usize,
    ignore_eos: bool,
    written: usize,
}

impl Writer {
    /// # Errors
    /// [`EngineError::InvalidOption`].
    pub(crate) fn new(model: &Model, options: &GenerateOptions) -> Result<Writer, EngineError> {
        let tokenizer = model.tokenizer();
        let mut sampler = Sampler::new(options.sampling.clone())?;
        if options.ignore_eos {
            sampler.ban((0..model.vocab() as u32).filter(|&t| tokenizer.is_eog(t)).collect());
        }
        Ok(Writer {
            sampler,
            stream: DetokenizerStream::default(),
            stops: StopStrings::new(&options.stop),
            max_tokens: options.max_tokens,
            ignore_eos: options.ignore_eos,
            written: 0,
        })
    }

    /// Exchanges the sampler's working memory.
    pub(crate) fn exchange(&mut self, candidates: &mut Candidates) {
        self.sampler.exchange(candidates);
    }

    /// Chooses the token that follows; see [`Sampler::sample_masked`].
    pub(crate) fn choose(
        &mut self,
        logits: &[f32],
        history: &[u32],
        mask: Option<&TokenMask>,
    ) -> Result<u32, EngineError> {
        self.sampler.sample_masked(logits, history, mask)
    }

    /// Appends a chosen token; gives the text that is certain by then, and whether a stop string ends
    /// it. `None` where the token itself ends the text, of which it is then no part.
    pub(crate) fn write(&mut self, model: &Model, token: u32) -> Option<(String, bool)> {
        let tokenizer = model.tokenizer();
        if !self.ignore_eos && tokenizer.is_eog(token) {
            return None;
        }
        self.written += 1;
        let piece = self.stream.push(tokenizer, token);
        Some(piece.map_or_else(Default::default, |piece| self.stops.push(&piece)))
    }

    /// The text that was held back, where no stop string ended it.
    pub(crate) fn rest(&mut self) -> String {
        let (piece, stopped) = self.stops.push(&self.stream.finish().unwrap_or_default());
        if stopped { piece } else { piece + &self.stops.finish() }
    }

    /// Tokens of the text.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Whether it has as many tokens as were asked for.
    pub(crate) fn is_full(&self) -> bool {
        self.written == self.max_tokens
    }
}

/// Points of time of a generation, from its start.
#[derive(Default)]
struct Clock {
    prefill: Duration,
    first: Duration,
    total: Duration,
    decoded: usize,
}

impl Clock {
    fn timings(&self, load: Duration, prompt_tokens: usize) -> Timings {
        let rate = |tokens: usize, time: Duration| {
            if tokens == 0 || time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
        };
        let decode = self.total.saturating_sub(self.first);
        Timings {
            load_seconds: load.as_secs_f64(),
            time_to_first_token_seconds: self.first.as_secs_f64(),
            prefill_seconds: self.prefill.as_secs_f64(),
            prefill_tokens_per_second: rate(prompt_tokens, self.prefill),
            decode_seconds: decode.as_secs_f64(),
            decode_tokens_per_second: rate(self.decoded, decode),
        }
    }
}

/// Looks for stop strings in text that arrives in pieces, and holds back what may become one.
struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    fn new(stops: &[String]) -> StopStrings {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopStrings { stops, held: String::new() }
    }

    /// Adds a piece; returns the text that is certain now, and whether a stop string ends it.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let may_stop = |tail: &str| self.stops.iter().any(|stop| stop.starts_with(tail));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let certain = self
            .held
            .char_indices()
            .map(|(at, _)| at)
            .find(|&at| at >= from && may_stop(&self.held[at..]))
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back and has become text after all.
    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_held_back_only_while_it_may_become_a_stop_string() {
        let stops = ["</end>".to_owned(), "STOP".to_owned(), String::new()];
        let mut stream = StopStrings::new(&stops);
        assert_eq!(stream.push("a <"), ("a ".to_owned(), false));
        assert_eq!(stream.push("b"), ("<b".to_owned(), false));
        assert_eq!(stream.push("é</e"), ("é".to_owned(), false));
        assert_eq!(stream.push("ST"), ("</e".to_owned(), false));
        assert_eq!(stream.push("OP and more"), (String::new(), true));
    }

    #[test]
    fn the_earliest_stop_string_ends_the_text() {
        let stops = ["world".to_owned(), "lo".to_owned()];
        let mut stream = StopStrings::new(&stops);
        assert_eq!(stream.push("hello world"), ("hel".to_owned(), true));
        let mut stream = StopStrings::new(&stops);
        assert_eq!(stream.push("wor"), (String::new(), false));
        assert_eq!(stream.finish(), "wor");
    }
}
