//! Rows of the KV cache to GGML's `q8_0` blocks, byte for byte as its reference rounds.

use ruvllm_kernel_sdk::prelude::*;

/// Quantises whole blocks: `d = max |x| / 127`, `q = round(x / d)`.
pub fn pack(x: &[f32], y: &mut [BlockQ8_0]) {
    for (x, y) in x.as_chunks::<32>().0.iter().zip(y) {
        // NaN loses every comparison.
        let larger = |max: f32, x: &f32| if x.abs() > max { x.abs() } else { max };
        let d = x.iter().fold(0.0, larger) / 127.0;
        let inverse = 1.0 / d;
        // There is nothing to divide by in a block of zeros, or of numbers close to it.
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        y.d = F16::from_f32(d);
        for (q, x) in y.qs.iter_mut().zip(x) {
            *q = round(x * inverse);
        }
    }
}

/// To the nearest integer, halves away from zero, as C's `roundf`; what is not finite gives 0.
fn round(x: f32) -> i8 {
    if !x.is_finite() {
        return 0;
    }
    // Truncation is exact, and so is what it leaves.
    let whole = x as i32;
    let rest = x - whole as f32;
    let step = i32::from(rest >= 0.5) - i32::from(rest <= -0.5);
    (whole + step) as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_away_from_zero() {
        assert_eq!([0.5, 1.5, -0.5, -2.5, 0.49999997].map(round), [1, 2, -1, -3, 0]);
        assert_eq!([126.5, -127.0, f32::NAN, f32::INFINITY].map(round), [127, -127, 0, 0]);
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
