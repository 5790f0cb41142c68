//! One vector type per instruction set, behind one trait, so that each operation is written once.
//!
//! A [`Simd`] value is a token: it can only be had from [`dispatch`], which asks the processor, so
//! holding one proves that its instructions exist, and every method is safe to call. The unsafe
//! code of the operations is therefore all in the files that implement the trait.
//!
//! Vector code must be compiled for its instruction set: [`Simd::enter`] calls a [`SimdOp`] inside a
//! `#[target_feature]` function, and everything below it is `#[inline(always)]` until the next
//! `enter`. A helper that is not inlined still gives right results, only slowly.

/// Methods of a [`Simd`] that take and give vectors `$v` and are an expression of intrinsics each, which
/// `self` proves that the processor has.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! lanewise {
    ($v:ident: $($name:ident($($x:ident),+) = $value:expr;)+) => {$(
        #[inline(always)]
        fn $name(self, $($x: $v),+) -> $v {
            // SAFETY: `self` proves the features.
            unsafe { $value }
        }
    )+};
}
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_narrow;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use crate::Isa;
use half::f16;

/// The widest vector of all instruction sets; row strides of scratch memory are multiples of it.
pub(crate) const MAX_LANES: usize = 16;

/// A function that can be compiled for any instruction set.
pub(crate) trait SimdOp {
    /// What it returns.
    type Output;

    /// The body; must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Runs `op` with the instructions of `isa`, or of the best that the processor has.
#[inline]
pub(crate) fn dispatch<O: SimdOp>(isa: Isa, op: O) -> O::Output {
    match isa.plain() {
        #[cfg(target_arch = "x86_64")]
        plain @ (Isa::Avx512 | Isa::Avx2) => {
            if plain == Isa::Avx512
                && let Some(s) = avx512::Avx512::detect()
            {
                return s.enter(op);
            }
            match avx2::Avx2::detect() {
                Some(s) => s.enter(op),
                None => portable::Portable.enter(op),
            }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Narrow => match avx2_narrow::Avx2Narrow::detect() {
            Some(s) => s.enter(op),
            None => portable::Portable.enter(op),
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => match neon::Neon::detect() {
            Some(s) => s.enter(op),
            None => portable::Portable.enter(op),
        },
        _ => portable::Portable.enter(op),
    }
}

/// Vectors of `f32` and the operations that kernels need of them.
///
/// Loads and stores take slices, use their first [`LANES`](Simd::LANES) elements, and panic on
/// shorter ones. `max(a, b)` is `a > b ? a : b`, so a NaN in `a` gives `b` and one in `b` stays.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// A vector of [`LANES`](Simd::LANES) elements.
    type F: Copy;
    /// Elements of a vector: a power of two from 4 to [`MAX_LANES`].
    const LANES: usize;
    /// How many vectors by four rows of accumulators fill the registers without spilling.
    const TILE: usize;

    /// Runs `op` compiled for this instruction set.
    fn enter<O: SimdOp>(self, op: O) -> O::Output;

    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Reads a vector.
    fn load(self, x: &[f32]) -> Self::F;
    /// Writes a vector.
    fn store(self, v: Self::F, y: &mut [f32]);
    /// Widens `2 * LANES` bytes of little-endian binary16. Exact.
    fn load_f16(self, x: &[u8]) -> Self::F;
    /// Rounds to binary16, to nearest even, and writes `2 * LANES` bytes.
    fn store_f16(self, v: Self::F, y: &mut [u8]);
    /// Converts `LANES` signed bytes.
    fn load_i8(self, x: &[u8]) -> Self::F;
    /// Converts the low and the high nibbles of `LANES` bytes to numbers from 0 to 15.
    fn load_nibbles(self, x: &[u8]) -> (Self::F, Self::F);
    /// Truncates to integers, of magnitude below 2^31, and writes the low byte of each.
    fn store_low_bytes(self, v: Self::F, y: &mut [u8]);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the processor can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Absolute value.
    fn abs(self, v: Self::F) -> Self::F;
    /// The magnitude of one, the sign of the other.
    fn copysign(self, magnitude: Self::F, sign: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even, for magnitudes below 2^22.
    fn round_small(self, v: Self::F) -> Self::F;
    /// Rounds toward zero, for magnitudes below 2^31.
    fn trunc(self, v: Self::F) -> Self::F;
    /// `v * 2^n` for integral `n` from -160 to 130.
    fn scale_pow2(self, v: Self::F, n: Self::F) -> Self::F;
    /// `a <= b ? v : other`, lane by lane; a NaN in `a` or `b` gives `other`.
    fn select_le(self, a: Self::F, b: Self::F, v: Self::F, other: Self::F) -> Self::F;
    /// A bit per lane, lowest first: `a == b`.
    fn eq_bits(self, a: Self::F, b: Self::F) -> u32;
    /// The sum of all lanes.
    fn sum(self, v: Self::F) -> f32;
    /// The largest lane; any value where one is NaN.
    fn max_lane(self, v: Self::F) -> f32;
    /// The sums of four vectors.
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4];
    /// Splits consecutive pairs: the elements at even and at odd places of `a` then `b`.
    fn deinterleave(self, a: Self::F, b: Self::F) -> (Self::F, Self::F);
    /// The inverse of [`deinterleave`](Simd::deinterleave).
    fn interleave(self, even: Self::F, odd: Self::F) -> (Self::F, Self::F);
    /// Repeats four elements over all lanes.
    fn splat4(self, x: [f32; 4]) -> Self::F;
    /// Sums the groups of four lanes: element `i` is the sum of the lanes `i` modulo 4.
    fn fold4(self, v: Self::F) -> [f32; 4];

    /// Reads up to a vector; lanes beyond the slice are zero.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::F {
        let mut buffer = [0.0; MAX_LANES];
        let n = x.len().min(Self::LANES);
        buffer[..n].copy_from_slice(&x[..n]);
        self.load(&buffer)
    }

    /// Writes as many lanes as the slice holds.
    #[inline(always)]
    fn store_partial(self, v: Self::F, y: &mut [f32]) {
        let mut buffer = [0.0; MAX_LANES];
        self.store(v, &mut buffer);
        let n = y.len().min(Self::LANES);
        y[..n].copy_from_slice(&buffer[..n]);
    }

    /// Widens one binary16.
    #[inline(always)]
    fn widen(self, bits: u16) -> f32 {
        ruvllm_abi::f16_to_f32(bits)
    }

    /// Rounds to one binary16.
    #[inline(always)]
    fn narrow(self, x: f32) -> u16 {
        ruvllm_abi::f32_to_f16(x)
    }
}

/// Element types that kernels compute on as `f32`.
pub(crate) trait Elem: bytemuck::Pod {
    /// Widens.
    fn get(self) -> f32;
    /// Rounds.
    fn put(x: f32) -> Self;
    /// Reads a vector; panics on a slice shorter than one.
    fn load<S: Simd>(s: S, x: &[Self]) -> S::F;
    /// Writes a vector; panics on a slice shorter than one.
    fn store<S: Simd>(s: S, v: S::F, y: &mut [Self]);

    /// Reads up to a vector; lanes beyond the slice are zero.
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::F {
        let mut buffer = [Self::zeroed(); MAX_LANES];
        let n = x.len().min(S::LANES);
        buffer[..n].copy_from_slice(&x[..n]);
        Self::load(s, &buffer)
    }

    /// Writes as many lanes as the slice holds.
    #[inline(always)]
    fn store_partial<S: Simd>(s: S, v: S::F, y: &mut [Self]) {
        let mut buffer = [Self::zeroed(); MAX_LANES];
        Self::store(s, v, &mut buffer);
        let n = y.len().min(S::LANES);
        y[..n].copy_from_slice(&buffer[..n]);
    }
}

impl Elem for f32 {
    #[inline(always)]
    fn get(self) -> f32 {
        self
    }

    #[inline(always)]
    fn put(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32]) -> S::F {
        s.load(x)
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::F, y: &mut [f32]) {
        s.store(v, y);
    }

    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[f32]) -> S::F {
        s.load_partial(x)
    }

    #[inline(always)]
    fn store_partial<S: Simd>(s: S, v: S::F, y: &mut [f32]) {
        s.store_partial(v, y);
    }
}

impl Elem for f16 {
    #[inline(always)]
    fn get(self) -> f32 {
        ruvllm_abi::f16_to_f32(self.to_bits())
    }

    #[inline(always)]
    fn put(x: f32) -> f16 {
        f16::from_bits(ruvllm_abi::f32_to_f16(x))
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f16]) -> S::F {
        s.load_f16(bytemuck::cast_slice(&x[..S::LANES]))
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, v: S::F, y: &mut [f16]) {
        s.store_f16(v, bytemuck::cast_slice_mut(&mut y[..S::LANES]));
    }
}

#[cfg(test)]
mod tests;
