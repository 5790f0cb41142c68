//! Rotary position embedding, arXiv 2104.09864.
//!
//! For each position the angles are first laid out in scratch the way the rotation reads them, once
//! for all heads: cosines and sines apart for split pairs, each doubled and signed for interleaved
//! ones. Heads with more than [`PAIRS`] pairs are rotated in sections of that many.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

use crate::kv::{pack_block_q8, unpack_block_q8};

/// Pairs whose angles fit the scratch of a call in the wider of the two layouts.
const PAIRS: usize = 1024;
/// Elements of a `q8_0` block.
const BLOCK: usize = 32;
/// The largest head of `q8_0` whose f32 copies fit the scratch beside its angles.
const WIDEST_BLOCK_HEAD: usize = 1024;

/// The extents of a call, `x` being `[batch, seq, heads, dim]`.
#[derive(Clone, Copy, Debug)]
pub struct RopeShape {
    /// Positions of a sequence.
    pub seq: usize,
    /// Heads at a position.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Pairs of a head that are rotated.
    pub dim_half: usize,
    /// Whether pairs are neighbours, rather than `dim_half` apart.
    pub interleaved: bool,
    /// Whether it turns the other way: that of the output's gradient is the gradient by `x`.
    pub backward: bool,
}

impl RopeShape {
    /// Whether the rotated elements lie inside a head.
    ///
    /// # Errors
    /// [`Status::InvalidParams`] when they do not.
    pub fn check(&self) -> Result<(), Status> {
        match self.dim_half.checked_mul(2) {
            Some(rotated) if rotated <= self.dim => Ok(()),
            _ => Err(Status::InvalidParams),
        }
    }
}

/// Rotates `x` into `y`; `freqs` is `[seq, dim_half, 2]` of (cos, sin).
///
/// # Errors
/// [`Status::InvalidParams`] when the pairs do not fit a head, [`Status::OutOfMemory`] when the
/// scratch does not hold a section of angles.
pub fn rope<T: Lanes>(
    shape: &RopeShape,
    x: &[T],
    freqs: &[f32],
    y: &mut [T],
    scratch: &mut Scratch<'_>,
) -> Result<(), Status> {
    shape.check()?;
    if x.is_empty() {
        return Ok(());
    }
    let RopeShape { seq, heads, dim, dim_half, interleaved, .. } = *shape;
    let width = heads.saturating_mul(dim).max(1);
    let mut angles = Angles::take(shape, scratch)?;
    for (position, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
        let freqs = window(freqs, position % seq.max(1) * 2 * dim_half, 2 * dim_half);
        for (section, freqs) in freqs.chunks(2 * PAIRS).enumerate() {
            let (from, pairs) = (section * PAIRS, freqs.len() / 2);
            angles.lay_out(freqs);
            match (dim, dim_half, interleaved) {
                (64, 32, false) => angles.rotate_heads::<T, 1, 2>(x, y),
                (128, 64, false) => angles.rotate_heads::<T, 2, 4>(x, y),
                _ => {
                    let heads = x.chunks_exact(dim.max(1)).zip(y.chunks_exact_mut(dim.max(1)));
                    for (x, y) in heads {
                        angles.rotate(x, y, from, pairs, dim_half);
                    }
                }
            }
        }
        if 2 * dim_half < dim {
            for (x, y) in x.chunks_exact(dim.max(1)).zip(y.chunks_exact_mut(dim.max(1))) {
                copy(window(x, 2 * dim_half, dim), window_mut(y, 2 * dim_half, dim));
            }
        }
    }
    Ok(())
}

/// Rotates `q8_0` rows of `heads * dim` elements; the result is rounded to new blocks.
///
/// # Errors
/// As [`rope`], and [`Status::InvalidParams`] when a row is not made of whole blocks.
pub fn rope_q8(
    shape: &RopeShape,
    x: &[BlockQ8_0],
    freqs: &[f32],
    y: &mut [BlockQ8_0],
    scratch: &mut Scratch<'_>,
) -> Result<(), Status> {
    shape.check()?;
    if x.is_empty() {
        return Ok(());
    }
    let RopeShape { seq, heads, dim, dim_half, .. } = *shape;
    let width = heads.saturating_mul(dim);
    if !width.is_multiple_of(BLOCK) {
        return Err(Status::InvalidParams);
    }
    let blocks = (width / BLOCK).max(1);
    let rows = x.chunks_exact(blocks).zip(y.chunks_exact_mut(blocks)).enumerate();
    let freqs_of = |position| window(freqs, position % seq.max(1) * 2 * dim_half, 2 * dim_half);
    if !dim.is_multiple_of(BLOCK) || dim > WIDEST_BLOCK_HEAD {
        for (position, (x, y)) in rows {
            rope_q8_row_by_element(shape, x, freqs_of(position), y);
        }
        return Ok(());
    }
    let mut angles = Angles::take(shape, scratch)?;
    let (wide, rotated) = (scratch.take::<f32>(dim)?, scratch.take::<f32>(dim)?);
    let head_blocks = (dim / BLOCK).max(1);
    for (position, (x, y)) in rows {
        angles.lay_out(freqs_of(position));
        for (x, y) in x.chunks_exact(head_blocks).zip(y.chunks_exact_mut(head_blocks)) {
            for (x, wide) in x.iter().zip(wide.as_chunks_mut::<BLOCK>().0) {
                unpack_block_q8(x, wide);
            }
            angles.rotate(wide, rotated, 0, dim_half, dim_half);
            copy(window(wide, 2 * dim_half, dim), window_mut(rotated, 2 * dim_half, dim));
            for (rotated, y) in rotated.as_chunks::<BLOCK>().0.iter().zip(y) {
                pack_block_q8(rotated, y);
            }
        }
    }
    Ok(())
}

/// One row whose heads do not end at block boundaries: reads partners one by one.
fn rope_q8_row_by_element(shape: &RopeShape, x: &[BlockQ8_0], freqs: &[f32], y: &mut [BlockQ8_0]) {
    let RopeShape { dim, dim_half, interleaved, .. } = *shape;
    let element = |i: usize| {
        let block = x.get(i / BLOCK).map(|b| (b.d, b.qs.get(i % BLOCK).copied()));
        block.map_or(0.0, |(d, q)| d.to_f32() * f32::from(q.unwrap_or(0)))
    };
    let rotated = |i: usize| {
        let (head, i) = (i - i % dim.max(1), i % dim.max(1));
        if i >= 2 * dim_half {
            return element(head + i);
        }
        let (pair, second) =
            if interleaved { (i / 2, i % 2 == 1) } else { (i % dim_half.max(1), i >= dim_half) };
        let partner = |second: usize| {
            if interleaved { head + 2 * pair + second } else { head + pair + second * dim_half }
        };
        let (a, b) = (element(partner(0)), element(partner(1)));
        let [c, s] = window(freqs, 2 * pair, 2).first_chunk().copied().unwrap_or([1.0, 0.0]);
        if second { a * s + b * c } else { a * c - b * s }
    };
    for (b, y) in y.iter_mut().enumerate() {
        let mut block = [0.0; BLOCK];
        for (i, value) in block.iter_mut().enumerate() {
            *value = rotated(b * BLOCK + i);
        }
        pack_block_q8(&block, y);
    }
}

/// `at .. at + len` of a slice, shortened to what there is.
#[inline(always)]
fn window<T>(s: &[T], at: usize, len: usize) -> &[T] {
    let s = s.get(at..).unwrap_or(&[]);
    s.get(..len).unwrap_or(s)
}

/// As [`window`].
#[inline(always)]
fn window_mut<T>(s: &mut [T], at: usize, len: usize) -> &mut [T] {
    let s = s.get_mut(at..).unwrap_or(&mut []);
    let len = len.min(s.len());
    s.split_at_mut_checked(len).map_or(&mut [], |(window, _)| window)
}

#[inline(always)]
fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// The angles of one section of one position.
///
/// Split pairs: `first[i]` is the cosine and `second[i]` the sine of pair `i`. Interleaved pairs:
/// elements `2i` and `2i + 1` hold (cos, cos) and (-sin, sin).
struct Angles<'s> {
    interleaved: bool,
    /// What sines are multiplied by: -1 to turn the other way.
    sense: f32,
    first: &'s mut [f32],
    second: &'s mut [f32],
}

impl<'s> Angles<'s> {
    fn take(shape: &RopeShape, scratch: &mut Scratch<'s>) -> Result<Self, Status> {
        let RopeShape { dim_half, interleaved, backward, .. } = *shape;
        let pairs = dim_half.min(PAIRS);
        let len = if interleaved { 2 * pairs } else { pairs };
        let sense = if backward { -1.0 } else { 1.0 };
        Ok(Angles { interleaved, sense, first: scratch.take(len)?, second: scratch.take(len)? })
    }

    #[inline(always)]
    fn lay_out(&mut self, freqs: &[f32]) {
        if self.interleaved { self.lay_out_interleaved(freqs) } else { self.lay_out_split(freqs) }
    }

    #[inline(always)]
    fn lay_out_split(&mut self, freqs: &[f32]) {
        let (blocks, rest) = freqs.as_chunks::<32>();
        let (cos, _) = self.first.as_chunks_mut::<16>();
        let (sin, _) = self.second.as_chunks_mut::<16>();
        for ((pairs, cos), sin) in blocks.iter().zip(cos).zip(sin) {
            unroll!(4, i => {
                let (low, high) = (at(pairs, 8 * i), at(pairs, 8 * i + 4));
                put(cos, 4 * i, low.even(high));
                put(sin, 4 * i, low.odd(high) * F32x4::splat(self.sense));
            });
        }
        let done = 16 * blocks.len();
        let cos = self.first.get_mut(done..).unwrap_or(&mut []);
        let sin = self.second.get_mut(done..).unwrap_or(&mut []);
        for ((pair, cos), sin) in rest.as_chunks::<2>().0.iter().zip(cos).zip(sin) {
            let [c, s] = *pair;
            (*cos, *sin) = (c, self.sense * s);
        }
    }

    #[inline(always)]
    fn lay_out_interleaved(&mut self, freqs: &[f32]) {
        let sense = self.sense;
        let signs = F32x4::load(&[-sense, sense, -sense, sense]);
        let (quads, rest) = freqs.as_chunks::<4>();
        let (cos, cos_rest) = self.first.as_chunks_mut::<4>();
        let (sin, sin_rest) = self.second.as_chunks_mut::<4>();
        for ((pairs, cos), sin) in quads.iter().zip(cos.iter_mut()).zip(sin.iter_mut()) {
            let pairs = F32x4::load(pairs);
            pairs.dup_even().store(cos);
            (pairs.dup_odd() * signs).store(sin);
        }
        let done = quads.len();
        let cos_tail = cos.get_mut(done).map_or(cos_rest, |quad| quad.as_mut_slice());
        let sin_tail = sin.get_mut(done).map_or(sin_rest, |quad| quad.as_mut_slice());
        if let [c, s] = rest {
            copy(&[*c, *c], cos_tail);
            copy(&[-sense * s, sense * s], sin_tail);
        }
    }

    /// Rotates all heads of a position, each of `ALL = 2 * HALF` blocks of 32 elements in split
    /// pairs: the usual heads, without a head's worth of slicing for each.
    #[inline(always)]
    fn rotate_heads<T: Lanes, const HALF: usize, const ALL: usize>(&self, x: &[T], y: &mut [T]) {
        let (cos, _) = self.first.as_chunks::<32>();
        let (sin, _) = self.second.as_chunks::<32>();
        let (Some(cos), Some(sin)) = (cos.first_chunk::<HALF>(), sin.first_chunk::<HALF>()) else {
            return;
        };
        let (xs, _) = x.as_chunks::<32>().0.as_chunks::<ALL>();
        let (ys, _) = y.as_chunks_mut::<32>().0.as_chunks_mut::<ALL>();
        for (x, y) in xs.iter().zip(ys) {
            let Some((a, b)) = x.split_at_checked(HALF) else { return };
            let Some((ya, yb)) = y.split_at_mut_checked(HALF) else { return };
            let angles = cos.iter().zip(sin);
            for (((a, b), (cos, sin)), (ya, yb)) in
                a.iter().zip(b).zip(angles).zip(ya.iter_mut().zip(yb))
            {
                unroll!(8, i => {
                    rotate_quad(a, b, cos, sin, ya, yb, 4 * i);
                });
            }
        }
    }

    /// Rotates pairs `from .. from + pairs` of a head; `dim_half` is how many it has in all.
    #[inline(always)]
    fn rotate<T: Lanes>(&self, x: &[T], y: &mut [T], from: usize, pairs: usize, dim_half: usize) {
        if self.interleaved {
            let x = window(x, 2 * from, 2 * pairs);
            rotate_interleaved(x, self.first, self.second, window_mut(y, 2 * from, 2 * pairs));
        } else {
            let (a, b) = (window(x, from, pairs), window(x, dim_half + from, pairs));
            let (ya, yb) = y.split_at_mut_checked(dim_half).unwrap_or_default();
            let (ya, yb) = (window_mut(ya, from, pairs), window_mut(yb, from, pairs));
            rotate_split(a, b, self.first, self.second, ya, yb);
        }
    }
}

/// `ya = a cos - b sin`, `yb = a sin + b cos`.
#[inline(always)]
fn rotate_split<T: Lanes>(a: &[T], b: &[T], cos: &[f32], sin: &[f32], ya: &mut [T], yb: &mut [T]) {
    let (a_blocks, a_rest) = a.as_chunks::<32>();
    let (b_blocks, b_rest) = b.as_chunks::<32>();
    let (ya_blocks, ya_rest) = ya.as_chunks_mut::<32>();
    let (yb_blocks, yb_rest) = yb.as_chunks_mut::<32>();
    let done = a_blocks.len() * 32;
    let angles = cos.as_chunks::<32>().0.iter().zip(sin.as_chunks::<32>().0);
    let inputs = a_blocks.iter().zip(b_blocks).zip(angles);
    for (((a, b), (cos, sin)), (ya, yb)) in inputs.zip(ya_blocks.iter_mut().zip(yb_blocks)) {
        unroll!(8, i => {
            rotate_quad(a, b, cos, sin, ya, yb, 4 * i);
        });
    }
    let (cos, sin) = (window(cos, done, a_rest.len()), window(sin, done, a_rest.len()));
    let (a_blocks, a_rest) = a_rest.as_chunks::<4>();
    let (b_blocks, b_rest) = b_rest.as_chunks::<4>();
    let (ya_blocks, ya_rest) = ya_rest.as_chunks_mut::<4>();
    let (yb_blocks, yb_rest) = yb_rest.as_chunks_mut::<4>();
    let ((cos, cos_rest), (sin, sin_rest)) = (cos.as_chunks::<4>(), sin.as_chunks::<4>());
    let inputs = a_blocks.iter().zip(b_blocks).zip(cos.iter().zip(sin));
    for (((a, b), (cos, sin)), (ya, yb)) in inputs.zip(ya_blocks.iter_mut().zip(yb_blocks)) {
        rotate_quad(a, b, cos, sin, ya, yb, 0);
    }
    let inputs = a_rest.iter().zip(b_rest).zip(cos_rest.iter().zip(sin_rest));
    for (((a, b), (c, s)), (ya, yb)) in inputs.zip(ya_rest.iter_mut().zip(yb_rest)) {
        *ya = T::narrow(a.widen() * c - b.widen() * s);
        *yb = T::narrow(a.widen() * s + b.widen() * c);
    }
}

/// Four pairs of a block, from element `i` on.
#[inline(always)]
fn rotate_quad<T: Lanes, const N: usize>(
    a: &[T; N],
    b: &[T; N],
    cos: &[f32; N],
    sin: &[f32; N],
    ya: &mut [T; N],
    yb: &mut [T; N],
    i: usize,
) {
    let (a, b, c, s) = (at(a, i), at(b, i), at(cos, i), at(sin, i));
    put(ya, i, a * c - b * s);
    put(yb, i, a.madd(s, b * c));
}

/// `y = x cos + swap(x) (-sin, sin)` over neighbouring pairs.
#[inline(always)]
fn rotate_interleaved<T: Lanes>(x: &[T], cos: &[f32], sin: &[f32], y: &mut [T]) {
    let (xs, x_rest) = x.as_chunks::<32>();
    let (ys, y_rest) = y.as_chunks_mut::<32>();
    let (cs, ss) = (cos.as_chunks::<32>().0, sin.as_chunks::<32>().0);
    for ((x, (cos, sin)), y) in xs.iter().zip(cs.iter().zip(ss)).zip(ys) {
        unroll!(8, i => {
            let x = at(x, 4 * i);
            put(y, 4 * i, x * at(cos, 4 * i) + x.swap_pairs() * at(sin, 4 * i));
        });
    }
    let done = xs.len() * 32;
    let (cos, sin) = (window(cos, done, x_rest.len()), window(sin, done, x_rest.len()));
    let (xs, x_rest) = x_rest.as_chunks::<4>();
    let (ys, y_rest) = y_rest.as_chunks_mut::<4>();
    let (cs, ss) = (cos.as_chunks::<4>(), sin.as_chunks::<4>());
    for ((x, (cos, sin)), y) in xs.iter().zip(cs.0.iter().zip(ss.0)).zip(ys) {
        let x = at(x, 0);
        put(y, 0, x * at(cos, 0) + x.swap_pairs() * at(sin, 0));
    }
    if let ([a, b], [c, _], [_, s], [ya, yb]) = (x_rest, cs.1, ss.1, y_rest) {
        *ya = T::narrow(a.widen() * c - b.widen() * s);
        *yb = T::narrow(a.widen() * s + b.widen() * c);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::testing::{assert_close, noise, with_scratch};
    use std::vec;
    use std::vec::Vec;

    fn oracle(shape: &RopeShape, x: &[f32], freqs: &[f32]) -> Vec<f64> {
        let RopeShape { seq, heads, dim, dim_half, interleaved, backward } = *shape;
        let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (row, y) in y.chunks_mut(dim).enumerate() {
            let x = &x[row * dim..][..dim];
            let position = row / heads % seq;
            for p in 0..dim_half {
                let (i, j) = if interleaved { (2 * p, 2 * p + 1) } else { (p, p + dim_half) };
                let at = (position * dim_half + p) * 2;
                let (c, s) = (f64::from(freqs[at]), f64::from(freqs[at + 1]));
                let s = if backward { -s } else { s };
                let (a, b) = (f64::from(x[i]), f64::from(x[j]));
                (y[i], y[j]) = (a * c - b * s, a * s + b * c);
            }
        }
        y
    }

    fn angles(seq: usize, dim_half: usize) -> Vec<f32> {
        let phase = noise(seq * dim_half, 3.1, 7);
        phase.iter().flat_map(|p| [p.cos(), p.sin()]).collect()
    }

    fn shapes() -> impl Iterator<Item = (usize, RopeShape)> {
        let extents = [
            (1, 1, 1, 2, 1),
            (2, 3, 2, 8, 4),
            (1, 2, 3, 10, 5),
            (1, 2, 32, 64, 32),
            (2, 2, 2, 128, 64),
            (1, 3, 2, 100, 37),
            (1, 1, 2, 96, 0),
            (1, 2, 1, 5000, 2307),
        ];
        extents.into_iter().flat_map(|(batch, seq, heads, dim, dim_half)| {
            [(false, false), (true, false), (false, true), (true, true)].map(
                |(interleaved, backward)| {
                    (batch, RopeShape { seq, heads, dim, dim_half, interleaved, backward })
                },
            )
        })
    }

    #[test]
    fn both_layouts_and_any_head_match_f64_to_1e_6() {
        for (batch, shape) in shapes() {
            let x = noise(batch * shape.seq * shape.heads * shape.dim, 2.0, 3);
            let freqs = angles(shape.seq, shape.dim_half);
            let mut y = vec![9.0; x.len()];
            with_scratch(|s| rope(&shape, &x, &freqs, &mut y, s)).unwrap();
            assert_close(&y, &oracle(&shape, &x, &freqs), 0.0, 1e-6);
        }
    }

    #[test]
    fn q8_rows_are_rotated_in_f32_and_rounded_once() {
        for (batch, shape) in shapes() {
            let width = shape.heads * shape.dim;
            if width % 32 != 0 || shape.backward {
                continue;
            }
            let x = noise(batch * shape.seq * width, 2.0, 3);
            let freqs = angles(shape.seq, shape.dim_half);
            let blank = BlockQ8_0 { d: F16(0), qs: [0; 32] };
            let (mut packed, mut y) = (vec![blank; x.len() / 32], vec![blank; x.len() / 32]);
            crate::kv::pack_q8(&x, &mut packed);
            let mut wide = vec![0.0; x.len()];
            crate::kv::unpack_q8(&packed, &mut wide);
            with_scratch(|s| rope_q8(&shape, &packed, &freqs, &mut y, s)).unwrap();
            let expected = oracle(&shape, &wide, &freqs);
            for (b, e) in y.iter().zip(expected.chunks(32)) {
                let step = f64::from(b.d.to_f32());
                for (q, e) in b.qs.iter().zip(e) {
                    assert!((f64::from(*q) * step - e).abs() <= 0.6 * step, "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn rows_that_straddle_blocks_agree_with_the_same_row_in_f32() {
        let shape = RopeShape {
            seq: 2,
            heads: 4,
            dim: 24,
            dim_half: 12,
            interleaved: false,
            backward: false,
        };
        let x = noise(2 * 96, 1.0, 5);
        let freqs = angles(2, 12);
        let blank = BlockQ8_0 { d: F16(0), qs: [0; 32] };
        let (mut packed, mut y, mut wide) = (vec![blank; 6], vec![blank; 6], vec![0.0; 192]);
        crate::kv::pack_q8(&x, &mut packed);
        crate::kv::unpack_q8(&packed, &mut wide);
        with_scratch(|s| rope_q8(&shape, &packed, &freqs, &mut y, s)).unwrap();
        for (b, e) in y.iter().zip(oracle(&shape, &wide, &freqs).chunks(32)) {
            let step = f64::from(b.d.to_f32());
            for (q, e) in b.qs.iter().zip(e) {
                assert!((f64::from(*q) * step - e).abs() <= 0.6 * step);
            }
        }
    }

    #[test]
    fn pairs_that_do_not_fit_a_head_are_refused() {
        let shape = RopeShape {
            seq: 1,
            heads: 1,
            dim: 4,
            dim_half: 3,
            interleaved: false,
            backward: false,
        };
        let mut y = [0.0; 4];
        let refused = with_scratch(|s| rope(&shape, &[0.0; 4], &[0.0; 6], &mut y, s));
        assert_eq!(refused, Err(Status::InvalidParams));
        let shape = RopeShape { dim_half: usize::MAX, ..shape };
        assert_eq!(shape.check(), Err(Status::InvalidParams));
    }
}
