//! The gated unit GEGLU (Shazeer, arXiv 2002.05202).

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

/// `y = gelu(gate) * up`, element by element; all slices have the same length.
pub fn geglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
    let (gates, gate_rest) = gate.as_chunks::<16>();
    let (ups, up_rest) = up.as_chunks::<16>();
    let (ys, y_rest) = y.as_chunks_mut::<16>();
    // Every turn of a loop asks whether there is time left: four vectors for each turn.
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        unroll!(4, i => {
            put(y, 4 * i, unit(at(gate, 4 * i)) * at(up, 4 * i));
        });
    }
    // The last elements: each alone, in all lanes of a vector.
    for ((gate, up), y) in gate_rest.iter().zip(up_rest).zip(y_rest) {
        let mut lanes = [0.0; 4];
        (unit(F32x4::splat(*gate)) * F32x4::splat(*up)).store(&mut lanes);
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
        let gate = [0.0, 1.0, -1.0, 2.0, -30.0, 90.0, 0.5];
        let up = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let mut y = [9.0; 7];
        geglu(&gate, &up, &mut y);
        for ((g, u), y) in gate.iter().zip(up).zip(y) {
            let want = definition(f64::from(*g)) * f64::from(u);
            assert!((f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-9, "{g}: {y}, {want}");
        }
    }
}
