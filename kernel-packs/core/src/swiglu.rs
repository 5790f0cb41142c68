//! The gated unit of arXiv 2002.05202.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

/// `y = gate * sigmoid(gate) * up`, element by element; all slices have the same length.
pub fn swiglu<T: Lanes>(gate: &[T], up: &[T], y: &mut [T]) {
    let (gates, gate_rest) = gate.as_chunks::<32>();
    let (ups, up_rest) = up.as_chunks::<32>();
    let (ys, y_rest) = y.as_chunks_mut::<32>();
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        unroll!(8, i => {
            put(y, 4 * i, silu(at(gate, 4 * i)) * at(up, 4 * i));
        });
    }
    let (gates, gate_tail) = gate_rest.as_chunks::<4>();
    let (ups, up_tail) = up_rest.as_chunks::<4>();
    let (ys, y_tail) = y_rest.as_chunks_mut::<4>();
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        put(y, 0, silu(at(gate, 0)) * at(up, 0));
    }
    if !y_tail.is_empty() {
        let (mut last_gate, mut last_up, mut last) = ([T::ZERO; 4], [T::ZERO; 4], [T::ZERO; 4]);
        last_gate.iter_mut().zip(gate_tail).for_each(|(to, from)| *to = *from);
        last_up.iter_mut().zip(up_tail).for_each(|(to, from)| *to = *from);
        put(&mut last, 0, silu(at(&last_gate, 0)) * at(&last_up, 0));
        y_tail.iter_mut().zip(last).for_each(|(to, from)| *to = from);
    }
}

#[inline(always)]
fn silu(g: F32x4) -> F32x4 {
    g * g.sigmoid()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::testing::{assert_close, noise};
    use std::vec;
    use std::vec::Vec;

    fn oracle(gate: &[f32], up: &[f32]) -> Vec<f64> {
        let silu =
            |g: f64| if g < 0.0 { g * g.exp() / (1.0 + g.exp()) } else { g / (1.0 + (-g).exp()) };
        gate.iter().zip(up).map(|(g, u)| silu(f64::from(*g)) * f64::from(*u)).collect()
    }

    #[test]
    fn any_length_and_magnitude_matches_f64_to_1e_6() {
        for n in [1, 3, 4, 31, 33, 64, 5632] {
            for magnitude in [1e-40, 1e-3, 1.0, 30.0, 1e3, 1e18] {
                let (gate, up) = (noise(n, magnitude, 1), noise(n, magnitude, 2));
                let mut y = vec![0.0; n];
                swiglu(&gate, &up, &mut y);
                assert_close(&y, &oracle(&gate, &up), 1e-6, 1e-12);
            }
        }
    }

    #[test]
    fn extreme_gates_give_zero_and_identity() {
        let mut y = [9.0; 5];
        swiglu(&[-1e30, -200.0, 0.0, 200.0, 1e30], &[1e30, 1.0, 1.0, 1.0, 1.0], &mut y);
        assert_eq!(y, [0.0, 0.0, 0.0, 200.0, 1e30]);
    }
}
