//! Making room: what happens to blocks when the pool runs full.
//!
//! Above [`HIGH`] of the budget, what was written ahead of time is given up, which costs nothing but
//! the work (`ahead`). If that is not enough, blocks that the running step does not need are reclaimed
//! until no more than [`LOW`] is used; what follows a means that got below [`HIGH`] is not used before
//! that is crossed again. First they are quantised, as far as the policy goes, but for those before checkpoints that
//! no sequence refers to: packed they would be of no use, so they are given up; then those that no
//! sequence refers to, kept only because others may begin alike, are given up; then those of
//! sequences are spilled to disk, where there is a directory for that, and then evicted. Of each
//! kind those of lower priority go first, then those used longest ago. The gap between the marks
//! keeps a pool that is nearly full from reclaiming a little at every step.
//!
//! Memory is taken in whole pages, so blocks in the emptiest pages are moved together before anything is
//! given up.

use super::block::{Codecs, Half};
use super::store::{BlockLocation, KvKernels, KvStore, copy_block};
use super::table::BlockId;
use crate::kv_policy::KvTiers;

/// Use of the budget at which reclaiming begins, as a share of it.
const HIGH: f64 = 0.85;

/// Use at which it ends.
const LOW: f64 = 0.70;

/// Empty parts of pages that are put up with, as a share of the budget.
const LOST: f64 = 0.05;

impl KvStore {
    /// Reclaims idle blocks if the pool is nearly full.
    pub(super) fn relieve(&mut self, kv_kernels: &mut KvKernels<'_>) {
        if self.is_crowded() {
            self.give_up_ahead();
        }
        if self.is_crowded() {
            self.make_room(
                kv_kernels,
                |store| store.use_of_budget() <= LOW,
                |store| !store.is_crowded(),
            );
        }
    }

    /// Whether the pool is nearly full.
    pub(super) fn is_crowded(&self) -> bool {
        self.use_of_budget() > HIGH
    }

    fn use_of_budget(&self) -> f64 {
        self.pool.used() as f64 / self.pool.budget() as f64
    }

    /// Reclaims idle blocks by one means after the other until there is `enough` room; a means that
    /// achieves what is `bearable` is the last.
    pub(crate) fn make_room(
        &mut self,
        kv_kernels: &mut KvKernels<'_>,
        enough: impl Fn(&KvStore) -> bool,
        bearable: impl Fn(&KvStore) -> bool,
    ) {
        self.drain();
        self.compact();
        if enough(self) {
            return;
        }
        let idle = self.idle();
        if self.policy.has_smaller() && !self.deterministic {
            let smallest = Codecs::new(&self.policy, KvTiers::oldest);
            for &id in &idle {
                let block = &self.blocks[id.0 as usize];
                if block.checkpoint && block.refs == 0 {
                    if self.evict(id) && enough(self) {
                        return;
                    }
                    continue;
                }
                let larger = match &block.location {
                    BlockLocation::Memory(stored) => {
                        stored.codecs().bytes(&self.shape) > smallest.bytes(&self.shape)
                    }
                    _ => false,
                };
                if !larger || (smallest.keys.by_channel() && block.tokens < self.shape.tokens) {
                    continue;
                }
                // A kernel that fails here leaves the block as it was; the next means is left to try.
                if let Ok(Some(packed)) = self.packed(id, smallest, kv_kernels) {
                    self.put(id, packed.sides);
                    self.stats.migrations += 1;
                    self.stats.packed_early += 1;
                    if enough(self) {
                        return;
                    }
                }
            }
            self.compact();
            if bearable(self) {
                return;
            }
        }
        for step in [KvStore::evict_cached, KvStore::spill_block, KvStore::evict] {
            for &id in &idle {
                if step(self, id) && enough(self) {
                    return;
                }
            }
            self.compact();
            if bearable(self) {
                return;
            }
        }
    }

    /// Blocks in memory that the running step does not need, in the order in which they go.
    fn idle(&self) -> Vec<BlockId> {
        let ids = self.blocks.iter().enumerate().filter(|(_, block)| {
            block.used < self.clock && matches!(block.location, BlockLocation::Memory(_))
        });
        let mut ids: Vec<_> = ids.map(|(index, _)| BlockId(index as u32)).collect();
        ids.sort_by_key(|id| {
            let block = &self.blocks[id.0 as usize];
            (block.refs > 0, block.priority, block.used, *id)
        });
        ids
    }

    /// Writes a block to disk and frees its memory; gives whether it did.
    fn spill_block(&mut self, id: BlockId) -> bool {
        let shape = self.shape;
        let block = &mut self.blocks[id.0 as usize];
        let (Some(spill), BlockLocation::Memory(stored)) = (&mut self.spill, &block.location)
        else {
            return false;
        };
        match spill.write(stored, &shape) {
            Ok(spilled) => {
                block.location = BlockLocation::Disk(spilled);
                self.stats.spills += 1;
                true
            }
            // Full or gone: evicting is left, and the figures tell.
            Err(_) => {
                self.stats.spill_failures += 1;
                false
            }
        }
    }

    /// Gives a block up that no sequence refers to.
    fn evict_cached(&mut self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].refs == 0 && self.evict(id)
    }

    /// Gives a block up.
    fn evict(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks[id.0 as usize];
        if !matches!(block.location, BlockLocation::Memory(_)) {
            return false;
        }
        self.stats.evictions += 1;
        if block.refs == 0 {
            self.forget(id);
        } else {
            self.lose(id);
        }
        true
    }

    /// Moves blocks out of the emptiest pages while too much lies idle in pages. What was written ahead
    /// of time is given up: it lies in pages too.
    pub(super) fn compact(&mut self) {
        self.give_up_ahead();
        let mut sparse = Vec::new();
        // What lies in a sparse page has slots in others too, which move with it and leave holes there;
        // each round leaves fewer.
        for _ in 0..6 {
            let lost = self.pool.lost() as f64;
            if lost <= LOST * self.pool.budget() as f64 || !self.pool.mark_sparse(&mut sparse) {
                return;
            }
            for index in 0..self.blocks.len() {
                let BlockLocation::Memory(stored) = &self.blocks[index].location else { continue };
                if !Half::BOTH.iter().any(|&half| stored.side(half).lease.lies_in(&sparse)) {
                    continue;
                }
                let Ok(mut moved) = self.lease(stored.codecs()) else { continue };
                copy_block(stored, &mut moved);
                self.blocks[index].location = BlockLocation::Memory(moved);
                self.stats.moves += 1;
            }
        }
    }
}
