//! Rows of the KV cache from GGML's `q8_0` blocks.

use ruvllm_kernel_sdk::prelude::*;

/// Reads whole blocks: `y = d * q`.
pub fn unpack(x: &[BlockQ8_0], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y.as_chunks_mut::<32>().0) {
        let d = x.d.to_f32();
        for (q, y) in x.qs.iter().zip(y) {
            *y = d * f32::from(*q);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quant_is_multiplied_by_the_scale() {
        let mut qs = [0; 32];
        (qs[0], qs[31]) = (-128, 127);
        let mut y = [9.0; 32];
        unpack(&[BlockQ8_0 { d: F16::from_f32(0.5), qs }], &mut y);
        assert_eq!((y[0], y[1], y[31]), (-64.0, 0.0, 63.5));
    }
}
