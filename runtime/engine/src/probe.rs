//! The loss on a text that is known beforehand: whether new kernels still say what the old ones said.
//!
//! The text is teacher-forced: each of its tokens is predicted from those before it as they are, so the
//! loss of two generations of kernels compares token by token, and chance has no part in it. It is
//! computed beside what is served, in steps that are short enough for others to come between; all of
//! it costs as much as a prompt of [`ProbeText::MOST`] tokens.

use std::thread;
use std::time::Duration;

use crate::adapter::Adapter;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::model::Model;
use crate::perplexity::negative_log_likelihood;
use crate::session::SessionOptions;

/// Tokens of a step.
const STEP: usize = 32;
/// Between steps. Waiting for a turn with the engine has no order, so others are let in.
const PAUSE: Duration = Duration::from_millis(1);
/// How often, and after how long, a step is tried again that found no memory: sequences end.
const RETRIES: u32 = 40;
const RETRY: Duration = Duration::from_millis(250);

/// The tokens of a text whose loss is measured.
#[derive(Clone, Debug)]
pub struct ProbeText {
    tokens: Vec<u32>,
}

impl ProbeText {
    /// Tokens that a text must have.
    pub const LEAST: usize = 64;
    /// Tokens that count; the rest of a longer text is left out.
    pub const MOST: usize = 256;

    /// The beginning of a text, in the model's tokens.
    ///
    /// # Errors
    /// [`EngineError::ProbeTooShort`], and what the tokenizer refuses.
    pub fn new(model: &Model, text: &str) -> Result<ProbeText, EngineError> {
        let mut tokens = model.tokenizer().encode(text, true)?;
        if tokens.len() < Self::LEAST {
            let (tokens, needed) = (tokens.len(), Self::LEAST);
            return Err(EngineError::ProbeTooShort { tokens, needed });
        }
        tokens.truncate(Self::MOST);
        Ok(ProbeText { tokens })
    }

    /// The mean loss of the text with the active generation of kernels, in nats per token, as far as
    /// the engine's context reaches. Waits some seconds for memory where there is none.
    ///
    /// # Errors
    /// What computing can give.
    pub fn loss(&self, engine: &Engine, adapter: Option<&Adapter>) -> Result<f64, EngineError> {
        // Nothing is taken over from what other kernels have computed.
        let (scope, adapter) = (None, adapter.cloned());
        let options = SessionOptions { scope, adapter, steady: true, ..SessionOptions::default() };
        let mut session = engine.session_with(&options);
        let tokens = &self.tokens[..self.tokens.len().min(engine.context())];
        let last = tokens.len() - 1;
        let (mut sum, mut retries) = (0.0, RETRIES);
        while session.len() < last {
            let at = session.len();
            let mut losses = 0.0;
            let step = session.evaluate(&tokens[at..last.min(at + STEP)], 0, &mut |i, logits| {
                losses += negative_log_likelihood(logits, tokens[at + i + 1]);
            });
            match step {
                Ok(()) => {
                    sum += losses;
                    thread::sleep(PAUSE);
                }
                Err(EngineError::MemoryExhausted { .. }) if retries > 0 => {
                    retries -= 1;
                    thread::sleep(RETRY);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sum / last.max(1) as f64)
    }
}
