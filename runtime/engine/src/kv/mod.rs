//! The KV cache: paged, tiered, shared between sequences, and within the pool's budget.
//!
//! Keys and values of a run of consecutive tokens are a *block*: for each layer a slot of the
//! [memory pool](crate::memory) for keys and one for values. A sequence is a table of blocks
//! (`table`); the blocks themselves belong to the store (`store`), which knows who refers to
//! them, in which codec they are, when they were used, and where they are: in memory, on disk, or
//! gone, to be computed again. Attention reads blocks in place, whatever their codecs.
//!
//! - A block that is not full belongs to one sequence, which appends to it. Full blocks never
//!   change their numbers, so they are shared: between forks of a sequence, and between sequences
//!   with the same beginning (`prefix`). Appending to a block that others hold copies it first.
//! - As tokens grow old their blocks are written anew in smaller codecs ([`KvPolicy`], `recode`),
//!   by the pack kernels of the registry. A block knows its codecs, so blocks that another
//!   generation of kernels wrote stay readable.
//!   What a step reads follows from positions; a thread of its own (`ahead`) only does beforehand
//!   what is due next.
//! - When the pool runs full, blocks that no running step needs are quantised, spilled to disk and
//!   evicted, the least recently used first (`reclaim`). An evicted block of a live sequence is
//!   computed again from the sequence's tokens when it is next needed.
//!
//! Invariants: blocks change only between steps, and only under the engine's lock; a step that
//! fails leaves every table as it was. When blocks change their codec depends on positions alone,
//! except under pressure, so that results do not depend on timing.

mod ahead;
mod block;
mod packing;
mod prefix;
mod reclaim;
mod recode;
mod room;
mod saved;
mod slide;
mod spill;
mod stats;
mod steps;
mod store;
mod stored;
mod table;
mod versions;
mod write_ahead;

#[cfg(test)]
mod tests;

pub use crate::kv_policy::{InvalidKvPolicy, KvCodec, KvPolicy, KvTiers};
pub(crate) use block::{BlockShape, Half};
pub(crate) use prefix::scope;
pub(crate) use spill::SpillDir;
pub use stats::KvStats;
pub(crate) use store::{KvKernels, KvStore};
pub use table::EvictedRange;
pub(crate) use table::{KvTable, SequenceOptions};
pub(crate) use versions::AttendedPositions;
