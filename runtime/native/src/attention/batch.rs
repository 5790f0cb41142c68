//! Attention of several sequences at once, as they are decoded together.
//!
//! The caches are taken as one long row of keys, cut evenly for the threads. A sequence that lies
//! between two cuts is one thread's alone; one that a cut runs through is summed up in parts, which
//! are merged afterwards. So many short sequences cost no splitting, and one long among them keeps
//! no thread waiting.

use super::plan::{KEYS, Share};
use super::unit::Unit;
use super::{AttnScratch, AttnShape, Call, KvSegment, ThreadScratch, Work};
use crate::ops::product;
use crate::ops::simd::dispatch;
use crate::{Isa, NativeError, ThreadPool};
use std::ops::Range;

/// One sequence of [`attention_batch`].
#[derive(Debug)]
pub struct AttnSequence<'a> {
    /// Queries `[m, heads, head_dim]`; one, or a few.
    pub q: &'a [f32],
    /// Position of the first query.
    pub q_pos: usize,
    /// The cache.
    pub kv: &'a [KvSegment<'a>],
    /// The output `[m, heads * head_dim]`.
    pub y: &'a mut [f32],
}

/// A cut this close to the end of a sequence moves there: two parts cost more than it would even
/// out.
const NEAR: usize = KEYS / 2;

/// [`attention`](super::attention) of each sequence over its own cache, shared out over all threads
/// together.
///
/// # Errors
/// As [`attention`](super::attention), for the first sequence that does not fit; nothing is written
/// then.
pub fn attention_batch(
    pool: &ThreadPool,
    isa: Isa,
    shape: &AttnShape,
    sequences: &mut [AttnSequence<'_>],
    scratch: &mut AttnScratch,
) -> Result<(), NativeError> {
    let row = product("attention: a row of q", &[shape.heads, shape.head_dim])?;
    let threads = pool.threads();
    scratch.cuts.clear();
    for AttnSequence { q, q_pos, kv, y } in &*sequences {
        let call = Call::new(shape, q, row, *q_pos, kv, y.len())?;
        scratch.cuts.push(call.keys());
    }
    scratch.cuts.cut(threads);
    scratch.of_threads(threads);
    let AttnScratch { of_threads, cuts, sums } = scratch;
    let (of_threads, cuts) = (&mut of_threads[..threads], &*cuts);
    let all = &*sequences;
    let call = |number: usize| {
        let AttnSequence { q, q_pos, kv, y } = &all[number];
        Call::checked(shape, q, row, *q_pos, kv, y.len() / row)
    };
    if shape.deterministic {
        sums.sum(pool, isa, of_threads, all.len(), &call);
        for (number, AttnSequence { q, q_pos, kv, y }) in sequences.iter_mut().enumerate() {
            let call = Call::checked(shape, q, row, *q_pos, kv, y.len() / row);
            pool.for_chunks(y, shape.head_dim, &|i, out| sums.write(&call, number, i, out));
        }
        return Ok(());
    }

    pool.run_with(of_threads, &|index, scratch| {
        let own = cuts.sequences(index);
        scratch.first = own.start;
        scratch.ends.clear();
        let mut at = 0;
        for number in own.clone() {
            let then = own.contains(&(number + 1)).then(|| call(number + 1));
            let (call, then) = (call(number), then.as_ref());
            let Range { start, end } = cuts.keys(index, number);
            if start < end {
                let (heads, tiles) = (0..shape.kv_heads, 0..call.tiles());
                let units = heads.len() * tiles.len();
                let share = Share::Run { start, end };
                dispatch(isa, Work { call: &call, then, scratch, at, heads, tiles, share });
                at += units;
            }
            scratch.ends.push(at);
        }
    });

    let of_threads = &*of_threads;
    pool.for_chunks(sequences, 1, &|number, sequence| {
        for sequence in sequence {
            let parts = of_threads.iter().filter_map(|scratch| scratch.units_of(number));
            let AttnSequence { q, q_pos, kv, y } = sequence;
            let call = Call::checked(shape, q, row, *q_pos, kv, y.len() / row);
            for (i, out) in y.chunks_exact_mut(shape.head_dim).enumerate() {
                call.merge(parts.clone(), i, out);
            }
        }
    });
    Ok(())
}

impl ThreadScratch {
    /// The units of a sequence, where this thread has summed up a part of it.
    fn units_of(&self, sequence: usize) -> Option<&[Unit]> {
        let index = sequence.checked_sub(self.first)?;
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        (start < end).then(|| &self.units[start..end])
    }
}

/// Where the keys of all sequences, one after another, are cut for the threads.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// Where each sequence ends.
    ends: Vec<usize>,
    /// Where each thread ends.
    cuts: Vec<usize>,
}

impl Cuts {
    /// Forgets all sequences.
    fn clear(&mut self) {
        self.ends.clear();
    }

    /// Adds a sequence that sees `keys` keys.
    fn push(&mut self, keys: usize) {
        self.ends.push(self.start(self.ends.len()) + keys);
    }

    /// Where a sequence begins.
    fn start(&self, sequence: usize) -> usize {
        if sequence == 0 { 0 } else { self.ends[sequence - 1] }
    }

    /// Cuts the keys for `threads` threads.
    fn cut(&mut self, threads: usize) {
        let total = self.start(self.ends.len());
        self.cuts.clear();
        for thread in 0..threads {
            let cut = crate::pool::split(total, threads, thread).end;
            let sequence = self.ends.partition_point(|end| *end < cut);
            let end = self.ends.get(sequence).map_or(cut, |end| *end);
            let start = self.start(sequence);
            let near = if end - cut <= cut - start { end } else { start };
            self.cuts.push(if near.abs_diff(cut) < NEAR { near } else { cut });
        }
    }

    /// The keys of a thread.
    fn share(&self, thread: usize) -> Range<usize> {
        let start = if thread == 0 { 0 } else { self.cuts[thread - 1] };
        start..self.cuts[thread]
    }

    /// The sequences of which a thread has keys, and those without keys between them.
    fn sequences(&self, thread: usize) -> Range<usize> {
        let share = self.share(thread);
        let first = self.ends.partition_point(|end| *end <= share.start);
        let last = self.ends.partition_point(|end| *end < share.end);
        if share.is_empty() { first..first } else { first..last + 1 }
    }

    /// The keys of a sequence that a thread takes, counted from the sequence's first.
    fn keys(&self, thread: usize, sequence: usize) -> Range<usize> {
        let (start, end) = (self.start(sequence), self.ends[sequence]);
        let share = self.share(thread);
        let clip = |cut: usize| cut.clamp(start, end) - start;
        clip(share.start)..clip(share.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(lengths: &[usize], threads: usize) -> Cuts {
        let mut cuts = Cuts::default();
        lengths.iter().for_each(|keys| cuts.push(*keys));
        cuts.cut(threads);
        cuts
    }

    #[test]
    fn every_key_is_one_threads() {
        for lengths in [
            vec![],
            vec![1],
            vec![0, 0],
            vec![100; 16],
            vec![10, 4000, 10, 10],
            vec![0, 300, 0, 0, 300, 0],
            vec![33, 31, 40, 1, 700, 65],
        ] {
            for threads in 1..9 {
                let cuts = cuts(&lengths, threads);
                let mut covered: Vec<Vec<usize>> = vec![Vec::new(); lengths.len()];
                for thread in 0..threads {
                    for sequence in cuts.sequences(thread) {
                        covered[sequence].extend(cuts.keys(thread, sequence));
                    }
                }
                for (covered, length) in covered.iter().zip(&lengths) {
                    assert!(covered.iter().copied().eq(0..*length), "{lengths:?} x{threads}");
                }
            }
        }
    }

    #[test]
    fn long_sequences_are_cut_and_short_ones_are_not() {
        // Sixteen alike on two threads: eight each.
        let alike = cuts(&[100; 16], 2);
        assert_eq!((alike.sequences(0), alike.sequences(1)), (0..8, 8..16));
        // One long among short ones is cut.
        let long = cuts(&[10, 4000, 10, 10], 2);
        assert_eq!((long.keys(0, 1), long.keys(1, 1)), (0..2005, 2005..4000));
        // Not for the few keys that it would even out.
        let short = cuts(&[90, 50], 2);
        assert_eq!((short.keys(0, 0), short.sequences(1)), (0..90, 1..2));
    }
}
