//! Many rows: vectors run along rows, so scores need no horizontal sums and softmax is element-wise.
//!
//! Both products are the same small matrix product: four keys (or four elements of a head) by a block
//! of rows, in registers, with one factor broadcast from the tile.
//!
//! Twelve sums instead of eight, of three vectors of rows or of six keys, made it slower with AVX2 (0.74 and 0.90).

use super::plan::KEYS;
use super::tile::Tile;
use super::unit::{Mask, Unit};
use crate::ops::simd::{Simd, math};

/// Rows of a block for a unit of `rows` rows; 0 where [`narrow`](super::narrow) is faster because
/// more than a quarter of the lanes would idle.
pub(super) fn block<S: Simd>(_: S, rows: usize) -> usize {
    let block = S::TILE * S::LANES;
    if rows * 4 >= rows.next_multiple_of(block) * 3 { block } else { 0 }
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
    // The width of the register tile must be a constant of the loops.
    if S::TILE >= 4 {
        add_blocks::<S, 4>(s, unit, dim, tile, mask, full, scores);
    } else {
        add_blocks::<S, 2>(s, unit, dim, tile, mask, full, scores);
    }
}

#[inline(always)]
fn add_blocks<S: Simd, const V: usize>(
    s: S,
    unit: &mut Unit,
    dim: usize,
    tile: &Tile,
    mask: &Mask<'_>,
    full: bool,
    scores: &mut Vec<f32>,
) {
    let block = V * S::LANES;
    if scores.len() < KEYS * block {
        scores.resize(KEYS * block, 0.0);
    }
    let channels = &tile.k.as_chunks::<KEYS>().0[..dim];
    // Elements beyond `dim` are zero on both sides, so products may run to a multiple of four.
    let dim = dim.next_multiple_of(4);
    let keys = tile.len.next_multiple_of(4);
    let scores = &mut scores[..keys * block];
    let states = unit.max.chunks_exact_mut(block).zip(unit.sum.chunks_exact_mut(block));
    let offsets = unit.offset.chunks_exact(block);
    let values =
        unit.q.chunks_exact(block * unit.stride).zip(unit.o.chunks_exact_mut(block * unit.stride));
    for (((max, sum), offset), (q, o)) in states.zip(offsets).zip(values) {
        let q = &q[..dim * block];
        let fours = scores.chunks_exact_mut(4 * block).enumerate();
        if tile.by_channels {
            for (i, to) in fours {
                let keys = channels.iter().map(|k| k.as_chunks().0[i]);
                score_four::<S, V>(s, q, keys, to);
            }
        } else {
            for (i, to) in fours {
                let (k0, k) =
                    tile.k[4 * i * tile.stride..][..4 * tile.stride].split_at(tile.stride);
                let (k1, k) = k.split_at(tile.stride);
                let (k2, k3) = k.split_at(tile.stride);
                let keys = k0.iter().zip(k1).zip(k2.iter().zip(k3));
                let keys = keys.map(|((&k0, &k1), (&k2, &k3))| [k0, k1, k2, k3]);
                score_four::<S, V>(s, q, keys, to);
            }
        }
        if !full || keys != tile.len {
            apply_mask::<S>(s, scores, block, offset, mask);
        }
        let alpha = weigh::<S, V>(s, scores, max, sum);
        let weights = &scores[..tile.len * block];
        for (i, o) in o[..dim * block].chunks_exact_mut(4 * block).enumerate() {
            sum_four::<S, V>(s, weights, &tile.v, tile.stride, 4 * i, alpha, o);
        }
    }
}

/// Scores of four keys, given element by element: `q` is `[dim, block]`, `to` `[4, block]`.
#[inline(always)]
fn score_four<S: Simd, const V: usize>(
    s: S,
    q: &[f32],
    keys: impl Iterator<Item = [f32; 4]>,
    to: &mut [f32],
) {
    let block = V * S::LANES;
    let mut acc = [[s.splat(0.0); V]; 4];
    for (q, k) in q.chunks_exact(block).zip(keys) {
        let k = k.map(|k| s.splat(k));
        for v in 0..V {
            let q = s.load(&q[v * S::LANES..]);
            for i in 0..4 {
                acc[i][v] = s.fma(k[i], q, acc[i][v]);
            }
        }
    }
    for (acc, to) in acc.iter().zip(to.chunks_exact_mut(block)) {
        for v in 0..V {
            s.store(acc[v], &mut to[v * S::LANES..]);
        }
    }
}

/// Puts minus infinity where a row does not see a key, and beyond the tile's last key.
#[inline(always)]
fn apply_mask<S: Simd>(s: S, scores: &mut [f32], block: usize, offset: &[f32], mask: &Mask<'_>) {
    let unseen = s.splat(f32::NEG_INFINITY);
    for (key, scores) in scores.chunks_exact_mut(block).enumerate() {
        let key = mask.offset(key);
        // Seen where key <= row and row < key + window; all are whole numbers.
        let (at, newest) = (s.splat(key), s.splat(key + mask.window - 1.0));
        let rows = offset.chunks_exact(S::LANES);
        for (scores, row) in scores.chunks_exact_mut(S::LANES).zip(rows) {
            let row = s.load(row);
            let score = s.select_le(at, row, s.load(scores), unseen);
            s.store(s.select_le(row, newest, score, unseen), scores);
        }
    }
}

/// Turns scores into weights relative to the largest so far; gives what older sums shrink by.
#[inline(always)]
fn weigh<S: Simd, const V: usize>(
    s: S,
    scores: &mut [f32],
    max: &mut [f32],
    sum: &mut [f32],
) -> [S::F; V] {
    let block = V * S::LANES;
    let mut largest = [s.splat(0.0); V];
    for v in 0..V {
        largest[v] = s.load(&max[v * S::LANES..]);
    }
    for scores in scores.chunks_exact(block) {
        for v in 0..V {
            largest[v] = s.max(s.load(&scores[v * S::LANES..]), largest[v]);
        }
    }
    let mut alpha = [s.splat(0.0); V];
    let mut total = [s.splat(0.0); V];
    for v in 0..V {
        alpha[v] = math::weight(s, s.sub(s.load(&max[v * S::LANES..]), largest[v]));
        total[v] = s.mul(s.load(&sum[v * S::LANES..]), alpha[v]);
        s.store(largest[v], &mut max[v * S::LANES..]);
    }
    for scores in scores.chunks_exact_mut(block) {
        for v in 0..V {
            let scores = &mut scores[v * S::LANES..];
            let weight = math::weight(s, s.sub(s.load(scores), largest[v]));
            total[v] = s.add(total[v], weight);
            s.store(weight, scores);
        }
    }
    for v in 0..V {
        s.store(total[v], &mut sum[v * S::LANES..]);
    }
    alpha
}

/// Adds four elements of the weighted values, from element `at` on, to `o`, `[4, block]`: `weights` is `[keys, block]`, and
/// `v` `[keys, stride]`.
#[inline(always)]
fn sum_four<S: Simd, const V: usize>(
    s: S,
    weights: &[f32],
    v: &[f32],
    stride: usize,
    at: usize,
    alpha: [S::F; V],
    o: &mut [f32],
) {
    let block = V * S::LANES;
    let mut acc = [[s.splat(0.0); V]; 4];
    for (acc, o) in acc.iter_mut().zip(o.chunks_exact(block)) {
        for i in 0..V {
            acc[i] = s.mul(s.load(&o[i * S::LANES..]), alpha[i]);
        }
    }
    for (weights, v) in weights.chunks_exact(block).zip(v.chunks_exact(stride)) {
        let v = &v[at..][..4];
        let v = [s.splat(v[0]), s.splat(v[1]), s.splat(v[2]), s.splat(v[3])];
        for i in 0..V {
            let weight = s.load(&weights[i * S::LANES..]);
            for j in 0..4 {
                acc[j][i] = s.fma(v[j], weight, acc[j][i]);
            }
        }
    }
    for (acc, o) in acc.iter().zip(o.chunks_exact_mut(block)) {
        for i in 0..V {
            s.store(acc[i], &mut o[i * S::LANES..]);
        }
    }
}
