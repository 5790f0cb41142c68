//! Layer normalisation, arXiv 1607.06450.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::sqrt;

/// `y = (x - mean) / sqrt(variance + eps) * weight + bias` for one row; all slices have the same length.
///
/// Sums run in f64, so that rows of any finite values come out right.
pub fn layernorm_row<T: Lanes>(x: &[T], weight: &[f32], bias: &[f32], eps: f32, y: &mut [T]) {
    let n = x.len() as f64;
    let mean = sum(x, |x| x) / n;
    let variance = sum(x, |x| (x - mean) * (x - mean)) / n;
    let scale = 1.0 / sqrt(variance + f64::from(eps));
    for (((x, w), b), y) in x.iter().zip(weight).zip(bias).zip(y) {
        let normal = (f64::from(x.widen()) - mean) * scale;
        *y = T::narrow((normal * f64::from(*w) + f64::from(*b)) as f32);
    }
}

/// Four sums, because a processor can add to one while it waits for another.
#[inline(always)]
fn sum<T: Lanes>(x: &[T], of: impl Fn(f64) -> f64) -> f64 {
    let (quads, rest) = x.as_chunks::<4>();
    let mut sums = [0f64; 4];
    for quad in quads {
        for (sum, x) in sums.iter_mut().zip(quad) {
            *sum += of(f64::from(x.widen()));
        }
    }
    let rest: f64 = rest.iter().map(|x| of(f64::from(x.widen()))).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    #[test]
    fn a_row_is_centred_scaled_and_shifted() {
        let mut y = [0.0; 2];
        layernorm_row(&[1.0, 3.0], &[2.0, 2.0], &[0.0, 1.0], 0.0, &mut y);
        assert_close(&y, &[-2.0, 3.0], 1e-7, 0.0);
        layernorm_row(&[5.0f32; 2], &[2.0, 2.0], &[0.5, 1.0], 1e-5, &mut y);
        assert_close(&y, &[0.5, 1.0], 0.0, 0.0);
    }
}
