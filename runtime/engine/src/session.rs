//! Sessions: the sequences that an engine continues.
//!
//! A session is the only owner of its KV cache. Its methods compute a step for it alone;
//! [`crate::step`] computes several sessions at once.

use std::ops::ControlFlow;

use crate::decoder::Chunk;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::kv::KvCache;

/// Receives the index of a token and its logits `[vocab]`.
pub type EachRow<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// One sequence: its tokens and their KV cache.
pub struct Session {
    engine: Engine,
    cache: KvCache,
    tokens: Vec<u32>,
    /// Logits `[vocab]` of the last token that they were wanted of.
    logits: Vec<f32>,
}

impl Session {
    pub(crate) fn new(engine: Engine, cache: KvCache) -> Session {
        Session { engine, cache, tokens: Vec::new(), logits: Vec::new() }
    }

    /// The engine that computes this sequence.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Number of tokens in the sequence.
    pub fn len(&self) -> usize {
        self.cache.len()
    }

    /// Whether the sequence has no token.
    pub fn is_empty(&self) -> bool {
        self.cache.is_empty()
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes that the KV cache holds now.
    pub fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Forgets all tokens; the memory is kept.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Forgets the tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
        self.tokens.truncate(len);
    }

    /// Logits `[vocab]` of the last token that they were computed of; empty before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Appends tokens and returns the logits `[vocab]` of the last.
    ///
    /// # Errors
    /// [`EngineError::PromptEmpty`], [`EngineError::PromptTooLong`],
    /// [`EngineError::TokenOutOfRange`], and failures of kernels. Chunks that were computed before
    /// the failure stay in the sequence.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        let _ = self.prefill_with(tokens, &mut |_| ControlFlow::Continue(()))?;
        Ok(&self.logits)
    }

    /// As [`Session::prefill`], reporting after each chunk how many tokens are done; breaking off
    /// leaves the finished chunks in the sequence.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_with(
        &mut self,
        tokens: &[u32],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, EngineError> {
        self.check(tokens)?;
        let batch = self.engine.config().batch;
        let mut done = 0;
        for chunk in tokens.chunks(batch) {
            done += chunk.len();
            let from = if done == tokens.len() { chunk.len() - 1 } else { chunk.len() };
            self.step(chunk, from, &mut |_, _| ())?;
            if progress(done).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Appends tokens and returns the logits of each, `[tokens, vocab]`.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn prefill_all(&mut self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        let mut all = Vec::with_capacity(tokens.len() * self.engine.model().vocab());
        self.evaluate(tokens, 0, &mut |_, logits| all.extend_from_slice(logits))?;
        Ok(all)
    }

    /// Appends tokens and hands over the logits `[vocab]` of each one from index `from` on, with
    /// its index.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        from: usize,
        each: &mut EachRow<'_>,
    ) -> Result<(), EngineError> {
        self.check(tokens)?;
        let batch = self.engine.config().batch;
        for (i, chunk) in tokens.chunks(batch).enumerate() {
            let first = i * batch;
            let from = from.saturating_sub(first).min(chunk.len());
            self.step(chunk, from, &mut |index, logits| each(first + index, logits))?;
        }
        Ok(())
    }

    /// Appends one token and returns its logits `[vocab]`.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], EngineError> {
        self.check(&[token])?;
        self.step(&[token], 0, &mut |_, _| ())?;
        Ok(&self.logits)
    }

    /// Whether the sequence can go on with these tokens.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::PromptEmpty);
        }
        let (used, context) = (self.len(), self.engine.context());
        if tokens.len() > context - used {
            return Err(EngineError::PromptTooLong { prompt: tokens.len(), used, context });
        }
        let vocab = self.engine.model().vocab();
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(EngineError::TokenOutOfRange { token, vocab }),
            None => Ok(()),
        }
    }

    /// The share of this sequence in a step that computes these tokens.
    pub(crate) fn chunk<'a>(&'a mut self, tokens: &'a [u32], from: usize) -> Chunk<'a> {
        Chunk { cache: &mut self.cache, last: &mut self.logits, tokens, from }
    }

    /// Counts tokens whose chunk is computed.
    pub(crate) fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Computes a step of this sequence alone; `from` is at most the number of tokens.
    fn step(
        &mut self,
        tokens: &[u32],
        from: usize,
        each: &mut EachRow<'_>,
    ) -> Result<(), EngineError> {
        let Session { engine, cache, logits, .. } = self;
        let mut chunks = [Chunk { cache, last: logits, tokens, from }];
        engine.compute(&mut chunks, &mut |_, index, logits| each(index, logits))?;
        self.append(tokens);
        Ok(())
    }
}
