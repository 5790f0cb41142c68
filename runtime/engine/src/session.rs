//! Sessions: the sequences that an engine continues.
//!
//! A session owns its tokens and its table of KV blocks; the blocks are the engine's, which may put
//! them on disk, or compute them again, while the session rests. Its methods compute a step for it
//! alone; [`crate::step`] computes several sessions at once.

use std::ops::ControlFlow;
use std::path::Path;

use crate::adapter::Adapter;
use crate::decoder::Chunk;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::kv::{EvictedRange, KvTable, SequenceOptions, scope};
use crate::sealed::SessionKey;

/// Receives the index of a token and its logits `[vocab]`.
pub type EachRow<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// What a session is to others of its engine.
///
/// ```
/// use ruvllm_engine::SessionOptions;
///
/// // Tenants of an application share no beginnings with each other.
/// let options = SessionOptions { scope: Some("tenant 7".to_owned()), ..SessionOptions::default() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Memory of sessions with a higher priority is reclaimed later.
    pub priority: u8,
    /// Sessions of one scope share the blocks of common beginnings. How fast a beginning is computed
    /// tells whether somebody of the scope used it before: give tenants who must not learn that of
    /// each other scopes of their own. `None` shares nothing.
    pub scope: Option<String>,
    /// Makes the sequence endless: where its context is full it forgets, in whole blocks, the older half
    /// of what follows its first tokens, of which at least so many stay, a quarter of the context at
    /// most. Other sequences end there.
    pub sinks: Option<usize>,
    /// What the session adds to the model's projections. Sessions share beginnings only with those of
    /// the same adapter, or that have none either.
    pub adapter: Option<Adapter>,
    /// Keeps to the active generation of kernels while another is on trial, for measurements. Whatever
    /// is in a step with it does, too.
    pub steady: bool,
}

impl SessionOptions {
    fn sequence_options(&self, context: usize) -> SequenceOptions {
        let adapter = self.adapter.as_ref().map(Adapter::fingerprint);
        SequenceOptions {
            priority: self.priority,
            sinks: self.sinks.map(|sinks| sinks.min(context / 4)),
            scope: self.scope.as_deref().map(|name| scope(name, adapter.as_ref())),
            adapter: self.adapter.clone(),
            steady: self.steady,
        }
    }
}

impl Default for SessionOptions {
    /// No priority, the common scope, an end, no adapter, and a share in trials.
    fn default() -> Self {
        let scope = Some(String::new());
        Self { priority: 0, scope, sinks: None, adapter: None, steady: false }
    }
}

/// One sequence: its tokens, and the blocks of their keys and values.
///
/// ```no_run
/// use ruvllm_engine::{Engine, EngineError};
///
/// fn likeliest(engine: &Engine, prompt: &str) -> Result<Option<usize>, EngineError> {
///     let mut session = engine.session();
///     let tokens = engine.model().tokenizer().encode(prompt, true)?;
///     let logits = session.prefill(&tokens)?;
///     Ok((0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])))
/// }
/// ```
pub struct Session {
    engine: Engine,
    table: KvTable,
    /// Logits `[vocab]` of the last token that they were wanted of.
    logits: Vec<f32>,
}

impl Engine {
    /// A new, empty sequence.
    pub fn session(&self) -> Session {
        self.session_with(&SessionOptions::default())
    }

    /// A new, empty sequence with options of its own.
    pub fn session_with(&self, options: &SessionOptions) -> Session {
        Session::new(self.clone(), self.table(options.sequence_options(self.context())))
    }

    /// Continues a session that [`Session::save`] wrote, with the key that it was saved with. It needs the
    /// feature `encryption`.
    ///
    /// # Errors
    /// [`EngineError::Sealed`] for a file that is damaged or does not open with the key,
    /// [`EngineError::SessionMismatch`] for one of another model, adapter or way of storing keys and
    /// values, [`EngineError::ForeignAdapter`], [`EngineError::MemoryExhausted`]. Nothing is lost then
    /// but the time to compute the sequence again.
    pub fn restore_session(
        &self,
        path: &Path,
        key: &SessionKey,
        options: &SessionOptions,
    ) -> Result<Session, EngineError> {
        let table = self.restore_table(path, key, options.sequence_options(self.context()))?;
        Ok(Session::new(self.clone(), table))
    }
}

impl Session {
    fn new(engine: Engine, table: KvTable) -> Session {
        Session { engine, table, logits: Vec::new() }
    }

    /// The engine that computes this sequence.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What the sequence adds to the model's projections.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.table.options.adapter.as_ref()
    }

    /// Number of tokens in the sequence.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the sequence has no token.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// The tokens of the sequence.
    pub fn tokens(&self) -> &[u32] {
        &self.table.tokens
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Forgets the tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.table.truncate(len);
    }

    /// A second sequence with the same tokens, which goes its own way from here. It shares the blocks of
    /// this one; only the last, where it is not full, is copied, by whoever appends first.
    pub fn fork(&self) -> Session {
        let table = self.engine.decoder().kv.fork(&self.table);
        Session { engine: self.engine.clone(), table, logits: self.logits.clone() }
    }

    /// Writes the sequence to a file, sealed with `key` ([`crate::sealed`]), in place of any that is
    /// there; [`Engine::restore_session`] continues it. Logits are not part of it. It needs the feature
    /// `encryption`.
    ///
    /// # Errors
    /// [`EngineError::Sealed`], with a file that is there left as it was; and what computing evicted
    /// blocks again can give.
    pub fn save(&mut self, path: &Path, key: &SessionKey) -> Result<(), EngineError> {
        let Session { engine, table, .. } = self;
        engine.with_blocks(table, |kv, table| kv.save(table, path, key))
    }

    /// Logits `[vocab]` of the last token that they were computed of; empty before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Appends tokens and returns the logits `[vocab]` of the last.
    ///
    /// # Errors
    /// [`EngineError::PromptEmpty`], [`EngineError::PromptTooLong`],
    /// [`EngineError::TokenOutOfRange`], [`EngineError::ForeignAdapter`], and failures of kernels.
    /// Chunks that were computed before the failure stay in the sequence.
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
        let batch = self.chunk_len();
        let mut done = self.find(&tokens[..tokens.len() - 1])?;
        for chunk in tokens[done..].chunks(batch) {
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
        let batch = self.chunk_len();
        let found = self.find(&tokens[..from.min(tokens.len())])?;
        for (i, chunk) in tokens[found..].chunks(batch).enumerate() {
            let first = found + i * batch;
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

    /// Whether the sequence forgets tokens rather than end.
    pub fn is_endless(&self) -> bool {
        self.table.options.sinks.is_some()
    }

    /// Whether no token can follow.
    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.engine.context() && !self.is_endless()
    }

    /// What an endless sequence has forgotten since it last began anew.
    pub fn evicted_range(&self) -> EvictedRange {
        self.table.evicted
    }

    /// As [`Session::adopt`], where no token has to be computed again or forgotten before. Looked for as a whole, since
    /// what is found has to have the bits that the last of it wants.
    fn find(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        let whole = self.engine.decoder().kv.kept(&self.table) == self.len();
        if whole && !self.is_endless() { self.adopt(tokens) } else { Ok(0) }
    }

    /// Takes over what others have computed of `tokens`, with which the sequence goes on, and gives how
    /// many of them it then has.
    ///
    /// # Errors
    /// What the host refuses.
    pub(crate) fn adopt(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        self.engine.adopt(&mut self.table, tokens)
    }

    /// Has blocks kept so that other sequences can go on behind the first `len` tokens.
    pub(crate) fn expect_parting(&mut self, len: usize) {
        self.table.expect_parting(len);
    }

    /// Forgets the tokens from the first on whose block was given up or has to be computed again, and gives them:
    /// computed again piece by piece they hold up no other sequence.
    pub(crate) fn forget_lost(&mut self) -> Vec<u32> {
        let Session { engine, table, .. } = self;
        let decoder = engine.decoder();
        table.uncompute(decoder.kv.kept(table));
        decoder.kv.keep_exact(table);
        let lost = table.tokens[table.computed..].to_vec();
        table.truncate(table.computed);
        lost
    }

    /// Bytes of its blocks in memory; of those that it shares a part.
    pub(crate) fn held_bytes(&self) -> usize {
        self.engine.decoder().kv.held_bytes(&self.table)
    }

    /// Tokens of a prompt that are computed at once.
    pub(crate) fn chunk_len(&self) -> usize {
        let batch = self.engine.config().batch;
        // Half of the context may go to make room for the rest.
        if self.is_endless() { batch.min((self.engine.context() / 4).max(1)) } else { batch }
    }

    /// Whether the sequence can go on with these tokens in one step.
    pub(crate) fn check_step(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let (len, context) = (tokens.len(), self.engine.context());
        if self.is_endless() && len > self.chunk_len() && len > context - self.len() {
            return Err(EngineError::PromptTooLong { prompt: len, used: self.len(), context });
        }
        self.check(tokens)
    }

    /// Whether the sequence can go on with these tokens.
    pub(crate) fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if let Some(adapter) = self.adapter() {
            self.engine.check_adapter(adapter)?;
        }
        self.engine.check_tokens(tokens, self.len(), self.is_endless())
    }

    /// The share of this sequence in a step that computes these tokens, and adds their hidden states
    /// to `hidden` if there is one.
    pub(crate) fn chunk<'a>(
        &'a mut self,
        tokens: &'a [u32],
        from: usize,
        hidden: Option<&'a mut [f32]>,
    ) -> Chunk<'a> {
        let from = if hidden.is_some() { 0 } else { from };
        let Session { table, logits: last, .. } = self;
        Chunk { table, last, tokens, from, skipped: 0, hidden }
    }

    /// Computes a step of this sequence alone; `from` is at most the number of tokens.
    fn step(
        &mut self,
        tokens: &[u32],
        from: usize,
        each: &mut EachRow<'_>,
    ) -> Result<(), EngineError> {
        let Session { engine, table, logits: last } = self;
        let mut chunks = [Chunk { table, last, tokens, from, skipped: 0, hidden: None }];
        engine.compute(&mut chunks, &mut |_, index, logits| each(index, logits))
    }
}
