//! Softmax of one row, after subtracting its largest element.

use super::simd::{Simd, SimdOp, dispatch, math};
use crate::{Isa, NativeError};

/// `x[i] = exp(x[i] - max) / sum(exp(x - max))`, in place. An empty row stays empty.
///
/// Relative to the f64 definition within 2e-6, and 6e-8 more for each unit that the element lies below
/// the largest, since that difference is rounded to f32; elements 104 below the largest become 0.
/// A NaN, a positive infinity, or a row of nothing but negative infinities makes the row NaN.
///
/// # Errors
/// None; the result type is that of all operations.
pub fn softmax(isa: Isa, x: &mut [f32]) -> Result<(), NativeError> {
    match isa {
        Isa::Scalar => reference(x),
        _ => dispatch(isa, Softmax(x)),
    }
    Ok(())
}

fn reference(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    let mut sum = 0.0;
    for x in &mut *x {
        *x = (*x - max).exp();
        sum += f64::from(*x);
    }
    x.iter_mut().for_each(|x| *x = (f64::from(*x) / sum) as f32);
}

/// Elements whose exponentials are summed in f32; the sums of blocks are added in f64.
const BLOCK: usize = 1024;

struct Softmax<'a>(&'a mut [f32]);

impl SimdOp for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = self.0;
        let mut max = s.splat(f32::NEG_INFINITY);
        let mut chunks = x.chunks_exact(S::LANES);
        for x in &mut chunks {
            max = s.max(s.load(x), max);
        }
        let tail = chunks.remainder().iter().copied();
        let tail = tail.fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max });
        let max = s.splat(s.max_lane(max).max(tail));

        // One running sum over a long row would round at its own size at every step.
        let mut sum = 0.0;
        for block in x.chunks_mut(BLOCK) {
            let mut partial = s.splat(0.0);
            let mut chunks = block.chunks_exact_mut(S::LANES);
            for x in &mut chunks {
                let e = math::exp(s, s.sub(s.load(x), max));
                partial = s.add(partial, e);
                s.store(e, x);
            }
            let rest = chunks.into_remainder();
            let e = math::exp(s, s.sub(s.load_partial(rest), max));
            s.store_partial(e, rest);
            sum += f64::from(s.sum(partial) + rest.iter().sum::<f32>());
        }

        // Division, because the reciprocal of a large sum would cost a second rounding.
        let sum = s.splat(sum as f32);
        let mut chunks = x.chunks_exact_mut(S::LANES);
        for x in &mut chunks {
            s.store(s.div(s.load(x), sum), x);
        }
        let rest = chunks.into_remainder();
        s.store_partial(s.div(s.load_partial(rest), sum), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{LENGTHS, close, noise, ranges};
    use crate::oracle;

    #[test]
    fn agrees_with_the_oracle_over_lengths_and_ranges() {
        for isa in Isa::every() {
            for n in LENGTHS.into_iter().chain([50_000]) {
                let mut rows = ranges(n, n as u64);
                rows.push(("logits", noise(n, 5).iter().map(|x| x * 60.0).collect()));
                for (name, x) in rows {
                    let mut y = x.clone();
                    softmax(isa, &mut y).unwrap();
                    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let what = format!("{isa} {n} {name}");
                    for (i, want) in oracle::softmax(&x).into_iter().enumerate() {
                        let relative = 2e-6 + 6e-8 * f64::from(max - x[i]);
                        close(&what, &y[i..=i], &[want], relative, 2e-45);
                    }
                }
            }
        }
    }

    #[test]
    fn masked_elements_get_nothing_and_nonsense_gives_nan() {
        for isa in Isa::every() {
            let mut x = [f32::NEG_INFINITY; 21];
            x[20] = 3.0;
            softmax(isa, &mut x).unwrap();
            assert!(x[..20].iter().all(|&x| x == 0.0) && x[20] == 1.0, "{isa}");
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = [1.0; 21];
                x[3] = bad;
                softmax(isa, &mut x).unwrap();
                assert!(x.iter().all(|x| x.is_nan() || *x == 0.0), "{isa} {bad}");
                assert!(x[3].is_nan(), "{isa} {bad}");
            }
            let mut x = [f32::NEG_INFINITY; 21];
            softmax(isa, &mut x).unwrap();
            assert!(x.iter().all(|x| x.is_nan()), "{isa}");
            softmax(isa, &mut []).unwrap();
        }
    }
}
