//! The gated unit of Shazeer, arXiv 2002.05202.

use ruvllm_kernel_sdk::prelude::*;

/// `y = gate * sigmoid(gate) * up`, element by element; all slices have the same length.
pub fn swiglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
    let (gates, gate_rest) = gate.as_chunks::<4>();
    let (ups, up_rest) = up.as_chunks::<4>();
    let (ys, y_rest) = y.as_chunks_mut::<4>();
    for ((gate, up), y) in gates.iter().zip(ups).zip(ys) {
        (silu(F32x4::load(gate)) * F32x4::load(up)).store(y);
    }
    // The last one to three elements: each alone, in all lanes of a vector.
    for ((gate, up), y) in gate_rest.iter().zip(up_rest).zip(y_rest) {
        let mut lanes = [0.0; 4];
        (silu(F32x4::splat(*gate)) * F32x4::splat(*up)).store(&mut lanes);
        [*y, ..] = lanes;
    }
}

/// `g * sigmoid(g)`, by the exponential of `-|g|`, which cannot overflow.
fn silu(g: F32x4) -> F32x4 {
    let one = F32x4::splat(1.0);
    let t = (F32x4::ZERO - g.abs()).exp_nonpositive();
    g * (F32x4::select(g.lt(F32x4::ZERO), t, one) / (one + t))
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
