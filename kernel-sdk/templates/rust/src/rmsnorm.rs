//! Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467).

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put, sqrt};
use ruvllm_kernel_sdk::unroll;

/// `y = x / sqrt(mean(x^2) + eps) * weight` for one row; all slices have the same length.
pub fn rmsnorm_row(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let sum = sum_of_squares(x);
    let mean = f64::from(sum) / x.len() as f64 + f64::from(eps);
    // Beyond the range in which a sum in f32 is accurate, and of NaN, once more in f64.
    if !(sum <= 1e37 && mean >= 1e-30) {
        return rmsnorm_row_in_f64(x, weight, eps, y);
    }
    let scale = (1.0 / sqrt(mean)) as f32;
    let scales = F32x4::splat(scale);

    // Every turn of a loop asks whether there is time left: many vectors for each turn.
    let (xs, x_rest) = x.as_chunks::<64>();
    let (ws, w_rest) = weight.as_chunks::<64>();
    let (ys, y_rest) = y.as_chunks_mut::<64>();
    for ((x, w), y) in xs.iter().zip(ws).zip(ys) {
        unroll!(16, i => {
            put(y, 4 * i, at(x, 4 * i) * scales * at(w, 4 * i));
        });
    }
    for ((x, w), y) in x_rest.iter().zip(w_rest).zip(y_rest) {
        *y = x * scale * w;
    }
}

/// The sum of the squares, in eight vectors, because a processor can add to one while it waits for
/// another.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [F32x4::ZERO; 8];
    let (blocks, rest) = x.as_chunks::<128>();
    for block in blocks {
        // What one sum takes stands together: all eight in the making would not fit the registers.
        unroll!(8, i => {
            unroll!(4, j => {
                let x = at(block, 32 * j + 4 * i);
                sums[i] = x.madd(x, sums[i]);
            });
        });
    }
    let (blocks, rest) = rest.as_chunks::<32>();
    for block in blocks {
        unroll!(8, i => {
            let x = at(block, 4 * i);
            sums[i] = x.madd(x, sums[i]);
        });
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let sum = (((a + b) + (c + d)) + ((e + f) + (g + h))).sum();
    rest.iter().fold(sum, |sum, x| sum + x * x)
}

#[cold]
fn rmsnorm_row_in_f64(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let sum: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let scale = 1.0 / sqrt(sum / x.len() as f64 + f64::from(eps));
    for ((x, w), y) in x.iter().zip(weight).zip(y) {
        *y = (f64::from(*x) * scale * f64::from(*w)) as f32;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_row_is_divided_by_its_root_mean_square() {
        let mut y = [0.0; 2];
        rmsnorm_row(&[3.0, 4.0], &[1.0, 2.0], 0.0, &mut y);
        let root = 12.5f64.sqrt();
        assert!((f64::from(y[0]) - 3.0 / root).abs() < 1e-6);
        assert!((f64::from(y[1]) - 8.0 / root).abs() < 1e-6);
    }

    #[test]
    fn rows_of_any_length_and_magnitude_match_f64() {
        for dim in [1, 4, 31, 32, 127, 128, 200, 2051] {
            for magnitude in [1e-30f32, 1.0, 1e15, 1e30] {
                let mut x = [0.0f32; 2051];
                for (i, x) in x.iter_mut().enumerate() {
                    *x = ((i * 37 % 101) as f32 - 50.0) * magnitude;
                }
                let (x, mut y) = (&x[..dim], [0.0; 2051]);
                rmsnorm_row(x, &[1.0; 2051][..dim], 1e-5, &mut y[..dim]);
                let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / dim as f64;
                for (x, y) in x.iter().zip(y) {
                    let want = f64::from(*x) / (mean + f64::from(1e-5f32)).sqrt();
                    assert!(
                        (f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-30,
                        "{dim} {magnitude}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_zero_row_stays_zero() {
        let mut y = [1.0; 3];
        rmsnorm_row(&[0.0; 3], &[1.0; 3], 1e-5, &mut y);
        assert_eq!(y, [0.0; 3]);
    }
}
