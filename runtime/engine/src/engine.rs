//! Engines and sessions: a model with threads and kernels, and the sequences it continues.
//!
//! An engine computes one step at a time, on all its threads; sessions of one engine take turns
//! step by step. A session is the only owner of its KV cache.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_host::Host;
use ruvllm_native::{Isa, ThreadPool};

use crate::decoder::{Decoder, Machine, Rows, Step};
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::kv::{KvCache, KvType};
use crate::model::Model;

/// Configuration of an [`Engine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Threads that compute, the caller's among them.
    pub threads: usize,
    /// How the KV cache stores its numbers.
    pub kv: KvType,
    /// Tokens that a session holds at most; `None` is the context that the model was made for.
    pub ctx: Option<usize>,
    /// Tokens of a prompt that are computed at once.
    pub batch: usize,
    /// Instructions of the native operations; `None` is the best that the processor has.
    pub isa: Option<Isa>,
    /// Whether to rearrange the weights in memory where products are faster from that. Without it a
    /// mapped file's weights stay where they are, shared with other processes.
    pub repack: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let threads = ruvllm_native::pool::default_threads();
        Self { threads, kv: KvType::F16, ctx: None, batch: 512, isa: None, repack: true }
    }
}

struct Shared {
    model: Arc<Model>,
    host: Host,
    pool: ThreadPool,
    isa: Isa,
    config: EngineConfig,
    context: usize,
    decoder: Mutex<Decoder>,
}

/// A model, threads and kernels, ready to compute. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts the threads, takes a kernel worker for each, and rearranges the weights where the
    /// configuration asks for it.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`], [`EngineError::ContextOutOfRange`],
    /// [`EngineError::KvHeadDim`], [`EngineError::OpUnavailable`], what the host refuses, and want of
    /// memory.
    pub fn new(model: Arc<Model>, host: Host, config: EngineConfig) -> Result<Engine, EngineError> {
        for (option, value, most) in
            [("threads", config.threads, 1024), ("batch", config.batch, 1 << 16)]
        {
            if value == 0 || value > most {
                let reason = "it must be at least 1 and not absurdly large";
                return Err(EngineError::InvalidOption {
                    option,
                    value: value.to_string(),
                    reason,
                });
            }
        }
        let trained = model.config().context;
        let context = config.ctx.unwrap_or(trained);
        if context == 0 || context > trained {
            return Err(EngineError::ContextOutOfRange { context, trained });
        }
        config.kv.check(model.config())?;
        let kernels = Kernels::new(&host, config.threads, config.kv)?;
        let decoder = Mutex::new(Decoder::new(kernels, model.config()));
        let pool = ThreadPool::new(config.threads);
        let isa = config.isa.unwrap_or_else(Isa::detect);
        if config.repack {
            model.weights().pack(&pool, isa)?;
        }
        let shared = Shared { pool, isa, model, host, config, context, decoder };
        Ok(Engine { shared: Arc::new(shared) })
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// [`EngineError::KvHeadDim`].
    pub fn session(&self) -> Result<Session, EngineError> {
        let cache = KvCache::new(self.model().config(), self.shared.config.kv, self.context())?;
        Ok(Session { engine: self.clone(), cache, tokens: Vec::new(), logits: Vec::new() })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.shared.model
    }

    /// The host whose kernels the engine calls.
    pub fn host(&self) -> &Host {
        &self.shared.host
    }

    /// The configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Tokens that a session holds at most.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// The instructions that native operations use.
    pub fn isa(&self) -> Isa {
        self.shared.isa
    }

    fn step(
        &self,
        cache: &mut KvCache,
        step: &Step<'_>,
        rows: &mut Rows<'_>,
    ) -> Result<(), EngineError> {
        let shared = &*self.shared;
        // A panic in an earlier step leaves nothing half-done that this one would read.
        let mut decoder = shared.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        decoder.kernels.pin(&shared.host)?;
        let machine = Machine { pool: &shared.pool, isa: shared.isa };
        decoder.step(machine, &shared.model, cache, step, rows)
    }
}

/// Receives the index of a token and its logits `[vocab]`.
pub type EachRow<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// One sequence: its tokens and their KV cache.
pub struct Session {
    engine: Engine,
    cache: KvCache,
    tokens: Vec<u32>,
    /// Logits of the last token `[vocab]`.
    logits: Vec<f32>,
}

impl Session {
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

    /// Logits `[vocab]` of the token that was computed last; empty before the first.
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
        let batch = self.engine.shared.config.batch;
        let mut done = 0;
        for chunk in tokens.chunks(batch) {
            done += chunk.len();
            let from = if done == tokens.len() { chunk.len() - 1 } else { chunk.len() };
            self.chunk(chunk, from, None)?;
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
        let batch = self.engine.shared.config.batch;
        for (i, chunk) in tokens.chunks(batch).enumerate() {
            let first = i * batch;
            let from = from.saturating_sub(first).min(chunk.len());
            self.chunk(chunk, from, Some(&mut |index, logits| each(first + index, logits)))?;
        }
        Ok(())
    }

    /// Appends one token and returns its logits `[vocab]`.
    ///
    /// # Errors
    /// As [`Session::prefill`].
    pub fn decode(&mut self, token: u32) -> Result<&[f32], EngineError> {
        self.chunk(&[token], 0, None)?;
        Ok(&self.logits)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), EngineError> {
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

    /// Computes one step; the logits of its last token are kept, those of each wanted one are
    /// handed to `each`.
    fn chunk(
        &mut self,
        tokens: &[u32],
        from: usize,
        mut each: Option<&mut EachRow<'_>>,
    ) -> Result<(), EngineError> {
        let vocab = self.engine.model().vocab();
        let kept = &mut self.logits;
        let mut rows = |first: usize, logits: &[f32]| {
            if let Some(each) = each.as_mut() {
                for (i, row) in logits.chunks_exact(vocab).enumerate() {
                    each(first + i, row);
                }
            }
            kept.clear();
            kept.extend_from_slice(&logits[logits.len() - vocab..]);
            Ok(())
        };
        self.engine.step(&mut self.cache, &Step { tokens, from }, &mut rows)?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }
}
