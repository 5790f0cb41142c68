//! Memory for blocks and for what else an engine holds, which is made free if need be.

use super::block::Codecs;
use super::store::{BlockLocation, KvKernels, KvStore, copy_block};
use super::stored::Stored;
use super::table::{BlockRef, KvTable};
use crate::error::EngineError;
use crate::memory::{Exhausted, Reservation, Use};

impl KvStore {
    /// Memory for a block, made free if need be.
    pub(super) fn room(
        &mut self,
        codecs: Codecs,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<Stored, EngineError> {
        self.relieve(kv_kernels);
        let slots = self.shape.slot(codecs.keys) + self.shape.slot(codecs.values);
        self.leased(self.shape.layers * slots, |store| store.lease(codecs), kv_kernels)
    }

    /// What `lease` gives, of `needed` bytes, made free if need be.
    pub(super) fn leased<T>(
        &mut self,
        needed: usize,
        lease: impl Fn(&KvStore) -> Result<T, Exhausted>,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<T, EngineError> {
        if let Ok(leased) = lease(self) {
            return Ok(leased);
        }
        let fits = |store: &KvStore| lease(store).is_ok();
        self.make_room(kv_kernels, fits, fits);
        lease(self).map_err(|Exhausted| self.exhausted(needed))
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
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<Reservation, EngineError> {
        // Between steps, none of which needs anything.
        self.clock += 1;
        if bytes > self.pool.free() {
            let fits = |store: &KvStore| bytes <= store.pool.free();
            self.make_room(kv_kernels, fits, fits);
        }
        let reserved = self.pool.reserve(kind, owner, priority, bytes);
        reserved.map_err(|Exhausted| self.exhausted(bytes))
    }

    /// A copy of a sequence's block, which the step has pinned.
    pub(super) fn copy(
        &mut self,
        table: &KvTable,
        index: usize,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<Stored, EngineError> {
        let BlockRef { id, start, .. } = table.entries[index];
        let missing = EngineError::KvBlockMissing { position: start };
        let BlockLocation::Memory(original) = &self.blocks[id.0 as usize].location else {
            return Err(missing);
        };
        let mut copy = self.room(original.codecs(), kv_kernels)?;
        // Making room has not moved away what is pinned.
        let BlockLocation::Memory(original) = &self.blocks[id.0 as usize].location else {
            return Err(missing);
        };
        copy_block(original, &mut copy);
        Ok(copy)
    }
}
