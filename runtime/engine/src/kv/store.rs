//! The store: every block of an engine, who refers to it, and where it is.
//!
//! The store is only used under the engine's lock. How a step goes through it is in [`super::steps`], how
//! it makes room in [`super::reclaim`] and who asks for it in [`super::room`].

use std::collections::HashMap;
use std::sync::Arc;

use ruvllm_host::{Scope, Worker};
use ruvllm_native::ThreadPool;

use super::ahead::RecodeThread;
use super::block::{BlockShape, Codecs, Half, Side};
use super::prefix::{self, PrefixKey};
use super::recode::Scratch;
use super::spill::{SpillDir, SpilledBlock};
use super::stats::KvStats;
use super::stored::Stored;
use super::table::{BlockId, BlockRef, KvTable, Released, SequenceOptions};
use crate::error::EngineError;
use crate::kernels::{Kernels, Shaping};
use crate::kv_policy::{KvCodec, KvPolicy, KvTiers};
use crate::memory::{Exhausted, MemoryPool};

/// What packs and unpacks blocks: the kernels of the step, and threads for large ones.
pub(crate) struct KvKernels<'a> {
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) pool: &'a ThreadPool,
}

/// A block as the store knows it.
pub(super) struct Block {
    pub(super) location: BlockLocation,
    /// Tables that refer to it.
    pub(super) refs: u32,
    /// The step that used it last.
    pub(super) used: u64,
    /// The highest priority of the sequences that used it.
    pub(super) priority: u8,
    /// Its key, where the prefix index leads to it.
    pub(super) key: Option<PrefixKey>,
    /// Whether it lies before a checkpoint ([`KvTable::checkpoints`]). Sequences for which it is old get packed copies.
    pub(super) checkpoint: bool,
    /// Tokens that are written in it.
    pub(super) tokens: usize,
    /// Whose numbers they are.
    pub(super) isolation: Scope,
}

/// Where a block is.
pub(super) enum BlockLocation {
    /// Nowhere: its number is free.
    Vacant,
    Memory(Stored),
    Disk(SpilledBlock),
    /// Given up; whoever refers to it has to compute it again.
    Gone,
}

/// All blocks of an engine.
pub(crate) struct KvStore {
    pub(super) shape: BlockShape,
    pub(super) policy: KvPolicy,
    pub(super) pool: Arc<MemoryPool>,
    pub(super) blocks: Vec<Block>,
    pub(super) vacant: Vec<BlockId>,
    released: Arc<Released>,
    /// An emptied list to exchange for what was released.
    drained: Vec<BlockId>,
    pub(super) index: HashMap<PrefixKey, BlockId>,
    /// The fingerprint of the model.
    pub(super) model: [u8; 32],
    /// Which kernels shaped blocks when the last step began, and what the keys of blocks follow from
    /// then: of sequences without and with an adapter.
    shaping: Shaping,
    origins: [PrefixKey; 2],
    pub(super) spill: Option<SpillDir>,
    /// The number of the step.
    pub(super) clock: u64,
    pub(super) stats: KvStats,
    pub(super) scratch: Scratch,
    pub(super) recode_thread: Option<RecodeThread>,
    /// Whether what a query reads may depend on nothing but its sequence's tokens.
    pub(super) deterministic: bool,
    /// How the host's own code computes.
    pub(super) code: String,
}

impl KvStore {
    /// An empty store of blocks of `shape` in `pool`.
    pub(crate) fn new(
        shape: BlockShape,
        policy: KvPolicy,
        pool: Arc<MemoryPool>,
        spill: Option<SpillDir>,
        model: [u8; 32],
    ) -> KvStore {
        KvStore {
            shape,
            policy,
            pool,
            blocks: Vec::new(),
            vacant: Vec::new(),
            released: Arc::default(),
            drained: Vec::new(),
            index: HashMap::new(),
            model,
            shaping: Shaping::default(),
            origins: Default::default(),
            spill,
            clock: 0,
            stats: KvStats { block_tokens: shape.tokens, ..KvStats::default() },
            scratch: Scratch::default(),
            recode_thread: None,
            deterministic: false,
            code: String::new(),
        }
    }

    /// Has nothing but a sequence's own tokens decide what its queries read.
    pub(crate) fn deterministic(mut self, deterministic: bool) -> KvStore {
        self.deterministic = deterministic;
        self
    }

    /// Notes how the host's own code computes: what it shapes differs by that in its last bits.
    pub(crate) fn computed_by(mut self, code: String) -> KvStore {
        self.code = code;
        self
    }

    /// Has blocks written anew ahead of time, on a thread of the store's own with `worker` for its kernels,
    /// where the policy's blocks change as they age. Without it, or where the system refuses a thread, they
    /// are written when they are due; what they hold is the same.
    pub(crate) fn with_ahead(mut self, worker: Worker) -> KvStore {
        if self.policy.has_smaller() {
            self.recode_thread = RecodeThread::start(self.shape, worker);
        }
        self
    }

    /// An empty sequence of up to `context` tokens.
    pub(crate) fn table(&self, context: usize, options: SequenceOptions) -> KvTable {
        KvTable::new(Arc::clone(&self.released), context, self.shape.tokens, options)
    }

    /// Sequences that there are.
    pub(super) fn tables(&self) -> usize {
        // Each holds the list that it leaves its blocks in.
        Arc::strong_count(&self.released) - 1
    }

    /// Bytes that a sequence of `tokens` tokens takes at most, in whole blocks.
    pub(crate) fn sequence_bytes(shape: &BlockShape, policy: &KvPolicy, tokens: usize) -> usize {
        // Blocks grow old a block of tokens at a time, and one that is begun is not packed by channel yet.
        let full = tokens / shape.tokens;
        let blocks = (0..tokens.div_ceil(shape.tokens)).map(|block| {
            let codecs = match full.checked_sub(block + 1) {
                Some(newer) => Codecs::new(policy, |tiers| tiers.at(newer * shape.tokens)),
                None => Codecs::new(policy, KvTiers::appended),
            };
            shape.layers * (shape.slot(codecs.keys) + shape.slot(codecs.values))
        });
        blocks.sum()
    }

    /// Begins a step: blocks that it does not touch may be reclaimed.
    pub(crate) fn begin(&mut self, kernels: &Kernels) {
        self.clock += 1;
        self.refresh(kernels);
    }

    /// Lets go of what tables released, and notes which kernels shape blocks.
    pub(crate) fn refresh(&mut self, kernels: &Kernels) {
        self.drain();
        let shaping = kernels.shaping();
        if self.shaping != shaping {
            let KvStore { model, policy, shape, .. } = &*self;
            let origin = |kernels| prefix::origin(model, policy, shape.tokens, &kernels);
            self.origins = shaping.map(origin);
            self.shaping = shaping;
        }
    }

    /// What the keys of a sequence's blocks follow from at the moment.
    pub(super) fn origin(&self, table: &KvTable) -> PrefixKey {
        self.origins[usize::from(table.options.adapter.is_some())]
    }

    /// Which kernels shape a sequence's blocks at the moment.
    pub(super) fn kernels(&self, table: &KvTable) -> [u8; 32] {
        self.shaping[usize::from(table.options.adapter.is_some())]
    }

    /// Whether keys, values and queries are rotated.
    pub(crate) fn rotates(&self) -> bool {
        self.policy.rotate
    }

    /// Lets go of what tables released.
    pub(crate) fn drain(&mut self) {
        let mut ids = std::mem::take(&mut self.drained);
        self.released.swap(&mut ids);
        for id in ids.drain(..) {
            self.release(id);
        }
        self.drained = ids;
    }

    /// Bytes of a sequence's blocks in memory; of those that it shares a part.
    pub(crate) fn held_bytes(&self, table: &KvTable) -> usize {
        let held = |entry: &BlockRef| {
            let block = &self.blocks[entry.id.0 as usize];
            let BlockLocation::Memory(stored) = &block.location else { return 0 };
            let slots = Half::BOTH.map(|half| self.shape.slot(stored.side(half).codec));
            self.shape.layers * slots.iter().sum::<usize>() / block.refs.max(1) as usize
        };
        table.entries.iter().map(held).sum()
    }

    /// Tokens of a sequence before the first block that was given up.
    pub(crate) fn kept(&self, table: &KvTable) -> usize {
        let lost = |entry: &&BlockRef| {
            matches!(
                self.blocks[entry.id.0 as usize].location,
                BlockLocation::Gone | BlockLocation::Vacant
            )
        };
        table.entries.iter().find(lost).map_or(table.computed, |entry| entry.start)
    }

    /// Figures of the moment.
    pub(crate) fn stats(&self) -> KvStats {
        let mut stats = self.stats;
        for block in &self.blocks {
            match &block.location {
                BlockLocation::Memory(stored) => {
                    for half in Half::BOTH {
                        let codec = stored.side(half).codec;
                        let bytes = self.shape.bytes(codec, self.shape.tokens);
                        stats.bytes[codec as usize] += self.shape.layers * bytes;
                    }
                    stats.blocks += 1;
                    stats.shared_blocks += usize::from(block.refs > 1);
                    stats.cached_blocks += usize::from(block.refs == 0);
                }
                BlockLocation::Disk(_) => stats.spilled_blocks += 1,
                BlockLocation::Vacant | BlockLocation::Gone => {}
            }
        }
        stats.ahead_blocks = self.recode_thread.as_ref().map_or(0, RecodeThread::jobs);
        let block = Self::sequence_bytes(&self.shape, &self.policy, self.shape.tokens);
        let usage = self.pool.usage();
        let free = usage.budget - usage.used + usage.kv_lost;
        stats.free_blocks = free / block.max(1);
        stats
    }

    /// Puts other sides in the place of a block's.
    pub(super) fn put(&mut self, id: BlockId, fresh: [Option<Side>; 2]) {
        if let BlockLocation::Memory(stored) = &mut self.blocks[id.0 as usize].location {
            for (half, fresh) in Half::BOTH.into_iter().zip(fresh) {
                if let Some(side) = fresh {
                    *stored.side_mut(half) = side;
                }
            }
        }
    }

    /// Gives up what was written ahead of time, and its memory.
    pub(crate) fn give_up_ahead(&self) {
        if let Some(thread) = &self.recode_thread {
            thread.give_up(u64::MAX);
        }
    }

    /// Memory for a block, if it is free.
    pub(super) fn lease(&self, codecs: Codecs) -> Result<Stored, Exhausted> {
        Ok(Stored::new(self.lease_side(codecs.keys)?, self.lease_side(codecs.values)?))
    }

    pub(super) fn lease_side(&self, codec: KvCodec) -> Result<Side, Exhausted> {
        let lease = self.pool.lease(self.shape.slot(codec), self.shape.layers)?;
        Ok(Side { codec, lease })
    }

    /// Takes up a block of a sequence.
    pub(super) fn add(&mut self, stored: Stored, table: &KvTable) -> BlockId {
        let block = Block {
            location: BlockLocation::Memory(stored),
            refs: 1,
            used: self.clock,
            priority: table.options.priority,
            key: None,
            checkpoint: false,
            tokens: 0,
            isolation: table.isolation,
        };
        match self.vacant.pop() {
            Some(id) => {
                self.blocks[id.0 as usize] = block;
                id
            }
            None => {
                self.blocks.push(block);
                BlockId((self.blocks.len() - 1) as u32)
            }
        }
    }

    /// Gives a sequence a block of its own, `copy`, in place of one that others see.
    pub(super) fn exchange(&mut self, table: &mut KvTable, index: usize, copy: Stored) {
        let original = table.entries[index].id;
        let id = self.add(copy, table);
        self.blocks[id.0 as usize].tokens = self.blocks[original.0 as usize].tokens;
        table.entries[index].id = id;
        self.release(original);
        self.stats.copies += 1;
    }

    /// Counts one reference less; a block that neither tables nor the prefix index refer to is gone.
    pub(super) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.refs -= 1;
        if block.refs == 0 {
            block.priority = 0;
            match &mut block.location {
                // Kept for others who begin alike. It ages no more.
                BlockLocation::Memory(stored) if block.key.is_some() => stored.recode_job = None,
                _ => self.forget(id),
            }
        }
    }

    /// Gives up the numbers of a block that tables refer to; nobody finds it any more.
    pub(super) fn lose(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.location = BlockLocation::Gone;
        if let Some(key) = block.key.take() {
            self.index.remove(&key);
        }
    }

    /// Frees the number of a block that nobody refers to.
    pub(super) fn forget(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.location = BlockLocation::Vacant;
        if let Some(key) = block.key.take() {
            self.index.remove(&key);
        }
        self.vacant.push(id);
    }

    /// A second reference to each of a sequence's blocks.
    pub(crate) fn fork(&mut self, table: &KvTable) -> KvTable {
        let mut fork = self.table(table.context(), table.options.clone());
        fork.evicted = table.evicted;
        fork.isolation = table.isolation;
        for entry in &table.entries {
            self.blocks[entry.id.0 as usize].refs += 1;
            fork.entries.push(entry.clone());
        }
        fork.tokens.extend_from_slice(&table.tokens);
        fork.computed = table.computed;
        fork
    }

    /// Why `needed` bytes cannot be had.
    pub(crate) fn exhausted(&self, needed: usize) -> EngineError {
        let stats = self.stats();
        let usage = self.pool.usage();
        let mut holders = vec![format!(
            "{} bytes of keys and values in {} blocks of sequences",
            stats.total_bytes(),
            stats.blocks
        )];
        holders.extend(usage.describe_holders());
        EngineError::MemoryExhausted { needed, budget: usage.budget, holders: holders.join(", ") }
    }
}

/// Copies the bytes of a block to one of the same codecs.
pub(super) fn copy_block(from: &Stored, to: &mut Stored) {
    for half in Half::BOTH {
        copy_side(from.side(half), to.side_mut(half));
    }
}

/// Copies the bytes of a side to one of the same codec.
pub(super) fn copy_side(from: &Side, to: &mut Side) {
    for (to, from) in to.lease.slots_mut().iter_mut().zip(from.lease.slots()) {
        to.copy_from_slice(from);
    }
}
