//! Rows of the KV cache to GGML blocks and back, byte for byte as GGML's reference rounds.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::simd::{I32x4, U8x16, at, put};

/// Elements of a block.
const BLOCK: usize = 32;

/// The reciprocal of a block's scale: zero where there is none to divide by.
///
/// What the reference leaves undefined is defined as in the host's own kernels: NaN does not count
/// when the largest element is sought, and an element whose scaled value is not finite has quant 0.
/// That also holds for a scale so small that its reciprocal is infinite, hence zero here.
#[inline(always)]
fn reciprocal(d: f32) -> f32 {
    let id = 1.0 / d;
    if id.is_finite() { id } else { 0.0 }
}

/// The largest or smallest over zero and the block's vectors, in two chains; NaN loses to anything.
#[inline(always)]
fn extreme(x: &[f32; BLOCK], pick: impl Fn(F32x4, F32x4) -> F32x4) -> F32x4 {
    let mut acc = [F32x4::ZERO; 2];
    for i in 0..BLOCK / 4 {
        acc[i % 2] = pick(acc[i % 2], at(x, 4 * i));
    }
    pick(acc[0], acc[1])
}

/// Rounds to the nearest integer, halves away from zero, as C's `roundf` does.
///
/// The largest float below one half keeps 0.49999997 from rounding up.
#[inline(always)]
fn round(v: F32x4) -> I32x4 {
    let sign = v.as_i32() & I32x4::splat(i32::MIN);
    let half = (sign | F32x4::splat(0.499_999_97).as_i32()).as_f32();
    (v + half).trunc()
}

/// Quantises whole blocks to `q8_0`: `d = amax / 127`, `q = round(x / d)`.
pub fn pack_q8(x: &[f32], y: &mut [BlockQ8_0]) {
    for (x, y) in x.as_chunks::<BLOCK>().0.iter().zip(y) {
        pack_block_q8(x, y);
    }
}

/// One block of [`pack_q8`].
#[inline(always)]
pub fn pack_block_q8(x: &[f32; BLOCK], y: &mut BlockQ8_0) {
    let d = extreme(x, |max, v| max.max(v.abs())).max_lane() / 127.0;
    let id = F32x4::splat(reciprocal(d));
    let (halves, _) = y.qs.as_chunks_mut::<16>();
    for (h, half) in halves.iter_mut().enumerate() {
        let q = |i: usize| round(at(x, 16 * h + 4 * i) * id);
        U8x16::low_bytes([q(0), q(1), q(2), q(3)]).store_i8(half);
    }
    y.d = F16::from_f32(d);
}

/// Quantises whole blocks to `q4_0`: `d = m / -8` for the element `m` of largest magnitude, the
/// first of equals; `q = min(15, trunc(x / d + 8.5))`.
pub fn pack_q4(x: &[f32], y: &mut [BlockQ4_0]) {
    for (x, y) in x.as_chunks::<BLOCK>().0.iter().zip(y) {
        let high = extreme(x, F32x4::max).max_lane();
        let low = extreme(x, F32x4::min).min_lane();
        let m = if high > -low {
            high
        } else if high < -low {
            low
        } else {
            // Both signs reach the same magnitude, or all is zero.
            x.iter().copied().find(|x| x.abs() == high && high > 0.0).unwrap_or(0.0)
        };
        let d = m / -8.0;
        let id = reciprocal(d);
        let none = id == 0.0 && d != 0.0 && d.is_finite();
        let (id, middle) = (F32x4::splat(id), F32x4::splat(if none { 0.0 } else { 8.5 }));
        let quants = |from: usize| {
            let q = |i: usize| (at(x, from + 4 * i) * id + middle).trunc();
            U8x16::low_bytes([q(0), q(1), q(2), q(3)]).min(U8x16::splat(15))
        };
        (quants(0) | quants(16).shl4()).store(&mut y.qs);
        y.d = F16::from_f32(d);
    }
}

/// Reads whole `q8_0` blocks: `y = d * q`.
pub fn unpack_q8(x: &[BlockQ8_0], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y.as_chunks_mut::<BLOCK>().0) {
        unpack_block_q8(x, y);
    }
}

/// One block of [`unpack_q8`].
#[inline(always)]
pub fn unpack_block_q8(x: &BlockQ8_0, y: &mut [f32; BLOCK]) {
    let d = F32x4::splat(x.d.to_f32());
    let (halves, _) = x.qs.as_chunks::<16>();
    for (h, half) in halves.iter().enumerate() {
        for (i, q) in U8x16::load_i8(half).widen_i8().into_iter().enumerate() {
            put(y, 16 * h + 4 * i, d * q.to_f32());
        }
    }
}

/// Reads whole `q4_0` blocks: `y = d * (q - 8)`.
pub fn unpack_q4(x: &[BlockQ4_0], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y.as_chunks_mut::<BLOCK>().0) {
        let d = F32x4::splat(x.d.to_f32());
        let q = U8x16::load(&x.qs);
        for (h, half) in [q & U8x16::splat(15), q.shr4()].into_iter().enumerate() {
            for (i, q) in half.widen_u8().into_iter().enumerate() {
                put(y, 16 * h + 4 * i, d * (q - I32x4::splat(8)).to_f32());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::testing::noise;

    fn reference_q8(x: &[f32; 32]) -> BlockQ8_0 {
        let amax = x.iter().fold(0f32, |max, x| if x.abs() > max { x.abs() } else { max });
        let d = amax / 127.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        let quant = |x: f32| if (x * id).is_finite() { (x * id).round() as i8 } else { 0 };
        BlockQ8_0 { d: F16::from_f32(d), qs: x.map(quant) }
    }

    fn reference_q4(x: &[f32; 32]) -> BlockQ4_0 {
        let (mut amax, mut max) = (0f32, 0f32);
        for x in x {
            if amax < x.abs() {
                (amax, max) = (x.abs(), *x);
            }
        }
        let d = max / -8.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        let quant = |x: f32| if (x * id).is_finite() { (x * id + 8.5) as i8 } else { 0 };
        let q = x.map(|x| quant(x).min(15) as u8);
        BlockQ4_0 { d: F16::from_f32(d), qs: core::array::from_fn(|j| q[j] | q[j + 16] << 4) }
    }

    fn blocks() -> impl Iterator<Item = [f32; 32]> {
        let ties = core::array::from_fn(|i| if i % 2 == 0 { 127.0 } else { 0.5 - i as f32 });
        let mirrored = core::array::from_fn(|i| if i % 3 == 1 { 4.0 } else { -4.0 });
        let mut broken = mirrored;
        (broken[0], broken[5], broken[31]) = (f32::NAN, f32::NAN, f32::NAN);
        let mut endless = ties;
        (endless[3], endless[30]) = (f32::NEG_INFINITY, f32::INFINITY);
        let fixed = [
            [0.0; 32],
            [-0.0; 32],
            [1.0; 32],
            [-3.0; 32],
            [f32::NAN; 32],
            ties,
            mirrored,
            broken,
            endless,
        ];
        let random = (0..20_000).map(|seed| {
            let magnitude = [1e-44, 1e-38, 1e-30, 1e-3, 1.0, 100.0, 1e6, 1e30][seed % 8];
            *noise(32, magnitude, seed as u32 + 1).first_chunk().unwrap()
        });
        fixed.into_iter().chain(random)
    }

    #[test]
    fn packing_gives_the_reference_bytes() {
        for x in blocks() {
            let mut y = [BlockQ8_0 { d: F16(0), qs: [1; 32] }];
            pack_q8(&x, &mut y);
            assert_eq!(y[0], reference_q8(&x), "{x:?}");
            let mut y = [BlockQ4_0 { d: F16(0), qs: [1; 16] }];
            pack_q4(&x, &mut y);
            assert_eq!(y[0], reference_q4(&x), "{x:?}");
        }
    }

    #[test]
    fn unpacking_multiplies_scale_and_quant() {
        for x in blocks().filter(|x| x.iter().all(|x| x.abs() < 1e5)) {
            let (q8, q4) = (reference_q8(&x), reference_q4(&x));
            let mut y = [1.0; 32];
            unpack_q8(&[q8], &mut y);
            assert_eq!(y, q8.qs.map(|q| q8.d.to_f32() * f32::from(q)));
            unpack_q4(&[q4], &mut y);
            for j in 0..16 {
                let element = |q: u8| q4.d.to_f32() * (f32::from(q) - 8.0);
                assert_eq!(y[j], element(q4.qs[j] & 15));
                assert_eq!(y[j + 16], element(q4.qs[j] >> 4));
            }
        }
    }

    #[test]
    fn halves_round_away_from_zero_and_values_below_do_not() {
        let rounded = |x: f32| {
            let mut bytes = [0; 16];
            U8x16::low_bytes([round(F32x4::splat(x)); 4]).store(&mut bytes);
            bytes[0].cast_signed()
        };
        for x in [0.5f32, 1.5, 2.5, 125.5, 126.5] {
            assert_eq!(rounded(x), (x + 0.5) as i8);
            assert_eq!(rounded(-x), -((x + 0.5) as i8));
            assert_eq!(rounded(x.next_down()), (x - 0.5) as i8);
        }
    }
}
