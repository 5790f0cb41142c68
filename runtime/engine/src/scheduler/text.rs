//! The text of one request: what follows from the logits of its sequence.

use crate::constraint::{TokenConstraint, TokenMask};
use crate::error::EngineError;
use crate::generate::{FinishReason, GenerateOptions, Writer};
use crate::logprobs::Logprobs;
use crate::model::Model;
use crate::sampler::Candidates;
use crate::session::Session;

use super::request::Token;

/// A text that grows.
pub(super) struct Text {
    writer: Writer,
    constraint: Option<Constraint>,
    logprobs: Option<usize>,
}

struct Constraint {
    rules: Box<dyn TokenConstraint>,
    mask: TokenMask,
}

/// What a step gave a text.
pub(super) struct Choice {
    /// The token, if it is part of the text.
    pub(super) token: Option<Token>,
    /// Why the text ends here, if it does.
    pub(super) end: Option<FinishReason>,
}

impl Text {
    /// # Errors
    /// [`EngineError::InvalidOption`].
    pub(super) fn new(
        model: &Model,
        options: &GenerateOptions,
        logprobs: Option<usize>,
        constraint: Option<Box<dyn TokenConstraint>>,
    ) -> Result<Text, EngineError> {
        let mask = |rules| Constraint { rules, mask: TokenMask::none(model.vocab()) };
        let writer = Writer::new(model, options)?;
        Ok(Text { writer, constraint: constraint.map(mask), logprobs })
    }

    /// Tokens of the text.
    pub(super) fn written(&self) -> usize {
        self.writer.written()
    }

    /// Chooses the token that follows those of `session`, from its logits, in working memory that texts
    /// share.
    ///
    /// # Errors
    /// [`EngineError::NonFiniteLogits`], [`EngineError::Constraint`].
    pub(super) fn choose(
        &mut self,
        session: &Session,
        candidates: &mut Candidates,
    ) -> Result<Choice, EngineError> {
        if self.writer.is_full() {
            return Ok(Choice { token: None, end: Some(FinishReason::MaxTokens) });
        }
        let failed = |reason| EngineError::Constraint { reason };
        if let Some(Constraint { rules, mask }) = &mut self.constraint {
            mask.clear();
            rules.mask(mask).map_err(failed)?;
            if mask.is_empty() {
                return Err(failed("it allows no token at all here".into()));
            }
        }
        let (logits, history) = (session.logits(), session.tokens());
        let mask = self.constraint.as_ref().map(|constraint| &constraint.mask);
        self.writer.exchange(candidates);
        let chosen = self.writer.choose(logits, history, mask);
        self.writer.exchange(candidates);
        let token = chosen?;
        let Some((text, stopped)) = self.writer.write(session.engine().model(), token) else {
            return Ok(Choice { token: None, end: Some(FinishReason::EndOfGeneration) });
        };
        let mut complete = false;
        if let Some(Constraint { rules, .. }) = &mut self.constraint {
            rules.accept(token).map_err(failed)?;
            complete = rules.is_complete();
        }
        let end = if stopped {
            Some(FinishReason::StopString)
        } else if complete {
            Some(FinishReason::EndOfGeneration)
        } else if self.writer.is_full() {
            Some(FinishReason::MaxTokens)
        } else if session.is_full() {
            Some(FinishReason::ContextFull)
        } else {
            None
        };
        let logprobs = self.logprobs.map(|top| Logprobs::of(logits, token, top));
        Ok(Choice { token: Some(Token { token, text, logprobs }), end })
    }

    /// The text that was held back, where it ends for `reason`.
    pub(super) fn rest(&mut self, reason: FinishReason) -> String {
        match reason {
            FinishReason::StopString | FinishReason::Cancelled => String::new(),
            _ => self.writer.rest(),
        }
    }
}
