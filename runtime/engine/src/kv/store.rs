//! The store: every block of an engine, who refers to it, and where it is.
//!
//! The store is only used under the engine's lock. A step goes through it like this: [`begin`], then
//! for each sequence [`touch`], [`restore`], [`attach`] and [`extend`]; [`write`](KvStore::write) and
//! [`segments`] for each layer; and once the step is computed, [`settle`].
//!
//! [`begin`]: KvStore::begin
//! [`touch`]: KvStore::touch
//! [`restore`]: KvStore::restore
//! [`attach`]: KvStore::attach
//! [`extend`]: KvStore::extend
//! [`segments`]: KvStore::segments
//! [`settle`]: KvStore::settle

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_native::ThreadPool;
use ruvllm_native::attention::KvSegment;

use super::block::{BlockShape, Codecs, Half, Side, Stored};
use super::policy::KvPolicy;
use super::prefix::{self, PrefixKey};
use super::recode::{Packer, Scratch};
use super::spill::{SpillDir, Ticket};
use super::stats::KvStats;
use super::table::{BlockId, Entry, KvTable, Released, Standing};
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::memory::{Exhausted, MemoryPool, Reservation, Use};

/// What packs blocks: the kernels of the step, and threads for large ones.
pub(crate) struct Means<'a> {
    pub(crate) kernels: &'a mut Kernels,
    pub(crate) pool: &'a ThreadPool,
}

/// A block as the store knows it.
pub(super) struct Block {
    pub(super) place: Place,
    /// Tables that refer to it.
    pub(super) refs: u32,
    /// The step that used it last.
    pub(super) used: u64,
    /// The highest priority of the sequences that used it.
    pub(super) priority: u8,
    /// Its key, where the prefix index leads to it.
    pub(super) key: Option<PrefixKey>,
    /// Tokens that are written in it.
    pub(super) tokens: usize,
}

/// Where a block is.
pub(super) enum Place {
    /// Nowhere: its number is free.
    Vacant,
    Memory(Stored),
    Disk(Ticket),
    /// Given up; whoever refers to it has to compute it again.
    Gone,
}

/// Tokens for whose blocks the heap is asked ahead.
const AHEAD: usize = 4096;

/// All blocks of an engine.
pub(crate) struct KvStore {
    pub(super) shape: BlockShape,
    pub(super) policy: KvPolicy,
    pub(super) pool: Arc<MemoryPool>,
    pub(super) blocks: Vec<Block>,
    vacant: Vec<BlockId>,
    released: Arc<Released>,
    /// An emptied list to exchange for what was released.
    drained: Vec<BlockId>,
    pub(super) index: HashMap<PrefixKey, BlockId>,
    /// The fingerprint of the model.
    pub(super) model: [u8; 32],
    origin: PrefixKey,
    origin_of: Option<[u8; 32]>,
    pub(super) spill: Option<SpillDir>,
    /// The number of the step.
    pub(super) clock: u64,
    pub(super) stats: KvStats,
    pub(super) scratch: Scratch,
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
            origin: [0; 32],
            origin_of: None,
            spill,
            clock: 0,
            stats: KvStats { block_tokens: shape.tokens, ..KvStats::default() },
            scratch: Scratch::default(),
        }
    }

    /// An empty sequence of up to `context` tokens.
    pub(crate) fn table(&self, context: usize, standing: Standing) -> KvTable {
        KvTable::new(Arc::clone(&self.released), context, self.shape.tokens, standing)
    }

    /// Bytes that a sequence of `tokens` tokens takes at most, in whole blocks.
    pub(crate) fn sequence_bytes(shape: &BlockShape, policy: &KvPolicy, tokens: usize) -> usize {
        let blocks = (0..tokens.div_ceil(shape.tokens)).map(|block| {
            let age = tokens.saturating_sub((block + 1) * shape.tokens);
            let (keys, values) = (policy.keys.at(age), policy.values.at(age));
            shape.layers * (shape.slot(keys) + shape.slot(values))
        });
        blocks.sum()
    }

    /// Begins a step: lets go of what tables released since the last, and notes which kernels shape
    /// blocks.
    pub(crate) fn begin(&mut self, kernels: &Kernels) {
        self.clock += 1;
        self.drain();
        let fingerprint = kernels.kv_fingerprint();
        if self.origin_of != Some(fingerprint) {
            self.origin =
                prefix::origin(&self.model, &self.policy, self.shape.tokens, &fingerprint);
            self.origin_of = Some(fingerprint);
        }
    }

    /// Which kernels shape blocks at the moment.
    pub(super) fn kernels(&self) -> [u8; 32] {
        self.origin_of.unwrap_or_default()
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

    /// Figures of the moment.
    pub(crate) fn stats(&self) -> KvStats {
        let mut stats = self.stats;
        for block in &self.blocks {
            match &block.place {
                Place::Memory(stored) => {
                    for side in [&stored.keys, &stored.values] {
                        let bytes = self.shape.bytes(side.codec, self.shape.tokens);
                        stats.bytes[side.codec as usize] += self.shape.layers * bytes;
                    }
                    stats.blocks += 1;
                    stats.shared_blocks += usize::from(block.refs > 1);
                    stats.cached_blocks += usize::from(block.refs == 0);
                }
                Place::Disk(_) => stats.spilled_blocks += 1,
                Place::Vacant | Place::Gone => {}
            }
        }
        let block = Self::sequence_bytes(&self.shape, &self.policy, self.shape.tokens);
        let usage = self.pool.usage();
        let free = usage.budget - usage.used + usage.kv_lost;
        stats.free_blocks = free / block.max(1);
        stats
    }

    /// Marks a sequence's blocks as needed in this step.
    pub(crate) fn touch(&mut self, table: &KvTable) {
        for entry in &table.entries {
            let block = &mut self.blocks[entry.id.0 as usize];
            block.used = self.clock;
            block.priority = block.priority.max(table.standing.priority);
        }
    }

    /// Reads a sequence's spilled blocks back. Lets go of the first block that is lost and of all
    /// after it; the sequence's tokens from there on have to be computed again.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`] where there is no room for them.
    pub(crate) fn restore(
        &mut self,
        table: &mut KvTable,
        means: &mut Means<'_>,
    ) -> Result<(), EngineError> {
        for index in 0..table.entries.len() {
            let Entry { id, start, .. } = table.entries[index];
            let block = &mut self.blocks[id.0 as usize];
            let ticket = match std::mem::replace(&mut block.place, Place::Gone) {
                Place::Disk(ticket) => ticket,
                Place::Memory(stored) => {
                    block.place = Place::Memory(stored);
                    continue;
                }
                Place::Vacant | Place::Gone => {
                    self.give_up(table, start);
                    return Ok(());
                }
            };
            let mut stored = match self.room(ticket.codecs(), means) {
                Ok(stored) => stored,
                Err(error) => {
                    self.blocks[id.0 as usize].place = Place::Disk(ticket);
                    return Err(error);
                }
            };
            let shape = self.shape;
            let read = self.spill.as_ref().map(|spill| spill.read(&ticket, &shape, &mut stored));
            if !matches!(read, Some(Ok(()))) {
                // Damaged or unreadable: computing it again is always right.
                self.give_up(table, start);
                return Ok(());
            }
            self.blocks[id.0 as usize].place = Place::Memory(stored);
            self.stats.restores += 1;
        }
        Ok(())
    }

    /// Lets go of a sequence's blocks from position `start` on, which will be computed again.
    fn give_up(&mut self, table: &mut KvTable, start: usize) {
        self.stats.recomputed_tokens += (table.computed - start) as u64;
        table.uncompute(start);
        self.drain();
    }

    /// Adds blocks that others have computed for the same beginning, as far as they go, and gives the
    /// number of tokens that they hold; `tokens` are those that the sequence goes on with.
    pub(crate) fn attach(&mut self, table: &mut KvTable, tokens: &[u32]) -> usize {
        let Some(scope) = table.standing.scope else { return 0 };
        if tokens.len() < self.shape.tokens || table.computed % self.shape.tokens != 0 {
            return 0;
        }
        let Some(mut before) = chain(&table.entries, scope) else { return 0 };
        let mut found = 0;
        for run in tokens.chunks_exact(self.shape.tokens) {
            let key = prefix::extend(&self.origin, &before, run);
            let Some(&id) = self.index.get(&key) else { break };
            let block = &mut self.blocks[id.0 as usize];
            block.refs += 1;
            block.used = self.clock;
            block.priority = block.priority.max(table.standing.priority);
            let entry = Entry { id, start: table.computed, len: run.len(), key: Some(key) };
            table.entries.push(entry);
            table.commit(run);
            found += run.len();
            before = key;
        }
        self.stats.prefix_hit_tokens += found as u64;
        self.stats.prefix_miss_tokens += (tokens.len() - found) as u64;
        found
    }

    /// Takes from the heap what the blocks of a growing sequence will need of it, up to some thousand
    /// tokens ahead, so that decoding them does not.
    fn stock(&mut self, table: &KvTable) {
        let ahead = (table.context() - table.computed).min(AHEAD) / self.shape.tokens + 2;
        let sides = [&self.policy.keys, &self.policy.values];
        for codec in sides.into_iter().flat_map(|tiers| tiers.codecs().chain([tiers.appended()])) {
            self.pool.stock(self.shape.slot(codec), self.shape.layers, 2 * ahead);
        }
        self.blocks.reserve(ahead);
        self.vacant.reserve(self.blocks.len() + ahead);
        self.index.reserve(ahead);
    }

    /// Makes room for `extra` tokens after those that are computed.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`], with the table as far as it came; the caller lets go of that
    /// with [`KvTable::uncompute`].
    pub(crate) fn extend(
        &mut self,
        table: &mut KvTable,
        extra: usize,
        means: &mut Means<'_>,
    ) -> Result<(), EngineError> {
        let end = table.computed + extra;
        let appended =
            Codecs { keys: self.policy.keys.appended(), values: self.policy.values.appended() };
        if extra > 1 {
            self.stock(table);
        }
        let mut at = table.computed;
        if at < end {
            at += self.reopen(table, end - at, appended, means)?;
        }
        while at < end {
            let len = self.shape.tokens.min(end - at);
            let codecs = if len == self.shape.tokens {
                let age = end - at - len;
                Codecs { keys: self.policy.keys.at(age), values: self.policy.values.at(age) }
            } else {
                appended
            };
            let stored = self.room(codecs, means)?;
            let id = self.add(stored, table.standing.priority);
            table.entries.push(Entry { id, start: at, len, key: None });
            at += len;
        }
        Ok(())
    }

    /// Takes up to `extra` tokens into the last block, where it has room and can be appended to; gives
    /// how many. A block that others see is copied first.
    fn reopen(
        &mut self,
        table: &mut KvTable,
        extra: usize,
        appended: Codecs,
        means: &mut Means<'_>,
    ) -> Result<usize, EngineError> {
        let Some(last) = table.entries.last() else { return Ok(0) };
        let (id, len) = (last.id, last.len);
        let block = &self.blocks[id.0 as usize];
        let fits = matches!(&block.place, Place::Memory(stored) if stored.codecs() == appended);
        if len == self.shape.tokens || !fits {
            return Ok(0);
        }
        let shared = block.refs > 1 || block.key.is_some();
        let id = if shared {
            let mut copy = self.room(appended, means)?;
            // The original is pinned by this step, so making room has not moved it away.
            if let Place::Memory(original) = &self.blocks[id.0 as usize].place {
                copy_block(original, &mut copy);
            }
            let copy = self.add(copy, table.standing.priority);
            self.release(id);
            self.stats.copies += 1;
            copy
        } else {
            id
        };
        let taken = extra.min(self.shape.tokens - len);
        if let Some(last) = table.entries.last_mut() {
            *last = Entry { id, len: len + taken, key: None, ..*last };
        }
        Ok(taken)
    }

    /// Stores rows `[n, kv_dim]` of a layer as those of the tokens that the step adds.
    pub(crate) fn write(
        &mut self,
        table: &KvTable,
        layer: usize,
        half: Half,
        mut rows: &[f32],
        means: &mut Means<'_>,
    ) -> Result<(), EngineError> {
        let shape = self.shape;
        let first = table.entries.partition_point(|entry| entry.end() <= table.computed);
        for entry in &table.entries[first..] {
            let at = table.computed.saturating_sub(entry.start);
            let (now, rest) = rows.split_at((entry.len - at) * shape.kv_dim);
            rows = rest;
            let block = &mut self.blocks[entry.id.0 as usize];
            let Place::Memory(stored) = &mut block.place else { continue };
            let Means { kernels, pool } = &mut *means;
            let mut packer = Packer { kernels, pool, scratch: &mut self.scratch };
            packer.write(&shape, stored.side_mut(half), layer, at, now)?;
            block.tokens = entry.len;
        }
        Ok(())
    }

    /// What attention reads of a sequence in a layer, from position `first` on.
    pub(crate) fn segments<'a>(
        &'a self,
        table: &KvTable,
        layer: usize,
        first: usize,
        segments: &mut Vec<KvSegment<'a>>,
    ) {
        let from = table.entries.partition_point(|entry| entry.end() <= first);
        for entry in &table.entries[from..] {
            if let Place::Memory(stored) = &self.blocks[entry.id.0 as usize].place {
                segments.push(stored.segment(&self.shape, layer, entry.start, entry.len));
            }
        }
    }

    /// Puts a sequence's blocks in order after a step: full ones can be found by others, and those that
    /// have grown old get their codec. Blocks that several sequences share keep theirs, since they
    /// cost each sequence little.
    ///
    /// # Errors
    /// Failures of kernels; the block in question is then as it was.
    pub(crate) fn settle(
        &mut self,
        table: &mut KvTable,
        added: usize,
        means: &mut Means<'_>,
    ) -> Result<(), EngineError> {
        // Nothing is full or old that was not before, unless a block was filled.
        if table.computed / self.shape.tokens == (table.computed - added) / self.shape.tokens {
            return Ok(());
        }
        self.publish(table);
        if !self.policy.migrates() {
            return Ok(());
        }
        for entry in &table.entries {
            if entry.len < self.shape.tokens {
                continue;
            }
            let age = table.computed - entry.end();
            let codecs =
                Codecs { keys: self.policy.keys.at(age), values: self.policy.values.at(age) };
            let block = &self.blocks[entry.id.0 as usize];
            let Place::Memory(stored) = &block.place else { continue };
            // Never to more bits: what was given up under pressure does not come back.
            let smaller = codecs.bytes(&self.shape) < stored.codecs().bytes(&self.shape);
            if smaller && block.refs == 1 {
                self.migrate(entry.id, codecs, means)?;
            }
        }
        Ok(())
    }

    /// Enters a sequence's full blocks in the prefix index.
    pub(super) fn publish(&mut self, table: &mut KvTable) {
        let Some(mut before) = table.standing.scope else { return };
        let computed = table.computed;
        let gap = table.gap;
        for entry in &mut table.entries {
            // What follows forgotten tokens was computed with them, so no key stands for it.
            let behind = gap.len > 0 && entry.start >= gap.at;
            if entry.len < self.shape.tokens || entry.end() > computed || behind {
                break;
            }
            let key = *entry.key.get_or_insert_with(|| {
                let tokens = &table.tokens[entry.start..entry.start + entry.len];
                let key = prefix::extend(&self.origin, &before, tokens);
                // Whoever was first serves all; blocks are not exchanged under a running sequence.
                if let std::collections::hash_map::Entry::Vacant(vacant) = self.index.entry(key) {
                    vacant.insert(entry.id);
                    self.blocks[entry.id.0 as usize].key = Some(key);
                }
                key
            });
            before = key;
        }
    }

    /// Writes a block anew in other codecs, if there is room for both; gives whether there was.
    pub(super) fn migrate(
        &mut self,
        id: BlockId,
        codecs: Codecs,
        means: &mut Means<'_>,
    ) -> Result<bool, EngineError> {
        let start = Instant::now();
        let Ok(mut fresh) = self.lease(codecs) else { return Ok(false) };
        let shape = self.shape;
        let block = &mut self.blocks[id.0 as usize];
        let Place::Memory(stored) = &mut block.place else { return Ok(false) };
        let Means { kernels, pool } = means;
        let mut packer = Packer { kernels, pool, scratch: &mut self.scratch };
        for half in Half::BOTH {
            let (from, to) = (stored.side(half), fresh.side_mut(half));
            if from.codec == to.codec {
                // Not even to be copied.
                std::mem::swap(stored.side_mut(half), fresh.side_mut(half));
                continue;
            }
            for layer in 0..shape.layers {
                packer.recode(&shape, layer, block.tokens, from, to)?;
            }
        }
        *stored = fresh;
        self.stats.migrations += 1;
        self.stats.migration_ns += start.elapsed().as_nanos() as u64;
        Ok(true)
    }

    /// Memory for a block, made free if need be.
    pub(super) fn room(
        &mut self,
        codecs: Codecs,
        means: &mut Means<'_>,
    ) -> Result<Stored, EngineError> {
        self.relieve(means);
        if let Ok(stored) = self.lease(codecs) {
            return Ok(stored);
        }
        let fits = |store: &KvStore| store.lease(codecs).is_ok();
        self.make_room(means, fits, fits);
        self.lease(codecs).map_err(|Exhausted| {
            let slots = self.shape.slot(codecs.keys) + self.shape.slot(codecs.values);
            self.exhausted(self.shape.layers * slots)
        })
    }

    /// Counts memory that lives elsewhere, made free if need be.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`].
    pub(crate) fn reserve(
        &mut self,
        kind: Use,
        owner: &str,
        priority: u8,
        bytes: usize,
        means: &mut Means<'_>,
    ) -> Result<Reservation, EngineError> {
        // Between steps, none of which needs anything.
        self.clock += 1;
        if bytes > self.pool.free() {
            let fits = |store: &KvStore| bytes <= store.pool.free();
            self.make_room(means, fits, fits);
        }
        let reserved = self.pool.reserve(kind, owner, priority, bytes);
        reserved.map_err(|Exhausted| self.exhausted(bytes))
    }

    /// Memory for a block, if it is free.
    pub(super) fn lease(&self, codecs: Codecs) -> Result<Stored, Exhausted> {
        let side = |codec| {
            let lease = self.pool.lease(self.shape.slot(codec), self.shape.layers)?;
            Ok(Side { codec, lease })
        };
        Ok(Stored { keys: side(codecs.keys)?, values: side(codecs.values)? })
    }

    pub(super) fn add(&mut self, stored: Stored, priority: u8) -> BlockId {
        let block = Block {
            place: Place::Memory(stored),
            refs: 1,
            used: self.clock,
            priority,
            key: None,
            tokens: 0,
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

    /// Counts one reference less; a block that neither tables nor the prefix index refer to is gone.
    pub(super) fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.refs -= 1;
        if block.refs == 0 {
            block.priority = 0;
            if block.key.is_none() || !matches!(block.place, Place::Memory(_)) {
                self.forget(id);
            }
        }
    }

    /// Frees the number of a block that nobody refers to.
    pub(super) fn forget(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.place = Place::Vacant;
        if let Some(key) = block.key.take() {
            self.index.remove(&key);
        }
        self.vacant.push(id);
    }

    /// A second reference to each of a sequence's blocks.
    pub(crate) fn fork(&mut self, table: &KvTable) -> KvTable {
        let mut fork = self.table(table.context(), table.standing.clone());
        fork.gap = table.gap;
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
        holders.extend(usage.holders.iter().map(|holder| {
            format!("{} bytes of {} memory by {}", holder.bytes, holder.kind.name(), holder.owner)
        }));
        EngineError::MemoryExhausted { needed, budget: usage.budget, holders: holders.join(", ") }
    }
}

/// The key that the next block's follows: the last block's, or the scope before the first. `None` where
/// the chain is broken.
fn chain(entries: &[Entry], scope: PrefixKey) -> Option<PrefixKey> {
    match entries.last() {
        Some(last) => last.key,
        None => Some(scope),
    }
}

/// Copies the bytes of a block to one of the same codecs.
pub(super) fn copy_block(from: &Stored, to: &mut Stored) {
    for half in Half::BOTH {
        let slots = from.side(half).lease.slots();
        for (to, from) in to.side_mut(half).lease.slots_mut().iter_mut().zip(slots) {
            to.copy_from_slice(from);
        }
    }
}
