//! Rows of the KV cache from GGML's `q8_0` blocks.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{U8x16, put};

/// Reads whole blocks: `y = d * q`.
pub fn unpack(x: &[BlockQ8_0], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y.as_chunks_mut::<32>().0) {
        let d = F32x4::splat(x.d.to_f32());
        let (halves, _) = x.qs.as_chunks::<16>();
        for (h, half) in halves.iter().enumerate() {
            for (i, q) in U8x16::load_i8(half).widen_i8().into_iter().enumerate() {
                put(y, 16 * h + 4 * i, d * q.to_f32());
            }
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
