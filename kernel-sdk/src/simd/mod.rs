//! Four floats at a time.
//!
//! On wasm with simd128 the types are `v128` and every operation is one or two instructions of that or of
//! relaxed SIMD; elsewhere they are arrays, for executors without SIMD and for tests. Results agree to
//! rounding: a multiply-add may or may not round in between, as relaxed SIMD allows, and conversions of
//! values outside the integer range are unspecified but defined. Nothing here traps.
//!
//! What was learnt about speed: an epoch check sits on every loop back-edge and spills all live
//! vectors, so a reduction should do the work of 128 to 256 floats between two of them and a map
//! that of 32. [`at`] and [`unroll!`](crate::unroll) make straight-line blocks for that readable.

#[cfg(not(target_feature = "simd128"))]
mod portable;
#[cfg(target_feature = "simd128")]
mod wasm;

#[cfg(not(target_feature = "simd128"))]
pub use portable::{F32x4, I32x4, U8x16, sqrt};
#[cfg(target_feature = "simd128")]
pub use wasm::{F32x4, I32x4, U8x16, sqrt};

/// Writes a block of code `N` times, with a name for 0, 1, 2, .. `N - 1`; `N` is 4, 8 or 16.
///
/// A loop with a constant bound may or may not be unrolled. Where an epoch check on its back-edge
/// would cost more than its body, this leaves no choice. Without SIMD it is a loop: a vector is then four
/// numbers, and code for interpreters should be small.
#[cfg(target_feature = "simd128")]
#[macro_export]
macro_rules! unroll {
    (4, $i:ident => $body:block) => {
        $crate::unroll!(@each $i $body 0 1 2 3)
    };
    (8, $i:ident => $body:block) => {
        $crate::unroll!(@each $i $body 0 1 2 3 4 5 6 7)
    };
    (16, $i:ident => $body:block) => {
        $crate::unroll!(@each $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@each $i:ident $body:block) => {};
    (@each $i:ident $body:block $first:literal $($rest:literal)*) => {
        {
            let $i: usize = $first;
            $body
        }
        $crate::unroll!(@each $i $body $($rest)*)
    };
}

/// Runs a block of code `N` times, with a name for 0, 1, 2, .. `N - 1`: with SIMD it is written out as often.
#[cfg(not(target_feature = "simd128"))]
#[macro_export]
macro_rules! unroll {
    ($n:literal, $i:ident => $body:block) => {
        for $i in 0usize..$n {
            $body
        }
    };
}

use core::ops::{Add, BitAnd, BitOr, Div, Mul, Sub};

use crate::element::F16;
use crate::view::Element;

macro_rules! operators {
    ($($ty:ident $operator:ident $method:ident $by:ident;)*) => {$(
        impl $operator for $ty {
            type Output = $ty;

            #[inline(always)]
            fn $method(self, b: $ty) -> $ty {
                self.$by(b)
            }
        }
    )*};
}

operators! {
    F32x4 Add add plus;
    F32x4 Sub sub minus;
    F32x4 Mul mul times;
    F32x4 Div div over;
    I32x4 Add add plus;
    I32x4 Sub sub minus;
    I32x4 BitAnd bitand mask;
    I32x4 BitOr bitor either;
    U8x16 BitAnd bitand mask;
    U8x16 BitOr bitor either;
}

/// Elements `i .. i + 4` of a block, as one vector.
///
/// Meant for an `i` that is known once the surrounding loop is unrolled, where it costs a load.
/// Outside the block it gives zero.
#[inline(always)]
pub fn at<T: Lanes, const N: usize>(block: &[T; N], i: usize) -> F32x4 {
    match block.get(i..).and_then(<[T]>::first_chunk::<4>) {
        Some(quad) => T::load4(quad),
        None => F32x4::ZERO,
    }
}

/// Stores a vector to elements `i .. i + 4` of a block; outside the block it does nothing.
#[inline(always)]
pub fn put<T: Lanes, const N: usize>(block: &mut [T; N], i: usize, v: F32x4) {
    if let Some(quad) = block.get_mut(i..).and_then(<[T]>::first_chunk_mut::<4>) {
        T::store4(v, quad);
    }
}

/// Element types that are computed with in f32, four at a time or alone.
pub trait Lanes: Element {
    /// Zero.
    const ZERO: Self;
    /// Widens one element.
    fn widen(self) -> f32;
    /// Rounds to one element.
    fn narrow(x: f32) -> Self;
    /// Widens four.
    fn load4(from: &[Self; 4]) -> F32x4;
    /// Rounds four.
    fn store4(v: F32x4, to: &mut [Self; 4]);
}

impl Lanes for f32 {
    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn load4(from: &[f32; 4]) -> F32x4 {
        F32x4::load(from)
    }

    #[inline(always)]
    fn store4(v: F32x4, to: &mut [f32; 4]) {
        v.store(to);
    }
}

impl Lanes for F16 {
    const ZERO: F16 = F16(0);

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(x: f32) -> F16 {
        F16::from_f32(x)
    }

    /// As `ruvllm_abi::f16_to_f32`: with exponent and fraction placed 13 bits higher, below the
    /// sign, the value is 2^-112 of what it should be.
    #[inline(always)]
    fn load4(from: &[F16; 4]) -> F32x4 {
        let placed =
            I32x4::load_f16(from).shl::<13>() & I32x4::splat(0x8fff_e000_u32.cast_signed());
        let scaled = placed.as_f32() * F32x4::splat(f32::from_bits(239 << 23));
        // Infinity and NaN come out from 65536 on.
        let special = F32x4::splat(65_535.0).lt(scaled.abs()) & I32x4::splat(0x7f80_0000);
        (scaled.as_i32() | special).as_f32()
    }

    /// As `ruvllm_abi::f32_to_f16`, its three cases blended.
    #[inline(always)]
    fn store4(v: F32x4, to: &mut [F16; 4]) {
        let bits = v.as_i32();
        let magnitude = bits & I32x4::splat(0x7fff_ffff);
        let sign = bits.shr::<16>() & I32x4::splat(0x8000);
        let odd = magnitude.shr::<13>() & I32x4::splat(1);
        let normal = (magnitude + I32x4::splat(0xfff - (112 << 23)) + odd).shr::<13>();
        let half = F32x4::splat(0.5);
        let subnormal = (magnitude.as_f32() + half).as_i32() - half.as_i32();
        let small = I32x4::splat(0x3880_0000).gt(magnitude);
        let large = magnitude.gt(I32x4::splat(0x477f_ffff));
        let nan = magnitude.gt(I32x4::splat(0x7f80_0000)) & I32x4::splat(0x200);
        let finite = I32x4::select(small, subnormal, normal);
        let rounded = I32x4::select(large, I32x4::splat(0x7c00) | nan, finite) | sign;
        rounded.store_f16(to);
    }
}

impl F32x4 {
    /// `e^x` for `x <= 0`, with a relative error below 3e-7; zero below -87.3, where the result leaves
    /// the normal range.
    ///
    /// Cody and Waite's reduction to `|r| <= ln 2 / 2` and a polynomial of degree 6. NaN stays NaN.
    #[inline(always)]
    pub fn exp_nonpositive(self) -> F32x4 {
        // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
        let shifter = F32x4::splat(12_582_912.0);
        let floor = F32x4::splat(-87.33);
        let x = self.max(floor);
        let shifted = x.madd(F32x4::splat(core::f32::consts::LOG2_E), shifter);
        let n = shifted - shifter;
        let r = n.madd(F32x4::splat(-0.693_145_75), x);
        let r = n.madd(F32x4::splat(-1.428_606_8e-6), r);
        let p = F32x4::splat(1.0 / 720.0);
        let p = p.madd(r, F32x4::splat(1.0 / 120.0));
        let p = p.madd(r, F32x4::splat(1.0 / 24.0));
        let p = p.madd(r, F32x4::splat(1.0 / 6.0));
        let p = p.madd(r, F32x4::splat(0.5));
        let p = p.madd(r, F32x4::splat(1.0));
        let p = p.madd(r, F32x4::splat(1.0));
        let scale = (shifted.as_i32() + I32x4::splat(127)).shl::<23>().as_f32();
        // NaN compares false and keeps the polynomial's NaN.
        F32x4::select(self.lt(floor), F32x4::ZERO, p * scale)
    }

    /// `1 / (1 + e^-x)`, with a relative error below 3e-7 where the result is a normal number.
    ///
    /// With `-x = n ln 2 + r` and `|r| <= ln 2 / 2`, `e^r = (a + r) / (a - r)` for `a = r coth(r / 2)`,
    /// which three terms give to 2e-8. One division then serves for both:
    /// `(a - r) / ((a - r) + 2^n (a + r))`. NaN stays NaN.
    #[inline(always)]
    pub fn sigmoid(self) -> F32x4 {
        // Above it is 1; below, `2^127 (a + r)` is infinite and it is 0.
        let x = self.max(F32x4::splat(-88.2)).min(F32x4::splat(87.0));
        // Adding 1.5 * 2^23 + 127 leaves n + 127, the exponent's bits of 2^n, in the low bits of the sum.
        let shifter = F32x4::splat(12_583_039.0);
        let shifted = x.madd(F32x4::splat(-core::f32::consts::LOG2_E), shifter);
        let n = shifted - shifter;
        let minus_r = n.madd(F32x4::splat(0.693_145_75), x);
        let minus_r = n.madd(F32x4::splat(1.428_606_8e-6), minus_r);
        let square = minus_r * minus_r;
        let a = square.madd(F32x4::splat(-1.0 / 360.0), F32x4::splat(1.0 / 6.0));
        let a = a.madd(square, F32x4::splat(2.0));
        let power = shifted.as_i32().shl::<23>().as_f32();
        let below = a + minus_r;
        below / power.madd(a - minus_r, below)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn every_f16_widens_and_narrows_as_the_abi_says() {
        for bits in 0..=u16::MAX {
            let h = F16(bits);
            let mut wide = [0.0; 4];
            F16::load4(&[h; 4]).store(&mut wide);
            let expected = h.to_f32();
            assert_eq!(wide[3].to_bits(), expected.to_bits(), "{bits:#06x}");
            let mut back = [F16(0); 4];
            F16::store4(F32x4::splat(expected), &mut back);
            if expected.is_nan() {
                assert!(back[0].to_f32().is_nan());
            } else {
                assert_eq!(back[0], h);
            }
        }
    }

    #[test]
    fn f16_narrows_between_values_as_the_abi_says() {
        for i in 0..2_000_000u32 {
            let x = f32::from_bits(i.wrapping_mul(2_654_435_761));
            let mut out = [F16(0); 4];
            F16::store4(F32x4::splat(x), &mut out);
            if x.is_nan() {
                assert!(out[0].to_f32().is_nan());
            } else {
                assert_eq!(out[0], F16::from_f32(x), "{x:e}");
            }
        }
    }

    #[test]
    fn exp_is_within_two_ulp_of_f64() {
        let mut x = -87.3f32;
        while x < 0.0 {
            let mut y = [0.0; 4];
            F32x4::splat(x).exp_nonpositive().store(&mut y);
            let expected = f64::from(x).exp();
            let error = (f64::from(y[0]) - expected).abs() / expected;
            assert!(error < 2.0 * 1.2e-7, "exp({x}) = {}, error {error:e}", y[0]);
            x += 0.000_7;
        }
    }

    #[test]
    fn sigmoid_is_within_three_ulp_of_f64_and_ends_in_zero_one_and_nan() {
        let sigmoid = |x: f32| {
            let mut y = [0.0; 4];
            F32x4::splat(x).sigmoid().store(&mut y);
            y[1]
        };
        let mut x = -87.0f32;
        while x < 20.0 {
            let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
            let error = (f64::from(sigmoid(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "sigmoid({x}) = {}, error {error:e}", sigmoid(x));
            x += 0.000_7;
        }
        assert_eq!([0.0, 100.0, f32::INFINITY].map(sigmoid), [0.5, 1.0, 1.0]);
        assert_eq!([-100.0, f32::NEG_INFINITY].map(sigmoid), [0.0, 0.0]);
        assert!(sigmoid(f32::NAN).is_nan());
    }

    #[test]
    fn exp_ends_in_zero_one_and_nan() {
        let exp = |x: f32| {
            let mut y = [0.0; 4];
            F32x4::splat(x).exp_nonpositive().store(&mut y);
            y[2]
        };
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn block_access_outside_the_block_is_harmless() {
        let mut block = [1.0f32; 6];
        assert_eq!(at(&block, 2).sum(), 4.0);
        assert_eq!(at(&block, 3).sum(), 0.0);
        put(&mut block, 3, F32x4::splat(9.0));
        assert_eq!(block, [1.0; 6]);
    }

    #[test]
    fn low_bytes_and_widening_are_inverse() {
        let mut bytes = [0u8; 16];
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = (i as u8).wrapping_mul(37);
        }
        let v = U8x16::load(&bytes);
        let mut out = [0; 16];
        U8x16::low_bytes(v.widen_i8()).store(&mut out);
        assert_eq!(out, bytes);
        U8x16::low_bytes(v.widen_u8()).store(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn shuffles_follow_their_names() {
        let show = |v: F32x4| {
            let mut out = [0.0; 4];
            v.store(&mut out);
            out
        };
        let (a, b) = (F32x4::load(&[0.0, 1.0, 2.0, 3.0]), F32x4::load(&[4.0, 5.0, 6.0, 7.0]));
        assert_eq!(show(a.even(b)), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(show(a.odd(b)), [1.0, 3.0, 5.0, 7.0]);
        assert_eq!(show(a.swap_pairs()), [1.0, 0.0, 3.0, 2.0]);
        assert_eq!(show(a.dup_even()), [0.0, 0.0, 2.0, 2.0]);
        assert_eq!(show(a.dup_odd()), [1.0, 1.0, 3.0, 3.0]);
    }
}
