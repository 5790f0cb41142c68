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

/// The gradients by `gate` and by `up`, given that of the output; all slices have the same length.
pub fn swiglu_backward(gate: &[f32], up: &[f32], dy: &[f32], [dgate, dup]: [&mut [f32]; 2]) {
    let (gates, gate_rest) = gate.as_chunks::<4>();
    let (ups, up_rest) = up.as_chunks::<4>();
    let (dys, dy_rest) = dy.as_chunks::<4>();
    let (dgates, dgate_rest) = dgate.as_chunks_mut::<4>();
    let (dups, dup_rest) = dup.as_chunks_mut::<4>();
    let to = dgates.iter_mut().zip(dups);
    for (((gate, up), dy), (dgate, dup)) in gates.iter().zip(ups).zip(dys).zip(to) {
        let [by_gate, by_up] = unit_backward(F32x4::load(gate), F32x4::load(up), F32x4::load(dy));
        by_gate.store(dgate);
        by_up.store(dup);
    }
    let to = dgate_rest.iter_mut().zip(dup_rest);
    for (((gate, up), dy), (dgate, dup)) in gate_rest.iter().zip(up_rest).zip(dy_rest).zip(to) {
        let [gate, up, dy] = [*gate, *up, *dy].map(F32x4::splat);
        let [by_gate, by_up] = unit_backward(gate, up, dy);
        let mut lanes = [[0.0; 4]; 2];
        by_gate.store(&mut lanes[0]);
        by_up.store(&mut lanes[1]);
        [[*dgate, ..], [*dup, ..]] = lanes;
    }
}

#[inline(always)]
fn unit_backward(gate: F32x4, up: F32x4, dy: F32x4) -> [F32x4; 2] {
    // The slope of gate * s is s * (1 + gate * (1 - s)).
    let (s, one) = (gate.sigmoid(), F32x4::splat(1.0));
    [dy * up * (s * gate.madd(one - s, one)), dy * (gate * s)]
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

    #[test]
    fn gradients_are_how_much_the_output_changes() {
        let (gate, up) =
            ([0.0f32, 1.0, -1.0, 2.0, -3.0, 9.0, 0.5], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let (mut dgate, mut dup) = ([9.0; 7], [9.0; 7]);
        swiglu_backward(&gate, &up, &[2.0; 7], [&mut dgate, &mut dup]);
        for i in 0..7 {
            let silu = |g: f64| g / (1.0 + (-g).exp());
            let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
            let slope = (silu(g + 1e-4) - silu(g - 1e-4)) / 2e-4;
            assert!((f64::from(dgate[i]) - 2.0 * u * slope).abs() < 1e-5, "{g}");
            assert!((f64::from(dup[i]) - 2.0 * silu(g)).abs() < 1e-5, "{g}");
        }
    }
}
