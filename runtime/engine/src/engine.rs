//! Engines: a model with threads and kernels.
//!
//! An engine computes one step at a time, on all its threads. A step may hold tokens of several
//! sessions ([`crate::step`]); steps that are asked for at the same time take turns.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ruvllm_host::{Host, HostConfig, KernelBudget, KernelMemory, Preparer, Team};
use ruvllm_native::gemm::{Activations, ReadPattern, ReadRates};
use ruvllm_native::{Isa, ThreadPool};

use crate::adapter::Adapter;
use crate::decoder::{Chunk, Decoder, EachLogits};
use crate::error::EngineError;
use crate::kernels::{Kernels, Keys, Matrices};
use crate::kv::{
    BlockShape, KvKernels, KvPolicy, KvStats, KvStore, KvTable, SequenceOptions, SpillDir,
};
use crate::memory::{
    KernelReservation, MemoryPool, PAGE, PoolUsage, Reservation, Use, kernel_share,
};
use crate::model::Model;
use crate::rope::{RopeExtension, RopeTables, Rotation};
use crate::sealed::SessionKey;

/// The target of the log.
const LOG: &str = "ruvllm::engine";

/// Configuration of an [`Engine`].
///
/// ```
/// use ruvllm_engine::{EngineConfig, KvCodec};
///
/// let config = EngineConfig { ctx: Some(4096), kv: KvCodec::Q8_0.into(), ..EngineConfig::default() };
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Threads that compute, the caller's among them.
    pub threads: usize,
    /// How keys and values are stored. Where that changes with age, a thread more writes old ones anew.
    pub kv: KvPolicy,
    /// Tokens of a KV block: a power of two from 16 to 256.
    pub kv_block: usize,
    /// Bytes that KV blocks, adapters, instances of kernels and working memory may take together, weights
    /// of the model not counted; `None` is half of what the machine, or this process's control group,
    /// has. Kernels get of it what leaves room for one full sequence, and at most
    /// [`crate::memory::kernel_share`]; where that is used up, native twins answer in their place.
    pub memory: Option<usize>,
    /// An existing directory for blocks that the budget has no room for while their sessions rest;
    /// `None` computes them again instead. It needs the feature `encryption`.
    pub spill_dir: Option<PathBuf>,
    /// Tokens that a session holds at most; `None` is the context that the model was made for, times
    /// the factor of [`EngineConfig::rope_scaling`] where one is given.
    pub ctx: Option<usize>,
    /// How the rotation of positions is stretched for a context that is longer than the one that the
    /// model was made for; without it there is none longer.
    pub rope_scaling: Option<RopeExtension>,
    /// Tokens of a prompt that are computed at once.
    pub batch: usize,
    /// Instructions of the native operations; `None` is the best that the processor has.
    pub isa: Option<Isa>,
    /// How rearranged weights are read from memory. `None` measures that where the weights are larger than
    /// caches, in a twentieth of a second.
    pub read_pattern: Option<ReadPattern>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let threads = ruvllm_native::pool::default_threads();
        Self {
            threads,
            kv: KvPolicy::default(),
            kv_block: 32,
            memory: None,
            spill_dir: None,
            ctx: None,
            rope_scaling: None,
            batch: 512,
            isa: None,
            read_pattern: None,
        }
    }
}

/// How far a model's weights are prepared for computing, in bytes as the file has them.
///
/// ```
/// use ruvllm_engine::LoadProgress;
///
/// let percent = |LoadProgress { done, total }| 100 * done / total.max(1);
/// assert_eq!(percent(LoadProgress { done: 1 << 20, total: 4 << 20 }), 25);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes that are prepared.
    pub done: usize,
    /// Bytes of all matrices that products are computed with.
    pub total: usize,
}

struct EngineInner {
    /// The model, and what it is computed on.
    matrices: Arc<Matrices>,
    config: EngineConfig,
    context: usize,
    memory: Arc<MemoryPool>,
    decoder: Mutex<Decoder>,
    /// Counts what the host's kernels take as long as the engine lives.
    _kernels: Arc<dyn KernelBudget>,
}

/// Who holds the memory of an engine, and what its KV cache has done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryReport {
    /// The pool.
    pub pool: PoolUsage,
    /// The KV cache.
    pub kv: KvStats,
    /// Instances of kernels, of all engines on the host; they are among what the pool holds.
    pub kernels: KernelMemory,
}

/// A model, threads and kernels, ready to compute. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
}

impl Engine {
    /// Starts the threads, takes a kernel worker for each, and rearranges the weights where the
    /// configuration asks for it.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`], [`EngineError::ContextOutOfRange`], [`EngineError::DynamicRope`],
    /// [`EngineError::KvHeadDim`], [`EngineError::MemoryTooSmall`], [`EngineError::SpillDirectory`],
    /// [`EngineError::OpUnavailable`], and what the host refuses.
    pub fn new(model: Arc<Model>, host: Host, config: EngineConfig) -> Result<Engine, EngineError> {
        Self::with_progress(model, host, config, &mut |_| ())
    }

    /// As [`Engine::new`], saying after each matrix how far the weights are prepared.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_progress(
        model: Arc<Model>,
        host: Host,
        config: EngineConfig,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Engine, EngineError> {
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
        let (context, rotation) =
            Rotation::for_context(model.config(), config.ctx, config.rope_scaling.as_ref())?;
        config.kv.check(model.config(), config.kv_block)?;
        let memory = match config.memory {
            Some(budget) => MemoryPool::new(budget)?,
            None => default_memory()?,
        };
        let shape = BlockShape::new(model.config(), config.kv_block);
        let (scratch, reserved) = reserve(&memory, &model, &config, &shape, context, &host)?;
        let spill = config.spill_dir.as_deref().map(SpillDir::new).transpose()?;
        let pool = Arc::new(ThreadPool::new(config.threads));
        let isa = config.isa.unwrap_or_else(Isa::detect);
        let mut settings = Activations::new();
        settings.allow_bf16(host.config().bf16);
        settings.set_deterministic(host.config().deterministic);
        let HostConfig { bf16, deterministic, .. } = host.config();
        let code = format!("{} bf16={bf16} deterministic={deterministic}", isa.usable().name());
        let matrices = Arc::new(Matrices {
            model: Arc::clone(&model),
            host: host.clone(),
            pool: Arc::clone(&pool),
            isa,
            settings: settings.clone(),
            budget: Arc::clone(&reserved),
            keys: Arc::new(Keys::new(&config.kv, Some(&model))),
            waiting: Mutex::default(),
        });
        // It reads from every matrix, whose memory is given back once it is packed.
        let identity = identity(&model, &rotation);
        let mut progress = LoadProgress { done: 0, total: model.weights().bytes_multiplied() };
        on_progress(progress);
        let mut kernels = Kernels::of_model(Arc::clone(&matrices), &mut |bytes| {
            progress.done += bytes;
            on_progress(progress);
        })?;
        // Where products with its weights fail, the first step will say so.
        let rates = match config.read_pattern {
            Some(_) => None,
            None => kernels.read_rates(&matrices).ok().flatten(),
        };
        let measured = rates.as_ref().map(ReadRates::best);
        if let Some(pattern) = config.read_pattern.or(measured) {
            pool.set_read_pattern(pattern);
        }
        tracing::debug!(
            target: LOG,
            read_pattern = pool.read_pattern().name(),
            gigabytes_per_second = rates.as_ref().map(tracing::field::display),
        );
        let kv = KvStore::new(shape, config.kv.clone(), Arc::clone(&memory), spill, identity)
            .deterministic(host.config().deterministic)
            .computed_by(code)
            .with_ahead(host.worker()?);
        let rope = RopeTables::new(rotation);
        let decoder = Mutex::new(Decoder::new(kernels, kv, rope, settings, scratch));
        let preparer: Arc<dyn Preparer> = Arc::<Matrices>::clone(&matrices);
        host.prepare_with(&preparer);
        let _kernels = reserved;
        let inner = EngineInner { matrices, config, context, memory, decoder, _kernels };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// A second engine, which stores keys and values by another policy and is otherwise the same. Model,
    /// rearranged weights and kernels are shared; threads and the bound on memory are its own.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_kv(&self, kv: KvPolicy) -> Result<Engine, EngineError> {
        let config = EngineConfig { kv, ..self.config().clone() };
        Engine::new(Arc::clone(&self.inner.matrices.model), self.host().clone(), config)
    }

    /// The table of a new, empty sequence.
    pub(crate) fn table(&self, options: SequenceOptions) -> KvTable {
        self.decoder().kv.table(self.context(), options)
    }

    /// The table of a sequence that was saved, with its blocks.
    ///
    /// # Errors
    /// As [`Engine::restore_session`].
    pub(crate) fn restore_table(
        &self,
        path: &Path,
        key: &SessionKey,
        options: SequenceOptions,
    ) -> Result<KvTable, EngineError> {
        if let Some(adapter) = &options.adapter {
            self.check_adapter(adapter)?;
        }
        let limits = (self.context(), self.model().vocab());
        let (mut decoder, _) = self.pinned(options.steady)?;
        let Decoder { kernels, kv, .. } = &mut *decoder;
        kv.begin(kernels);
        let mut kv_kernels = KvKernels { kernels, pool: &self.inner.matrices.pool };
        kv.load(path, key, options, limits, &mut kv_kernels)
    }

    /// Counts `bytes` of memory that its owner keeps, an adapter's weights for example, against the
    /// budget; idle KV blocks make room for it if need be.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`], which says who holds what.
    pub fn reserve(
        &self,
        kind: Use,
        owner: &str,
        priority: u8,
        bytes: usize,
    ) -> Result<Reservation, EngineError> {
        let mut decoder = self.decoder();
        let decoder = &mut *decoder;
        let mut kv_kernels =
            KvKernels { kernels: &mut decoder.kernels, pool: &self.inner.matrices.pool };
        decoder.kv.reserve(kind, owner, priority, bytes, &mut kv_kernels)
    }

    /// Who holds the engine's memory, once no step is computed.
    pub fn memory(&self) -> MemoryReport {
        let mut decoder = self.decoder();
        decoder.kv.drain();
        let kv = decoder.kv.stats();
        let kernels = self.inner.matrices.host.kernel_memory();
        MemoryReport { pool: self.inner.memory.usage(), kv, kernels }
    }

    /// The threads that compute.
    pub(crate) fn pool(&self) -> &ThreadPool {
        &self.inner.matrices.pool
    }

    /// Bytes that the blocks of a sequence of `tokens` tokens take at most.
    pub(crate) fn sequence_bytes(&self, tokens: usize) -> usize {
        let shape = BlockShape::new(self.model().config(), self.config().kv_block);
        KvStore::sequence_bytes(&shape, &self.config().kv, tokens)
    }

    /// Bytes of the budget that reservations leave for blocks.
    pub(crate) fn block_budget(&self) -> usize {
        let usage = self.inner.memory.usage();
        usage.budget - usage.reserved()
    }

    /// Whether a sequence of `tokens` tokens fits what reservations leave, if it were alone.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`].
    pub(crate) fn check_fits(&self, tokens: usize) -> Result<(), EngineError> {
        let needed = self.sequence_bytes(tokens);
        if needed <= self.block_budget() {
            return Ok(());
        }
        let usage = self.inner.memory.usage();
        let holders = usage.describe_holders().join(", ");
        Err(EngineError::MemoryExhausted { needed, budget: usage.budget, holders })
    }

    /// Attaches to a sequence what others have computed of `tokens`, with which it goes on, and gives how
    /// many of them that holds.
    pub(crate) fn adopt(&self, table: &mut KvTable, tokens: &[u32]) -> Result<usize, EngineError> {
        let (mut decoder, team) = self.pinned(table.options.steady)?;
        Ok(decoder.adopt(team, table, tokens))
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.inner.matrices.model
    }

    /// The host whose kernels the engine calls.
    pub fn host(&self) -> &Host {
        &self.inner.matrices.host
    }

    /// The configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// Tokens that a session holds at most.
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// The instructions that native operations use.
    pub fn isa(&self) -> Isa {
        self.inner.matrices.isa
    }

    /// The model, to be kept or shared with another engine.
    pub fn shared_model(&self) -> &Arc<Model> {
        &self.inner.matrices.model
    }

    /// Whether the kernels of this moment can apply adapters.
    ///
    /// # Errors
    /// [`EngineError::OpUnavailable`].
    pub(crate) fn require_lora(&self) -> Result<(), EngineError> {
        let (decoder, _) = self.pinned(false)?;
        decoder.kernels.require_lora()
    }

    /// Whether the engine can compute with an adapter.
    ///
    /// # Errors
    /// [`EngineError::ForeignAdapter`] for one of another model.
    pub(crate) fn check_adapter(&self, adapter: &Adapter) -> Result<(), EngineError> {
        if adapter.is_for(self.model()) {
            return Ok(());
        }
        Err(EngineError::ForeignAdapter { name: adapter.name().to_owned() })
    }

    /// Whether a sequence of `used` tokens can go on with `tokens`.
    ///
    /// # Errors
    /// [`EngineError::PromptEmpty`], [`EngineError::PromptTooLong`] and
    /// [`EngineError::TokenOutOfRange`].
    pub(crate) fn check_tokens(
        &self,
        tokens: &[u32],
        used: usize,
        endless: bool,
    ) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::PromptEmpty);
        }
        let context = self.context();
        if !endless && tokens.len() > context - used {
            return Err(EngineError::PromptTooLong { prompt: tokens.len(), used, context });
        }
        let vocab = self.model().vocab();
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(EngineError::TokenOutOfRange { token, vocab }),
            None => Ok(()),
        }
    }

    /// Whether both are clones of one engine.
    pub(crate) fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The decoder, once no step is computed.
    pub(crate) fn decoder(&self) -> MutexGuard<'_, Decoder> {
        // A panic in an earlier step leaves nothing half-done that a later one would read.
        self.inner.decoder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decoder with the kernels of this moment, once no step is computed, and what it computes
    /// with; `steady` never has it be a trial's turn.
    fn pinned(&self, steady: bool) -> Result<(MutexGuard<'_, Decoder>, Team<'_>), EngineError> {
        let inner = &*self.inner;
        let mut decoder = self.decoder();
        decoder.kernels.pin(&inner.matrices.host, steady)?;
        Ok((decoder, inner.matrices.team()))
    }

    /// Gets all of a sequence's blocks into memory, and hands them to `use_them`.
    pub(crate) fn with_blocks(
        &self,
        table: &mut KvTable,
        use_them: impl FnOnce(&KvStore, &KvTable) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let inner = &*self.inner;
        let (mut decoder, team) = self.pinned(table.options.steady)?;
        decoder.load_sequence(team, &inner.matrices.model, table, inner.config.batch)?;
        use_them(&decoder.kv, table)
    }

    /// Computes chunks of several sequences in one step; on an error every sequence stays as it was.
    pub(crate) fn compute(
        &self,
        chunks: &mut [Chunk<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        let inner = &*self.inner;
        let steady = chunks.iter().any(|chunk| chunk.table.options.steady);
        let (mut decoder, team) = self.pinned(steady)?;
        decoder.forward(team, &inner.matrices.model, chunks, inner.config.batch, each)
    }
}

/// The memory of an engine that names no budget: half of what this process may use, 4 GiB where the
/// system does not tell, and less where it gives no address space for that.
fn default_memory() -> Result<Arc<MemoryPool>, EngineError> {
    let limit = sysinfo::System::new().ok().map(|mut system| {
        system.refresh_memory();
        let machine = system.total_memory();
        let group = system.cgroup_limits().map_or(machine, |limits| limits.total_memory);
        group.min(machine)
    });
    let half = limit.filter(|&bytes| bytes > 0).map_or(4 << 30, |bytes| bytes / 2);
    let mut budget = usize::try_from(half).unwrap_or(1 << 31).max(PAGE);
    loop {
        match MemoryPool::new(budget) {
            Err(_) if budget > 64 * PAGE => budget /= 2,
            made => return made,
        }
    }
}

/// What tells the numbers of this engine from those of others: the model, and how positions turn.
fn identity(model: &Model, rotation: &Rotation) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(&model.fingerprint());
    let Rotation { frequencies, magnitude } = rotation;
    for x in frequencies.iter().chain([magnitude]) {
        hasher.update(&x.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Reserves the working memory of a step, if the budget then still holds one full sequence, and lets
/// kernels have a share of what is left.
fn reserve(
    memory: &Arc<MemoryPool>,
    model: &Model,
    config: &EngineConfig,
    shape: &BlockShape,
    context: usize,
    host: &Host,
) -> Result<(Reservation, Arc<dyn KernelBudget>), EngineError> {
    let rows = config.batch.min(context);
    let scratch = Decoder::scratch_bytes(model.config(), model.vocab(), rows);
    // Where nobody chose the budget, it is only found small when it is used up. The last page of each
    // size of block is never full.
    let sequence = match config.memory {
        Some(_) => KvStore::sequence_bytes(shape, &config.kv, context) + 4 * PAGE,
        None => PAGE,
    };
    let too_small = EngineError::MemoryTooSmall {
        budget: memory.budget(),
        needed: scratch + sequence,
        scratch,
        context,
    };
    if scratch + sequence > memory.budget() {
        return Err(too_small);
    }
    let left = memory.budget() - scratch - sequence;
    let scratch = memory.reserve(Use::Scratch, "decoder", u8::MAX, scratch);
    let (Ok(scratch), Ok(kernels)) = (scratch, KernelReservation::new(memory)) else {
        return Err(too_small);
    };
    let kernels: Arc<dyn KernelBudget> = Arc::new(kernels);
    if !host.join_budget(&kernels, kernel_share(memory.budget()).min(left)) {
        return Err(too_small);
    }
    Ok((scratch, kernels))
}
