//! The text of one sequence: what follows from its logits, token by token.
//!
//! A token is chosen under the request's constraint, its text is decoded, and text is given out as soon as
//! it cannot be part of a stop string any more, in whole characters.

use crate::constraint::{TokenConstraint, TokenMask};
use crate::error::EngineError;
use crate::generate::{FinishReason, GenerateOptions, Token};
use crate::logprobs::Logprobs;
use crate::model::Model;
use crate::sampler::{Candidates, Sampler};
use crate::session::Session;
use crate::tokenizer::DetokenizerStream;

/// A text that grows.
pub(crate) struct Text {
    sampler: Sampler,
    constraint: Option<Constraint>,
    logprobs: Option<usize>,
    stream: DetokenizerStream,
    stops: StopStrings,
    max_tokens: usize,
    ignore_eos: bool,
    written: usize,
    /// The token that ended the text, where log-probabilities are reported.
    end: Option<Token>,
}

struct Constraint {
    rules: Box<dyn TokenConstraint>,
    mask: TokenMask,
}

/// What a step gave a text.
pub(crate) struct Choice {
    /// The token, if it is part of the text.
    pub(crate) token: Option<Token>,
    /// Why the text ends here, if it does.
    pub(crate) end: Option<FinishReason>,
}

impl Text {
    /// # Errors
    /// [`EngineError::InvalidOption`].
    pub(crate) fn new(
        model: &Model,
        options: &GenerateOptions,
        logprobs: Option<usize>,
        constraint: Option<Box<dyn TokenConstraint>>,
    ) -> Result<Text, EngineError> {
        let tokenizer = model.tokenizer();
        let mut sampler = Sampler::new(options.sampling.clone())?;
        if options.ignore_eos {
            sampler.ban((0..model.vocab() as u32).filter(|&t| tokenizer.is_eog(t)).collect());
        }
        let mask = |rules| Constraint { rules, mask: TokenMask::none(model.vocab()) };
        Ok(Text {
            sampler,
            constraint: constraint.map(mask),
            logprobs,
            stream: DetokenizerStream::default(),
            stops: StopStrings::new(&options.stop),
            max_tokens: options.max_tokens,
            ignore_eos: options.ignore_eos,
            written: 0,
            end: None,
        })
    }

    /// Tokens of the text.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Chooses the token that follows those of `session`, from its logits, in working memory that texts
    /// share.
    ///
    /// # Errors
    /// [`EngineError::NonFiniteLogits`], [`EngineError::Constraint`].
    pub(crate) fn choose(
        &mut self,
        session: &Session,
        candidates: &mut Candidates,
    ) -> Result<Choice, EngineError> {
        if self.is_full() {
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
        self.sampler.exchange(candidates);
        let chosen = self.sampler.sample_masked(logits, history, mask);
        self.sampler.exchange(candidates);
        let token = chosen?;
        let tokenizer = session.engine().model().tokenizer();
        let logprobs = self.logprobs.map(|top| Logprobs::of(logits, token, top));
        if !self.ignore_eos && tokenizer.is_eog(token) {
            self.end = logprobs.map(|logprobs| Token {
                token,
                text: String::new(),
                logprobs: Some(logprobs),
            });
            return Ok(Choice { token: None, end: Some(FinishReason::EndOfGeneration) });
        }
        self.written += 1;
        let piece = self.stream.push(tokenizer, token);
        let (text, stopped) = piece.map_or_else(Default::default, |piece| self.stops.push(&piece));
        let mut complete = false;
        if let Some(Constraint { rules, .. }) = &mut self.constraint {
            rules.accept(token).map_err(failed)?;
            complete = rules.is_complete();
        }
        let end = if stopped {
            Some(FinishReason::StopString)
        } else if complete {
            Some(FinishReason::EndOfGeneration)
        } else if self.is_full() {
            Some(FinishReason::MaxTokens)
        } else if session.is_full() {
            Some(FinishReason::ContextFull)
        } else {
            None
        };
        Ok(Choice { token: Some(Token { token, text, logprobs }), end })
    }

    /// The text that was held back, where it ends for `reason`.
    pub(crate) fn rest(&mut self, reason: FinishReason) -> String {
        if matches!(reason, FinishReason::StopString | FinishReason::Cancelled) {
            return String::new();
        }
        let (piece, stopped) = self.stops.push(&self.stream.finish().unwrap_or_default());
        if stopped { piece } else { piece + &self.stops.finish() }
    }

    /// The stop string that ended the text, if one did.
    pub(crate) fn stopped_by(&self) -> Option<String> {
        self.stops.found.clone()
    }

    /// The token that ended the text, if one did and log-probabilities are reported.
    pub(crate) fn take_end(&mut self) -> Option<Token> {
        self.end.take()
    }

    /// Whether it has as many tokens as were asked for.
    fn is_full(&self) -> bool {
        self.written == self.max_tokens
    }
}

/// Looks for stop strings in text that arrives in pieces, and holds back what may become one.
struct StopStrings {
    stops: Vec<String>,
    held: String,
    /// The one that came up.
    found: Option<String>,
}

impl StopStrings {
    fn new(stops: &[String]) -> StopStrings {
        let stops = stops.iter().filter(|s| !s.is_empty()).cloned().collect();
        StopStrings { stops, held: String::new(), found: None }
    }

    /// Adds a piece; returns the text that is certain now, and whether a stop string ends it.
    fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found =
            self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        if let Some((at, stop)) = found.min_by_key(|&(at, _)| at) {
            self.found = Some(stop.clone());
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
        assert_eq!(stream.found.as_deref(), Some("lo"));
        let mut stream = StopStrings::new(&stops);
        assert_eq!(stream.push("wor"), (String::new(), false));
        assert_eq!(stream.finish(), "wor");
    }
}
