//! Few rows, as when one token is decoded: vectors run along the elements of a head.
//!
//! A tile of keys is read once for all rows of the group. Scores are dot products, four keys by up to
//! four rows at a time so that their horizontal sums are shared, or, where keys lie by channels, sums of
//! vectors of keys; values are summed for four rows at a time in registers.

use super::plan::KEYS;
use super::tile::Tile;
use super::unit::{Mask, Unit};
use crate::ops::simd::{MAX_LANES, Simd, math};

/// How many of the remaining rows are scored together: what the registers hold, times four keys.
#[inline(always)]
fn together<S: Simd>(rows: usize) -> usize {
    match rows {
        4.. if S::TILE >= 4 => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Where the vectors of row `row` of `rows` are in a unit's `q`, for rows of `stride` elements: the
/// first at `start`, the next `step` further. Rows that are scored together alternate.
#[inline(always)]
pub(super) fn place_query<S: Simd>(_: S, rows: usize, row: usize, stride: usize) -> (usize, usize) {
    let mut first = 0;
    loop {
        let together = together::<S>(rows - first);
        if row < first + together {
            return (first * stride + (row - first) * S::LANES, together * S::LANES);
        }
        first += together;
    }
}

/// Adds a tile to `unit`.
#[inline(always)]
pub(super) fn add<S: Simd>(
    s: S,
    unit: &mut Unit,
    dim: usize,
    tile: &Tile,
    mask: &Mask<'_>,
    full: bool,
    scores: &mut Vec<f32>,
) {
    if scores.len() < unit.rows * KEYS {
        scores.resize(unit.rows * KEYS, 0.0);
    }
    let scores = &mut scores[..unit.rows * KEYS];
    let mut row = 0;
    while row < unit.rows {
        let scores = &mut scores[row * KEYS..];
        let together = together::<S>(unit.rows - row);
        match together {
            4 => score::<S, 4>(s, unit, row, dim, tile, scores),
            2 => score::<S, 2>(s, unit, row, dim, tile, scores),
            _ => score::<S, 1>(s, unit, row, dim, tile, scores),
        }
        row += together;
    }

    // Elements beyond `dim` are zero, so sums may run over whole vectors.
    let dim = dim.next_multiple_of(MAX_LANES);
    let padded = tile.len.next_multiple_of(MAX_LANES);
    for (row, scores) in scores.chunks_exact_mut(KEYS).enumerate() {
        let scores = &mut scores[..padded];
        scores[tile.len..].fill(f32::NEG_INFINITY);
        if !full {
            let at = unit.offset[row];
            for (key, score) in scores[..tile.len].iter_mut().enumerate() {
                let key = mask.offset(key);
                if key > at || at - key >= mask.window {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        let alpha = weigh(s, scores, &mut unit.max[row], &mut unit.sum[row]);
        if alpha != 1.0 {
            let alpha = s.splat(alpha);
            for o in unit.o[row * unit.stride..][..dim].chunks_exact_mut(S::LANES) {
                s.store(s.mul(s.load(o), alpha), o);
            }
        }
    }

    let mut row = 0;
    while row + 4 <= unit.rows {
        sum_rows::<S, 4>(s, unit, row, dim, tile, &scores[row * KEYS..]);
        row += 4;
    }
    while row + 2 <= unit.rows {
        sum_rows::<S, 2>(s, unit, row, dim, tile, &scores[row * KEYS..]);
        row += 2;
    }
    if row < unit.rows {
        sum_rows::<S, 1>(s, unit, row, dim, tile, &scores[row * KEYS..]);
    }
}

/// Scores of all keys of the tile for `R` rows.
#[inline(always)]
fn score<S: Simd, const R: usize>(
    s: S,
    unit: &Unit,
    row: usize,
    dim: usize,
    tile: &Tile,
    scores: &mut [f32],
) {
    if tile.by_channels {
        score_channels::<S, R>(s, unit, row, dim, tile, scores);
    } else {
        score_rows::<S, R>(s, unit, row, tile, scores);
    }
}

/// Scores of keys that lie by channels: vectors run along keys, four at a time, so nothing is summed
/// across.
#[inline(always)]
fn score_channels<S: Simd, const R: usize>(
    s: S,
    unit: &Unit,
    row: usize,
    dim: usize,
    tile: &Tile,
    scores: &mut [f32],
) {
    let q = &unit.q[row * unit.stride..][..R * unit.stride];
    let channels = &tile.k.as_chunks::<KEYS>().0[..dim];
    for first in (0..tile.len).step_by(4 * S::LANES) {
        let mut acc = [[s.splat(0.0); 4]; R];
        for (q, channels) in q.chunks_exact(R * S::LANES).zip(channels.chunks(S::LANES)) {
            for (d, k) in channels.iter().enumerate() {
                let k = &k[first..][..4 * S::LANES];
                let k: [S::F; 4] = std::array::from_fn(|i| s.load(&k[i * S::LANES..]));
                for r in 0..R {
                    let q = s.splat(q[r * S::LANES + d]);
                    for i in 0..4 {
                        acc[r][i] = s.fma(q, k[i], acc[r][i]);
                    }
                }
            }
        }
        for r in 0..R {
            for i in 0..4 {
                s.store(acc[r][i], &mut scores[r * KEYS + first + i * S::LANES..]);
            }
        }
    }
}

/// Scores of keys that lie by tokens, in fours.
#[inline(always)]
fn score_rows<S: Simd, const R: usize>(
    s: S,
    unit: &Unit,
    row: usize,
    tile: &Tile,
    scores: &mut [f32],
) {
    // Interleaved by vectors: the first of each row, the second of each row, and so on.
    let q = &unit.q[row * unit.stride..][..R * unit.stride];
    let keys = tile.len.next_multiple_of(4);
    for (four, k) in tile.k[..keys * tile.stride].chunks_exact(4 * tile.stride).enumerate() {
        let mut acc = [[s.splat(0.0); 4]; R];
        let (k0, k) = k.split_at(tile.stride);
        let (k1, k) = k.split_at(tile.stride);
        let (k2, k3) = k.split_at(tile.stride);
        let pairs = k0.chunks_exact(S::LANES).zip(k1.chunks_exact(S::LANES));
        let fours = pairs.zip(k2.chunks_exact(S::LANES).zip(k3.chunks_exact(S::LANES)));
        for (q, ((k0, k1), (k2, k3))) in q.chunks_exact(R * S::LANES).zip(fours) {
            let k = [s.load(k0), s.load(k1), s.load(k2), s.load(k3)];
            for r in 0..R {
                let q = s.load(&q[r * S::LANES..]);
                for i in 0..4 {
                    acc[r][i] = s.fma(q, k[i], acc[r][i]);
                }
            }
        }
        for r in 0..R {
            scores[r * KEYS + 4 * four..][..4].copy_from_slice(&s.sum4(acc[r]));
        }
    }
}

/// Turns scores into weights relative to the largest so far; gives what older sums shrink by.
#[inline(always)]
fn weigh<S: Simd>(s: S, scores: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    let mut largest = s.splat(*max);
    for scores in scores.chunks_exact(S::LANES) {
        largest = s.max(s.load(scores), largest);
    }
    let largest = s.max_lane(largest);
    let less = *max - largest;
    let alpha = if less <= math::LEAST_WEIGHT { 0.0 } else { less.exp2() };
    let largest_lanes = s.splat(largest);
    let mut total = s.splat(0.0);
    for scores in scores.chunks_exact_mut(S::LANES) {
        let weight = math::weight(s, s.sub(s.load(scores), largest_lanes));
        total = s.add(total, weight);
        s.store(weight, scores);
    }
    *max = largest;
    *sum = *sum * alpha + s.sum(total);
    alpha
}

/// Adds the weighted values of the tile to `R` rows.
#[inline(always)]
fn sum_rows<S: Simd, const R: usize>(
    s: S,
    unit: &mut Unit,
    row: usize,
    dim: usize,
    tile: &Tile,
    weights: &[f32],
) {
    let stride = unit.stride;
    let o = &mut unit.o[row * stride..][..R * stride];
    let mut d = 0;
    if S::TILE >= 4 {
        while d + 4 * S::LANES <= dim {
            sum_columns::<S, R, 4>(s, tile, weights, stride, d, o);
            d += 4 * S::LANES;
        }
    }
    while d + 2 * S::LANES <= dim {
        sum_columns::<S, R, 2>(s, tile, weights, stride, d, o);
        d += 2 * S::LANES;
    }
    if d < dim {
        sum_columns::<S, R, 1>(s, tile, weights, stride, d, o);
    }
}

/// The same for `V` vectors of each row, from element `d` on.
#[inline(always)]
fn sum_columns<S: Simd, const R: usize, const V: usize>(
    s: S,
    tile: &Tile,
    weights: &[f32],
    stride: usize,
    d: usize,
    o: &mut [f32],
) {
    let mut acc = [[s.splat(0.0); V]; R];
    for r in 0..R {
        for i in 0..V {
            acc[r][i] = s.load(&o[r * stride + d + i * S::LANES..]);
        }
    }
    let weights = &weights[..R * KEYS];
    for (key, v) in tile.v[..tile.len.min(KEYS) * tile.stride].chunks_exact(tile.stride).enumerate()
    {
        let v = &v[d..][..V * S::LANES];
        for r in 0..R {
            let weight = s.splat(weights[r * KEYS + key]);
            for i in 0..V {
                acc[r][i] = s.fma(weight, s.load(&v[i * S::LANES..]), acc[r][i]);
            }
        }
    }
    for r in 0..R {
        for i in 0..V {
            s.store(acc[r][i], &mut o[r * stride + d + i * S::LANES..]);
        }
    }
}
