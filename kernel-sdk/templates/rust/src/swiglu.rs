//! The gated unit of Shazeer, arXiv 2002.05202.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{at, put};
use ruvllm_kernel_sdk::unroll;

/// `y = gate * sigmoid(gate) * up`, element by element; all slices have the same length.
pub fn swiglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
    let (gates, gate_rest) = gate.as_chunks::<32>();
    let (ups, up_rest) = up.as_chunks::<32>();
    let (ys, y_rest) = y.as_chunks_mut::<32>();
    // Every turn of a loop asks whether there is time left: eight vectors for each turn.
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        unroll!(8, i => {
            put(y, 4 * i, unit(at(gate, 4 * i), at(up, 4 * i)));
        });
    }
    let (gates, gate_rest) = gate_rest.as_chunks::<4>();
    let (ups, up_rest) = up_rest.as_chunks::<4>();
    let (ys, y_rest) = y_rest.as_chunks_mut::<4>();
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        unit(F32x4::load(gate), F32x4::load(up)).store(y);
    }
    // The last one to three elements: each alone, in all lanes of a vector.
    for ((gate, up), y) in gate_rest.iter().zip(up_rest).zip(y_rest) {
        let mut lanes = [0.0; 4];
        unit(F32x4::splat(*gate), F32x4::splat(*up)).store(&mut lanes);
        [*y, ..] = lanes;
    }
}

#[inline(always)]
fn unit(gate: F32x4, up: F32x4) -> F32x4 {
    gate * gate.sigmoid() * up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seven_elements_match_the_definition() {
        let gate = [0.0, 1.0, -1.0, 2.0, -30.0, 90.0, 0.5];
        let up = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let mut y = [9.0; 7];
        swiglu(&gate, &up, &mut y);
        for ((g, u), y) in gate.iter().zip(up).zip(y) {
            let (g, u) = (f64::from(*g), f64::from(u));
            let want = g / (1.0 + (-g).exp()) * u;
            assert!((f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-9, "{g}: {y}, {want}");
        }
    }
}
