//! GELU in its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415).

use ruvllm_kernel_sdk::prelude::*;

/// `y = gelu(x)`, element by element; both slices have the same length.
pub fn gelu(x: &[f32], y: &mut [f32]) {
    let (xs, x_rest) = x.as_chunks::<4>();
    let (ys, y_rest) = y.as_chunks_mut::<4>();
    for (x, y) in xs.iter().zip(ys) {
        unit(F32x4::load(x)).store(y);
    }
    // The last one to three elements: each alone, in all lanes of a vector.
    for (x, y) in x_rest.iter().zip(y_rest) {
        let mut lanes = [0.0; 4];
        unit(F32x4::splat(*x)).store(&mut lanes);
        [*y, ..] = lanes;
    }
}

/// `x / 2 * (1 + tanh(u))` for `u = sqrt(2 / pi) * (x + 0.044715 * x^3)`, which is `x` times the sigmoid of
/// `2 u`, by the exponential of `-|2 u|`, which cannot overflow.
fn unit(x: F32x4) -> F32x4 {
    let one = F32x4::splat(1.0);
    // 2 sqrt(2 / pi), and 0.044715 times that.
    let twice_u = x * (x * x).madd(F32x4::splat(0.071_354_82), F32x4::splat(1.595_769_1));
    let t = (F32x4::ZERO - twice_u.abs()).exp_nonpositive();
    x * (F32x4::select(x.lt(F32x4::ZERO), t, one) / (one + t))
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
