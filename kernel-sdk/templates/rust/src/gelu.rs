//! GELU in its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415).

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

/// `y = gelu(x)`, element by element; both slices have the same length.
pub fn gelu(x: &[f32], y: &mut [f32]) {
    let (xs, x_rest) = x.as_chunks::<16>();
    let (ys, y_rest) = y.as_chunks_mut::<16>();
    // Every turn of a loop asks whether there is time left: four vectors for each turn.
    for (x, y) in xs.iter().zip(ys) {
        unroll!(4, i => {
            put(y, 4 * i, unit(at(x, 4 * i)));
        });
    }
    // The last elements: each alone, in all lanes of a vector.
    for (x, y) in x_rest.iter().zip(y_rest) {
        let mut lanes = [0.0; 4];
        unit(F32x4::splat(*x)).store(&mut lanes);
        [*y, ..] = lanes;
    }
}

/// `x / 2 * (1 + tanh(u))` for `u = sqrt(2 / pi) * (x + 0.044715 * x^3)`, which is `x` times the sigmoid of
/// `2 u`.
#[inline(always)]
fn unit(x: F32x4) -> F32x4 {
    // 2 sqrt(2 / pi), and 0.044715 times that.
    let slope = (x * x).madd(F32x4::splat(0.071_354_82), F32x4::splat(1.595_769_1));
    // Of -infinity, times a sigmoid of zero, NaN would be left.
    x.max(F32x4::splat(f32::MIN)) * (x * slope).sigmoid()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    /// GELU in f64.
    fn definition(x: f64) -> f64 {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x / 2.0 * (1.0 + u.tanh())
    }

    #[test]
    fn seven_elements_match_the_definition() {
        let x = [0.0, 1.0, -1.0, 2.0, -30.0, 90.0, 0.5];
        let mut y = [9.0; 7];
        gelu(&x, &mut y);
        for (x, y) in x.iter().zip(y) {
            let want = definition(f64::from(*x));
            assert!((f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-9, "{x}: {y}, {want}");
        }
    }
}
