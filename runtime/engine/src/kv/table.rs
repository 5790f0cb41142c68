//! A sequence's table of blocks: its tokens, and where their keys and values are.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_host::Scope;

use super::block::{Codecs, Side};
use super::prefix::PrefixKey;
use crate::adapter::Adapter;

/// A block's number in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(pub(crate) u32);

/// Blocks that tables no longer refer to. Tables go at any time, on any thread; the store lets the
/// blocks go when it next has the engine's lock.
#[derive(Default)]
pub(crate) struct Released(Mutex<Vec<BlockId>>);

impl Released {
    pub(crate) fn push(&self, ids: impl Iterator<Item = BlockId>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
    }

    /// Exchanges what was released with an empty list.
    pub(crate) fn swap(&self, ids: &mut Vec<BlockId>) {
        std::mem::swap(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), ids);
    }
}

/// Some tokens of a sequence and the block that holds them.
#[derive(Clone, Debug)]
pub(crate) struct BlockRef {
    pub(crate) id: BlockId,
    /// Position of the block's first token.
    pub(crate) start: usize,
    /// Tokens of the block that are the sequence's; while a step is computed, those that it adds
    /// count.
    pub(crate) len: usize,
    /// The key of the prefix that ends with this block, where the block is full and the sequence is
    /// shared.
    pub(crate) key: Option<PrefixKey>,
}

impl BlockRef {
    pub(crate) fn end(&self) -> usize {
        self.start + self.len
    }
}

/// What a sequence is to others that share its engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceOptions {
    /// Blocks of a higher priority are reclaimed later.
    pub(crate) priority: u8,
    /// How many of its first tokens an endless sequence keeps; others end where the context does.
    pub(crate) sinks: Option<usize>,
    /// Sequences share prefixes with those of the same scope; `None` shares none.
    pub(crate) scope: Option<PrefixKey>,
    /// What is added to the model's projections; the scope stands for it too.
    pub(crate) adapter: Option<Adapter>,
    /// Whether it keeps to the active generation of kernels.
    pub(crate) steady: bool,
}

/// Where an endless sequence has forgotten tokens: `len` of them, before the token that is at position
/// `at` by now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EvictedRange {
    /// Tokens before the range.
    pub at: usize,
    /// Tokens that were forgotten.
    pub len: usize,
}

/// A block of a sequence as later queries of a step read it: in a smaller codec than queries that are nearer to it.
pub(crate) struct BlockVersion {
    /// Which of the table's entries.
    pub(crate) entry: usize,
    /// Where the first query is that reads it so.
    pub(crate) from: usize,
    pub(crate) codecs: Codecs,
    /// By half, the sides that differ from the version before.
    pub(crate) sides: [Option<Side>; 2],
}

/// Tokens and blocks of one sequence.
///
/// Invariants: entries are in order and adjoin, and end at `computed`, or, while a step is computed,
/// at the end of what it adds. `computed` is at most the number of tokens, and less only where
/// blocks were evicted and have not been computed again.
pub(crate) struct KvTable {
    pub(crate) entries: Vec<BlockRef>,
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys and values are in the blocks.
    pub(crate) computed: usize,
    pub(crate) options: SequenceOptions,
    /// Whose numbers kernels compute with: those of other scopes must not meet them.
    pub(crate) isolation: Scope,
    pub(crate) evicted: EvictedRange,
    /// While a step is computed: by entry, and from the nearest queries on.
    pub(crate) versions: Vec<BlockVersion>,
    /// Positions not yet computed at which other texts are expected to part from this one; the blocks before them are
    /// kept in the prefix cache as queries right behind read them.
    pub(crate) checkpoints: Vec<usize>,
    /// Whether blocks were let go of, so that those before them may be packed further than what is computed next
    /// wants.
    pub(crate) shortened: bool,
    released: Arc<Released>,
    context: usize,
}

/// Tokens for which a table has room at once.
const ROOM: usize = 4096;

impl KvTable {
    /// An empty table of a sequence of up to `context` tokens, with blocks of `block` tokens.
    pub(crate) fn new(
        released: Arc<Released>,
        context: usize,
        block: usize,
        options: SequenceOptions,
    ) -> KvTable {
        let room = context.min(ROOM);
        KvTable {
            entries: Vec::with_capacity(room / block + 1),
            tokens: Vec::with_capacity(room),
            computed: 0,
            isolation: options.scope.as_ref().map_or_else(Scope::unique, Scope::of),
            options,
            evicted: EvictedRange::default(),
            versions: Vec::new(),
            checkpoints: Vec::new(),
            shortened: false,
            released,
            context,
        }
    }

    /// Tokens of the sequence.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Entries for which there is room in memory.
    pub(crate) fn room(&self) -> usize {
        self.entries.capacity()
    }

    /// The most tokens that it can have.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// Forgets the tokens from position `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.uncompute(len);
        self.checkpoints.retain(|&checkpoint| checkpoint <= len);
        if len <= self.evicted.at {
            self.evicted = EvictedRange::default();
        }
    }

    /// Takes out the tokens of some entries, `len` from position `at` on; what follows moves up.
    pub(crate) fn cut(&mut self, entries: Range<usize>, at: usize, len: usize) {
        self.tokens.drain(at..at + len);
        self.released.push(self.entries.drain(entries.clone()).map(|entry| entry.id));
        for entry in &mut self.entries[entries.start..] {
            entry.start -= len;
            entry.key = None;
        }
        self.computed -= len;
        self.evicted = EvictedRange { at, len: self.evicted.len + len };
    }

    /// Lets go of the blocks from position `len` on; the tokens stay.
    pub(crate) fn uncompute(&mut self, len: usize) {
        self.versions.clear();
        let keep = self.entries.partition_point(|entry| entry.start < len);
        self.released.push(self.entries.drain(keep..).map(|entry| entry.id));
        if let Some(last) = self.entries.last_mut()
            && last.end() > len
        {
            last.len = len - last.start;
            last.key = None;
        }
        self.shortened |= len < self.computed;
        self.computed = self.computed.min(len);
    }

    /// Expects other texts to part from this one at a position.
    pub(crate) fn expect_parting(&mut self, at: usize) {
        if at > self.computed && !self.checkpoints.contains(&at) {
            self.checkpoints.push(at);
        }
    }

    /// Counts the tokens of a step as computed, once every layer has their rows.
    pub(crate) fn commit(&mut self, tokens: &[u32]) {
        let known = self.tokens.len() - self.computed;
        self.tokens.extend_from_slice(tokens.get(known..).unwrap_or_default());
        self.computed += tokens.len();
    }
}

impl Drop for KvTable {
    fn drop(&mut self) {
        self.released.push(self.entries.iter().map(|entry| entry.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (Arc<Released>, KvTable) {
        let released = Arc::new(Released::default());
        let mut table = KvTable::new(Arc::clone(&released), 100, 16, SequenceOptions::default());
        for i in 0..3 {
            let entry = BlockRef { id: BlockId(i), start: 16 * i as usize, len: 16, key: None };
            table.entries.push(entry);
        }
        table.commit(&(0..48).collect::<Vec<_>>());
        (released, table)
    }

    fn drained(released: &Released) -> Vec<u32> {
        let mut ids = Vec::new();
        released.swap(&mut ids);
        ids.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn truncating_releases_whole_blocks_and_shortens_the_last() {
        let (released, mut table) = table();
        table.truncate(20);
        assert_eq!(drained(&released), [2]);
        assert_eq!((table.len(), table.computed, table.entries[1].len), (20, 20, 4));
        table.truncate(16);
        assert_eq!(drained(&released), [1]);
        drop(table);
        assert_eq!(drained(&released), [0]);
    }

    #[test]
    fn what_is_computed_again_is_not_appended_again() {
        let (_, mut table) = table();
        table.uncompute(16);
        assert_eq!((table.len(), table.computed), (48, 16));
        table.commit(&(16..50).collect::<Vec<_>>());
        assert_eq!((table.len(), table.computed), (50, 50));
        assert_eq!(table.tokens, (0..50).collect::<Vec<_>>());
    }
}
