//! Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467).

use ruvllm_kernel_sdk::simd::sqrt;

/// `y = x / sqrt(mean(x^2) + eps) * weight` for one row; all slices have the same length.
pub fn rmsnorm_row(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let (quads, rest) = x.as_chunks::<4>();
    // In f64, so that rows of any finite numbers come out right; four sums, because a processor can
    // add to one while it waits for another.
    let mut sums = [0f64; 4];
    for quad in quads {
        for (sum, x) in sums.iter_mut().zip(quad) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    let rest: f64 = rest.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let sum = sums.iter().sum::<f64>() + rest;
    let scale = 1.0 / sqrt(sum / x.len() as f64 + f64::from(eps));
    for ((x, w), y) in x.iter().zip(weight).zip(y) {
        *y = (f64::from(*x) * scale * f64::from(*w)) as f32;
    }
}

#[cfg(test)]
mod tests {
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
    fn a_zero_row_stays_zero() {
        let mut y = [1.0; 3];
        rmsnorm_row(&[0.0; 3], &[1.0; 3], 1e-5, &mut y);
        assert_eq!(y, [0.0; 3]);
    }
}
