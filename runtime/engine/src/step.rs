//! Steps over several sequences: one pass over the weights for all of them.
//!
//! Decoding is bound by reading the weights, so tokens of several sequences cost little more than
//! one. A step is a list of inputs, each the next tokens of one session: one token where a sequence
//! is decoded, many where a prompt is processed, in any mixture. Matrix products and norms run over
//! the rows of all inputs together; positions, cache, attention and what adapters add are each input's
//! own.
//!
//! Invariant: a step is all or nothing. Inputs are checked before any work, and a step that fails
//! leaves every sequence as it was.
//!
//! Logits of a token may differ in rounding with what else is in the step, since products of few
//! and of many rows sum in another order.

use smallvec::SmallVec;

use crate::decoder::Chunk;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::Session;

/// Sequences up to which a step takes nothing from the heap.
const FEW: usize = 16;

/// What a step computes for one session.
pub struct StepInput<'a> {
    /// The sequence.
    pub session: &'a mut Session,
    /// The tokens that follow those of the sequence; at least one.
    pub tokens: &'a [u32],
    /// Logits are computed of the token with this index and all later ones; none where there is no
    /// such token, as in a prompt that goes on in the next step.
    pub from: usize,
    /// Where the hidden states `[dim]` of all the tokens behind the final norm are added up. There are
    /// no logits then, and no token is taken over from others that began alike.
    pub hidden: Option<&'a mut [f32]>,
}

impl<'a> StepInput<'a> {
    /// An input whose last token's logits are wanted.
    pub fn new(session: &'a mut Session, tokens: &'a [u32]) -> StepInput<'a> {
        StepInput { session, tokens, from: tokens.len().saturating_sub(1), hidden: None }
    }
}

/// Receives the index of an input, the index of a token in it, and the token's logits `[vocab]`.
pub type EachInputRow<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

impl Engine {
    /// Appends the tokens of each input to its session, all in one step. The logits of an input's last
    /// token, where they are wanted, are the session's afterwards.
    ///
    /// The step takes working memory for all of its tokens: cut long prompts into chunks of
    /// [`EngineConfig::batch`](crate::EngineConfig::batch) tokens.
    ///
    /// ```no_run
    /// use ruvllm_engine::{Engine, StepInput};
    ///
    /// # fn example(engine: &Engine) -> Result<(), ruvllm_engine::EngineError> {
    /// let (mut running, mut joining) = (engine.session(), engine.session());
    /// running.prefill(&[1, 450, 6635])?;
    /// // One more token of a sequence, and the whole prompt of another.
    /// engine.step(&mut [
    ///     StepInput::new(&mut running, &[3290]),
    ///     StepInput::new(&mut joining, &[1, 2448, 2501]),
    /// ])?;
    /// assert_eq!((running.len(), joining.len()), (4, 3));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`EngineError::StepInput`] with the first input that cannot be computed and the reason:
    /// [`EngineError::ForeignSession`], [`EngineError::PromptEmpty`],
    /// [`EngineError::PromptTooLong`], [`EngineError::TokenOutOfRange`] or
    /// [`EngineError::ForeignAdapter`]. Failures of kernels.
    /// Whatever the error, no sequence has grown.
    pub fn step(&self, inputs: &mut [StepInput<'_>]) -> Result<(), EngineError> {
        self.step_with(inputs, &mut |_, _, _| ())
    }

    /// As [`Engine::step`], handing over the logits of every token of which they are wanted.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_with(
        &self,
        inputs: &mut [StepInput<'_>],
        each: &mut EachInputRow<'_>,
    ) -> Result<(), EngineError> {
        for (index, input) in inputs.iter().enumerate() {
            let checked = if input.session.engine().is(self) {
                input.session.check_step(input.tokens)
            } else {
                Err(EngineError::ForeignSession)
            };
            checked.map_err(|e| EngineError::StepInput { input: index, source: Box::new(e) })?;
        }
        let mut chunks: SmallVec<[Chunk<'_>; FEW]> = SmallVec::new();
        for StepInput { session, tokens, from, hidden } in inputs.iter_mut() {
            chunks.push(session.chunk(tokens, (*from).min(tokens.len()), hidden.as_deref_mut()));
        }
        self.compute(&mut chunks, each)
    }

    /// Appends one token to each of several sessions, all in one step; each then has the logits of
    /// its token.
    ///
    /// ```no_run
    /// use ruvllm_engine::{Engine, Session};
    ///
    /// # fn example(engine: &Engine, sessions: &mut [Session]) -> Result<(), ruvllm_engine::EngineError> {
    /// let tokens = [450, 6635, 3290];
    /// engine.decode_batch(sessions.iter_mut().zip(tokens))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn decode_batch<'a>(
        &self,
        next: impl IntoIterator<Item = (&'a mut Session, u32)>,
    ) -> Result<(), EngineError> {
        let (sessions, tokens): (SmallVec<[_; FEW]>, SmallVec<[_; FEW]>) = next.into_iter().unzip();
        let inputs = sessions.into_iter().zip(tokens.chunks_exact(1));
        let inputs = inputs.map(|(session, token)| StepInput::new(session, token));
        let mut inputs: SmallVec<[_; FEW]> = inputs.collect();
        self.step(&mut inputs)
    }
}
