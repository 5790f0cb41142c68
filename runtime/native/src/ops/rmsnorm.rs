//! Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467).

use super::simd::{Elem, Simd, SimdOp, dispatch};
use super::whole_rows;
use crate::{Isa, NativeError};
use half::f16;

/// `y = x / sqrt(mean(x^2) + eps) * weight` for each row; `x` and `y` are `[rows, weight.len()]`.
///
/// Within 2e-6 relative of the f64 definition for rows up to some ten thousand elements, also where
/// the squares leave the range of f32. A row of zeros gives zeros, or NaN where `eps` is 0. A NaN or
/// an infinity in a row makes that row NaN or zero, as the definition has it.
///
/// # Errors
/// [`NativeError::Shape`] where `x` is not whole rows or `y` differs from it in length.
pub fn rmsnorm(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    y: &mut [f32],
) -> Result<(), NativeError> {
    call(isa, RmsNorm { x, weight, eps, y })
}

/// [`rmsnorm`] on binary16 activations: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`rmsnorm`].
pub fn rmsnorm_f16(
    isa: Isa,
    x: &[f16],
    weight: &[f32],
    eps: f32,
    y: &mut [f16],
) -> Result<(), NativeError> {
    call(isa, RmsNorm { x, weight, eps, y })
}

struct RmsNorm<'a, T> {
    x: &'a [T],
    weight: &'a [f32],
    eps: f32,
    y: &'a mut [T],
}

fn call<T: Elem>(isa: Isa, op: RmsNorm<'_, T>) -> Result<(), NativeError> {
    let dim = op.weight.len();
    whole_rows("rmsnorm: x elements", dim, op.x.len())?;
    NativeError::check("rmsnorm: y elements", op.x.len(), op.y.len())?;
    match isa {
        _ if dim == 0 => {}
        Isa::Scalar => {
            for (x, y) in op.x.chunks_exact(dim).zip(op.y.chunks_exact_mut(dim)) {
                reference(x, op.weight, op.eps, y);
            }
        }
        _ => dispatch(isa, op),
    }
    Ok(())
}

/// One row, with everything between input and output in f64.
fn reference<T: Elem>(x: &[T], weight: &[f32], eps: f32, y: &mut [T]) {
    let squares: f64 = x.iter().map(|x| f64::from(x.get()).powi(2)).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    for ((x, w), y) in x.iter().zip(weight).zip(y) {
        *y = T::put((f64::from(x.get()) * scale * f64::from(*w)) as f32);
    }
}

/// Below this mean the squares of f32 lose digits to underflow, and above f32's range they overflow;
/// both are left to the reference.
pub(super) const SMALLEST_MEAN: f32 = 1e-35;

impl<T: Elem> SimdOp for RmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.weight.len();
        for (x, y) in self.x.chunks_exact(dim).zip(self.y.chunks_exact_mut(dim)) {
            let mean = sum_of_squares(s, x) / dim as f32 + self.eps;
            if !(SMALLEST_MEAN..=f32::MAX).contains(&mean) {
                reference(x, self.weight, self.eps, y);
                continue;
            }
            let scale = s.splat(1.0 / mean.sqrt());
            let mut x = x.chunks_exact(S::LANES);
            let mut w = self.weight.chunks_exact(S::LANES);
            let mut y = y.chunks_exact_mut(S::LANES);
            for ((x, w), y) in (&mut x).zip(&mut w).zip(&mut y) {
                T::store(s, s.mul(s.mul(T::load(s, x), scale), s.load(w)), y);
            }
            let y = y.into_remainder();
            if !y.is_empty() {
                let x = T::load_partial(s, x.remainder());
                let v = s.mul(s.mul(x, scale), s.load_partial(w.remainder()));
                T::store_partial(s, v, y);
            }
        }
    }
}

#[inline(always)]
pub(super) fn sum_of_squares<S: Simd, T: Elem>(s: S, x: &[T]) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    let mut blocks = x.chunks_exact(4 * S::LANES);
    for block in &mut blocks {
        for (i, acc) in acc.iter_mut().enumerate() {
            let v = T::load(s, &block[i * S::LANES..]);
            *acc = s.fma(v, v, *acc);
        }
    }
    for (i, x) in blocks.remainder().chunks(S::LANES).enumerate() {
        let v = T::load_partial(s, x);
        acc[i] = s.fma(v, v, acc[i]);
    }
    s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{LENGTHS, close, noise, ranges};
    use crate::oracle;

    #[test]
    fn agrees_with_the_oracle_over_lengths_and_ranges() {
        for isa in Isa::every() {
            for dim in LENGTHS {
                let weight = noise(dim, 7);
                for (name, x) in ranges(3 * dim, dim as u64) {
                    for eps in [1e-5, 1e-20, 0.0] {
                        if name == "zero" && eps == 0.0 {
                            continue;
                        }
                        let mut y = vec![f32::NAN; x.len()];
                        rmsnorm(isa, &x, &weight, eps, &mut y).unwrap();
                        let want = oracle::rmsnorm(&x, &weight, eps);
                        close(&format!("{isa} {dim} {name} {eps}"), &y, &want, 2e-6, 1e-44);
                    }
                }
            }
        }
    }

    #[test]
    fn f16_agrees_with_the_oracle_to_half_an_ulp_of_f16() {
        for isa in Isa::every() {
            for dim in LENGTHS {
                let weight = noise(dim, 7);
                let x: Vec<f16> = noise(2 * dim, 3).iter().map(|&x| f16::put(x * 5.0)).collect();
                let mut y = vec![f16::NAN; x.len()];
                rmsnorm_f16(isa, &x, &weight, 1e-6, &mut y).unwrap();
                let wide: Vec<f32> = x.iter().map(|x| x.get()).collect();
                let got: Vec<f32> = y.iter().map(|y| y.get()).collect();
                let want = oracle::rmsnorm(&wide, &weight, 1e-6);
                close(&format!("{isa} {dim}"), &got, &want, 4.95e-4, 3.1e-8);
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors_and_empty_is_fine() {
        for isa in Isa::every() {
            assert!(rmsnorm(isa, &[1.0; 5], &[1.0; 2], 0.0, &mut [0.0; 5]).is_err());
            assert!(rmsnorm(isa, &[1.0; 4], &[1.0; 2], 0.0, &mut [0.0; 6]).is_err());
            assert!(rmsnorm(isa, &[1.0; 4], &[], 0.0, &mut [0.0; 4]).is_err());
            assert!(rmsnorm(isa, &[], &[1.0; 2], 0.0, &mut []).is_ok());
            assert!(rmsnorm(isa, &[], &[], 0.0, &mut []).is_ok());
        }
    }
}
