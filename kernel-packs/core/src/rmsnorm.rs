//! Root-mean-square normalisation, arXiv 1910.07467.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put, sqrt};
use ruvllm_kernel_sdk::unroll;

/// `y = x / sqrt(mean(x^2) + eps) * weight` for one row; all slices have the same length.
///
/// The squares are summed in f32 over 32 lanes. Where that sum leaves the range in which f32 is
/// accurate, the row is computed again in f64: rows of any finite values come out right.
pub fn rmsnorm_row<T: Lanes>(x: &[T], weight: &[f32], eps: f32, y: &mut [T]) {
    let sum = sum_of_squares(x);
    let mean = f64::from(sum) / x.len() as f64 + f64::from(eps);
    if !(sum <= 1e37 && mean >= 1e-30) {
        return rmsnorm_row_wide(x, weight, eps, y);
    }
    let scale = (1.0 / sqrt(mean)) as f32;
    let scales = F32x4::splat(scale);

    let (x_blocks, x_rest) = x.as_chunks::<64>();
    let (w_blocks, w_rest) = weight.as_chunks::<64>();
    let (y_blocks, y_rest) = y.as_chunks_mut::<64>();
    for ((x, w), y) in x_blocks.iter().zip(w_blocks).zip(y_blocks) {
        unroll!(16, i => {
            put(y, 4 * i, at(x, 4 * i) * scales * at(w, 4 * i));
        });
    }
    let (x_blocks, x_tail) = x_rest.as_chunks::<4>();
    let (w_blocks, w_tail) = w_rest.as_chunks::<4>();
    let (y_blocks, y_tail) = y_rest.as_chunks_mut::<4>();
    for ((x, w), y) in x_blocks.iter().zip(w_blocks).zip(y_blocks) {
        put(y, 0, at(x, 0) * scales * at(w, 0));
    }
    for ((x, w), y) in x_tail.iter().zip(w_tail).zip(y_tail) {
        *y = T::narrow(x.widen() * scale * w);
    }
}

/// Adds the squares of `32 * N` elements, every eighth vector to the same sum.
///
/// The vectors of one sum are read next to each other: the compiler adds them up where the sum is
/// complete, and until then those of all others would not fit the registers.
#[inline(always)]
fn add_squares<T: Lanes, const N: usize>(x: &[[T; 32]; N], mut acc: [F32x4; 8]) -> [F32x4; 8] {
    unroll!(8, i => {
        acc[i] = x.iter().map(|x| at(x, 4 * i)).fold(acc[i], |sum, v| v.madd(v, sum));
    });
    acc
}

#[inline(always)]
fn sum_of_squares<T: Lanes>(x: &[T]) -> f32 {
    let mut acc = [F32x4::ZERO; 8];
    let (blocks, rest) = x.as_chunks::<32>();
    let (quads, blocks) = blocks.as_chunks::<4>();
    for quad in quads {
        acc = add_squares(quad, acc);
    }
    for block in blocks {
        acc = add_squares(&[*block], acc);
    }
    let [a, b, c, d, e, f, g, h] = acc;
    let mut acc = ((a + b) + (c + d)) + ((e + f) + (g + h));
    let (quads, rest) = rest.as_chunks::<4>();
    for x in quads {
        let v = at(x, 0);
        acc = v.madd(v, acc);
    }
    rest.iter().fold(acc.sum(), |sum, x| sum + x.widen() * x.widen())
}

#[cold]
fn rmsnorm_row_wide<T: Lanes>(x: &[T], weight: &[f32], eps: f32, y: &mut [T]) {
    let sum: f64 = x.iter().map(|x| f64::from(x.widen())).map(|x| x * x).sum();
    let scale = 1.0 / sqrt(sum / x.len() as f64 + f64::from(eps));
    for ((x, w), y) in x.iter().zip(weight).zip(y) {
        *y = T::narrow((f64::from(x.widen()) * scale * f64::from(*w)) as f32);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::testing::{assert_close, noise};
    use std::vec;
    use std::vec::Vec;

    fn oracle(x: &[f32], w: &[f32], eps: f32) -> Vec<f64> {
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
    }

    #[test]
    fn rows_of_any_length_and_magnitude_match_f64_to_1e_6() {
        for dim in [1, 2, 3, 4, 5, 31, 32, 127, 128, 129, 576, 2048, 2051] {
            for magnitude in [1e-42, 1e-20, 1e-3, 1.0, 1e4, 1e25, 1e38] {
                let x = noise(dim, magnitude, 1);
                let w = noise(dim, 1.0, 2);
                let mut y = vec![0.0; dim];
                rmsnorm_row(&x, &w, 1e-5, &mut y);
                assert_close(&y, &oracle(&x, &w, 1e-5), 1e-6, 1e-12);
            }
        }
    }

    #[test]
    fn a_zero_row_stays_zero_and_nan_does_not_spread_beyond_its_row() {
        let mut y = [1.0; 7];
        rmsnorm_row(&[0.0; 7], &[1.0; 7], 1e-5, &mut y);
        assert_eq!(y, [0.0; 7]);
        rmsnorm_row(&[f32::NAN; 7], &[1.0; 7], 1e-5, &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    }

    #[test]
    fn f16_rows_are_rounded_once() {
        let x = noise(131, 3.0, 5);
        let w = noise(131, 1.0, 6);
        let halves: Vec<F16> = x.iter().map(|x| F16::from_f32(*x)).collect();
        let wide: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
        let mut y = vec![F16(0); 131];
        rmsnorm_row(&halves, &w, 1e-5, &mut y);
        let y: Vec<f32> = y.iter().map(|y| y.to_f32()).collect();
        assert_close(&y, &oracle(&wide, &w, 1e-5), 2f64.powi(-11) * 1.01, 1e-7);
    }
}
