//! Which blocks the store has written anew ahead of time ([`super::ahead`]).

use super::ahead::{Job, Rewrite};
use super::block::{Codecs, Half};
use super::store::{KvStore, Place, copy_side};
use super::table::BlockId;
use crate::kernels::Kernels;

impl KvStore {
    /// Hands a copy of a block to the thread, where there is memory to spare for it. In a pool that is
    /// nearly full there is none: what would have to be given up again is not begun.
    pub(super) fn write_ahead(&mut self, id: BlockId, codecs: Codecs, kernels: &Kernels) {
        // A sequence that is decoded gets to its next boundary in that many steps.
        let stale = self.clock.saturating_sub(self.shape.tokens as u64);
        let block = &self.blocks[id.0 as usize];
        let (Some(ahead), Place::Memory(stored)) = (&self.ahead, &block.place) else { return };
        if !ahead.has_room(stale) {
            return;
        }
        let mut rewrites = [None, None];
        for (half, rewrite) in Half::BOTH.into_iter().zip(&mut rewrites) {
            let side = stored.side(half);
            if side.codec == codecs.of(half) {
                continue;
            }
            let leased = (self.lease_side(side.codec), self.lease_side(codecs.of(half)));
            let (Ok(from), Ok(to)) = leased else { return };
            *rewrite = Some(Rewrite { from, to });
        }
        if self.is_crowded() {
            return;
        }
        for (half, rewrite) in Half::BOTH.into_iter().zip(&mut rewrites) {
            if let Some(Rewrite { from, .. }) = rewrite {
                copy_side(stored.side(half), from);
            }
        }
        let job = Job::new(rewrites, block.tokens, block.isolation, codecs, kernels.pinned());
        let claim = ahead.hand(job, self.clock);
        if let Place::Memory(stored) = &mut self.blocks[id.0 as usize].place {
            stored.ahead = Some(claim);
        }
    }

    /// Gives up what was written ahead of time, and its memory.
    pub(crate) fn give_up_ahead(&self) {
        if let Some(ahead) = &self.ahead {
            ahead.give_up(u64::MAX);
        }
    }
}
