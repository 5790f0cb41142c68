//! Perplexity of a text, by the definition of the field's reference tool, so that figures compare.
//!
//! The tokens are cut into chunks of `context` tokens that do not overlap; a remainder is dropped.
//! Where the model begins texts with BOS, it takes the place of each chunk's first token. Each
//! chunk is computed on its own, and only predictions of its second half are scored: those made
//! at positions `context / 2 .. context - 1`. The text's final line break does not count.

use std::ops::ControlFlow;
use std::time::Instant;

use serde::Serialize;

use crate::engine::{Engine, SessionOptions};
use crate::error::EngineError;

/// The perplexity of a text, or of its chunks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
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
}

/// Measures a text in chunks of `context` tokens; `progress` sees the figure after each chunk and
/// may break off.
///
/// # Errors
/// [`EngineError::TextTooShort`], [`EngineError::InvalidOption`], and what computing can give.
pub fn perplexity(
    engine: &Engine,
    text: &str,
    context: usize,
    progress: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, EngineError> {
    let tokenizer = engine.model().tokenizer();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let tokens = tokenizer.encode(text, true)?;
    let begins = tokenizer.encode("", true)?.first().copied();
    let bos = tokenizer.bos().filter(|&bos| begins == Some(bos));
    perplexity_of_tokens(engine, &tokens, bos, context, progress)
}

/// Measures tokens; `bos` takes the place of each chunk's first token.
///
/// # Errors
/// As [`perplexity`].
pub fn perplexity_of_tokens(
    engine: &Engine,
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
    let mut session =
        engine.session_with(&SessionOptions { scope: None, ..SessionOptions::default() });
    let mut so_far = Perplexity { chunks: tokens.len() / context, context, ..Default::default() };
    let (mut sum, mut squares) = (0.0, 0.0);
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
            sum += loss;
            squares += loss * loss;
            so_far.scored += 1;
        })?;
        let n = so_far.scored as f64;
        let mean = sum / n;
        let variance = (squares / n - mean * mean).max(0.0);
        so_far.chunks_done += 1;
        so_far.perplexity = mean.exp();
        so_far.standard_error = (variance / (n - 1.0).max(1.0)).sqrt() * so_far.perplexity;
        so_far.seconds = start.elapsed().as_secs_f64();
        if progress(&so_far).is_break() {
            break;
        }
    }
    Ok(so_far)
}

/// `-log softmax(logits)[token]`; infinite for a token without a logit.
fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let Some(&logit) = logits.get(token as usize) else { return f64::INFINITY };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    sum.ln() - f64::from(logit - max)
}

#[cfg(test)]
mod tests {
    use super::negative_log_likelihood;

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
