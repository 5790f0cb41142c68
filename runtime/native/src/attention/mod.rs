//! Causal attention over a key-value cache in place, with grouped queries, an optional sliding
//! window, and any mixture of stored types.
//!
//! Keys are taken in tiles of 64: a tile of one KV head is widened to f32 in a buffer that stays
//! in the first cache, and serves all query rows of the head's group. Softmax is online (Milakov and
//! Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135): each row keeps its largest score, the
//! sum of its weights and the weighted sum of values, rescaled when the largest grows. Scores are in
//! units of log 2, so that a weight is a power of two.
//!
//! Work is shared out in one of two ways. A long prefill is cut into tiles of queries, which threads
//! take from a queue, those that see most first. Otherwise, decoding above all, the *keys* are cut:
//! each thread streams its own share of the cache for all heads, and the partial sums are merged.
//! Several sequences that are decoded together are shared out as if their caches were one
//! ([`attention_batch`]).
//!
//! Caches of many sequences do not fit a core's, and heads are read from rows that hold all of them, a
//! step that processors do not see through. So while a tile is computed, memory is asked for the next,
//! be it of the next sequence.
//!
//! Three things did not pay (Zen 4, a model of 135M in Q8_0): that the caller computes short caches alone (0.99 with about 16
//! keys and 0.95 with 75, although it is faster while all is in caches), that it alone merges the sums (1.00), and that memory
//! is asked for the first tile, too, before anything is computed (1.00, and 0.97 to 0.98 with eight sequences of 1000 tokens),
//! although half the time of a short cache is waiting for its keys and values.
//!
//! Where bits must not depend on any of this, `fixed` shares the work out.
//!
//! Rows are summed with vectors across rows (`wide`) where there are enough to fill them, else
//! across the elements of a head (`narrow`).

mod batch;
mod fixed;
mod narrow;
mod plan;
mod segment;
mod tile;
mod unit;
mod wide;
mod widen;

use crate::ops::product;
use crate::ops::simd::{MAX_LANES, Simd, SimdOp, dispatch};
use crate::{Isa, NativeError, ThreadPool};
use batch::Cuts;
pub use batch::{AttnSequence, attention_batch};
use fixed::Sums;
use plan::{Piece, Plan, Share};
pub use segment::{KvLayout, KvRows, KvSegment};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tile::Tile;
use unit::Unit;

/// Dimensions and options of an attention call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttnShape {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of each head, 8 to 256.
    pub head_dim: usize,
    /// Multiplies the scores; usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// How many positions back a query sees, its own included; all where `None`.
    pub window: Option<usize>,
    /// Whether what a query gets must be the same bits for any other queries, sequences and number of threads
    /// beside it; slower.
    pub deterministic: bool,
}

impl AttnShape {
    /// Whether a query at one position sees the key at another.
    pub(crate) fn sees(&self, query: usize, key: usize) -> bool {
        key <= query && self.window.is_none_or(|window| query - key < window)
    }
}

/// Working memory of [`attention`] and [`attention_batch`], reused from call to call; it grows to what
/// the largest needs.
#[derive(Debug, Default)]
pub struct AttnScratch {
    of_threads: Vec<ThreadScratch>,
    cuts: Cuts,
    sums: Sums,
}

impl AttnScratch {
    /// Empty working memory.
    pub fn new() -> AttnScratch {
        AttnScratch::default()
    }

    /// Working memory for `threads` threads.
    fn of_threads(&mut self, threads: usize) -> &mut [ThreadScratch] {
        if self.of_threads.len() < threads {
            self.of_threads.resize_with(threads, ThreadScratch::default);
        }
        &mut self.of_threads[..threads]
    }
}

/// The working memory of one thread.
#[derive(Debug, Default)]
struct ThreadScratch {
    /// Where the keys of the tile are, and those of the next.
    pieces: Vec<Piece>,
    ahead: Vec<Piece>,
    tile: Tile,
    /// For each KV head in hand, and each tile of queries, the state of their rows.
    units: Vec<Unit>,
    /// Scores, then weights, of a tile.
    scores: Vec<f32>,
    /// The first sequence of a batch that has units here, and where its units end and those of each
    /// after it.
    first: usize,
    ends: Vec<usize>,
}

/// Query rows that a tile of queries aims at, all heads of a group counted.
const ROWS: usize = 64;

/// A checked call.
struct Call<'a> {
    shape: AttnShape,
    q: &'a [f32],
    q_stride: usize,
    q_pos: usize,
    /// Queries.
    m: usize,
    kv: &'a [KvSegment<'a>],
    /// Query heads of each KV head.
    group: usize,
    /// Queries of a tile.
    tile_queries: usize,
    /// Elements from one row of a widened tile to the next: `head_dim` in whole vectors.
    stride: usize,
}

/// `y = softmax(scale * q k^T) v` for each head, where a query at position `p` sees the positions up to
/// `p` and, with a window `w`, above `p - w`.
///
/// `q` is `[m, heads, head_dim]` with rows `q_stride` elements apart, row 0 at position `q_pos`; `y` is
/// `[m, heads * head_dim]` and gives `m`. Segments may come in any order; positions that several of them
/// hold count several times. A query that sees nothing gives zeros. A NaN or an overflow in a score makes
/// the rows that see it NaN.
///
/// Within 2e-5 of the f64 definition, relative to the largest value seen, for scores up to some tens.
///
/// # Errors
/// [`NativeError::Shape`] where a buffer does not fit, [`NativeError::Unsupported`] for another type, a
/// `head_dim` outside 8 to 256, or blocks that would span heads (`head_dim` not a multiple of 32).
#[expect(clippy::too_many_arguments, reason = "two threading arguments, five of the operation")]
pub fn attention(
    pool: &ThreadPool,
    isa: Isa,
    shape: &AttnShape,
    q: &[f32],
    q_stride: usize,
    q_pos: usize,
    kv: &[KvSegment<'_>],
    y: &mut [f32],
    scratch: &mut AttnScratch,
) -> Result<(), NativeError> {
    let call = Call::new(shape, q, q_stride, q_pos, kv, y.len())?;
    if call.m == 0 {
        return Ok(());
    }
    let threads = pool.threads();
    if shape.deterministic {
        scratch.of_threads(threads);
        let AttnScratch { of_threads, sums, .. } = scratch;
        let call = |_| Call::checked(shape, q, q_stride, q_pos, kv, call.m);
        sums.sum(pool, isa, &mut of_threads[..threads], 1, &call);
        pool.for_chunks(y, shape.head_dim, &|i, out| sums.write(&call(0), 0, i, out));
        return Ok(());
    }
    let of_threads = scratch.of_threads(threads);
    // Four tiles for each thread even out what they see.
    if call.m.div_ceil(call.tile_queries) >= 4 * threads {
        by_queries(pool, isa, &call, of_threads, y);
    } else {
        by_keys(pool, isa, &call, of_threads, y);
    }
    Ok(())
}

/// Tiles of queries from a queue, the last, which see the most, first.
fn by_queries(
    pool: &ThreadPool,
    isa: Isa,
    call: &Call<'_>,
    of_threads: &mut [ThreadScratch],
    y: &mut [f32],
) {
    let AttnShape { heads, head_dim, .. } = call.shape;
    let row = heads * head_dim;
    let tiles: Vec<_> = y.chunks_mut(call.tile_queries * row).enumerate().collect();
    let queue = Mutex::new(tiles);
    pool.run_with(of_threads, &|_, scratch| {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((tile, y)) = next else { break };
            for head in 0..call.shape.kv_heads {
                let share = Share::All;
                let (heads, tiles) = (head..head + 1, tile..tile + 1);
                dispatch(isa, Work { call, then: None, scratch, at: 0, heads, tiles, share });
                let columns = head * call.group * head_dim..(head + 1) * call.group * head_dim;
                for (query, y) in y.chunks_exact_mut(row).enumerate() {
                    let outs = y[columns.clone()].chunks_exact_mut(head_dim);
                    for (i, out) in outs.enumerate() {
                        unit::merge(scratch.units[..1].iter(), query * call.group + i, out);
                    }
                }
            }
        }
    });
}

/// Each thread its share of the keys, for all queries and heads; then the shares are merged.
fn by_keys(
    pool: &ThreadPool,
    isa: Isa,
    call: &Call<'_>,
    of_threads: &mut [ThreadScratch],
    y: &mut [f32],
) {
    let tiles = call.tiles();
    let (threads, keys) = (of_threads.len(), call.keys());
    pool.run_with(of_threads, &|index, scratch| {
        // One tile of queries sees all keys, so even runs of them are even work and stream best.
        // Several see fewer of the later ones: then keys are dealt out in turn.
        let share = if tiles == 1 {
            let Range { start, end } = crate::pool::split(keys, threads, index);
            Share::Run { start, end }
        } else {
            Share::Turns { index, of: threads }
        };
        let heads = 0..call.shape.kv_heads;
        dispatch(isa, Work { call, then: None, scratch, at: 0, heads, tiles: 0..tiles, share });
    });
    let of_threads = &*of_threads;
    pool.for_chunks(y, call.shape.head_dim, &|i, out| {
        call.merge(of_threads.iter().map(|scratch| scratch.units.as_slice()), i, out);
    });
}

impl<'a> Call<'a> {
    fn new(
        shape: &AttnShape,
        q: &'a [f32],
        q_stride: usize,
        q_pos: usize,
        kv: &'a [KvSegment<'a>],
        y: usize,
    ) -> Result<Call<'a>, NativeError> {
        let AttnShape { heads, kv_heads, head_dim, .. } = *shape;
        if !(8..=256).contains(&head_dim) {
            let detail = format!("a head_dim of {head_dim} (8 to 256)");
            return Err(NativeError::Unsupported { what: "attention", detail });
        }
        let whole = kv_heads != 0 && heads.is_multiple_of(kv_heads) && heads != 0;
        if !whole {
            let what = "attention: heads, as a multiple of kv_heads";
            return Err(NativeError::Shape { what, expected: kv_heads, actual: heads });
        }
        let row = product("attention: a row of q", &[heads, head_dim])?;
        crate::ops::whole_rows("attention: y elements", row, y)?;
        let m = y / row;
        if q_stride < row {
            let what = "attention: q_stride";
            return Err(NativeError::Shape { what, expected: row, actual: q_stride });
        }
        if m > 0 {
            let before = product("attention: q elements", &[m - 1, q_stride])?;
            let expected = before.saturating_add(row);
            if q.len() < expected {
                let what = "attention: q elements";
                return Err(NativeError::Shape { what, expected, actual: q.len() });
            }
        }
        segment::check(kv, kv_heads, head_dim)?;
        if q_pos.checked_add(m).is_none_or(|end| end > plan::LAST_POSITION) {
            let what = "attention: last position";
            return Err(NativeError::Shape { what, expected: plan::LAST_POSITION, actual: q_pos });
        }
        Ok(Call::checked(shape, q, q_stride, q_pos, kv, m))
    }

    /// A call of `m` queries that [`Call::new`] has checked.
    fn checked(
        shape: &AttnShape,
        q: &'a [f32],
        q_stride: usize,
        q_pos: usize,
        kv: &'a [KvSegment<'a>],
        m: usize,
    ) -> Call<'a> {
        let group = shape.heads / shape.kv_heads;
        Call {
            shape: *shape,
            q,
            q_stride,
            q_pos,
            m,
            kv,
            group,
            tile_queries: (ROWS / group).clamp(1, m.max(1)),
            stride: shape.head_dim.next_multiple_of(MAX_LANES),
        }
    }

    /// Tiles of queries.
    fn tiles(&self) -> usize {
        self.m.div_ceil(self.tile_queries)
    }

    /// Keys that any of the queries sees.
    fn keys(&self) -> usize {
        if self.m == 0 {
            return 0;
        }
        let last = self.q_pos + self.m - 1;
        plan::count(self.kv, self.shape.window, self.q_pos, last)
    }

    /// Writes the pieces of the first tile that any of the queries sees, and gives their segments.
    fn first_tile(&self, pieces: &mut Vec<Piece>) -> &'a [KvSegment<'a>] {
        let last = self.q_pos + self.m.max(1) - 1;
        Plan::new(self.kv, self.shape.window, self.q_pos, last, Share::All).next(pieces);
        self.kv
    }

    /// Writes output head `i` of `[m, heads]` from parts that hold units of all heads and tiles.
    fn merge<'p>(&self, parts: impl Iterator<Item = &'p [Unit]> + Clone, i: usize, y: &mut [f32]) {
        let (query, head) = (i / self.shape.heads, i % self.shape.heads);
        let unit = head / self.group * self.tiles() + query / self.tile_queries;
        let row = query % self.tile_queries * self.group + head % self.group;
        unit::merge(parts.map(|units| &units[unit]), row, y);
    }
}

/// Sums up a share of the keys for some KV heads and tiles of queries into `scratch.units`.
struct Work<'a> {
    call: &'a Call<'a>,
    /// What the thread computes next, from its first key on.
    then: Option<&'a Call<'a>>,
    scratch: &'a mut ThreadScratch,
    /// The first of the units.
    at: usize,
    heads: Range<usize>,
    tiles: Range<usize>,
    share: Share,
}

impl SimdOp for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Work { call, then, scratch, at, heads, tiles, share } = self;
        let end = at + heads.len() * tiles.len();
        if scratch.units.len() < end {
            scratch.units.resize_with(end, Unit::default);
        }
        let units = &mut scratch.units[at..end];
        for (i, unit) in units.iter_mut().enumerate() {
            unit.start(s, call, heads.start + i / tiles.len(), tiles.start + i % tiles.len());
        }
        let first = call.q_pos + tiles.start * call.tile_queries;
        let last = call.q_pos + call.m.min(tiles.end * call.tile_queries) - 1;
        let mut plan = Plan::new(call.kv, call.shape.window, first, last, share);
        scratch.tile.resize(call.stride);
        let mut more = plan.next(&mut scratch.ahead);
        while more {
            std::mem::swap(&mut scratch.pieces, &mut scratch.ahead);
            more = plan.next(&mut scratch.ahead);
            let ahead = match then {
                Some(then) if !more => then.first_tile(&mut scratch.ahead),
                _ => call.kv,
            };
            scratch.tile.place(call, &scratch.pieces);
            for (i, head) in heads.clone().enumerate() {
                for piece in &scratch.ahead {
                    let rows = piece.row..piece.row + piece.len;
                    ahead[piece.segment].prefetch(rows, head, call.shape.kv_heads);
                }
                scratch.tile.load(s, call, &scratch.pieces, head);
                for unit in &mut units[i * tiles.len()..][..tiles.len()] {
                    unit.add(s, call, &scratch.tile, &mut scratch.scores);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
