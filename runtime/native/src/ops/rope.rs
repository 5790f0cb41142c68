//! Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864).

use super::kv;
use super::simd::{Elem, Simd, SimdOp, dispatch};
use super::{product, whole_rows};
use crate::{Isa, NativeError};
use half::f16;

/// Dimensions of a call: `x` and `y` are `[batch, seq, heads, dim]`, `freqs` `[seq, dim_half, 2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeShape {
    /// Sequences.
    pub batch: usize,
    /// Positions of each.
    pub seq: usize,
    /// Heads of each position.
    pub heads: usize,
    /// Elements of each head.
    pub dim: usize,
    /// Rotated pairs of each head; `2 * dim_half <= dim`, and elements beyond are copied.
    pub dim_half: usize,
    /// Whether pairs are `(2i, 2i + 1)`; else they are `(i, i + dim_half)`.
    pub interleaved: bool,
}

impl RopeShape {
    /// Checks buffer lengths, in elements, and the shape itself.
    fn check(&self, x: usize, freqs: usize, y: usize) -> Result<(), NativeError> {
        let elems = product("rope: elements", &[self.batch, self.seq, self.heads, self.dim])?;
        let angles = product("rope: angles", &[self.seq, self.dim_half, 2])?;
        NativeError::check("rope: x elements", elems, x)?;
        NativeError::check("rope: y elements", elems, y)?;
        NativeError::check("rope: freqs elements", angles, freqs)?;
        if self.dim / 2 < self.dim_half {
            let (expected, actual) = (self.dim / 2, self.dim_half);
            return Err(NativeError::Shape { what: "rope: dim_half", expected, actual });
        }
        Ok(())
    }

    /// Elements of one position. Cannot overflow once [`check`](Self::check) has passed, unless
    /// there is no position.
    fn row(&self) -> usize {
        self.heads.wrapping_mul(self.dim)
    }
}

/// Rotates each pair by the angle whose (cos, sin) `freqs` holds for its position:
/// `(a, b) -> (a cos - b sin, a sin + b cos)`.
///
/// Within 2e-7 of the f64 definition, relative to the length of the pair.
///
/// # Errors
/// [`NativeError::Shape`] where a buffer does not fit `shape`, or `2 * dim_half > dim`.
pub fn rope(
    isa: Isa,
    shape: &RopeShape,
    x: &[f32],
    freqs: &[f32],
    y: &mut [f32],
) -> Result<(), NativeError> {
    call(isa, shape, 1.0, x, freqs, y)
}

/// The gradient of [`rope`] by `x`, given that of its output: the rotation by the angles turned round.
///
/// # Errors
/// As [`rope`].
pub fn rope_backward(
    isa: Isa,
    shape: &RopeShape,
    freqs: &[f32],
    dy: &[f32],
    dx: &mut [f32],
) -> Result<(), NativeError> {
    call(isa, shape, -1.0, dy, freqs, dx)
}

/// [`rope`] on binary16: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`rope`].
pub fn rope_f16(
    isa: Isa,
    shape: &RopeShape,
    x: &[f16],
    freqs: &[f32],
    y: &mut [f16],
) -> Result<(), NativeError> {
    call(isa, shape, 1.0, x, freqs, y)
}

/// [`rope`] on `Q8_0` blocks: each position's `heads * dim` elements are read, rotated in f32 and
/// quantised again as [`kv_pack_q8`](super::kv_pack_q8) does. Allocates one row.
///
/// # Errors
/// As [`rope`], and where `heads * dim` is not whole blocks of 32.
pub fn rope_q8(
    isa: Isa,
    shape: &RopeShape,
    x: &[u8],
    freqs: &[f32],
    y: &mut [u8],
) -> Result<(), NativeError> {
    NativeError::check("rope: y bytes", x.len(), y.len())?;
    whole_rows("rope: x bytes", kv::Q8_BYTES, x.len())?;
    let elems = x.len() / kv::Q8_BYTES * kv::BLOCK;
    shape.check(elems, freqs.len(), elems)?;
    if elems == 0 {
        return Ok(());
    }
    let row = shape.row();
    whole_rows("rope: elements of a row of q8_0 blocks", kv::BLOCK, row)?;
    let bytes = row / kv::BLOCK * kv::Q8_BYTES;
    let one = RopeShape { batch: 1, seq: 1, ..*shape };
    let mut buffer = vec![0.0; 2 * row];
    let (plain, rotated) = buffer.split_at_mut(row);
    for (i, (x, y)) in x.chunks_exact(bytes).zip(y.chunks_exact_mut(bytes)).enumerate() {
        let angles = i % shape.seq * 2 * shape.dim_half;
        kv::kv_unpack_q8(isa, x, plain)?;
        rope(isa, &one, plain, &freqs[angles..angles + 2 * shape.dim_half], rotated)?;
        kv::kv_pack_q8(isa, rotated, y)?;
    }
    Ok(())
}

/// `sense` is 1, or -1 to turn the other way.
fn call<T: Elem>(
    isa: Isa,
    shape: &RopeShape,
    sense: f32,
    x: &[T],
    freqs: &[f32],
    y: &mut [T],
) -> Result<(), NativeError> {
    shape.check(x.len(), freqs.len(), y.len())?;
    if x.is_empty() {
        return Ok(());
    }
    if shape.dim_half == 0 {
        y.copy_from_slice(x);
        return Ok(());
    }
    match isa {
        Isa::Scalar => reference(shape, sense, x, freqs, y),
        _ => dispatch(isa, Rope { shape: *shape, sense, x, freqs, y }),
    }
    Ok(())
}

fn reference<T: Elem>(shape: &RopeShape, sense: f32, x: &[T], freqs: &[f32], y: &mut [T]) {
    let RopeShape { dim, dim_half, interleaved, .. } = *shape;
    let angles = freqs.chunks_exact(2 * dim_half).cycle();
    for ((x, y), angles) in
        x.chunks_exact(shape.row()).zip(y.chunks_exact_mut(shape.row())).zip(angles)
    {
        for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
            for (i, angle) in angles.chunks_exact(2).enumerate() {
                let (p, q) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + dim_half) };
                let (a, b, cos, sin) = (x[p].get(), x[q].get(), angle[0], sense * angle[1]);
                y[p] = T::put(a * cos - b * sin);
                y[q] = T::put(a * sin + b * cos);
            }
            y[2 * dim_half..].copy_from_slice(&x[2 * dim_half..]);
        }
    }
}

struct Rope<'a, T> {
    shape: RopeShape,
    sense: f32,
    x: &'a [T],
    freqs: &'a [f32],
    y: &'a mut [T],
}

impl<T: Elem> SimdOp for Rope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RopeShape { dim, dim_half, interleaved, .. } = self.shape;
        let row = self.shape.row();
        let sense = s.splat(self.sense);
        let angles = self.freqs.chunks_exact(2 * dim_half).cycle();
        for ((x, y), angles) in
            self.x.chunks_exact(row).zip(self.y.chunks_exact_mut(row)).zip(angles)
        {
            // The angles of a position are the same for all heads: they stay in registers while
            // one slice of every head passes by.
            let whole = dim_half - dim_half % S::LANES;
            for start in (0..whole).step_by(S::LANES) {
                let pairs = &angles[2 * start..][..2 * S::LANES];
                let (cos, sin) = s.deinterleave(s.load(pairs), s.load(&pairs[S::LANES..]));
                let sin = s.mul(sin, sense);
                for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
                    if interleaved {
                        let x = &x[2 * start..][..2 * S::LANES];
                        let y = &mut y[2 * start..][..2 * S::LANES];
                        let (a, b) = s.deinterleave(T::load(s, x), T::load(s, &x[S::LANES..]));
                        let (a, b) = rotate(s, a, b, cos, sin);
                        let (a, b) = s.interleave(a, b);
                        T::store(s, a, y);
                        T::store(s, b, &mut y[S::LANES..]);
                    } else {
                        let (xa, xb) = x.split_at(dim_half);
                        let (ya, yb) = y.split_at_mut(dim_half);
                        let (a, b) = (T::load(s, &xa[start..]), T::load(s, &xb[start..]));
                        let (a, b) = rotate(s, a, b, cos, sin);
                        T::store(s, a, &mut ya[start..]);
                        T::store(s, b, &mut yb[start..]);
                    }
                }
            }
            if whole == dim_half && 2 * dim_half == dim {
                continue;
            }
            let rest = 2 * (dim_half - whole);
            let split = rest.min(S::LANES);
            let pairs = &angles[2 * whole..];
            let (cos, sin) =
                s.deinterleave(s.load_partial(&pairs[..split]), s.load_partial(&pairs[split..]));
            let sin = s.mul(sin, sense);
            for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
                let (x, x_tail) = x.split_at(2 * dim_half);
                let (y, y_tail) = y.split_at_mut(2 * dim_half);
                y_tail.copy_from_slice(x_tail);
                if rest == 0 {
                    continue;
                }
                if interleaved {
                    let (x, y) = (&x[2 * whole..], &mut y[2 * whole..]);
                    let (a, b) = s.deinterleave(
                        T::load_partial(s, &x[..split]),
                        T::load_partial(s, &x[split..]),
                    );
                    let (a, b) = rotate(s, a, b, cos, sin);
                    let (a, b) = s.interleave(a, b);
                    T::store_partial(s, a, &mut y[..split]);
                    T::store_partial(s, b, &mut y[split..]);
                } else {
                    let (xa, xb) = x.split_at(dim_half);
                    let (ya, yb) = y.split_at_mut(dim_half);
                    let a = T::load_partial(s, &xa[whole..]);
                    let b = T::load_partial(s, &xb[whole..]);
                    let (a, b) = rotate(s, a, b, cos, sin);
                    T::store_partial(s, a, &mut ya[whole..]);
                    T::store_partial(s, b, &mut yb[whole..]);
                }
            }
        }
    }
}

#[inline(always)]
fn rotate<S: Simd>(s: S, a: S::F, b: S::F, cos: S::F, sin: S::F) -> (S::F, S::F) {
    let zero = s.splat(0.0);
    let minus_b = s.sub(zero, b);
    (s.fma(minus_b, sin, s.mul(a, cos)), s.fma(b, cos, s.mul(a, sin)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{close, noise, ranges};
    use crate::oracle;

    fn angles(seq: usize, dim_half: usize) -> Vec<f32> {
        let pair = |i: usize| (i as f32 * 0.37).sin_cos();
        (0..seq * dim_half).flat_map(|i| [pair(i).1, pair(i).0]).collect()
    }

    /// (heads, dim, dim_half)
    const SHAPES: [(usize, usize, usize); 12] = [
        (1, 2, 1),
        (3, 8, 4),
        (2, 9, 3),
        (1, 64, 32),
        (5, 80, 16),
        (2, 80, 40),
        (2, 128, 64),
        (1, 96, 48),
        (3, 33, 16),
        (2, 7, 0),
        (32, 64, 32),
        (1, 100, 49),
    ];

    fn largest(x: &[f32]) -> f64 {
        x.iter().fold(0.0, |m: f64, &x| m.max(f64::from(x.abs())))
    }

    #[test]
    fn agrees_with_the_oracle_for_both_orders_of_pairs() {
        for isa in Isa::every() {
            for (heads, dim, dim_half) in SHAPES {
                for interleaved in [false, true] {
                    let shape = RopeShape { batch: 2, seq: 3, heads, dim, dim_half, interleaved };
                    let freqs = angles(3, dim_half);
                    for (name, x) in ranges(6 * heads * dim, 11) {
                        let mut y = vec![f32::NAN; x.len()];
                        rope(isa, &shape, &x, &freqs, &mut y).unwrap();
                        let allowed = 3e-7 * largest(&x) + 3e-45;
                        let want = oracle::rope(&shape, &x, &freqs);
                        close(&format!("{isa} {shape:?} {name}"), &y, &want, 0.0, allowed);
                    }
                }
            }
        }
    }

    #[test]
    fn f16_agrees_with_the_oracle_to_half_an_ulp_of_f16() {
        for isa in Isa::every() {
            for (heads, dim, dim_half) in SHAPES {
                for interleaved in [false, true] {
                    let shape = RopeShape { batch: 1, seq: 2, heads, dim, dim_half, interleaved };
                    let freqs = angles(2, dim_half);
                    let x: Vec<f16> =
                        noise(2 * heads * dim, 2).iter().map(|&x| f16::put(x)).collect();
                    let mut y = vec![f16::NAN; x.len()];
                    rope_f16(isa, &shape, &x, &freqs, &mut y).unwrap();
                    let wide: Vec<f32> = x.iter().map(|x| x.get()).collect();
                    let got: Vec<f32> = y.iter().map(|y| y.get()).collect();
                    let want = oracle::rope(&shape, &wide, &freqs);
                    close(&format!("{isa} {shape:?}"), &got, &want, 5e-4, 1e-6);
                }
            }
        }
    }

    #[test]
    fn q8_is_within_one_step_of_the_rotated_values() {
        for isa in Isa::every() {
            for (heads, dim, dim_half) in [(1, 64, 32), (2, 80, 40), (2, 48, 24), (1, 32, 8)] {
                let shape =
                    RopeShape { batch: 2, seq: 3, heads, dim, dim_half, interleaved: false };
                let freqs = angles(3, dim_half);
                let x = noise(6 * heads * dim, 5);
                let bytes = x.len() / 32 * 34;
                let (mut packed, mut rotated) = (vec![0; bytes], vec![0; bytes]);
                kv::kv_pack_q8(isa, &x, &mut packed).unwrap();
                rope_q8(isa, &shape, &packed, &freqs, &mut rotated).unwrap();
                let (mut plain, mut y) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                kv::kv_unpack_q8(isa, &packed, &mut plain).unwrap();
                kv::kv_unpack_q8(isa, &rotated, &mut y).unwrap();
                let want = oracle::rope(&shape, &plain, &freqs);
                for (y, want) in y.chunks(32).zip(want.chunks(32)) {
                    let amax = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                    let what = format!("{isa} {shape:?}");
                    close(&what, y, want, 0.0, amax / 254.0 * 1.15 + 1e-6);
                }
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let shape =
            RopeShape { batch: 1, seq: 1, heads: 1, dim: 4, dim_half: 2, interleaved: false };
        for isa in Isa::every() {
            assert!(rope(isa, &shape, &[0.0; 5], &[0.0; 4], &mut [0.0; 4]).is_err());
            assert!(rope(isa, &shape, &[0.0; 4], &[0.0; 3], &mut [0.0; 4]).is_err());
            assert!(rope(isa, &shape, &[0.0; 4], &[0.0; 4], &mut [0.0; 3]).is_err());
            let wide = RopeShape { dim_half: 3, ..shape };
            assert!(rope(isa, &wide, &[0.0; 4], &[0.0; 6], &mut [0.0; 4]).is_err());
            let vast = RopeShape { seq: usize::MAX, ..shape };
            assert!(rope(isa, &vast, &[0.0; 4], &[0.0; 4], &mut [0.0; 4]).is_err());
            let none = RopeShape { batch: 0, heads: usize::MAX, ..shape };
            assert!(rope(isa, &none, &[], &[0.0; 4], &mut []).is_ok());
            assert!(rope_q8(isa, &shape, &[0; 4], &[0.0; 4], &mut [0; 4]).is_err());
            let odd = RopeShape { seq: 8, dim: 4, ..shape };
            assert!(rope_q8(isa, &odd, &[0; 34], &[0.0; 32], &mut [0; 34]).is_err());
        }
    }
}
