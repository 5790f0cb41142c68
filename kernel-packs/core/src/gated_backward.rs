//! The gradients of activations, alone and as gates, given that of their output.

use ruvllm_kernel_sdk::prelude::*;

/// Of [`swiglu`](crate::swiglu::swiglu), by `gate` and by `up`; all slices have the same length.
pub fn swiglu_backward(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    gated(silu, gate, up, dy, dgate, dup);
}

/// Of [`geglu`](crate::gelu::geglu), by `gate` and by `up`; all slices have the same length.
pub fn geglu_backward(gate: &[f32], up: &[f32], dy: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
    gated(gelu, gate, up, dy, dgate, dup);
}

/// Of [`gelu`](crate::gelu::gelu); all slices have the same length.
pub fn gelu_backward(x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let (xs, x_rest) = x.as_chunks::<4>();
    let (dys, dy_rest) = dy.as_chunks::<4>();
    let (dxs, dx_rest) = dx.as_chunks_mut::<4>();
    for ((x, dy), dx) in xs.iter().zip(dys).zip(dxs) {
        (F32x4::load(dy) * gelu(F32x4::load(x))[1]).store(dx);
    }
    for ((x, dy), dx) in x_rest.iter().zip(dy_rest).zip(dx_rest) {
        *dx = dy * first(gelu(F32x4::splat(*x))[1]);
    }
}

#[inline(always)]
fn gated(
    activation: impl Fn(F32x4) -> [F32x4; 2],
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    dgate: &mut [f32],
    dup: &mut [f32],
) {
    let (gates, gate_rest) = gate.as_chunks::<4>();
    let (ups, up_rest) = up.as_chunks::<4>();
    let (dys, dy_rest) = dy.as_chunks::<4>();
    let (dgates, dgate_rest) = dgate.as_chunks_mut::<4>();
    let (dups, dup_rest) = dup.as_chunks_mut::<4>();
    let to = dgates.iter_mut().zip(dups);
    for (((gate, up), dy), (dgate, dup)) in gates.iter().zip(ups).zip(dys).zip(to) {
        let ([value, slope], dy) = (activation(F32x4::load(gate)), F32x4::load(dy));
        (dy * F32x4::load(up) * slope).store(dgate);
        (dy * value).store(dup);
    }
    // The last elements: each alone, in all lanes of a vector.
    let to = dgate_rest.iter_mut().zip(dup_rest);
    for (((gate, up), dy), (dgate, dup)) in gate_rest.iter().zip(up_rest).zip(dy_rest).zip(to) {
        let [value, slope] = activation(F32x4::splat(*gate)).map(first);
        (*dgate, *dup) = (dy * up * slope, dy * value);
    }
}

#[inline(always)]
fn first(v: F32x4) -> f32 {
    let mut lanes = [0.0; 4];
    v.store(&mut lanes);
    let [first, ..] = lanes;
    first
}

/// `x s` for the sigmoid `s` of `x`, and its slope `s (1 + x (1 - s))`.
#[inline(always)]
fn silu(x: F32x4) -> [F32x4; 2] {
    let (s, one) = (x.sigmoid(), F32x4::splat(1.0));
    [x * s, s * x.madd(one - s, one)]
}

/// `x s` for the sigmoid `s` of `x (a + b x^2)`, and its slope `s + x s (1 - s) (a + 3 b x^2)`.
#[inline(always)]
fn gelu(x: F32x4) -> [F32x4; 2] {
    // 2 sqrt(2 / pi), and 0.044715 times that, as in the forward operation.
    let (a, b) = (F32x4::splat(1.595_769_1), F32x4::splat(0.071_354_82));
    let s = (x * (x * x).madd(b, a)).sigmoid();
    // Beyond 12 `s (1 - s)` is zero, which the square of a large number must not turn into NaN.
    let near = x.max(F32x4::splat(-12.0)).min(F32x4::splat(12.0));
    let steep = (near * near).madd(b * F32x4::splat(3.0), a);
    [x * s, (near * s).madd((F32x4::splat(1.0) - s) * steep, s)]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::testing::{assert_close, noise};
    use std::vec;
    use std::vec::Vec;

    /// The slope of `f` at a point by a central difference.
    fn slope(f: impl Fn(f64) -> f64, x: f32) -> f64 {
        (f(f64::from(x) + 1e-5) - f(f64::from(x) - 1e-5)) / 2e-5
    }

    fn silu_in_f64(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    fn gelu_in_f64(x: f64) -> f64 {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        x / (1.0 + (-2.0 * root * (x + 0.044715 * x.powi(3))).exp())
    }

    #[test]
    fn gradients_are_those_of_the_definitions() {
        type Gated = fn(&[f32], &[f32], &[f32], &mut [f32], &mut [f32]);
        let gates: [(Gated, fn(f64) -> f64); 2] =
            [(swiglu_backward, silu_in_f64), (geglu_backward, gelu_in_f64)];
        for n in [1, 4, 7, 64] {
            let (x, up, dy) = (noise(n, 5.0, 1), noise(n, 2.0, 2), noise(n, 2.0, 3));
            let times = |a: &[f32], b: &dyn Fn(f32) -> f64| -> Vec<f64> {
                a.iter().zip(&x).zip(&dy).map(|((a, x), dy)| f64::from(a * dy) * b(*x)).collect()
            };
            for (backward, f) in gates {
                let (mut dgate, mut dup) = (vec![9.0; n], vec![9.0; n]);
                backward(&x, &up, &dy, &mut dgate, &mut dup);
                assert_close(&dgate, &times(&up, &|x| slope(f, x)), 2e-5, 1e-5);
                assert_close(&dup, &times(&vec![1.0; n], &|x| f(f64::from(x))), 2e-5, 1e-6);
            }
            let mut dx = vec![9.0; n];
            gelu_backward(&x, &dy, &mut dx);
            assert_close(&dx, &times(&vec![1.0; n], &|x| slope(gelu_in_f64, x)), 2e-5, 1e-5);
        }
    }

    #[test]
    fn far_out_slopes_are_zero_and_one() {
        let mut dx = [9.0; 5];
        gelu_backward(&[-1e30, -200.0, 200.0, 1e15, 1e30], &[1.0; 5], &mut dx);
        assert_eq!(dx, [0.0, 0.0, 1.0, 1.0, 1.0]);
        let (mut dgate, mut dup) = ([9.0; 2], [9.0; 2]);
        swiglu_backward(&[-1e15, 1e15], &[2.0; 2], &[3.0; 2], &mut dgate, &mut dup);
        assert_eq!(dgate, [0.0, 6.0]);
    }
}
