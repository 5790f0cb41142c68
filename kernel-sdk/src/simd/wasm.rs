//! The operations on `v128`: simd128, with relaxed SIMD for multiply-add and truncation where the
//! build has it. Without, the same sources give the same results on every processor.
//!
//! Instructions other than loads and stores are safe functions; loads and stores go through
//! references to whole arrays, which is all that their safety needs. Alignment is not required.

use core::arch::wasm32::*;

use crate::element::F16;

/// Square root, correctly rounded.
#[inline(always)]
pub fn sqrt(x: f64) -> f64 {
    f64x2_extract_lane::<0>(f64x2_sqrt(f64x2_splat(x)))
}

/// Four f32.
#[derive(Clone, Copy, Debug)]
pub struct F32x4(v128);

/// Four 32-bit integers; comparisons give all ones or zero.
#[derive(Clone, Copy, Debug)]
pub struct I32x4(v128);

/// Sixteen bytes.
#[derive(Clone, Copy, Debug)]
pub struct U8x16(v128);

impl F32x4 {
    /// Four zeros.
    pub const ZERO: F32x4 = F32x4(f32x4(0.0, 0.0, 0.0, 0.0));

    /// The same value four times.
    #[inline(always)]
    pub fn splat(x: f32) -> Self {
        F32x4(f32x4_splat(x))
    }

    /// Loads four.
    #[inline(always)]
    pub fn load(from: &[f32; 4]) -> Self {
        // SAFETY: the reference covers the 16 bytes read.
        F32x4(unsafe { v128_load(from.as_ptr().cast()) })
    }

    /// Stores four.
    #[inline(always)]
    pub fn store(self, to: &mut [f32; 4]) {
        // SAFETY: the reference covers the 16 bytes written.
        unsafe { v128_store(to.as_mut_ptr().cast(), self.0) }
    }

    /// Sum, lane by lane.
    #[inline(always)]
    pub(super) fn plus(self, b: Self) -> Self {
        F32x4(f32x4_add(self.0, b.0))
    }

    /// Difference.
    #[inline(always)]
    pub(super) fn minus(self, b: Self) -> Self {
        F32x4(f32x4_sub(self.0, b.0))
    }

    /// Product.
    #[inline(always)]
    pub(super) fn times(self, b: Self) -> Self {
        F32x4(f32x4_mul(self.0, b.0))
    }

    /// Quotient.
    #[inline(always)]
    pub(super) fn over(self, b: Self) -> Self {
        F32x4(f32x4_div(self.0, b.0))
    }

    /// `self * b + c`, rounded once or twice.
    #[inline(always)]
    pub fn madd(self, b: Self, c: Self) -> Self {
        #[cfg(target_feature = "relaxed-simd")]
        return F32x4(f32x4_relaxed_madd(self.0, b.0, c.0));
        #[cfg(not(target_feature = "relaxed-simd"))]
        F32x4(f32x4_add(f32x4_mul(self.0, b.0), c.0))
    }

    /// Absolute value.
    #[inline(always)]
    pub fn abs(self) -> Self {
        F32x4(f32x4_abs(self.0))
    }

    /// The larger: `self` if `b <= self` or either is NaN.
    #[inline(always)]
    pub fn max(self, b: Self) -> Self {
        F32x4(f32x4_pmax(self.0, b.0))
    }

    /// The smaller: `self` if `self <= b` or either is NaN.
    #[inline(always)]
    pub fn min(self, b: Self) -> Self {
        F32x4(f32x4_pmin(self.0, b.0))
    }

    /// Mask of the lanes where `self < b`.
    #[inline(always)]
    pub fn lt(self, b: Self) -> I32x4 {
        I32x4(f32x4_lt(self.0, b.0))
    }

    /// `a` where the mask is set, else `b`.
    #[inline(always)]
    pub fn select(mask: I32x4, a: Self, b: Self) -> Self {
        F32x4(v128_bitselect(a.0, b.0, mask.0))
    }

    /// The bits.
    #[inline(always)]
    pub fn as_i32(self) -> I32x4 {
        I32x4(self.0)
    }

    /// Towards zero; unspecified outside the range of `i32`.
    #[inline(always)]
    pub fn trunc(self) -> I32x4 {
        #[cfg(target_feature = "relaxed-simd")]
        return I32x4(i32x4_relaxed_trunc_f32x4(self.0));
        #[cfg(not(target_feature = "relaxed-simd"))]
        I32x4(i32x4_trunc_sat_f32x4(self.0))
    }

    /// Lanes 0 and 2 of `self`, then of `b`.
    #[inline(always)]
    pub fn even(self, b: Self) -> Self {
        F32x4(i32x4_shuffle::<0, 2, 4, 6>(self.0, b.0))
    }

    /// Lanes 1 and 3 of `self`, then of `b`.
    #[inline(always)]
    pub fn odd(self, b: Self) -> Self {
        F32x4(i32x4_shuffle::<1, 3, 5, 7>(self.0, b.0))
    }

    /// Lanes 1, 0, 3, 2.
    #[inline(always)]
    pub fn swap_pairs(self) -> Self {
        F32x4(i32x4_shuffle::<1, 0, 3, 2>(self.0, self.0))
    }

    /// Lanes 0, 0, 2, 2.
    #[inline(always)]
    pub fn dup_even(self) -> Self {
        F32x4(i32x4_shuffle::<0, 0, 2, 2>(self.0, self.0))
    }

    /// Lanes 1, 1, 3, 3.
    #[inline(always)]
    pub fn dup_odd(self) -> Self {
        F32x4(i32x4_shuffle::<1, 1, 3, 3>(self.0, self.0))
    }

    /// Lanes 2, 3, 0, 1.
    #[inline(always)]
    fn swap_halves(self) -> Self {
        F32x4(i32x4_shuffle::<2, 3, 0, 1>(self.0, self.0))
    }

    #[inline(always)]
    fn first(self) -> f32 {
        f32x4_extract_lane::<0>(self.0)
    }

    /// Sum of the lanes.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        let half = self + self.swap_halves();
        (half + half.swap_pairs()).first()
    }

    /// Largest lane, comparing as [`Self::max`] does.
    #[inline(always)]
    pub fn max_lane(self) -> f32 {
        let half = self.max(self.swap_halves());
        half.max(half.swap_pairs()).first()
    }

    /// Smallest lane, comparing as [`Self::min`] does.
    #[inline(always)]
    pub fn min_lane(self) -> f32 {
        let half = self.min(self.swap_halves());
        half.min(half.swap_pairs()).first()
    }
}

impl I32x4 {
    /// The same value four times.
    #[inline(always)]
    pub fn splat(x: i32) -> Self {
        I32x4(i32x4_splat(x))
    }

    /// Sign-extends the bits of four halves.
    #[inline(always)]
    pub fn load_f16(from: &[F16; 4]) -> Self {
        // SAFETY: the reference covers the 8 bytes read.
        I32x4(unsafe { i32x4_load_extend_i16x4(from.as_ptr().cast()) })
    }

    /// Stores the low halves as the bits of four halves.
    #[inline(always)]
    pub fn store_f16(self, to: &mut [F16; 4]) {
        let halves = i16x8_shuffle::<0, 2, 4, 6, 0, 2, 4, 6>(self.0, self.0);
        // SAFETY: the reference covers the 8 bytes written.
        unsafe { v128_store64_lane::<0>(halves, to.as_mut_ptr().cast()) }
    }

    /// Wrapping sum.
    #[inline(always)]
    pub(super) fn plus(self, b: Self) -> Self {
        I32x4(i32x4_add(self.0, b.0))
    }

    /// Wrapping difference.
    #[inline(always)]
    pub(super) fn minus(self, b: Self) -> Self {
        I32x4(i32x4_sub(self.0, b.0))
    }

    /// Bitwise and.
    #[inline(always)]
    pub(super) fn mask(self, b: Self) -> Self {
        I32x4(v128_and(self.0, b.0))
    }

    /// Bitwise or.
    #[inline(always)]
    pub(super) fn either(self, b: Self) -> Self {
        I32x4(v128_or(self.0, b.0))
    }

    /// Shifts left by `N` bits.
    #[inline(always)]
    pub fn shl<const N: u32>(self) -> Self {
        I32x4(i32x4_shl(self.0, N))
    }

    /// Shifts right by `N` bits, filling with zeros.
    #[inline(always)]
    pub fn shr<const N: u32>(self) -> Self {
        I32x4(u32x4_shr(self.0, N))
    }

    /// Mask of the lanes where `self > b`, as signed integers.
    #[inline(always)]
    pub fn gt(self, b: Self) -> Self {
        I32x4(i32x4_gt(self.0, b.0))
    }

    /// `a` where the mask is set, else `b`.
    #[inline(always)]
    pub fn select(mask: Self, a: Self, b: Self) -> Self {
        I32x4(v128_bitselect(a.0, b.0, mask.0))
    }

    /// The bits as floats.
    #[inline(always)]
    pub fn as_f32(self) -> F32x4 {
        F32x4(self.0)
    }

    /// Converts to the nearest float.
    #[inline(always)]
    pub fn to_f32(self) -> F32x4 {
        F32x4(f32x4_convert_i32x4(self.0))
    }
}

impl U8x16 {
    /// The same byte sixteen times.
    #[inline(always)]
    pub fn splat(x: u8) -> Self {
        U8x16(u8x16_splat(x))
    }

    /// Loads sixteen.
    #[inline(always)]
    pub fn load(from: &[u8; 16]) -> Self {
        // SAFETY: the reference covers the 16 bytes read.
        U8x16(unsafe { v128_load(from.as_ptr().cast()) })
    }

    /// Stores sixteen.
    #[inline(always)]
    pub fn store(self, to: &mut [u8; 16]) {
        // SAFETY: the reference covers the 16 bytes written.
        unsafe { v128_store(to.as_mut_ptr().cast(), self.0) }
    }

    /// Loads sixteen signed bytes.
    #[inline(always)]
    pub fn load_i8(from: &[i8; 16]) -> Self {
        // SAFETY: the reference covers the 16 bytes read.
        U8x16(unsafe { v128_load(from.as_ptr().cast()) })
    }

    /// Stores sixteen as signed bytes.
    #[inline(always)]
    pub fn store_i8(self, to: &mut [i8; 16]) {
        // SAFETY: the reference covers the 16 bytes written.
        unsafe { v128_store(to.as_mut_ptr().cast(), self.0) }
    }

    /// The low byte of each of sixteen integers. Shuffles beat the saturating narrow instructions.
    #[inline(always)]
    pub fn low_bytes(v: [I32x4; 4]) -> Self {
        let pair = |a: I32x4, b: I32x4| {
            i8x16_shuffle::<0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0>(a.0, b.0)
        };
        let [a, b, c, d] = v;
        U8x16(i64x2_shuffle::<0, 2>(pair(a, b), pair(c, d)))
    }

    /// Sign-extends.
    #[inline(always)]
    pub fn widen_i8(self) -> [I32x4; 4] {
        let (low, high) = (i16x8_extend_low_i8x16(self.0), i16x8_extend_high_i8x16(self.0));
        [
            I32x4(i32x4_extend_low_i16x8(low)),
            I32x4(i32x4_extend_high_i16x8(low)),
            I32x4(i32x4_extend_low_i16x8(high)),
            I32x4(i32x4_extend_high_i16x8(high)),
        ]
    }

    /// Zero-extends.
    #[inline(always)]
    pub fn widen_u8(self) -> [I32x4; 4] {
        let (low, high) = (u16x8_extend_low_u8x16(self.0), u16x8_extend_high_u8x16(self.0));
        [
            I32x4(u32x4_extend_low_u16x8(low)),
            I32x4(u32x4_extend_high_u16x8(low)),
            I32x4(u32x4_extend_low_u16x8(high)),
            I32x4(u32x4_extend_high_u16x8(high)),
        ]
    }

    /// Bitwise or.
    #[inline(always)]
    pub(super) fn either(self, b: Self) -> Self {
        U8x16(v128_or(self.0, b.0))
    }

    /// Bitwise and.
    #[inline(always)]
    pub(super) fn mask(self, b: Self) -> Self {
        U8x16(v128_and(self.0, b.0))
    }

    /// Unsigned minimum.
    #[inline(always)]
    pub fn min(self, b: Self) -> Self {
        U8x16(u8x16_min(self.0, b.0))
    }

    /// Shifts each byte left by four bits.
    #[inline(always)]
    pub fn shl4(self) -> Self {
        U8x16(i8x16_shl(self.0, 4))
    }

    /// Shifts each byte right by four bits, filling with zeros.
    #[inline(always)]
    pub fn shr4(self) -> Self {
        U8x16(u8x16_shr(self.0, 4))
    }
}
