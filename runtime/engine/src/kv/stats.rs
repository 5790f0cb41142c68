//! What the KV cache holds and has done, in figures.

use serde::Serialize;

use crate::kv_policy::KvCodec;

/// Blocks and bytes by state and codec, and counts since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvStats {
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Bytes of keys and values in memory, by codec in the order of [`KvCodec::ALL`].
    #[serde(serialize_with = "by_codec")]
    pub bytes: [usize; KvCodec::ALL.len()],
    /// Blocks in memory.
    pub blocks: usize,
    /// How many more blocks of newly appended tokens the budget has room for.
    pub free_blocks: usize,
    /// Blocks that more than one sequence refers to.
    pub shared_blocks: usize,
    /// Blocks that no sequence refers to, kept for those that begin alike.
    pub cached_blocks: usize,
    /// Blocks on disk.
    pub spilled_blocks: usize,
    /// Blocks that are being written anew ahead of time, or have been and wait for it. They take memory
    /// twice until then.
    pub ahead_blocks: usize,
    /// Blocks that were written anew in a smaller codec.
    pub migrations: u64,
    /// Those of them that a thread of its own had written ahead of time.
    pub migrations_ahead: u64,
    /// Those of them that were written anew before they were old, to make room: what reads them is less exact
    /// than the policy says.
    pub packed_early: u64,
    /// Nanoseconds that writing them anew took in all, on whichever thread.
    pub migration_ns: u64,
    /// Blocks that were written to disk to make room.
    pub spills: u64,
    /// Spills that failed.
    pub spill_failures: u64,
    /// Blocks that were read back from disk.
    pub restores: u64,
    /// Blocks that were given up to make room.
    pub evictions: u64,
    /// Tokens that were computed again because their blocks were given up or damaged.
    pub recomputed_tokens: u64,
    /// Blocks that were copied because they were appended to, or grew old, while shared or before a checkpoint of the prefix
    /// cache.
    pub copies: u64,
    /// Blocks that were moved so that pages became whole.
    pub moves: u64,
    /// Tokens that were found in the prefix cache.
    pub prefix_hit_tokens: u64,
    /// Tokens of prompts that were looked for in it and not found.
    pub prefix_miss_tokens: u64,
}

impl KvStats {
    /// Bytes of keys and values in memory.
    pub fn total_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }
}

fn by_codec<S: serde::Serializer>(
    bytes: &[usize; KvCodec::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let named = KvCodec::ALL.into_iter().zip(bytes);
    serializer.collect_map(named.map(|(codec, bytes)| (codec.name(), bytes)))
}
