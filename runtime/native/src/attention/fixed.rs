//! Attention whose bits do not depend on how the work is shared out.
//!
//! A sum in floating point depends on its order. So the order is fixed here by the positions of keys alone: tiles begin at
//! multiples of [`KEYS`](super::plan::KEYS), those of a span of [`SPAN`] positions are summed up one after another, and the sums of the
//! spans are added in their order. Which thread computes a span, which queries share a tile, and which other
//! sequences are computed changes nothing.

use super::plan::Share;
use super::unit::Unit;
use super::{Call, ThreadScratch, Work, unit};
use crate::ops::simd::dispatch;
use crate::{Isa, ThreadPool};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

/// Positions of keys that are summed up one after another: long enough that adding the sums of spans costs nothing
/// beside them, short enough that a long context has one for each of many threads.
const SPAN: usize = 512;

/// Sums of a call, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// For each sequence, tile of queries and KV head a unit, or one for each of its spans.
    units: Vec<RwLock<Unit>>,
    /// Where the units of each sequence end.
    ends: Vec<usize>,
    /// Whether a unit is the sum of all spans.
    whole: bool,
}

impl Sums {
    /// Sums up the keys of `sequences` calls.
    pub(super) fn sum<'a>(
        &mut self,
        pool: &ThreadPool,
        isa: Isa,
        of_threads: &mut [ThreadScratch],
        sequences: usize,
        call: &(dyn Fn(usize) -> Call<'a> + Sync),
    ) {
        let tiles = |sequence| {
            let call = call(sequence);
            call.tiles() * call.shape.kv_heads
        };
        // Two for each thread even out what they see.
        self.whole = (0..sequences).map(tiles).sum::<usize>() >= 2 * pool.threads();
        self.ends.clear();
        for sequence in 0..sequences {
            let spans = if self.whole { 1 } else { call(sequence).spans().len() };
            self.ends.push(self.start(sequence) + tiles(sequence) * spans);
        }
        let units = self.start(sequences);
        if self.units.len() < units {
            self.units.resize_with(units, RwLock::default);
        }
        let next = AtomicUsize::new(0);
        let this = &*self;
        pool.run_with(of_threads, &|_, scratch| {
            while let Some(at) = (units.checked_sub(1))
                // The last tiles of queries see the most keys, so they come first.
                .and_then(|last| last.checked_sub(next.fetch_add(1, Relaxed)))
            {
                let sequence = this.ends.partition_point(|end| *end <= at);
                this.unit(isa, scratch, &call(sequence), at, at - this.start(sequence));
            }
        });
    }

    /// Sums up unit `at`, which is number `index` of its sequence.
    fn unit(
        &self,
        isa: Isa,
        scratch: &mut ThreadScratch,
        call: &Call<'_>,
        at: usize,
        index: usize,
    ) {
        let spans = call.spans();
        let (pair, spans) = match (self.whole, spans.len()) {
            (true, _) => (index, spans),
            (false, count) => (index / count, spans.start + index % count..usize::MAX),
        };
        let spans = spans.take(if self.whole { usize::MAX } else { 1 });
        let (tile, head) = (pair / call.shape.kv_heads, pair % call.shape.kv_heads);
        let (heads, tiles) = (head..head + 1, tile..tile + 1);
        let mut unit = self.units[at].write().unwrap_or_else(PoisonError::into_inner);
        for (i, span) in spans.enumerate() {
            let share = Share::Positions { start: span * SPAN, end: (span + 1) * SPAN };
            let (heads, tiles) = (heads.clone(), tiles.clone());
            dispatch(isa, Work { call, then: None, scratch, at: 0, heads, tiles, share });
            if i == 0 {
                std::mem::swap(&mut *unit, &mut scratch.units[0]);
            } else {
                unit.fold(&scratch.units[0]);
            }
        }
    }

    /// Writes output head `i` of `[m, heads]` of a sequence.
    pub(super) fn write(&self, call: &Call<'_>, sequence: usize, i: usize, y: &mut [f32]) {
        let (query, head) = (i / call.shape.heads, i % call.shape.heads);
        let pair = query / call.tile_queries * call.shape.kv_heads + head / call.group;
        let row = query % call.tile_queries * call.group + head % call.group;
        let spans = if self.whole { 1 } else { call.spans().len() };
        let first = self.start(sequence) + pair * spans;
        let units = self.units[first..first + spans].iter();
        let units = units.map(|unit| unit.read().unwrap_or_else(PoisonError::into_inner));
        unit::merge_in_order(units, row, y);
    }

    /// Where the units of a sequence begin.
    fn start(&self, sequence: usize) -> usize {
        if sequence == 0 { 0 } else { self.ends[sequence - 1] }
    }
}

impl Call<'_> {
    /// Numbers of the spans that any of the queries sees.
    fn spans(&self) -> Range<usize> {
        let last = self.q_pos + self.m.max(1) - 1;
        let first = self.shape.window.map_or(0, |window| (self.q_pos + 1).saturating_sub(window));
        first / SPAN..last / SPAN + 1
    }
}
