//! A step's way through the store.
//!
//! After [`KvStore::begin`], for each sequence [`touch`], [`restore`], [`attach`] and [`extend`];
//! [`write`](KvStore::write) and [`segments`] for each layer; and once the step is computed, [`settle`].
//!
//! [`touch`]: KvStore::touch
//! [`restore`]: KvStore::restore
//! [`attach`]: KvStore::attach
//! [`extend`]: KvStore::extend
//! [`segments`]: KvStore::segments
//! [`settle`]: KvStore::settle

use super::block::{Codecs, Half};
use super::prefix::{self, PrefixKey};
use super::recode::Packer;
use super::store::{BlockLocation, KvKernels, KvStore};
use super::table::{BlockId, BlockRef, KvTable};
use crate::error::EngineError;
use crate::kv_policy::KvTiers;

/// Tokens of a sequence for whose blocks the heap is asked ahead.
const AHEAD: usize = 4096;

/// Sequences for which it is.
const FEW: usize = 16;

impl KvStore {
    /// Marks a sequence's blocks as needed in this step.
    pub(crate) fn touch(&mut self, table: &KvTable) {
        for entry in &table.entries {
            let block = &mut self.blocks[entry.id.0 as usize];
            block.used = self.clock;
            block.priority = block.priority.max(table.options.priority);
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
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        for index in 0..table.entries.len() {
            let BlockRef { id, start, .. } = table.entries[index];
            if !self.fetch(id, kv_kernels)? {
                self.give_up(table, start);
                break;
            }
        }
        let computed = table.computed;
        self.keep_exact(table);
        self.stats.recomputed_tokens += (computed - table.computed) as u64;
        self.drain();
        Ok(())
    }

    /// Reads a block back if it is on disk; gives whether it is in memory then. What cannot be read is
    /// gone: computing it again is always right.
    fn fetch(&mut self, id: BlockId, kv_kernels: &mut KvKernels<'_>) -> Result<bool, EngineError> {
        let codecs = match &self.blocks[id.0 as usize].location {
            BlockLocation::Memory(_) => return Ok(true),
            BlockLocation::Disk(spilled) => spilled.codecs(),
            BlockLocation::Vacant | BlockLocation::Gone => return Ok(false),
        };
        let mut stored = self.room(codecs, kv_kernels)?;
        let location = &mut self.blocks[id.0 as usize].location;
        let read = match (&*location, &self.spill) {
            (BlockLocation::Disk(spilled), Some(spill)) => {
                spill.read(spilled, &self.shape, &mut stored).is_ok()
            }
            _ => false,
        };
        if !read {
            self.lose(id);
            return Ok(false);
        }
        *location = BlockLocation::Memory(stored);
        self.stats.restores += 1;
        Ok(true)
    }

    /// Lets go of a sequence's blocks from position `start` on, which will be computed again.
    fn give_up(&mut self, table: &mut KvTable, start: usize) {
        self.stats.recomputed_tokens += (table.computed - start) as u64;
        table.uncompute(start);
        self.drain();
    }

    /// Adds blocks that others have computed for the same beginning, as far as they go, and gives the
    /// number of tokens that they hold; `tokens` are those that the sequence goes on with, and the rest
    /// of them is computed.
    pub(crate) fn attach(
        &mut self,
        table: &mut KvTable,
        tokens: &[u32],
        kv_kernels: &mut KvKernels<'_>,
    ) -> usize {
        let Some(found) = self.adopt(table, tokens, kv_kernels) else { return 0 };
        self.stats.prefix_miss_tokens += (tokens.len() - found) as u64;
        found
    }

    /// As [`KvStore::attach`], for tokens that are not computed yet; `None` where nothing is looked for.
    pub(crate) fn adopt(
        &mut self,
        table: &mut KvTable,
        tokens: &[u32],
        kv_kernels: &mut KvKernels<'_>,
    ) -> Option<usize> {
        let scope = table.options.scope?;
        if tokens.len() < self.shape.tokens || !table.computed.is_multiple_of(self.shape.tokens) {
            return None;
        }
        let mut before = chain(&table.entries, scope)?;
        let origin = self.origin(table);
        let (mut keys, mut blocks) = (Vec::new(), Vec::new());
        let mut end = table.computed;
        for run in tokens.chunks_exact(self.shape.tokens) {
            let key = prefix::extend(&origin, &before, run);
            let Some(codecs) = self.find(&key).and_then(|id| self.codecs(id)) else { break };
            end += run.len();
            keys.push(key);
            blocks.push((end, codecs));
            before = key;
        }
        let count = self.exact(&blocks);
        if count < blocks.len() {
            // Others may part here as this one did.
            table.expect_parting(end);
        }
        let mut found = 0;
        for (key, run) in keys.into_iter().zip(tokens.chunks_exact(self.shape.tokens)).take(count) {
            let Some(id) = self.find(&key) else { break };
            let block = &mut self.blocks[id.0 as usize];
            block.refs += 1;
            block.used = self.clock;
            block.priority = block.priority.max(table.options.priority);
            if !matches!(self.fetch(id, kv_kernels), Ok(true)) {
                self.release(id);
                break;
            }
            let entry = BlockRef { id, start: table.computed, len: run.len(), key: Some(key) };
            table.entries.push(entry);
            table.commit(run);
            found += run.len();
        }
        self.stats.prefix_hit_tokens += found as u64;
        Some(found)
    }

    /// The block of a key, or where that was given up, what has been packed of it.
    fn find(&self, key: &PrefixKey) -> Option<BlockId> {
        let oldest = Codecs::new(&self.policy, KvTiers::oldest);
        let packed = || self.index.get(&prefix::packed(key, oldest));
        self.index.get(key).or_else(packed).copied()
    }

    /// Takes from the heap what the blocks of growing sequences will need of it, up to some thousand
    /// tokens ahead for a few of them, so that decoding them does not.
    fn stock(&mut self, table: &KvTable) {
        // A block that is begun at either end; and for two that are written ahead, a copy and a new one.
        let spare = if self.recode_thread.is_some() { 6 } else { 2 };
        let each = (table.context() - table.computed).min(AHEAD) / self.shape.tokens + spare;
        let ahead = each * self.tables().min(FEW);
        let sides = [&self.policy.keys, &self.policy.values];
        for codec in sides.into_iter().flat_map(KvTiers::stored) {
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
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        let end = table.computed + extra;
        let appended = Codecs::new(&self.policy, KvTiers::appended);
        if extra > 1 {
            self.stock(table);
        }
        let mut at = table.computed;
        if at < end {
            at += self.reopen(table, end - at, appended, kv_kernels)?;
        }
        while at < end {
            let len = self.shape.tokens.min(end - at);
            let stored = self.room(appended, kv_kernels)?;
            let id = self.add(stored, table);
            table.entries.push(BlockRef { id, start: at, len, key: None });
            at += len;
        }
        self.make_versions(table, end, kv_kernels)
    }

    /// Takes up to `extra` tokens into the last block, where it has room and can be appended to; gives
    /// how many. A block that others see is copied first.
    fn reopen(
        &mut self,
        table: &mut KvTable,
        extra: usize,
        appended: Codecs,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<usize, EngineError> {
        let Some(last) = table.entries.last() else { return Ok(0) };
        let (id, len) = (last.id, last.len);
        let block = &self.blocks[id.0 as usize];
        let fits =
            matches!(&block.location, BlockLocation::Memory(stored) if stored.codecs() == appended);
        if len == self.shape.tokens || !fits {
            return Ok(0);
        }
        let shared = block.refs > 1 || block.key.is_some();
        if shared {
            let last = table.entries.len() - 1;
            let copy = self.copy(table, last, kv_kernels)?;
            self.exchange(table, last, copy);
        }
        let taken = extra.min(self.shape.tokens - len);
        if let Some(last) = table.entries.last_mut() {
            (last.len, last.key) = (len + taken, None);
        }
        Ok(taken)
    }

    /// Stores rows `[n, kv_dim]` of a layer as those of the tokens that the step adds, in every version that its
    /// queries read.
    pub(crate) fn write(
        &mut self,
        table: &mut KvTable,
        layer: usize,
        half: Half,
        mut rows: &[f32],
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        let shape = self.shape;
        let first = table.entries.partition_point(|entry| entry.end() <= table.computed);
        for entry in &table.entries[first..] {
            let at = table.computed.saturating_sub(entry.start);
            let (now, rest) = rows.split_at((entry.len - at) * shape.kv_dim);
            rows = rest;
            let block = &mut self.blocks[entry.id.0 as usize];
            let BlockLocation::Memory(stored) = &mut block.location else {
                return Err(EngineError::KvBlockMissing { position: entry.start });
            };
            let KvKernels { kernels, pool } = &mut *kv_kernels;
            let (scope, scratch) = (table.isolation, &mut self.scratch);
            let mut packer = Packer { kernels, pool, scope, scratch };
            packer.write(&shape, stored.side_mut(half), layer, at, now)?;
            block.tokens = entry.len;
        }
        self.pack_versions(table, layer, half, kv_kernels)
    }

    /// Puts a sequence's blocks in order after a step: full ones can be found by others, and those that
    /// have grown old get their codec. Of a block that others see the sequence gets a copy in it.
    ///
    /// # Errors
    /// Failures of kernels; the block in question is then as it was.
    pub(crate) fn settle(
        &mut self,
        table: &mut KvTable,
        added: usize,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        // Nothing is full or old that was not before, unless a block was filled.
        let tokens = self.shape.tokens;
        let filled = table.computed / tokens != (table.computed - added) / tokens;
        // Before blocks are packed, since those before a checkpoint are not.
        if filled || !table.versions.is_empty() {
            self.publish(table);
        }
        self.adopt_versions(table, kv_kernels)?;
        if !filled || !self.policy.migrates() {
            return Ok(());
        }
        let boundary = table.computed / self.shape.tokens * self.shape.tokens;
        for index in 0..table.entries.len() {
            if self.take_packed(table, index, boundary) {
                continue;
            }
            let entry = &table.entries[index];
            match self.due(entry, boundary) {
                Some(codecs) => drop(self.migrate(table, index, codecs, kv_kernels)?),
                None => self.forgo(entry.id),
            }
        }
        for entry in &table.entries {
            let due = self.due(entry, boundary + self.shape.tokens);
            if let Some(codecs) = due.filter(|_| self.blocks[entry.id.0 as usize].refs == 1) {
                self.write_ahead(entry.id, codecs, kv_kernels.kernels);
            }
        }
        Ok(())
    }

    /// Gives up what was written ahead of time for a block that is not due when it was to be.
    fn forgo(&mut self, id: BlockId) {
        if let BlockLocation::Memory(stored) = &mut self.blocks[id.0 as usize].location {
            stored.recode_job = None;
        }
    }

    /// Whether a block that ends at `end` is among those that queries right behind a checkpoint of the sequence read
    /// in more bits than later ones do.
    fn is_before_checkpoint(&self, table: &KvTable, end: usize) -> bool {
        // A block more, since templates begin an answer in ways that the next turn need not repeat.
        let young = self.young() + self.shape.tokens;
        let is_near = |&at: &usize| {
            let boundary = at / self.shape.tokens * self.shape.tokens;
            boundary.checked_sub(end).is_some_and(|distance| distance < young)
        };
        self.policy.has_smaller() && table.checkpoints.iter().any(is_near)
    }

    /// Enters a sequence's full blocks in the prefix index, and marks those before its checkpoints.
    pub(super) fn publish(&mut self, table: &mut KvTable) {
        let Some(mut before) = table.options.scope else { return };
        let computed = table.computed;
        let evicted = table.evicted;
        let origin = self.origin(table);
        for index in 0..table.entries.len() {
            let entry = &table.entries[index];
            // What follows forgotten tokens was computed with them, so no key stands for it.
            let behind = evicted.len > 0 && entry.start >= evicted.at;
            if entry.len < self.shape.tokens || entry.end() > computed || behind {
                break;
            }
            let before_checkpoint = self.is_before_checkpoint(table, entry.end());
            let key = entry.key.unwrap_or_else(|| {
                let tokens = &table.tokens[entry.start..entry.end()];
                let key = prefix::extend(&origin, &before, tokens);
                self.enter(entry.id, key, before_checkpoint);
                key
            });
            if let Some(id) = self.index.get(&key).filter(|_| before_checkpoint) {
                self.blocks[id.0 as usize].checkpoint = true;
            }
            table.entries[index].key = Some(key);
            before = key;
        }
        table.checkpoints.retain(|&checkpoint| checkpoint > computed);
    }

    /// Has the prefix index lead to a block, unless it leads to another. Whoever was first serves all, and blocks are
    /// not exchanged under a running sequence; but a block before a checkpoint takes the place of one of fewer bits.
    fn enter(&mut self, id: BlockId, key: PrefixKey, before_checkpoint: bool) {
        if let Some(&other) = self.index.get(&key) {
            let codecs = self.codecs(other).zip(self.codecs(id));
            let is_smaller = codecs.is_some_and(|(other, own)| other.has_fewer_bits(own));
            if !before_checkpoint || !is_smaller {
                return;
            }
            let replaced = &mut self.blocks[other.0 as usize];
            (replaced.key, replaced.checkpoint) = (None, false);
            if replaced.refs == 0 {
                self.forget(other);
            }
        }
        self.index.insert(key, id);
        self.blocks[id.0 as usize].key = Some(key);
    }
}

/// The key that the next block's follows: the last block's, or the scope before the first. `None` where
/// the chain is broken.
fn chain(entries: &[BlockRef], scope: PrefixKey) -> Option<PrefixKey> {
    match entries.last() {
        Some(last) => last.key,
        None => Some(scope),
    }
}
