//! The rows of one tile of queries that share a KV head, and the state of their softmax.

use super::tile::Tile;
use super::{Call, narrow, wide};
use crate::ops::simd::{Simd, SimdOp};
use std::f32::consts::LOG2_E;
use std::ops::Deref;

/// Row `r` is query `r / group` of the tile, head `r % group` of the group.
///
/// With `block == 0`, for [`narrow`], `o` is `[rows, stride]` and `q` has the same rows with vectors
/// interleaved. Else, for [`wide`], they are
/// `[blocks, stride, block]`: rows run along vectors, in blocks of `block`.
#[derive(Debug, Default)]
pub(super) struct Unit {
    pub(super) rows: usize,
    pub(super) block: usize,
    pub(super) stride: usize,
    /// Position of the first query, and how many there are.
    first: usize,
    queries: usize,
    /// Queries, scaled so that scores are logarithms to base 2.
    pub(super) q: Vec<f32>,
    /// The weighted sum of values so far.
    pub(super) o: Vec<f32>,
    /// The largest score so far; `f32::MIN` before the first.
    pub(super) max: Vec<f32>,
    /// The sum of weights so far.
    pub(super) sum: Vec<f32>,
    /// How many positions after the first query each row is.
    pub(super) offset: Vec<f32>,
}

/// Which keys of a tile the rows of a unit see, relative to its first query.
pub(super) struct Mask<'a> {
    positions: &'a [usize],
    first: usize,
    /// Positions back from a query that it does not see any more.
    pub(super) window: f32,
}

impl Mask<'_> {
    /// How many positions after the first query a key is; infinite beyond the tile's last.
    #[inline(always)]
    pub(super) fn offset(&self, key: usize) -> f32 {
        match self.positions.get(key) {
            // Both are at most 2^24, so the difference is exact.
            Some(&position) => (position as i64 - self.first as i64) as f32,
            None => f32::INFINITY,
        }
    }
}

impl Unit {
    /// Takes the queries of tile `tile` for `head`, and forgets what was summed up before.
    #[inline(always)]
    pub(super) fn start<S: Simd>(&mut self, s: S, call: &Call<'_>, head: usize, tile: usize) {
        let query = tile * call.tile_queries;
        self.queries = call.tile_queries.min(call.m - query);
        self.rows = self.queries * call.group;
        self.first = call.q_pos + query;
        self.stride = call.stride;
        // One way for any number of rows, where nothing may depend on that.
        self.block = if call.shape.deterministic { 0 } else { wide::block(s, self.rows) };
        let padded = self.rows.next_multiple_of(self.block.max(1));
        for (state, value) in
            [(&mut self.max, f32::MIN), (&mut self.sum, 0.0), (&mut self.offset, 0.0)]
        {
            state.clear();
            state.resize(padded, value);
        }
        for state in [&mut self.q, &mut self.o] {
            state.clear();
            state.resize(padded * self.stride, 0.0);
        }
        let scale = call.shape.scale * LOG2_E;
        let dim = call.shape.head_dim;
        for row in 0..self.rows {
            let (i, q_head) = (row / call.group, head * call.group + row % call.group);
            self.offset[row] = i as f32;
            let q = &call.q[(query + i) * call.q_stride + q_head * dim..][..dim];
            if self.block == 0 {
                let (start, step) = narrow::place_query(s, self.rows, row, self.stride);
                for (to, q) in self.q[start..].chunks_mut(step).zip(q.chunks(S::LANES)) {
                    to.iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
                }
            } else {
                let (start, step) = self.place(row);
                let to = self.q[start..].iter_mut().step_by(step);
                to.zip(q).for_each(|(to, q)| *to = q * scale);
            }
        }
    }

    /// Adds a tile of keys and values.
    #[inline(always)]
    pub(super) fn add<S: Simd>(
        &mut self,
        s: S,
        call: &Call<'_>,
        tile: &Tile,
        scores: &mut Vec<f32>,
    ) {
        let last = self.first + self.queries - 1;
        let back = call.shape.window.unwrap_or(usize::MAX);
        // Seen by none: after the last query, or before the window of the first.
        if tile.first > last || self.first.saturating_sub(tile.last) >= back {
            return;
        }
        // Seen by all: up to the first query, and inside the window of the last.
        let full = tile.last <= self.first && last - tile.first.min(last) < back;
        let mask = Mask { positions: &tile.positions, first: self.first, window: back as f32 };
        let dim = call.shape.head_dim;
        s.enter(AddTile { unit: self, dim, tile, mask, full, scores });
    }

    /// Adds what another unit has summed up for the same rows over later keys. Both are for [`narrow`].
    pub(super) fn fold(&mut self, other: &Unit) {
        for (row, o) in self.o.chunks_exact_mut(self.stride).enumerate() {
            add_row(&mut self.max[row], &mut self.sum[row], o, other, row);
        }
    }

    /// Where `row` is in `o`, and in a wide unit's `q`: element `d` at `start + d * step`.
    fn place(&self, row: usize) -> (usize, usize) {
        let step = self.block.max(1);
        (row / step * step * self.stride + row % step, step)
    }
}

/// The sums over a tile of keys and values: the bulk of the work, and a function of its own, since compilers take
/// more than twice as long for code twice the size.
struct AddTile<'a> {
    unit: &'a mut Unit,
    dim: usize,
    tile: &'a Tile,
    mask: Mask<'a>,
    full: bool,
    scores: &'a mut Vec<f32>,
}

impl SimdOp for AddTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AddTile { unit, dim, tile, mask, full, scores } = self;
        if unit.block == 0 {
            narrow::add(s, unit, dim, tile, &mask, full, scores);
        } else {
            wide::add(s, unit, dim, tile, &mask, full, scores);
        }
    }
}

/// Adds what a unit has summed up for a row, over later keys, to the largest score, the sum of weights and the weighted
/// sum of values of earlier ones.
#[inline(always)]
fn add_row(max: &mut f32, sum: &mut f32, o: &mut [f32], other: &Unit, row: usize) {
    let largest = max.max(other.max[row]);
    let [own, others] = [*max, other.max[row]].map(|max| (max - largest).exp2());
    (*max, *sum) = (largest, *sum * own + other.sum[row] * others);
    let values = &other.o[row * other.stride..];
    o.iter_mut().zip(values).for_each(|(o, other)| *o = *o * own + *other * others);
}

/// Writes the result of `row` from sums that are added in their order, as [`Unit::fold`] adds them.
pub(super) fn merge_in_order(
    parts: impl Iterator<Item = impl Deref<Target = Unit>>,
    row: usize,
    y: &mut [f32],
) {
    y.fill(0.0);
    let (mut max, mut sum) = (f32::MIN, 0.0);
    parts.for_each(|part| add_row(&mut max, &mut sum, y, &part, row));
    // A row that has seen nothing stays zero.
    if sum != 0.0 {
        y.iter_mut().for_each(|y| *y /= sum);
    }
}

/// Writes the result of `row` from the parts that threads have summed up.
pub(super) fn merge<'a>(parts: impl Iterator<Item = &'a Unit> + Clone, row: usize, y: &mut [f32]) {
    let max = parts.clone().fold(f32::MIN, |max, part| max.max(part.max[row]));
    let weight = |part: &Unit| (part.max[row] - max).exp2();
    let sum: f32 = parts.clone().map(|part| part.sum[row] * weight(part)).sum();
    y.fill(0.0);
    if sum == 0.0 {
        // The row has seen nothing.
        return;
    }
    for part in parts {
        let weight = weight(part) / sum;
        let (start, step) = part.place(row);
        if step == 1 {
            let o = &part.o[start..];
            y.iter_mut().zip(o).for_each(|(y, o)| *y += weight * o);
        } else {
            let o = part.o[start..].iter().step_by(step);
            y.iter_mut().zip(o).for_each(|(y, o)| *y += weight * o);
        }
    }
}
