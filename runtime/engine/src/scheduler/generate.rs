//! A single request, on the thread that asks: a batch of one sequence, without a queue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::batch::Batch;
use super::config::SchedulerConfig;
use super::request::{Finished, Latency, Update};
use super::sequence::Sequence;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generate::{Event, Finish, FinishReason, GenerateOptions, Timings, Usage};
use crate::session::Session;
use crate::text::Text;

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
        let text = Text::new(engine.model(), options, None, None)?;
        self.check(prompt)?;
        let (start, cancel) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let cancelled = Arc::clone(&cancel);
        let mut prefill = Duration::ZERO;
        let mut ended = Ok((FinishReason::Cancelled, Usage::default(), Latency::default()));
        let sink = |update| {
            let text = |text: String| (!text.is_empty()).then_some(Event::Text(text));
            let broke_off = cancelled.load(Ordering::Relaxed);
            let events = match update {
                Update::Prefill { done, total } => {
                    prefill = start.elapsed();
                    [Some(Event::Prefill { done, total }), None]
                }
                Update::Token(token) => [Some(Event::Token(token.token)), text(token.text)],
                Update::Done(Finished { reason, text: rest, usage, latency, .. }) => {
                    // Who breaks off at the last token has broken off.
                    let reason = if broke_off { FinishReason::Cancelled } else { reason };
                    ended = Ok((reason, usage, latency));
                    [text(rest), None]
                }
                Update::Failed(error) => {
                    ended = Err(error);
                    [None, None]
                }
                Update::Started(_) | Update::Prompt(_) | Update::Embedding(_) => [None, None],
            };
            let mut events = events.into_iter().flatten();
            if !broke_off && events.any(|event| on_event(event).is_break()) {
                // Not by breaking off here: how far it came is told at its end.
                cancelled.store(true, Ordering::Relaxed);
            }
            ControlFlow::Continue(())
        };
        let sequence = Sequence::borrowing(self, prompt, text, cancel, Box::new(sink));
        let mut batch = Batch::new(engine.clone(), SchedulerConfig::default());
        batch.running.push(sequence);
        while batch.len() > 0 {
            batch.step();
            batch.cancel(false);
        }
        drop(batch);
        let (reason, usage, latency) = ended?;
        let load = engine.model().load_time();
        Ok(Finish { reason, usage, timings: timings(reason, usage, load, prefill, latency) })
    }
}

impl Finished {
    /// The same as [`Session::generate`] gives it: with the time that opening the model took, and that
    /// computing the prompt did.
    pub fn timed(&self, load: Duration, prefill: Duration) -> Finish {
        let Finished { reason, usage, latency, .. } = *self;
        Finish { reason, usage, timings: timings(reason, usage, load, prefill, latency) }
    }
}

/// The timings of a generation whose prompt was computed after `prefill`.
fn timings(
    reason: FinishReason,
    usage: Usage,
    load: Duration,
    prefill: Duration,
    latency: Latency,
) -> Timings {
    let rate = |tokens: usize, time: Duration| {
        if tokens == 0 || time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
    };
    let first = latency.first_token.max(prefill);
    let decode = latency.total.saturating_sub(first);
    // The first token follows from the prompt, and an end token from a step of its own.
    let ended_itself = usize::from(reason == FinishReason::EndOfGeneration);
    let decoded = (usage.completion_tokens + ended_itself).saturating_sub(1);
    Timings {
        load_seconds: load.as_secs_f64(),
        time_to_first_token_seconds: first.as_secs_f64(),
        prefill_seconds: prefill.as_secs_f64(),
        prefill_tokens_per_second: rate(usage.prompt_tokens, prefill),
        decode_seconds: decode.as_secs_f64(),
        decode_tokens_per_second: rate(decoded, decode),
    }
}
