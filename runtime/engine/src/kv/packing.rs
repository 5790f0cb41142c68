//! Blocks in other codecs.

use std::time::Instant;

use super::ahead::RecodedSides;
use super::block::{Codecs, Half, Side};
use super::recode::Packer;
use super::store::{BlockLocation, KvKernels, KvStore};
use super::table::BlockId;
use crate::error::EngineError;
use crate::memory::Exhausted;

/// A block in other codecs.
pub(super) struct Packed {
    /// By half, the sides that change.
    pub(super) sides: [Option<Side>; 2],
    /// Whether they were written ahead of time.
    pub(super) ahead: bool,
}

impl KvStore {
    /// A block in other codecs, written now if it was not ahead of time; `None` where there is no room for it.
    pub(super) fn packed(
        &mut self,
        id: BlockId,
        codecs: Codecs,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<Option<Packed>, EngineError> {
        let BlockLocation::Memory(stored) = &mut self.blocks[id.0 as usize].location else {
            return Ok(None);
        };
        let handle = stored.recode_job.take();
        let written = handle.and_then(|handle| handle.join(codecs, kv_kernels.kernels.pinned()));
        let ahead = written.is_some();
        let (sides, took) = match written {
            Some(written) => written,
            None => match self.recode(id, codecs, kv_kernels)? {
                Some(written) => written,
                None => return Ok(None),
            },
        };
        self.stats.migration_ns += took.as_nanos() as u64;
        Ok(Some(Packed { sides, ahead }))
    }

    /// Writes the sides of a block anew that have another codec, if there is memory for them, and gives
    /// them with the time that it took.
    fn recode(
        &mut self,
        id: BlockId,
        codecs: Codecs,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<Option<RecodedSides>, EngineError> {
        let start = Instant::now();
        let mut fresh = [None, None];
        let block = &self.blocks[id.0 as usize];
        let BlockLocation::Memory(stored) = &block.location else { return Ok(None) };
        for (half, fresh) in Half::BOTH.into_iter().zip(&mut fresh) {
            let from = stored.side(half);
            if from.codec == codecs.of(half) {
                continue;
            }
            let lease = || self.lease_side(codecs.of(half));
            let leased = lease().or_else(|Exhausted| {
                self.give_up_ahead();
                lease()
            });
            let Ok(mut to) = leased else { return Ok(None) };
            let KvKernels { kernels, pool } = &mut *kv_kernels;
            let (scope, scratch) = (block.isolation, &mut self.scratch);
            let mut packer = Packer { kernels, pool, scope, scratch };
            packer.recode(&self.shape, block.tokens, from, &mut to)?;
            *fresh = Some(to);
        }
        Ok(Some((fresh, start.elapsed())))
    }
}
