//! Attention of several sequences at once, as they are decoded together.
//!
//! The caches are taken as one long row of keys, cut evenly for the threads. A sequence that lies
//! between two cuts is one thread's alone; one that a cut runs through is summed up in parts, which
//! are merged afterwards. So many short sequences cost no splitting, and one long among them keeps
//! no thread waiting.

use super::plan::{KEYS, Share};
use super::{AttnScratch, AttnShape, Call, KvSegment, Lane, Work};
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
    let mut calls = Vec::with_capacity(sequences.len());
    let mut outs = Vec::with_capacity(sequences.len());
    for AttnSequence { q, q_pos, kv, y } in sequences {
        calls.push(Call::new(shape, q, row, *q_pos, kv, y.len())?);
        outs.push(&mut **y);
    }
    let cuts = Cuts::new(calls.iter().map(Call::keys), pool.threads());
    let lanes = scratch.lanes(pool.threads());

    let (mut shares, mut rest, mut taken) = (Vec::with_capacity(lanes.len()), &mut outs[..], 0);
    for (index, lane) in lanes.iter_mut().enumerate() {
        let whole = cuts.whole(index, taken);
        let (own, after) = rest.split_at_mut(whole.end - taken);
        let (_, outs) = own.split_at_mut(whole.start - taken);
        (rest, taken) = (after, whole.end);
        shares.push(Sequences { lane, whole, outs });
    }
    pool.run_with(&mut shares, &|index, share: &mut Sequences<'_, '_>| {
        share.run(isa, &calls, &cuts, index);
    });

    let lanes = &*lanes;
    for (sequence, (call, y)) in calls.iter().zip(outs).enumerate() {
        let parts = lanes.iter().flat_map(|lane| {
            let of_sequence = lane.shared.iter().filter(move |shared| shared.0 == sequence);
            of_sequence.map(|shared| &lane.units[shared.1..])
        });
        if parts.clone().next().is_some() {
            pool.for_chunks(y, shape.head_dim, &|i, out| call.merge(parts.clone(), i, out));
        }
    }
    Ok(())
}

/// What one thread takes.
struct Sequences<'a, 'y> {
    lane: &'a mut Lane,
    /// The sequences that are its alone, and their outputs.
    whole: Range<usize>,
    outs: &'a mut [&'y mut [f32]],
}

impl Sequences<'_, '_> {
    fn run(&mut self, isa: Isa, calls: &[Call<'_>], cuts: &Cuts, index: usize) {
        let Sequences { lane, whole, outs } = self;
        lane.shared.clear();
        let mut at = 0;
        // The sequence before and the one after may be cut.
        let (first, end) = (whole.start.saturating_sub(1), (whole.end + 1).min(calls.len()));
        for (sequence, call) in calls.iter().enumerate().take(end).skip(first) {
            let keys = cuts.keys(index, sequence);
            let alone = whole.contains(&sequence);
            if call.m == 0 || (keys.is_empty() && !alone) {
                continue;
            }
            let share = Share::Run { start: keys.start, end: keys.end };
            let (heads, tiles) = (0..call.shape.kv_heads, 0..call.tiles());
            let units = heads.len() * tiles.len();
            dispatch(isa, Work { call, lane, at, heads, tiles, share });
            if alone {
                let y = &mut outs[sequence - whole.start];
                for (i, out) in y.chunks_exact_mut(call.shape.head_dim).enumerate() {
                    call.merge(std::iter::once(&lane.units[at..]), i, out);
                }
            } else {
                lane.shared.push((sequence, at));
                at += units;
            }
        }
    }
}

/// Where the keys of all sequences, one after another, are cut for the threads.
struct Cuts {
    /// Where each sequence begins, and the end of the last.
    starts: Vec<usize>,
    /// Where each thread begins, and the end of the last.
    cuts: Vec<usize>,
}

impl Cuts {
    fn new(keys: impl Iterator<Item = usize>, threads: usize) -> Cuts {
        let mut starts = vec![0];
        let mut total = 0;
        starts.extend(keys.map(|keys| {
            total += keys;
            total
        }));
        let cut = |thread| {
            let cut = match thread {
                0 => 0,
                _ => crate::pool::split(total, threads, thread - 1).end,
            };
            let next = starts.partition_point(|start| *start < cut).min(starts.len() - 1);
            let (before, after) = (starts[next.saturating_sub(1)], starts[next]);
            let near = if after - cut <= cut - before { after } else { before };
            if near.abs_diff(cut) < NEAR { near } else { cut }
        };
        let cuts = (0..=threads).map(cut).collect();
        Cuts { starts, cuts }
    }

    /// The sequences from number `from` on that lie between the cuts of a thread.
    fn whole(&self, thread: usize, from: usize) -> Range<usize> {
        let (start, end) = (self.cuts[thread], self.cuts[thread + 1]);
        let first = self.starts.partition_point(|at| *at < start).max(from);
        // But for the first, these are the ends.
        let last = self.starts[1..].partition_point(|at| *at <= end);
        first..last.max(first)
    }

    /// The keys of a sequence that a thread takes, counted from the sequence's first.
    fn keys(&self, thread: usize, sequence: usize) -> Range<usize> {
        let (start, end) = (self.starts[sequence], self.starts[sequence + 1]);
        let clip = |cut: usize| cut.clamp(start, end) - start;
        clip(self.cuts[thread])..clip(self.cuts[thread + 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_one_threads_and_whole_sequences_are_not_cut() {
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
                let cuts = Cuts::new(lengths.iter().copied(), threads);
                let mut taken = 0;
                let mut covered: Vec<Vec<usize>> = vec![Vec::new(); lengths.len()];
                for thread in 0..threads {
                    let whole = cuts.whole(thread, taken);
                    assert!(taken <= whole.start && whole.end <= lengths.len());
                    for (sequence, covered) in covered.iter_mut().enumerate() {
                        let keys = cuts.keys(thread, sequence);
                        if whole.contains(&sequence) {
                            assert_eq!(keys, 0..lengths[sequence]);
                        } else if !keys.is_empty() {
                            let near = whole.start.saturating_sub(1)..whole.end + 1;
                            assert!(near.contains(&sequence), "{lengths:?} x{threads}");
                        }
                        covered.extend(keys);
                    }
                    taken = whole.end;
                }
                for (covered, length) in covered.iter().zip(&lengths) {
                    assert!(covered.iter().copied().eq(0..*length), "{lengths:?} x{threads}");
                }
            }
        }
        // Sixteen alike on two threads: eight each.
        let cuts = Cuts::new([100; 16].into_iter(), 2);
        assert_eq!((cuts.whole(0, 0), cuts.whole(1, 8)), (0..8, 8..16));
        // One long among short ones is cut.
        let cuts = Cuts::new([10, 4000, 10, 10].into_iter(), 2);
        assert_eq!((cuts.keys(0, 1), cuts.keys(1, 1)), (0..2005, 2005..4000));
    }
}
