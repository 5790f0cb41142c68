//! Layer normalisation (Ba, Kiros and Hinton, arXiv 1607.06450).

use super::simd::{Elem, Simd, SimdOp, dispatch};
use super::whole_rows;
use crate::{Isa, NativeError};
use half::f16;

/// `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` for each row, with the variance over
/// `n`, not `n - 1`; `x` and `y` are `[rows, weight.len()]`, an absent `bias` is zero.
///
/// Within 4e-6 of the f64 definition, relative to the largest element of the normalised row, unless
/// the spread of a row is below 1e-6 of its mean: f32 inputs hold no more. Zeros with `eps` 0, NaN and
/// infinities give what the definition has, mostly NaN.
///
/// # Errors
/// [`NativeError::Shape`] where `x` is not whole rows, or `y` or `bias` differ in length.
pub fn layernorm(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    y: &mut [f32],
) -> Result<(), NativeError> {
    call(isa, LayerNorm { x, weight, bias, eps, y })
}

/// [`layernorm`] of binary16 rows: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`layernorm`].
pub fn layernorm_f16(
    isa: Isa,
    x: &[f16],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
    y: &mut [f16],
) -> Result<(), NativeError> {
    call(isa, LayerNorm { x, weight, bias, eps, y })
}

fn call<T: Elem>(isa: Isa, op: LayerNorm<'_, T>) -> Result<(), NativeError> {
    let LayerNorm { x, weight, bias, eps, y } = op;
    let dim = weight.len();
    whole_rows("layernorm: x elements", dim, x.len())?;
    NativeError::check("layernorm: y elements", x.len(), y.len())?;
    NativeError::check("layernorm: bias elements", dim, bias.map_or(dim, <[f32]>::len))?;
    match isa {
        _ if dim == 0 => {}
        Isa::Scalar => {
            for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
                reference(x, weight, bias, eps, y);
            }
        }
        _ => dispatch(isa, LayerNorm { x, weight, bias, eps, y }),
    }
    Ok(())
}

/// One row, with everything between input and output in f64.
fn reference<T: Elem>(x: &[T], weight: &[f32], bias: Option<&[f32]>, eps: f32, y: &mut [T]) {
    let n = x.len() as f64;
    let wide = |x: &T| f64::from(x.get());
    let mean = x.iter().map(wide).sum::<f64>() / n;
    let variance = x.iter().map(|x| (wide(x) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    for (i, (x, y)) in x.iter().zip(y).enumerate() {
        let bias = bias.map_or(0.0, |bias| f64::from(bias[i]));
        *y = T::put(((wide(x) - mean) * scale * f64::from(weight[i]) + bias) as f32);
    }
}

struct LayerNorm<'a, T> {
    x: &'a [T],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    eps: f32,
    y: &'a mut [T],
}

/// Below this variance squares lose digits to underflow, and the mean of subnormal elements is itself
/// too coarse; the reference takes such rows, constant ones among them, and those that overflow.
pub(super) const SMALLEST_VARIANCE: f32 = 1e-35;

impl<T: Elem> SimdOp for LayerNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.weight.len();
        let n = dim as f32;
        for (x, y) in self.x.chunks_exact(dim).zip(self.y.chunks_exact_mut(dim)) {
            let center = sum(s, x) / n;
            // The rounded mean is off by some of its last places. Deviations from it are exact
            // enough; their own mean corrects both results.
            let (first, second) = moments(s, x, s.splat(center));
            let correction = first / n;
            let variance = second / n - correction * correction;
            // Also false for the NaN that an overflow leaves.
            let in_range = (SMALLEST_VARIANCE..=f32::MAX).contains(&variance);
            let variance = variance + self.eps;
            if !in_range || !variance.is_finite() {
                reference(x, self.weight, self.bias, self.eps, y);
                continue;
            }
            let scale = s.splat(1.0 / variance.sqrt());
            let (center, correction) = (s.splat(center), s.splat(correction));
            let whole = dim - dim % S::LANES;
            for start in (0..whole).step_by(S::LANES) {
                let v = s.sub(s.sub(T::load(s, &x[start..]), center), correction);
                let bias = match self.bias {
                    Some(bias) => s.load(&bias[start..]),
                    None => s.splat(0.0),
                };
                let v = s.fma(s.mul(v, scale), s.load(&self.weight[start..]), bias);
                T::store(s, v, &mut y[start..]);
            }
            if whole < dim {
                let v = s.sub(s.sub(T::load_partial(s, &x[whole..]), center), correction);
                let bias = self.bias.map_or(&[][..], |bias| &bias[whole..]);
                let weight = s.load_partial(&self.weight[whole..]);
                let v = s.fma(s.mul(v, scale), weight, s.load_partial(bias));
                T::store_partial(s, v, &mut y[whole..]);
            }
        }
    }
}

#[inline(always)]
pub(super) fn sum<T: Elem, S: Simd>(s: S, x: &[T]) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    let mut blocks = x.chunks_exact(4 * S::LANES);
    for block in &mut blocks {
        for (i, acc) in acc.iter_mut().enumerate() {
            *acc = s.add(*acc, T::load(s, &block[i * S::LANES..]));
        }
    }
    for (i, x) in blocks.remainder().chunks(S::LANES).enumerate() {
        acc[i] = s.add(acc[i], T::load_partial(s, x));
    }
    s.sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}

/// Sums of the deviations from `center` and of their squares.
#[inline(always)]
pub(super) fn moments<T: Elem, S: Simd>(s: S, x: &[T], center: S::F) -> (f32, f32) {
    let (mut first, mut second) = ([s.splat(0.0); 2], [s.splat(0.0); 2]);
    let mut blocks = x.chunks_exact(2 * S::LANES);
    for block in &mut blocks {
        for i in 0..2 {
            let v = s.sub(T::load(s, &block[i * S::LANES..]), center);
            first[i] = s.add(first[i], v);
            second[i] = s.fma(v, v, second[i]);
        }
    }
    let (mut first, mut second) =
        (s.sum(s.add(first[0], first[1])), s.sum(s.add(second[0], second[1])));
    // Lanes beyond the end would count as deviations, so the last few go one by one.
    let mut one = [0.0; super::simd::MAX_LANES];
    s.store(center, &mut one);
    for x in blocks.remainder() {
        let v = x.get() - one[0];
        first += v;
        second += v * v;
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{LENGTHS, close, noise, ranges};
    use crate::oracle;

    #[track_caller]
    fn check(isa: Isa, what: &str, x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) {
        let mut y = vec![f32::NAN; x.len()];
        layernorm(isa, x, weight, bias, eps, &mut y).unwrap();
        let want = oracle::layernorm(x, weight, bias, eps);
        let dim = weight.len();
        for (y, want) in y.chunks(dim).zip(want.chunks(dim)) {
            let largest = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            close(&format!("{isa} {what}"), y, want, 0.0, 4e-6 * largest + 1e-44);
        }
    }

    #[test]
    fn agrees_with_the_oracle_over_lengths_and_ranges() {
        for isa in Isa::every() {
            for dim in LENGTHS {
                let (weight, bias) = (noise(dim, 7), noise(dim, 8));
                for (name, x) in ranges(3 * dim, dim as u64) {
                    let what = format!("{dim} {name}");
                    check(isa, &what, &x, &weight, Some(&bias), 1e-5);
                    check(isa, &what, &x, &weight, None, 1e-5);
                    if dim > 1 && name != "zero" {
                        check(isa, &what, &x, &weight, None, 0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn a_large_common_offset_does_not_spoil_the_variance() {
        for isa in Isa::every() {
            let x: Vec<f32> = noise(1000, 1).iter().map(|x| 1000.0 + x).collect();
            check(isa, "offset", &x, &vec![1.0; 1000], None, 0.0);
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors_and_empty_is_fine() {
        for isa in Isa::every() {
            assert!(layernorm(isa, &[1.0; 5], &[1.0; 2], None, 0.0, &mut [0.0; 5]).is_err());
            assert!(layernorm(isa, &[1.0; 4], &[1.0; 2], None, 0.0, &mut [0.0; 2]).is_err());
            let bias = Some(&[0.0; 3][..]);
            assert!(layernorm(isa, &[1.0; 4], &[1.0; 2], bias, 0.0, &mut [0.0; 4]).is_err());
            assert!(layernorm(isa, &[], &[], None, 0.0, &mut []).is_ok());
        }
    }
}
