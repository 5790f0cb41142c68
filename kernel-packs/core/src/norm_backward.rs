//! The gradients of both norms, a row at a time.
//!
//! Sums run in f64, so that rows of any finite values come out right. The gradients of weights and biases are
//! added to those of earlier rows.

use ruvllm_kernel_sdk::simd::sqrt;

/// The gradients of [`rmsnorm_row`](crate::rmsnorm::rmsnorm_row), given that of its output.
pub fn rmsnorm_backward_row(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
    dweight: &mut [f32],
) {
    backward(x, weight, [0.0, spread(x, 0.0, eps), 0.0], dy, dx, dweight);
}

/// The gradients of [`layernorm_row`](crate::layernorm::layernorm_row), given that of its output.
pub fn layernorm_backward_row(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
    [dweight, dbias]: [&mut [f32]; 2],
) {
    let n = x.len() as f64;
    let mean = sum(x, x, |x, _| x) / n;
    let common = sum(dy, weight, |dy, w| dy * w) / n;
    backward(x, weight, [mean, spread(x, mean, eps), common], dy, dx, dweight);
    dbias.iter_mut().zip(dy).for_each(|(dbias, dy)| *dbias += dy);
}

/// `1 / sqrt(mean((x - center)^2) + eps)`.
fn spread(x: &[f32], center: f64, eps: f32) -> f64 {
    let squares = sum(x, x, |x, _| (x - center) * (x - center));
    1.0 / sqrt(squares / x.len() as f64 + f64::from(eps))
}

/// With `n = (x - center) * scale`: `dx = scale * (dy * weight - common - n * mean(dy * weight * n))`, and
/// `dy * n` is added to `dweight`.
fn backward(
    x: &[f32],
    weight: &[f32],
    [center, scale, common]: [f64; 3],
    dy: &[f32],
    dx: &mut [f32],
    dweight: &mut [f32],
) {
    // Without another array for them, the products are taken twice.
    let mut along = 0.0;
    for ((x, w), dy) in x.iter().zip(weight).zip(dy) {
        along += f64::from(*dy) * f64::from(*w) * ((f64::from(*x) - center) * scale);
    }
    along /= x.len() as f64;
    let gradients = dx.iter_mut().zip(dweight);
    for (((x, w), dy), (dx, dweight)) in x.iter().zip(weight).zip(dy).zip(gradients) {
        let (normal, dy) = ((f64::from(*x) - center) * scale, f64::from(*dy));
        *dx = (scale * (dy * f64::from(*w) - common - normal * along)) as f32;
        *dweight += (dy * normal) as f32;
    }
}

/// Four sums, because a processor can add to one while it waits for another.
fn sum(a: &[f32], b: &[f32], of: impl Fn(f64, f64) -> f64) -> f64 {
    let (a_quads, a_rest) = a.as_chunks::<4>();
    let (b_quads, b_rest) = b.as_chunks::<4>();
    let mut sums = [0f64; 4];
    for (a, b) in a_quads.iter().zip(b_quads) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += of(f64::from(*a), f64::from(*b));
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| of(f64::from(*a), f64::from(*b)));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    #[test]
    fn gradients_of_a_row_worked_by_hand() {
        // n is x, so dx = dy w - x (dy w . x) / 2.
        let (mut dx, mut dweight) = ([9.0; 2], [1.0, 0.0]);
        rmsnorm_backward_row(&[1.0, -1.0], &[2.0, 1.0], 0.0, &[1.0, 3.0], &mut dx, &mut dweight);
        assert_close(&dx, &[2.5, 2.5], 1e-7, 0.0);
        assert_close(&dweight, &[2.0, -3.0], 1e-7, 0.0);
        // Centred, the row of two has no freedom left.
        let (mut dbias, mut dweight) = ([1.0, 1.0], [0.0, 0.0]);
        let params = [&mut dweight[..], &mut dbias];
        layernorm_backward_row(&[4.0, 2.0], &[2.0, 1.0], 0.0, &[1.0, 3.0], &mut dx, params);
        assert_close(&dx, &[0.0, 0.0], 0.0, 1e-7);
        assert_close(&dweight, &[1.0, -3.0], 1e-7, 0.0);
        assert_close(&dbias, &[2.0, 4.0], 1e-7, 0.0);
    }
}
