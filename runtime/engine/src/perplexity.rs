//! Perplexity of a text, by the definition of the field's reference tool, so that figures compare.
//!
//! The tokens are cut into chunks of `context` tokens that do not overlap; a remainder is dropped.
//! Where the model begins texts with BOS, it takes the place of each chunk's first token. Each
//! chunk is computed on its own, and only predictions of its second half are scored: those made
//! at positions `context / 2 .. context - 1`. The text's final line break does not count.

use std::ops::ControlFlow;
use std::time::Instant;

use serde::Serialize;

use crate::adapter::Adapter;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::SessionOptions;

/// The perplexity of a text, or of its chunks so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Perplexity {
    /// `exp` of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Standard error of that figure.
    pub standard_error: f64,
    /// Predictions that were scored.
    pub scored: usize,
    /// Chunks that are done.
    pub chunks_done: usize,
    /// Chunks of the text.
    pub chunks: usize,
    /// Tokens of a chunk.
    pub context: usize,
    /// Seconds since the start.
    pub seconds: f64,
    /// Bytes of keys and values that the engine held at the end of the last chunk.
    pub kv_bytes: usize,
    /// Negative log-likelihood of each prediction that was scored.
    #[serde(skip)]
    pub losses: Vec<f64>,
}

/// By how much a perplexity differs from another of the same text.
///
/// Both are made of the same predictions, so chance in the choice of the text mostly cancels: the
/// error of the change is far below that of either perplexity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerplexityChange {
    /// The change, in percent of the other perplexity.
    pub percent: f64,
    /// Standard error of that figure.
    pub standard_error: f64,
}

impl Perplexity {
    /// Tokens that were computed per second.
    pub fn tokens_per_second(&self) -> f64 {
        // The last token of a chunk predicts nothing that is scored.
        (self.chunks_done * self.context.saturating_sub(1)) as f64 / self.seconds
    }

    /// The change against `base`; `None` where other predictions were scored.
    pub fn change_from(&self, base: &Perplexity) -> Option<PerplexityChange> {
        if self.context != base.context || self.losses.len() != base.losses.len() {
            return None;
        }
        let mut differences = Mean::default();
        for (loss, base) in self.losses.iter().zip(&base.losses) {
            differences.add(loss - base);
        }
        let ratio = differences.mean().exp();
        Some(PerplexityChange {
            percent: 100.0 * (ratio - 1.0),
            standard_error: 100.0 * ratio * differences.standard_error(),
        })
    }
}

/// Measures a text in chunks of `context` tokens, with an adapter or without; `progress` sees the
/// figure after each chunk and may break off.
///
/// # Errors
/// [`EngineError::TextTooShort`], [`EngineError::InvalidOption`], and what computing can give.
pub fn perplexity(
    engine: &Engine,
    adapter: Option<&Adapter>,
    text: &str,
    context: usize,
    progress: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, EngineError> {
    let tokenizer = engine.model().tokenizer();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let tokens = tokenizer.encode(text, true)?;
    let begins = tokenizer.encode("", true)?.first().copied();
    let bos = tokenizer.bos().filter(|&bos| begins == Some(bos));
    perplexity_of_tokens(engine, adapter, &tokens, bos, context, progress)
}

/// Measures tokens; `bos` takes the place of each chunk's first token.
///
/// # Errors
/// As [`perplexity`].
pub fn perplexity_of_tokens(
    engine: &Engine,
    adapter: Option<&Adapter>,
    tokens: &[u32],
    bos: Option<u32>,
    context: usize,
    progress: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, EngineError> {
    if context < 4 || context > engine.context() {
        return Err(EngineError::InvalidOption {
            option: "context",
            value: context.to_string(),
            reason: "it must be at least 4 and at most the engine's context",
        });
    }
    if tokens.len() < 2 * context {
        return Err(EngineError::TextTooShort {
            tokens: tokens.len(),
            context,
            needed: 2 * context,
        });
    }
    let start = Instant::now();
    // Nothing is taken from a cache, so that the time is that of computing.
    let options =
        SessionOptions { scope: None, adapter: adapter.cloned(), ..SessionOptions::default() };
    let mut session = engine.session_with(&options);
    let mut so_far = Perplexity { chunks: tokens.len() / context, context, ..Default::default() };
    let mut losses = Mean::default();
    let mut chunk = Vec::with_capacity(context);
    for original in tokens.chunks_exact(context) {
        chunk.clear();
        chunk.extend_from_slice(original);
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        session.reset();
        // The last position predicts beyond the chunk: it is neither scored nor computed.
        session.evaluate(&chunk[..context - 1], context / 2, &mut |at, logits| {
            let loss = negative_log_likelihood(logits, chunk[at + 1]);
            losses.add(loss);
            so_far.losses.push(loss);
        })?;
        so_far.scored = so_far.losses.len();
        so_far.chunks_done += 1;
        so_far.perplexity = losses.mean().exp();
        so_far.standard_error = losses.standard_error() * so_far.perplexity;
        so_far.kv_bytes = engine.memory().kv.total_bytes();
        so_far.seconds = start.elapsed().as_secs_f64();
        if progress(&so_far).is_break() {
            break;
        }
    }
    Ok(so_far)
}

/// Numbers, as far as their mean and its standard error need them.
#[derive(Default)]
struct Mean {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.n += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    fn mean(&self) -> f64 {
        self.sum / self.n
    }

    fn standard_error(&self) -> f64 {
        let variance = (self.squares / self.n - self.mean().powi(2)).max(0.0);
        (variance / (self.n - 1.0).max(1.0)).sqrt()
    }
}

/// `-log softmax(logits)[token]`; infinite for a token without a logit.
pub(crate) fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let Some(&logit) = logits.get(token as usize) else { return f64::INFINITY };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    sum.ln() - f64::from(logit - max)
}

#[cfg(test)]
mod tests {
    use super::{Perplexity, negative_log_likelihood};

    #[test]
    fn a_change_is_that_of_the_mean_loss() {
        let of = |losses: &[f64]| Perplexity { losses: losses.to_vec(), ..Default::default() };
        let base = of(&[0.5, 2.0, 1.0, 4.0]);
        let change = of(&[0.6, 2.1, 1.1, 4.1]).change_from(&base).unwrap();
        assert!((change.percent - 100.0 * (0.1f64.exp() - 1.0)).abs() < 1e-9, "{change:?}");
        assert!(change.standard_error < 1e-6, "{change:?}");
        // Differences of 0.2 and 0 in equal numbers: a variance of 0.01, over n - 1 = 3.
        let change = of(&[0.7, 2.0, 1.2, 4.0]).change_from(&base).unwrap();
        let error = 100.0 * 0.1f64.exp() * (0.01f64 / 3.0).sqrt();
        assert!((change.standard_error - error).abs() < 1e-9, "{change:?}");
        assert_eq!(of(&[0.5]).change_from(&base), None);
    }

    #[test]
    fn the_loss_is_that_of_the_softmax() {
        let logits = [1.0f32, 2.0, 3.0];
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = -(2f64.exp() / total).ln();
        assert!((negative_log_likelihood(&logits, 1) - expected).abs() < 1e-6);
        assert!(negative_log_likelihood(&logits, 3).is_infinite());
        assert!((negative_log_likelihood(&[500.0, 500.0], 0) - 2f64.ln()).abs() < 1e-6);
    }
}
