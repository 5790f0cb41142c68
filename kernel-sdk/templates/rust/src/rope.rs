//! Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864).
//!
//! For each position the cosines and the sines are laid out apart, once for all heads. Heads with more
//! pairs than there is room for are rotated in sections.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

/// The extents of a call: `x` and `y` are `[batch, seq, heads, dim]`, `freqs` is `[seq, dim_half, 2]`.
#[derive(Clone, Copy, Debug)]
pub struct RopeShape {
    /// Positions of a sequence.
    pub seq: usize,
    /// Heads at a position.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Pairs of a head that are rotated; the elements after them are copied.
    pub dim_half: usize,
    /// Whether pairs are neighbours, rather than `dim_half` apart.
    pub interleaved: bool,
}

/// Rotates every head of `x` into `y` by the (cos, sin) pairs of its position. There is room for the
/// cosines and the sines of a section of pairs, at least one.
///
/// # Errors
/// [`Status::InvalidParams`] when the pairs do not fit a head.
pub fn rope(
    shape: &RopeShape,
    x: &[f32],
    freqs: &[f32],
    y: &mut [f32],
    [cos, sin]: [&mut [f32]; 2],
) -> Result<(), Status> {
    let RopeShape { seq, heads, dim, dim_half, interleaved } = *shape;
    let rotated = dim_half.checked_mul(2).filter(|rotated| *rotated <= dim);
    let rotated = rotated.ok_or(Status::InvalidParams)?;
    let width = heads.saturating_mul(dim).max(1);
    let room = cos.len().max(1);
    for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
        let angles = freqs.chunks_exact(rotated.max(1)).nth(row % seq.max(1)).unwrap_or_default();
        let angles = angles.as_chunks::<2>().0;
        if interleaved {
            for (x, y) in x.chunks_exact(dim.max(1)).zip(y.chunks_exact_mut(dim.max(1))) {
                rotate_neighbours(x, y, angles);
            }
        } else {
            for (section, angles) in angles.chunks(room).enumerate() {
                for (([c, s], cos), sin) in angles.iter().zip(cos.iter_mut()).zip(sin.iter_mut()) {
                    (*cos, *sin) = (*c, *s);
                }
                let (cos, sin) = (window(cos, 0, angles.len()), window(sin, 0, angles.len()));
                match (dim, dim_half) {
                    // The usual heads, without a head's worth of slicing for each.
                    (64, 32) if room >= 32 => rotate_heads::<1, 2>(x, y, cos, sin),
                    (128, 64) if room >= 64 => rotate_heads::<2, 4>(x, y, cos, sin),
                    _ => {
                        let heads = x.chunks_exact(dim.max(1)).zip(y.chunks_exact_mut(dim.max(1)));
                        for (x, y) in heads {
                            rotate_head(x, y, section * room, dim_half, cos, sin);
                        }
                    }
                }
            }
        }
        if rotated < dim {
            for (x, y) in x.chunks_exact(dim.max(1)).zip(y.chunks_exact_mut(dim.max(1))) {
                let rest = y.iter_mut().zip(x).skip(rotated);
                rest.for_each(|(y, x)| *y = *x);
            }
        }
    }
    Ok(())
}

/// Pairs of neighbours: `y = (a cos - b sin, a sin + b cos)`.
fn rotate_neighbours(x: &[f32], y: &mut [f32], angles: &[[f32; 2]]) {
    let pairs = x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0);
    for ([cos, sin], ([a, b], [ya, yb])) in angles.iter().zip(pairs) {
        (*ya, *yb) = (a * cos - b * sin, a * sin + b * cos);
    }
}

/// All heads of a position, each of `ALL = 2 * HALF` blocks of 32 elements.
#[inline(always)]
fn rotate_heads<const HALF: usize, const ALL: usize>(
    x: &[f32],
    y: &mut [f32],
    cos: &[f32],
    sin: &[f32],
) {
    let (cos, _) = cos.as_chunks::<32>();
    let (sin, _) = sin.as_chunks::<32>();
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
            rotate_block(a, b, cos, sin, ya, yb);
        }
    }
}

/// The pairs of one head from `from` on, as many as there are angles.
#[inline(always)]
fn rotate_head(x: &[f32], y: &mut [f32], from: usize, dim_half: usize, cos: &[f32], sin: &[f32]) {
    let (a, b) = (window(x, from, cos.len()), window(x, dim_half + from, cos.len()));
    let (ya, yb) = y.split_at_mut_checked(dim_half).unwrap_or_default();
    let (ya, yb) = (window_mut(ya, from, cos.len()), window_mut(yb, from, cos.len()));
    let (a_blocks, a) = a.as_chunks::<32>();
    let (b_blocks, b) = b.as_chunks::<32>();
    let (cos_blocks, cos) = cos.as_chunks::<32>();
    let (sin_blocks, sin) = sin.as_chunks::<32>();
    let (ya_blocks, ya) = ya.as_chunks_mut::<32>();
    let (yb_blocks, yb) = yb.as_chunks_mut::<32>();
    let angles = cos_blocks.iter().zip(sin_blocks);
    let blocks = a_blocks.iter().zip(b_blocks).zip(angles).zip(ya_blocks.iter_mut().zip(yb_blocks));
    for (((a, b), (cos, sin)), (ya, yb)) in blocks {
        rotate_block(a, b, cos, sin, ya, yb);
    }
    let pairs = a.iter().zip(b).zip(cos.iter().zip(sin)).zip(ya.iter_mut().zip(yb));
    for (((a, b), (cos, sin)), (ya, yb)) in pairs {
        (*ya, *yb) = (a * cos - b * sin, a * sin + b * cos);
    }
}

/// `ya = a cos - b sin`, `yb = a sin + b cos`. Every turn of a loop asks whether there is time left, so
/// there is none here.
#[inline(always)]
fn rotate_block(
    a: &[f32; 32],
    b: &[f32; 32],
    cos: &[f32; 32],
    sin: &[f32; 32],
    ya: &mut [f32; 32],
    yb: &mut [f32; 32],
) {
    unroll!(8, i => {
        let (a, b, cos, sin) = (at(a, 4 * i), at(b, 4 * i), at(cos, 4 * i), at(sin, 4 * i));
        put(ya, 4 * i, a.madd(cos, F32x4::ZERO - b * sin));
        put(yb, 4 * i, a.madd(sin, b * cos));
    });
}

/// `len` elements from `from` on, or none.
#[inline(always)]
fn window(s: &[f32], from: usize, len: usize) -> &[f32] {
    s.get(from..).and_then(|s| s.get(..len)).unwrap_or_default()
}

/// As [`window`].
#[inline(always)]
fn window_mut(s: &mut [f32], from: usize, len: usize) -> &mut [f32] {
    s.get_mut(from..).and_then(|s| s.get_mut(..len)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER_TURN_AND_NONE: [f32; 4] = [0.0, 1.0, 1.0, 0.0];

    fn rotate(interleaved: bool) -> [f32; 5] {
        let shape = RopeShape { seq: 1, heads: 1, dim: 5, dim_half: 2, interleaved };
        let mut y = [9.0; 5];
        let (cos, sin) = (&mut [0.0; 2], &mut [0.0; 2]);
        rope(&shape, &[1.0, 2.0, 3.0, 4.0, 5.0], &QUARTER_TURN_AND_NONE, &mut y, [cos, sin])
            .unwrap();
        y
    }

    #[test]
    fn pairs_are_rotated_in_both_layouts_and_the_rest_is_copied() {
        assert_eq!(rotate(false), [-3.0, 2.0, 1.0, 4.0, 5.0]);
        assert_eq!(rotate(true), [-2.0, 1.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn pairs_that_do_not_fit_a_head_are_refused() {
        let shape = RopeShape { seq: 1, heads: 1, dim: 4, dim_half: 3, interleaved: false };
        let room: [&mut [f32]; 2] = [&mut [0.0; 3], &mut [0.0; 3]];
        let refused = rope(&shape, &[0.0; 4], &[0.0; 6], &mut [0.0; 4], room);
        assert_eq!(refused, Err(Status::InvalidParams));
    }

    #[test]
    fn any_number_of_pairs_in_any_room_is_rotated_alike() {
        for dim_half in [1, 3, 4, 31, 32, 35, 64, 70] {
            for (room, interleaved) in [(70, false), (32, false), (8, false), (70, true)] {
                let dim = 2 * dim_half + 1;
                let shape = RopeShape { seq: 2, heads: 3, dim, dim_half, interleaved };
                let number = |i: usize| (i * 37 % 101) as f32 / 25.0 - 2.0;
                let x: [f32; 6 * 141] = core::array::from_fn(number);
                let freqs: [f32; 2 * 140] = core::array::from_fn(number);
                let mut y = [9.0; 6 * 141];
                let [mut cos, mut sin] = [[0.0; 70]; 2];
                let (all, angles) = (6 * dim, 4 * dim_half);
                let room = [&mut cos[..room], &mut sin[..room]];
                rope(&shape, &x[..all], &freqs[..angles], &mut y[..all], room).unwrap();
                for (row, (x, y)) in x[..all].chunks(dim).zip(y.chunks(dim)).enumerate() {
                    assert_eq!(y[dim - 1], x[dim - 1]);
                    let freqs = &freqs[row / 3 * 2 * dim_half..];
                    for i in 0..dim_half {
                        let (p, q) =
                            if interleaved { (2 * i, 2 * i + 1) } else { (i, i + dim_half) };
                        let (cos, sin) = (freqs[2 * i], freqs[2 * i + 1]);
                        let near = |a: f32, b: f32| (a - b).abs() < 1e-5;
                        assert!(near(y[p], x[p] * cos - x[q] * sin), "{dim_half} {i}");
                        assert!(near(y[q], x[p] * sin + x[q] * cos), "{dim_half} {i}");
                    }
                }
            }
        }
    }
}
