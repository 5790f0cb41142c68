//! Vectors as arrays, for processors without a file of their own. The compiler vectorises what it
//! can; nothing here is fused, so results differ from the other files by rounding.

use super::{Simd, SimdOp};

/// Four lanes of plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn map(a: [f32; 4], b: [f32; 4], f: impl Fn(f32, f32) -> f32) -> [f32; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Simd for Portable {
    type F = [f32; 4];
    const LANES: usize = 4;
    const TILE: usize = 2;

    /// Not inlined, so that a kernel is compiled once and apart from what calls it, as in the other files.
    #[inline(never)]
    fn enter<O: SimdOp>(self, op: O) -> O::Output {
        op.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; 4]
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> Self::F {
        [x[0], x[1], x[2], x[3]]
    }

    #[inline(always)]
    fn store(self, v: Self::F, y: &mut [f32]) {
        y[..4].copy_from_slice(&v);
    }

    #[inline(always)]
    fn load_f16(self, x: &[u8]) -> Self::F {
        let x = &x[..8];
        std::array::from_fn(|i| self.widen(u16::from_le_bytes([x[2 * i], x[2 * i + 1]])))
    }

    #[inline(always)]
    fn store_f16(self, v: Self::F, y: &mut [u8]) {
        for (y, v) in y[..8].chunks_exact_mut(2).zip(v) {
            y.copy_from_slice(&self.narrow(v).to_le_bytes());
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[u8]) -> Self::F {
        let x = &x[..4];
        std::array::from_fn(|i| f32::from(x[i] as i8))
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8]) -> (Self::F, Self::F) {
        let x = &x[..4];
        let low = std::array::from_fn(|i| f32::from(x[i] & 15));
        (low, std::array::from_fn(|i| f32::from(x[i] >> 4)))
    }

    #[inline(always)]
    fn store_low_bytes(self, v: Self::F, y: &mut [u8]) {
        y[..4].copy_from_slice(&v.map(|v| v as i32 as u8));
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // `f32::mul_add` is a library call where the processor has no fused instruction.
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        map(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, v: Self::F) -> Self::F {
        v.map(f32::abs)
    }

    #[inline(always)]
    fn copysign(self, magnitude: Self::F, sign: Self::F) -> Self::F {
        map(magnitude, sign, f32::copysign)
    }

    #[inline(always)]
    fn round_small(self, v: Self::F) -> Self::F {
        // Adding 1.5 * 2^23 leaves no bits for a fraction; the float unit rounds it away.
        v.map(|v| (v + 12_582_912.0) - 12_582_912.0)
    }

    #[inline(always)]
    fn trunc(self, v: Self::F) -> Self::F {
        v.map(|v| v as i32 as f32)
    }

    #[inline(always)]
    fn scale_pow2(self, v: Self::F, n: Self::F) -> Self::F {
        map(v, n, |v, n| {
            let n = n as i32;
            v * pow2(n >> 1) * pow2(n - (n >> 1))
        })
    }

    #[inline(always)]
    fn select_le(self, a: Self::F, b: Self::F, v: Self::F, other: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] <= b[i] { v[i] } else { other[i] })
    }

    #[inline(always)]
    fn eq_bits(self, a: Self::F, b: Self::F) -> u32 {
        (0..4).map(|i| u32::from(a[i] == b[i]) << i).sum()
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }

    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        v[0].max(v[2]).max(v[1].max(v[3]))
    }

    #[inline(always)]
    fn sum4(self, v: [Self::F; 4]) -> [f32; 4] {
        v.map(|v| self.sum(v))
    }

    #[inline(always)]
    fn deinterleave(self, a: Self::F, b: Self::F) -> (Self::F, Self::F) {
        ([a[0], a[2], b[0], b[2]], [a[1], a[3], b[1], b[3]])
    }

    #[inline(always)]
    fn interleave(self, even: Self::F, odd: Self::F) -> (Self::F, Self::F) {
        ([even[0], odd[0], even[1], odd[1]], [even[2], odd[2], even[3], odd[3]])
    }

    #[inline(always)]
    fn splat4(self, x: [f32; 4]) -> Self::F {
        x
    }

    #[inline(always)]
    fn fold4(self, v: Self::F) -> [f32; 4] {
        v
    }
}
