//! Engines: a model with threads and kernels.
//!
//! An engine computes one step at a time, on all its threads. A step may hold tokens of several
//! sessions ([`crate::step`]); steps that are asked for at the same time take turns.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_host::Host;
use ruvllm_native::{Isa, ThreadPool};

use crate::decoder::{Chunk, Decoder, EachLogits, Machine};
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::kv::{KvCache, KvType};
use crate::model::Model;
use crate::session::Session;

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
    /// Whether prompts meet 16-bit float weights as bf16 where the processor has the instructions:
    /// about twice as fast, but activations, and f16 weights, are rounded to 8 bits of precision.
    pub bf16: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let threads = ruvllm_native::pool::default_threads();
        Self {
            threads,
            kv: KvType::F16,
            ctx: None,
            batch: 512,
            isa: None,
            repack: true,
            bf16: false,
        }
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
        let decoder = Mutex::new(Decoder::new(kernels, model.config(), config.bf16));
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
        Ok(Session::new(self.clone(), cache))
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

    /// Whether both are clones of one engine.
    pub(crate) fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Computes chunks of several sequences in one step; on an error every cache stays as it was.
    pub(crate) fn compute(
        &self,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        let shared = &*self.shared;
        // A panic in an earlier step leaves nothing half-done that this one would read.
        let mut decoder = shared.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        decoder.kernels.pin(&shared.host)?;
        let machine = Machine { pool: &shared.pool, isa: shared.isa };
        decoder.step(machine, &shared.model, chunks, each)
    }
}
