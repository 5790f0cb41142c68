//! Endless sequences: forgetting the middle when the context is full.
//!
//! A model attends to the first tokens of a sequence whatever they say, so these stay as *sinks*
//! (Xiao et al., arXiv 2309.17453), and of what follows them the older half is forgotten. The newer half
//! moves up to where the forgotten was, as positions must stay within what the model was trained for:
//! its keys are rotated back by as many positions. Only whole blocks are forgotten, so that blocks keep
//! their tokens; and since half goes at a time, a key is rotated again once or twice in its life, however
//! long the sequence grows.

use ruvllm_host::Scope;

use super::block::{BlockShape, Half};
use super::recode::Packer;
use super::store::{BlockLocation, KvKernels, KvStore};
use super::stored::Stored;
use super::table::KvTable;
use crate::error::EngineError;
use crate::kernels::Kernels;

/// Rotates the keys of `rows` `[tokens, kv_dim]` of a scope in place.
pub(crate) type RerotateKeys<'a> =
    dyn FnMut(&mut Kernels, Scope, &mut [f32]) -> Result<(), EngineError> + 'a;

impl KvStore {
    /// How many tokens of a sequence have to be forgotten, and from which position on, so that it can
    /// go on with `extra` more.
    pub(crate) fn slide_range(&self, table: &KvTable, extra: usize) -> Option<SlideRange> {
        let sinks = table.options.sinks?;
        let len = table.computed;
        if len + extra <= table.context() {
            return None;
        }
        let first = table.entries.partition_point(|entry| entry.start < sinks);
        let at = table.entries.get(first)?.start;
        let least = (len - at).div_ceil(2).max(len + extra - table.context());
        let behind = table.entries[first..].partition_point(|entry| entry.start < at + least);
        let end = table.entries.get(first + behind).map_or(len, |entry| entry.start);
        Some(SlideRange { entries: first..first + behind, at, len: end - at })
    }

    /// Forgets tokens of a sequence whose blocks are all in memory. `rerotate` rotates keys back by as many
    /// positions. Where a kernel fails, the blocks from there on are let go of, and computed again
    /// from their tokens.
    ///
    /// # Errors
    /// [`EngineError::MemoryExhausted`] and failures of kernels.
    pub(crate) fn forget_tokens(
        &mut self,
        table: &mut KvTable,
        range: SlideRange,
        rerotate: &mut RerotateKeys<'_>,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        let SlideRange { entries, at, len } = range;
        table.cut(entries.clone(), at, len);
        for index in entries.start..table.entries.len() {
            let start = table.entries[index].start;
            let rerotated = self.rerotate_block(table, index, rerotate, kv_kernels);
            if rerotated.is_err() {
                table.uncompute(start);
                return rerotated;
            }
        }
        Ok(())
    }

    /// Rotates the keys of a sequence's block, or of a copy of it where others see it.
    fn rerotate_block(
        &mut self,
        table: &mut KvTable,
        index: usize,
        rerotate: &mut RerotateKeys<'_>,
        kv_kernels: &mut KvKernels<'_>,
    ) -> Result<(), EngineError> {
        let id = table.entries[index].id;
        let block = &self.blocks[id.0 as usize];
        let (tokens, shared) = (block.tokens, block.refs > 1 || block.key.is_some());
        let mut rerotated = self.copy(table, index, kv_kernels)?;
        let shape = self.shape;
        let KvKernels { kernels, pool } = kv_kernels;
        let (scope, scratch) = (table.isolation, &mut self.scratch);
        let mut packer = Packer { kernels, pool, scope, scratch };
        rerotate_keys(&mut packer, &shape, tokens, &mut rerotated, rerotate)?;
        if shared {
            self.exchange(table, index, rerotated);
        } else {
            self.blocks[id.0 as usize].location = BlockLocation::Memory(rerotated);
        }
        Ok(())
    }
}

fn rerotate_keys(
    packer: &mut Packer<'_>,
    shape: &BlockShape,
    tokens: usize,
    block: &mut Stored,
    rerotate: &mut RerotateKeys<'_>,
) -> Result<(), EngineError> {
    let side = block.side_mut(Half::Keys);
    let mut rows = vec![0.0; tokens * shape.kv_dim];
    for layer in 0..shape.layers {
        packer.read(shape, layer, tokens, side, &mut rows)?;
        rerotate(packer.kernels, packer.scope, &mut rows)?;
        packer.write(shape, side, layer, 0, &rows)?;
    }
    Ok(())
}

/// Tokens to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlideRange {
    /// Their entries.
    entries: std::ops::Range<usize>,
    /// The position of the first.
    at: usize,
    /// Their number.
    pub(crate) len: usize,
}
