//! GELU in its approximation by tanh, arXiv 1606.08415, alone and as the gate of GEGLU, arXiv 2002.05202.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

/// `y = gelu(x)`, element by element; both slices have the same length.
pub fn gelu<T: Lanes>(x: &[T], y: &mut [T]) {
    let (xs, x_rest) = x.as_chunks::<16>();
    let (ys, y_rest) = y.as_chunks_mut::<16>();
    for (x, y) in xs.iter().zip(ys) {
        unroll!(4, i => {
            put(y, 4 * i, unit(at(x, 4 * i)));
        });
    }
    for (x, y) in x_rest.iter().zip(y_rest) {
        let mut lanes = [T::ZERO; 4];
        put(&mut lanes, 0, unit(at(&[*x; 4], 0)));
        [*y, ..] = lanes;
    }
}

/// `y = gelu(gate) * up`, element by element; all slices have the same length.
pub fn geglu<T: Lanes>(gate: &[T], up: &[T], y: &mut [T]) {
    let (gates, gate_rest) = gate.as_chunks::<16>();
    let (ups, up_rest) = up.as_chunks::<16>();
    let (ys, y_rest) = y.as_chunks_mut::<16>();
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        unroll!(4, i => {
            put(y, 4 * i, unit(at(gate, 4 * i)) * at(up, 4 * i));
        });
    }
    for ((gate, up), y) in gate_rest.iter().zip(up_rest).zip(y_rest) {
        let mut lanes = [T::ZERO; 4];
        put(&mut lanes, 0, unit(at(&[*gate; 4], 0)) * at(&[*up; 4], 0));
        [*y, ..] = lanes;
    }
}

/// `x / 2 * (1 + tanh(u))`, which is `x` times the sigmoid of `2 u`, for
/// `u = sqrt(2 / pi) * (x + 0.044715 * x^3)`.
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
    use crate::testing::{assert_close, noise};
    use std::vec;
    use std::vec::Vec;

    fn oracle(x: &[f32]) -> Vec<f64> {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let unit = |x: f64| x / (1.0 + (-2.0 * root * (x + 0.044715 * x.powi(3))).exp());
        x.iter().map(|x| unit(f64::from(*x))).collect()
    }

    #[test]
    fn any_length_and_magnitude_matches_f64_to_2e_5() {
        for n in [1, 3, 4, 15, 16, 33, 5632] {
            for magnitude in [1e-40, 1e-3, 1.0, 12.0, 1e3, 1e18] {
                let (x, up) = (noise(n, magnitude, 1), noise(n, magnitude, 2));
                let mut y = vec![0.0; n];
                gelu(&x, &mut y);
                assert_close(&y, &oracle(&x), 2e-5, 1e-12);
                geglu(&x, &up, &mut y);
                let want: Vec<f64> =
                    oracle(&x).iter().zip(&up).map(|(x, up)| x * f64::from(*up)).collect();
                assert_close(&y, &want, 2e-5, 1e-12);
            }
        }
    }

    #[test]
    fn extreme_inputs_give_zero_and_identity() {
        let mut y = [9.0; 6];
        gelu(&[f32::NEG_INFINITY, f32::MIN, -200.0, 0.0, 1e30, f32::INFINITY], &mut y);
        assert_eq!(y, [0.0, 0.0, 0.0, 0.0, 1e30, f32::INFINITY]);
        gelu(&[f32::NAN; 6], &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    }
}
