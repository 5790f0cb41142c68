//! Which blocks the store has written anew ahead of time ([`super::ahead`]).

use super::ahead::{RecodeJob, SideRecode};
use super::block::{Codecs, Half};
use super::store::{BlockLocation, KvStore, copy_side};
use super::table::BlockId;
use crate::kernels::Kernels;

impl KvStore {
    /// Hands a copy of a block to the thread, where there is memory to spare for it. In a pool that is
    /// nearly full there is none: what would have to be given up again is not begun.
    pub(super) fn write_ahead(&mut self, id: BlockId, codecs: Codecs, kernels: &Kernels) {
        // A sequence that is decoded gets to its next boundary in that many steps.
        let stale = self.clock.saturating_sub(self.shape.tokens as u64);
        let block = &self.blocks[id.0 as usize];
        let (Some(thread), BlockLocation::Memory(stored)) = (&self.recode_thread, &block.location)
        else {
            return;
        };
        if !thread.has_room(stale) {
            return;
        }
        let mut recodes = [None, None];
        for (half, recode) in Half::BOTH.into_iter().zip(&mut recodes) {
            let side = stored.side(half);
            if side.codec == codecs.of(half) {
                continue;
            }
            let leased = (self.lease_side(side.codec), self.lease_side(codecs.of(half)));
            let (Ok(from), Ok(to)) = leased else { return };
            *recode = Some(SideRecode { from, to });
        }
        if self.is_crowded() {
            return;
        }
        for (half, recode) in Half::BOTH.into_iter().zip(&mut recodes) {
            if let Some(SideRecode { from, .. }) = recode {
                copy_side(stored.side(half), from);
            }
        }
        let job = RecodeJob::new(recodes, block.tokens, block.isolation, codecs, kernels.pinned());
        let handle = thread.hand(job, self.clock);
        if let BlockLocation::Memory(stored) = &mut self.blocks[id.0 as usize].location {
            stored.recode_job = Some(handle);
        }
    }
}
