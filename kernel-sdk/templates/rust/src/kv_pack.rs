//! Rows of the KV cache to GGML's `q8_0` blocks, byte for byte as its reference rounds.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{I32x4, U8x16, at};
use ruvllm_kernel_sdk::unroll;

/// Quantises whole blocks: `d = max |x| / 127`, `q = round(x / d)`.
pub fn pack(x: &[f32], y: &mut [BlockQ8_0]) {
    for (x, y) in x.as_chunks::<32>().0.iter().zip(y) {
        // NaN loses every comparison.
        let mut largest = [F32x4::ZERO; 2];
        unroll!(8, i => {
            largest[i % 2] = largest[i % 2].max(at(x, 4 * i).abs());
        });
        let d = largest[0].max(largest[1]).max_lane() / 127.0;
        let inverse = 1.0 / d;
        // There is nothing to divide by in a block of zeros, or of numbers close to it.
        let inverse = F32x4::splat(if inverse.is_finite() { inverse } else { 0.0 });
        let (halves, _) = y.qs.as_chunks_mut::<16>();
        for (h, half) in halves.iter_mut().enumerate() {
            let q = |i: usize| round(at(x, 16 * h + 4 * i) * inverse);
            U8x16::low_bytes([q(0), q(1), q(2), q(3)]).store_i8(half);
        }
        y.d = F16::from_f32(d);
    }
}

/// To the nearest integer, halves away from zero, as C's `roundf`; NaN gives a number whose low byte is 0.
#[inline(always)]
fn round(x: F32x4) -> I32x4 {
    // The largest number below one half, with the sign of x, keeps 0.49999997 from rounding up.
    let sign = x.as_i32() & I32x4::splat(i32::MIN);
    let half = (sign | F32x4::splat(0.499_999_97).as_i32()).as_f32();
    (x + half).trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_away_from_zero() {
        // The largest element is 127, so that the scale is 1.
        let quants = |x: [f32; 8]| {
            let mut block = [127.0; 32];
            block[..8].copy_from_slice(&x);
            let mut y = [BlockQ8_0 { d: F16(0), qs: [9; 32] }];
            pack(&block, &mut y);
            assert_eq!(y[0].d.to_f32(), 1.0);
            y[0].qs[..8].try_into().unwrap()
        };
        let rounded: [i8; 8] = quants([0.5, 1.5, -0.5, -2.5, 0.49999997, 126.5, -127.0, f32::NAN]);
        assert_eq!(rounded, [1, 2, -1, -3, 0, 127, -127, 0]);
    }

    #[test]
    fn the_largest_element_gets_quant_127() {
        let mut x = [0.0; 32];
        (x[0], x[1], x[31]) = (-254.0, 2.0, 1.0);
        let mut y = [BlockQ8_0 { d: F16(0), qs: [9; 32] }];
        pack(&x, &mut y);
        assert_eq!(y[0].d.to_f32(), 2.0);
        assert_eq!((y[0].qs[0], y[0].qs[1], y[0].qs[2], y[0].qs[31]), (-127, 1, 0, 1));
    }
}
