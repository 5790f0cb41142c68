//! Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864).

use ruvllm_kernel_sdk::prelude::*;

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

/// Rotates every head of `x` into `y` by the (cos, sin) pairs of its position.
///
/// # Errors
/// [`Status::InvalidParams`] when the pairs do not fit a head.
pub fn rope(shape: &RopeShape, x: &[f32], freqs: &[f32], y: &mut [f32]) -> Result<(), Status> {
    let RopeShape { seq, heads, dim, dim_half, interleaved } = *shape;
    let rotated = dim_half.checked_mul(2).filter(|rotated| *rotated <= dim);
    let rotated = rotated.ok_or(Status::InvalidParams)?;
    let rows = x.chunks_exact(dim.max(1)).zip(y.chunks_exact_mut(dim.max(1)));
    for (row, (x, y)) in rows.enumerate() {
        let position = row / heads.max(1) % seq.max(1);
        let angles = freqs.chunks_exact(rotated.max(1)).nth(position).unwrap_or_default();
        let angles = angles.as_chunks::<2>().0;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = *x);
        if interleaved {
            let pairs = x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0);
            for ([cos, sin], ([a, b], [ya, yb])) in angles.iter().zip(pairs) {
                (*ya, *yb) = (a * cos - b * sin, a * sin + b * cos);
            }
        } else {
            let (a, b) = x.split_at_checked(dim_half).unwrap_or_default();
            let (ya, yb) = y.split_at_mut_checked(dim_half).unwrap_or_default();
            let pairs = a.iter().zip(b).zip(ya.iter_mut().zip(yb));
            for ([cos, sin], ((a, b), (ya, yb))) in angles.iter().zip(pairs) {
                (*ya, *yb) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER_TURN_AND_NONE: [f32; 4] = [0.0, 1.0, 1.0, 0.0];

    fn rotate(interleaved: bool) -> [f32; 5] {
        let shape = RopeShape { seq: 1, heads: 1, dim: 5, dim_half: 2, interleaved };
        let mut y = [9.0; 5];
        rope(&shape, &[1.0, 2.0, 3.0, 4.0, 5.0], &QUARTER_TURN_AND_NONE, &mut y).unwrap();
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
        let refused = rope(&shape, &[0.0; 4], &[0.0; 6], &mut [0.0; 4]);
        assert_eq!(refused, Err(Status::InvalidParams));
    }
}
