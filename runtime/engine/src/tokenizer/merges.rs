//! The merges of byte-pair encoding: the adjacent pair of lowest rank merges until none is left.
//!
//! Pairs are looked up by the numbers of symbols, not by text. Few symbols are scanned for the best pair,
//! many keep a heap, so that a piece of any length takes O(n log n). Equal ranks go to the leftmost pair in
//! both.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::map::Map;

const NONE: u32 = u32::MAX;
/// Rank of a pair that does not merge.
const NEVER: u32 = u32::MAX;
/// Pieces of up to this many symbols are scanned instead of queued.
const SCAN_LIMIT: usize = 32;

/// `(left, right)` to rank and merged symbol.
#[derive(Debug, Default)]
pub(super) struct MergeTable(Map<u64, (u32, u32)>);

/// The symbols of a piece and what merging them needs; reused from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

/// A run of `len` bytes; 0 once it has merged into its left neighbour.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    len: u32,
    prev: u32,
    next: u32,
    /// While scanning: rank of the pair with the next symbol, and what it becomes.
    rank: u32,
    merged: u32,
}

impl Scratch {
    /// Starts a piece.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a symbol that stands for `len` bytes, at least one.
    pub(super) fn push(&mut self, id: u32, len: u32) {
        self.symbols.push(Symbol { id, len, prev: NONE, next: NONE, rank: NEVER, merged: 0 });
    }

    /// Numbers and lengths of the symbols that are left.
    pub(super) fn symbols(&self) -> impl Iterator<Item = (u32, u32)> {
        self.symbols.iter().filter(|symbol| symbol.len > 0).map(|symbol| (symbol.id, symbol.len))
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl MergeTable {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self(Map::with_capacity_and_hasher(capacity, Default::default()))
    }

    /// Adds a merge, unless the pair has one.
    pub(super) fn add(&mut self, left: u32, right: u32, rank: u32, merged: u32) {
        self.0.entry(key(left, right)).or_insert((rank, merged));
    }

    /// Merges the symbols of a piece.
    pub(super) fn apply(&self, Scratch { symbols, heap }: &mut Scratch) {
        if symbols.len() <= SCAN_LIMIT {
            self.scan(symbols);
        } else {
            self.queue(symbols, heap);
        }
    }

    fn pair(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.0.get(&key(left, right)).copied()
    }

    /// Merges by scanning for the lowest rank; `symbols` stays dense.
    fn scan(&self, symbols: &mut Vec<Symbol>) {
        let rank = |symbols: &mut Vec<Symbol>, at: usize| {
            let pair = symbols.get(at + 1).and_then(|next| self.pair(symbols[at].id, next.id));
            (symbols[at].rank, symbols[at].merged) = pair.unwrap_or((NEVER, 0));
        };
        for at in 0..symbols.len() {
            rank(symbols, at);
        }
        while let Some((at, best)) =
            symbols.iter().enumerate().min_by_key(|(_, symbol)| symbol.rank)
            && best.rank != NEVER
        {
            symbols[at].id = best.merged;
            symbols[at].len += symbols[at + 1].len;
            symbols.remove(at + 1);
            rank(symbols, at);
            if at > 0 {
                rank(symbols, at - 1);
            }
        }
    }

    /// Merges through a heap of pairs `(rank, left, right, length of both)`.
    fn queue(&self, symbols: &mut [Symbol], heap: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>) {
        heap.clear();
        let count = symbols.len() as u32;
        for (at, symbol) in (0..count).zip(symbols.iter_mut()) {
            symbol.prev = at.checked_sub(1).unwrap_or(NONE);
            symbol.next = if at + 1 < count { at + 1 } else { NONE };
        }
        let queue = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
            if left != NONE && right != NONE {
                let (l, r) = (symbols[left as usize], symbols[right as usize]);
                if let Some((rank, _)) = self.pair(l.id, r.id) {
                    heap.push(Reverse((rank, left, right, l.len + r.len)));
                }
            }
        };
        for right in 1..count {
            queue(heap, symbols, right - 1, right);
        }
        while let Some(Reverse((_, left, right, len))) = heap.pop() {
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            // Either side may have merged since the pair was queued.
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            let Some((_, merged)) = self.pair(l.id, r.id) else { continue };
            let symbol = &mut symbols[left as usize];
            (symbol.id, symbol.len, symbol.next) = (merged, len, r.next);
            symbols[right as usize].len = 0;
            if r.next != NONE {
                symbols[r.next as usize].prev = left;
            }
            queue(heap, symbols, l.prev, left);
            queue(heap, symbols, left, r.next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scanning_and_queueing_agree() {
        // A random merge table over four letters, two levels deep.
        let mut state = 7_u32;
        let mut next = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..200 {
            let mut merges = MergeTable::default();
            for rank in 0..30 {
                merges.add(next(10), next(10), rank, next(10));
            }
            let ids: Vec<u32> = (0..next(60)).map(|_| next(10)).collect();
            let (mut scanned, mut queued) = (Scratch::default(), Scratch::default());
            for id in &ids {
                scanned.push(*id, 1);
                queued.push(*id, 1);
            }
            merges.scan(&mut scanned.symbols);
            merges.queue(&mut queued.symbols, &mut queued.heap);
            assert!(scanned.symbols().eq(queued.symbols()), "{ids:?}");
        }
    }
}
