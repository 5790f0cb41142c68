//! Conversions between binary32 and the two 16-bit formats, without a float unit for them.
//!
//! Rounding is to nearest, ties to even; NaN stays NaN; overflow gives infinity; subnormals are
//! exact. IEEE 754-2019, section 4.3.

/// Widens an IEEE binary16, given by its bits. Exact.
pub const fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let magnitude = (bits & 0x7fff) as u32;
    if magnitude >= 0x7c00 {
        // Infinity and NaN: widen the exponent to all ones, keep the payload.
        return f32::from_bits(sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13);
    }
    // Placed 13 bits higher the value is 2^-112 of what it should be, subnormals included: one
    // exact multiplication puts that right.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | scaled.to_bits())
}

/// Rounds to IEEE binary16 and gives its bits.
pub const fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        // NaN: keep the payload's top bits and set the quiet bit.
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude >= 0x4780_0000 {
        // 65536 and above.
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // The result is subnormal or zero: adding 0.5 makes the float unit round at bit 2^-24.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0x3f00_0000) as u16;
    }
    // Normal: rebias the exponent and round at bit 13; a carry into the exponent is right, up to
    // and including the one into infinity.
    let odd = (magnitude >> 13) & 1;
    let rounded = magnitude - ((127 - 15) << 23) + 0xfff + odd;
    sign | (rounded >> 13) as u16
}

/// Widens a bfloat16, given by its bits. Exact.
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds to bfloat16 and gives its bits.
pub const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return ((bits >> 16) | 0x40) as u16;
    }
    let odd = (bits >> 16) & 1;
    ((bits + 0x7fff + odd) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_survives_the_round_trip() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            if wide.is_nan() {
                assert!(f16_to_f32(f32_to_f16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_f16(wide), bits, "{bits:#06x} -> {wide}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_ties_to_even() {
        assert_eq!(f16_to_f32(0x0001), 2f32.powi(-24));
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        // Halfway between 1 and the next f16 goes to even (down), a little above goes up.
        assert_eq!(f32_to_f16(1.0 + 2f32.powi(-11)), 0x3c00);
        assert_eq!(f32_to_f16(1.0 + 2f32.powi(-11) + 2f32.powi(-20)), 0x3c01);
        assert_eq!(f32_to_f16(1.0 + 3.0 * 2f32.powi(-11)), 0x3c02);
        // 65520 is halfway between the largest finite f16 and 2^16.
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        // Half of the smallest subnormal is a tie that goes to zero.
        assert_eq!(f32_to_f16(2f32.powi(-25)), 0);
        assert_eq!(f32_to_f16(-1.5 * 2f32.powi(-25)), 0x8001);
        assert_eq!(f32_to_f16(f32::NEG_INFINITY), 0xfc00);
    }

    #[test]
    fn bf16_rounds_to_even_and_keeps_nan() {
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        assert_eq!(f32_to_bf16(1.0 + 2f32.powi(-8)), 0x3f80);
        assert_eq!(f32_to_bf16(1.0 + 3.0 * 2f32.powi(-8)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }
}
