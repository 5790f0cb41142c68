//! The same operations on arrays: for executors without SIMD, and for tests off wasm.

use crate::element::F16;

/// Square root, correctly rounded.
#[cfg(not(target_family = "wasm"))]
pub fn sqrt(x: f64) -> f64 {
    extern crate std;
    x.sqrt()
}

/// Square root, correctly rounded.
#[cfg(target_family = "wasm")]
#[inline(always)]
pub fn sqrt(x: f64) -> f64 {
    // SAFETY: every compiler for this target brings this function, of this type, which is one instruction.
    unsafe extern "C" {
        #[link_name = "sqrt"]
        safe fn instruction(x: f64) -> f64;
    }
    instruction(x)
}

/// Four f32.
#[derive(Clone, Copy, Debug)]
pub struct F32x4([f32; 4]);

/// Four 32-bit integers; comparisons give all ones or zero.
#[derive(Clone, Copy, Debug)]
pub struct I32x4([i32; 4]);

/// Sixteen bytes.
#[derive(Clone, Copy, Debug)]
pub struct U8x16([u8; 16]);

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; 4], b: [B; 4], f: impl Fn(A, B) -> C) -> [C; 4] {
    core::array::from_fn(|i| f(a[i], b[i]))
}

impl F32x4 {
    /// Four zeros.
    pub const ZERO: F32x4 = F32x4([0.0; 4]);

    /// The same value four times.
    #[inline(always)]
    pub fn splat(x: f32) -> Self {
        F32x4([x; 4])
    }

    /// Loads four.
    #[inline(always)]
    pub fn load(from: &[f32; 4]) -> Self {
        F32x4(*from)
    }

    /// Stores four.
    #[inline(always)]
    pub fn store(self, to: &mut [f32; 4]) {
        *to = self.0;
    }

    /// Sum, lane by lane.
    #[inline(always)]
    pub(super) fn plus(self, b: Self) -> Self {
        F32x4(zip(self.0, b.0, |a, b| a + b))
    }

    /// Difference.
    #[inline(always)]
    pub(super) fn minus(self, b: Self) -> Self {
        F32x4(zip(self.0, b.0, |a, b| a - b))
    }

    /// Product.
    #[inline(always)]
    pub(super) fn times(self, b: Self) -> Self {
        F32x4(zip(self.0, b.0, |a, b| a * b))
    }

    /// Quotient.
    #[inline(always)]
    pub(super) fn over(self, b: Self) -> Self {
        F32x4(zip(self.0, b.0, |a, b| a / b))
    }

    /// `self * b + c`, rounded once or twice.
    #[inline(always)]
    pub fn madd(self, b: Self, c: Self) -> Self {
        self * b + c
    }

    /// Absolute value.
    #[inline(always)]
    pub fn abs(self) -> Self {
        F32x4(self.0.map(f32::abs))
    }

    /// The larger: `self` if `b <= self` or either is NaN.
    #[inline(always)]
    pub fn max(self, b: Self) -> Self {
        F32x4(zip(self.0, b.0, |a, b| if a < b { b } else { a }))
    }

    /// The smaller: `self` if `self <= b` or either is NaN.
    #[inline(always)]
    pub fn min(self, b: Self) -> Self {
        F32x4(zip(self.0, b.0, |a, b| if b < a { b } else { a }))
    }

    /// Mask of the lanes where `self < b`.
    #[inline(always)]
    pub fn lt(self, b: Self) -> I32x4 {
        I32x4(zip(self.0, b.0, |a, b| -i32::from(a < b)))
    }

    /// `a` where the mask is set, else `b`.
    #[inline(always)]
    pub fn select(mask: I32x4, a: Self, b: Self) -> Self {
        I32x4::select(mask, a.as_i32(), b.as_i32()).as_f32()
    }

    /// The bits.
    #[inline(always)]
    pub fn as_i32(self) -> I32x4 {
        I32x4(self.0.map(|x| x.to_bits().cast_signed()))
    }

    /// Towards zero; unspecified outside the range of `i32`.
    #[inline(always)]
    pub fn trunc(self) -> I32x4 {
        I32x4(self.0.map(|x| x as i32))
    }

    /// Lanes 0 and 2 of `self`, then of `b`.
    #[inline(always)]
    pub fn even(self, b: Self) -> Self {
        F32x4([self.0[0], self.0[2], b.0[0], b.0[2]])
    }

    /// Lanes 1 and 3 of `self`, then of `b`.
    #[inline(always)]
    pub fn odd(self, b: Self) -> Self {
        F32x4([self.0[1], self.0[3], b.0[1], b.0[3]])
    }

    /// Lanes 1, 0, 3, 2.
    #[inline(always)]
    pub fn swap_pairs(self) -> Self {
        F32x4([self.0[1], self.0[0], self.0[3], self.0[2]])
    }

    /// Lanes 0, 0, 2, 2.
    #[inline(always)]
    pub fn dup_even(self) -> Self {
        F32x4([self.0[0], self.0[0], self.0[2], self.0[2]])
    }

    /// Lanes 1, 1, 3, 3.
    #[inline(always)]
    pub fn dup_odd(self) -> Self {
        F32x4([self.0[1], self.0[1], self.0[3], self.0[3]])
    }

    /// Sum of the lanes.
    #[inline(always)]
    pub fn sum(self) -> f32 {
        (self.0[0] + self.0[2]) + (self.0[1] + self.0[3])
    }

    /// Largest lane, comparing as [`Self::max`] does.
    #[inline(always)]
    pub fn max_lane(self) -> f32 {
        let half = self.max(F32x4([self.0[2], self.0[3], self.0[0], self.0[1]]));
        half.max(half.swap_pairs()).0[0]
    }

    /// Smallest lane, comparing as [`Self::min`] does.
    #[inline(always)]
    pub fn min_lane(self) -> f32 {
        let half = self.min(F32x4([self.0[2], self.0[3], self.0[0], self.0[1]]));
        half.min(half.swap_pairs()).0[0]
    }
}

impl I32x4 {
    /// The same value four times.
    #[inline(always)]
    pub fn splat(x: i32) -> Self {
        I32x4([x; 4])
    }

    /// Sign-extends the bits of four halves.
    #[inline(always)]
    pub fn load_f16(from: &[F16; 4]) -> Self {
        I32x4(from.map(|h| i32::from(h.0.cast_signed())))
    }

    /// Stores the low halves as the bits of four halves.
    #[inline(always)]
    pub fn store_f16(self, to: &mut [F16; 4]) {
        *to = self.0.map(|x| F16(x as u16));
    }

    /// Wrapping sum.
    #[inline(always)]
    pub(super) fn plus(self, b: Self) -> Self {
        I32x4(zip(self.0, b.0, i32::wrapping_add))
    }

    /// Wrapping difference.
    #[inline(always)]
    pub(super) fn minus(self, b: Self) -> Self {
        I32x4(zip(self.0, b.0, i32::wrapping_sub))
    }

    /// Bitwise and.
    #[inline(always)]
    pub(super) fn mask(self, b: Self) -> Self {
        I32x4(zip(self.0, b.0, |a, b| a & b))
    }

    /// Bitwise or.
    #[inline(always)]
    pub(super) fn either(self, b: Self) -> Self {
        I32x4(zip(self.0, b.0, |a, b| a | b))
    }

    /// Shifts left by `N` bits.
    #[inline(always)]
    pub fn shl<const N: u32>(self) -> Self {
        I32x4(self.0.map(|x| x.wrapping_shl(N)))
    }

    /// Shifts right by `N` bits, filling with zeros.
    #[inline(always)]
    pub fn shr<const N: u32>(self) -> Self {
        I32x4(self.0.map(|x| x.cast_unsigned().wrapping_shr(N).cast_signed()))
    }

    /// Mask of the lanes where `self > b`, as signed integers.
    #[inline(always)]
    pub fn gt(self, b: Self) -> Self {
        I32x4(zip(self.0, b.0, |a, b| -i32::from(a > b)))
    }

    /// `a` where the mask is set, else `b`.
    #[inline(always)]
    pub fn select(mask: Self, a: Self, b: Self) -> Self {
        I32x4(core::array::from_fn(|i| (mask.0[i] & a.0[i]) | (!mask.0[i] & b.0[i])))
    }

    /// The bits as floats.
    #[inline(always)]
    pub fn as_f32(self) -> F32x4 {
        F32x4(self.0.map(|x| f32::from_bits(x.cast_unsigned())))
    }

    /// Converts to the nearest float.
    #[inline(always)]
    pub fn to_f32(self) -> F32x4 {
        F32x4(self.0.map(|x| x as f32))
    }
}

impl U8x16 {
    /// The same byte sixteen times.
    #[inline(always)]
    pub fn splat(x: u8) -> Self {
        U8x16([x; 16])
    }

    /// Loads sixteen.
    #[inline(always)]
    pub fn load(from: &[u8; 16]) -> Self {
        U8x16(*from)
    }

    /// Stores sixteen.
    #[inline(always)]
    pub fn store(self, to: &mut [u8; 16]) {
        *to = self.0;
    }

    /// Loads sixteen signed bytes.
    #[inline(always)]
    pub fn load_i8(from: &[i8; 16]) -> Self {
        U8x16(from.map(i8::cast_unsigned))
    }

    /// Stores sixteen as signed bytes.
    #[inline(always)]
    pub fn store_i8(self, to: &mut [i8; 16]) {
        *to = self.0.map(u8::cast_signed);
    }

    /// The low byte of each of sixteen integers.
    #[inline(always)]
    pub fn low_bytes(v: [I32x4; 4]) -> Self {
        U8x16(core::array::from_fn(|i| v[i / 4].0[i % 4] as u8))
    }

    /// Sign-extends.
    #[inline(always)]
    pub fn widen_i8(self) -> [I32x4; 4] {
        let byte = |i: usize| i32::from(self.0[i].cast_signed());
        core::array::from_fn(|q| I32x4(core::array::from_fn(|i| byte(4 * q + i))))
    }

    /// Zero-extends.
    #[inline(always)]
    pub fn widen_u8(self) -> [I32x4; 4] {
        core::array::from_fn(|q| I32x4(core::array::from_fn(|i| i32::from(self.0[4 * q + i]))))
    }

    /// Bitwise or.
    #[inline(always)]
    pub(super) fn either(self, b: Self) -> Self {
        U8x16(core::array::from_fn(|i| self.0[i] | b.0[i]))
    }

    /// Bitwise and.
    #[inline(always)]
    pub(super) fn mask(self, b: Self) -> Self {
        U8x16(core::array::from_fn(|i| self.0[i] & b.0[i]))
    }

    /// Unsigned minimum.
    #[inline(always)]
    pub fn min(self, b: Self) -> Self {
        U8x16(core::array::from_fn(|i| self.0[i].min(b.0[i])))
    }

    /// Shifts each byte left by four bits.
    #[inline(always)]
    pub fn shl4(self) -> Self {
        U8x16(self.0.map(|x| x << 4))
    }

    /// Shifts each byte right by four bits, filling with zeros.
    #[inline(always)]
    pub fn shr4(self) -> Self {
        U8x16(self.0.map(|x| x >> 4))
    }
}
