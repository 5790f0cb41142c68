//! The Walsh-Hadamard transform, which spreads what stands out in a few elements over all of a row
//! before it is quantised (Ashkboos et al., arXiv 2404.00456).

use super::simd::{Simd, SimdOp, dispatch};
use super::whole_rows;
use crate::{Isa, NativeError};

/// Transforms each row of `dim` elements of `x`, `[rows, dim]`, in place:
/// `x[i] = sum over j of (-1)^popcount(i & j) x[j] / sqrt(dim)`.
///
/// The matrix is symmetric and orthonormal, so that the transform is its own inverse and keeps dot
/// products. The same bits on every [`Isa`]; each element is within 1e-6 of the f64 definition,
/// relative to the sum of the row's magnitudes over `sqrt(dim)`.
///
/// # Errors
/// [`NativeError::Unsupported`] where `dim` is not a power of two from 2 to 256,
/// [`NativeError::Shape`] where `x` is not whole rows.
pub fn hadamard(isa: Isa, x: &mut [f32], dim: usize) -> Result<(), NativeError> {
    if !(2..=256).contains(&dim) || !dim.is_power_of_two() {
        let detail = format!("a dim of {dim} (a power of two, 2 to 256)");
        return Err(NativeError::Unsupported { what: "hadamard", detail });
    }
    whole_rows("hadamard: x elements", dim, x.len())?;
    match isa {
        Isa::Scalar => reference(x, dim),
        _ => dispatch(isa, Hadamard { x, dim }),
    }
    Ok(())
}

fn reference(x: &mut [f32], dim: usize) {
    let scale = scale(dim);
    for row in x.chunks_exact_mut(dim) {
        let mut half = 1;
        while half < dim {
            for both in row.chunks_exact_mut(2 * half) {
                let (low, high) = both.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

fn scale(dim: usize) -> f32 {
    1.0 / (dim as f32).sqrt()
}

struct Hadamard<'a> {
    x: &'a mut [f32],
    dim: usize,
}

impl SimdOp for Hadamard<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Hadamard { x, dim } = self;
        if dim < 2 * S::LANES {
            return reference(x, dim);
        }
        let factor = s.splat(scale(dim));
        for row in x.chunks_exact_mut(dim) {
            // Sums and differences of neighbours, the sums first, turn the bits of an element's place
            // by one: as many turns as a pair of vectors has bits transform it and restore the order.
            for pair in row.chunks_exact_mut(2 * S::LANES) {
                let (low, high) = pair.split_at_mut(S::LANES);
                let (mut a, mut b) = (s.load(low), s.load(high));
                for _ in 0..=S::LANES.ilog2() {
                    let (even, odd) = s.deinterleave(a, b);
                    (a, b) = (s.add(even, odd), s.sub(even, odd));
                }
                s.store(a, low);
                s.store(b, high);
            }
            let mut half = 2 * S::LANES;
            while half < dim {
                for both in row.chunks_exact_mut(2 * half) {
                    let (low, high) = both.split_at_mut(half);
                    let lows = low.chunks_exact_mut(S::LANES);
                    for (low, high) in lows.zip(high.chunks_exact_mut(S::LANES)) {
                        let (a, b) = (s.load(low), s.load(high));
                        s.store(s.add(a, b), low);
                        s.store(s.sub(a, b), high);
                    }
                }
                half *= 2;
            }
            for x in row.chunks_exact_mut(S::LANES) {
                s.store(s.mul(s.load(x), factor), x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{close, noise, ranges};
    use crate::oracle;

    const DIMS: [usize; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

    #[test]
    fn agrees_with_the_oracle_and_with_the_reference_bit_for_bit() {
        for dim in DIMS {
            for (name, x) in ranges(3 * dim, 5) {
                let want = oracle::hadamard(&x, dim);
                let mut plain = x.clone();
                reference(&mut plain, dim);
                for isa in Isa::every() {
                    let mut y = x.clone();
                    hadamard(isa, &mut y, dim).unwrap();
                    let rows = y.chunks(dim).zip(want.chunks(dim)).zip(x.chunks(dim));
                    for ((y, want), x) in rows {
                        let sum: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
                        // The least subnormal beside the documented bound.
                        let allowed = 1e-6 * sum / (dim as f64).sqrt() + 1.5e-45;
                        close(&format!("{isa} {dim} {name}"), y, want, 0.0, allowed);
                    }
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&y), bits(&plain), "{isa} {dim} {name}");
                }
            }
        }
    }

    #[test]
    fn is_its_own_inverse_and_keeps_dot_products() {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        for dim in DIMS {
            let (a, b) = (noise(dim, 1), noise(dim, 2));
            for isa in Isa::every() {
                let (mut at, mut bt) = (a.clone(), b.clone());
                hadamard(isa, &mut at, dim).unwrap();
                hadamard(isa, &mut bt, dim).unwrap();
                let norms = (dot(&a, &a) * dot(&b, &b)).sqrt();
                assert!((dot(&at, &bt) - dot(&a, &b)).abs() <= 2e-6 * norms, "{isa} {dim}");
                hadamard(isa, &mut at, dim).unwrap();
                for (back, a) in at.iter().zip(&a) {
                    assert!((back - a).abs() <= 2e-6 * (dim as f32).sqrt(), "{isa} {dim}");
                }
            }
        }
    }

    #[test]
    fn other_sizes_are_refused() {
        for dim in [0, 1, 3, 48, 512, usize::MAX] {
            let error = hadamard(Isa::detect(), &mut [0.0; 96], dim).unwrap_err();
            assert_eq!(error.code(), "native_unsupported");
        }
        let error = hadamard(Isa::detect(), &mut [0.0; 96], 64).unwrap_err();
        assert_eq!(error.code(), "native_shape");
        assert_eq!(hadamard(Isa::detect(), &mut [], 64), Ok(()));
    }
}
