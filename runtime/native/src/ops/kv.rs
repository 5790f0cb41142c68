//! Packing of rows for the key-value cache into GGML's `Q8_0` and `Q4_0` blocks, and reading them.
//!
//! Packing gives the same bytes on every [`Isa`]: those of GGML's reference functions, computed as C
//! has it, one rounding per operation. (A build of GGML whose compiler fuses `x * id + 8.5` may
//! differ by one in a `Q4_0` quant.) Where the reference is undefined, this is the definition: a
//! scaled element that is not finite, because it was NaN or infinite or the scale is too small to
//! have a reciprocal, gets the quant 0. NaN does not count when the largest element is sought.

use super::simd::{MAX_LANES, Simd, SimdOp, dispatch};
use super::whole_rows;
use crate::{Isa, NativeError};

/// Elements of a block.
pub(crate) const BLOCK: usize = 32;
/// Bytes of a `Q8_0` block.
pub(crate) const Q8_BYTES: usize = 34;
/// Bytes of a `Q4_0` block.
pub(crate) const Q4_BYTES: usize = 18;

/// Quantises `x` to `Q8_0`: `d = max|x| / 127` in f16, `q = round(x / d)`, halves away from zero.
///
/// # Errors
/// [`NativeError::Shape`] where `x` is not whole blocks of 32 or `y` not 34 bytes for each.
pub fn kv_pack_q8(isa: Isa, x: &[f32], y: &mut [u8]) -> Result<(), NativeError> {
    check("kv_pack_q8: x elements", x.len(), "kv_pack_q8: y bytes", y.len(), Q8_BYTES)?;
    match isa {
        Isa::Scalar => blocks(x, y, pack_q8),
        _ => dispatch(isa, PackQ8 { x, y }),
    }
    Ok(())
}

/// Quantises `x` to `Q4_0`: `d` is the element of largest magnitude, the first of equals, over -8 in
/// f16, and `q = min(15, floor(x / d + 8.5))`.
///
/// # Errors
/// [`NativeError::Shape`] where `x` is not whole blocks of 32 or `y` not 18 bytes for each.
pub fn kv_pack_q4(isa: Isa, x: &[f32], y: &mut [u8]) -> Result<(), NativeError> {
    check("kv_pack_q4: x elements", x.len(), "kv_pack_q4: y bytes", y.len(), Q4_BYTES)?;
    match isa {
        Isa::Scalar => blocks(x, y, pack_q4),
        _ => dispatch(isa, PackQ4 { x, y }),
    }
    Ok(())
}

/// Reads `Q8_0` blocks: `y = d * q`, rounded once.
///
/// # Errors
/// [`NativeError::Shape`] where `y` is not whole blocks of 32 or `x` not 34 bytes for each.
pub fn kv_unpack_q8(isa: Isa, x: &[u8], y: &mut [f32]) -> Result<(), NativeError> {
    check("kv_unpack_q8: y elements", y.len(), "kv_unpack_q8: x bytes", x.len(), Q8_BYTES)?;
    match isa {
        Isa::Scalar => {
            for (x, y) in x.as_chunks::<Q8_BYTES>().0.iter().zip(y.as_chunks_mut::<BLOCK>().0) {
                let d = scale(x);
                y.iter_mut().zip(&x[2..]).for_each(|(y, &q)| *y = d * f32::from(q as i8));
            }
        }
        _ => dispatch(isa, UnpackQ8 { x, y }),
    }
    Ok(())
}

/// Reads `Q4_0` blocks: `y = d * (q - 8)`, rounded once.
///
/// # Errors
/// [`NativeError::Shape`] where `y` is not whole blocks of 32 or `x` not 18 bytes for each.
pub fn kv_unpack_q4(isa: Isa, x: &[u8], y: &mut [f32]) -> Result<(), NativeError> {
    check("kv_unpack_q4: y elements", y.len(), "kv_unpack_q4: x bytes", x.len(), Q4_BYTES)?;
    match isa {
        Isa::Scalar => {
            for (x, y) in x.as_chunks::<Q4_BYTES>().0.iter().zip(y.as_chunks_mut::<BLOCK>().0) {
                let d = scale(x);
                for (j, &q) in x[2..].iter().enumerate() {
                    y[j] = d * (f32::from(q & 15) - 8.0);
                    y[j + BLOCK / 2] = d * (f32::from(q >> 4) - 8.0);
                }
            }
        }
        _ => dispatch(isa, UnpackQ4 { x, y }),
    }
    Ok(())
}

fn check(
    plain: &'static str,
    elems: usize,
    packed: &'static str,
    bytes: usize,
    block_bytes: usize,
) -> Result<(), NativeError> {
    whole_rows(plain, BLOCK, elems)?;
    NativeError::check(packed, elems / BLOCK * block_bytes, bytes)
}

fn blocks<const N: usize>(x: &[f32], y: &mut [u8], pack: fn(&[f32; BLOCK], &mut [u8; N])) {
    for (x, y) in x.as_chunks::<BLOCK>().0.iter().zip(y.as_chunks_mut::<N>().0) {
        pack(x, y);
    }
}

/// The f16 scale at the start of a block.
fn scale(block: &[u8]) -> f32 {
    ruvllm_abi::f16_to_f32(u16::from_le_bytes([block[0], block[1]]))
}

fn reciprocal(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

fn pack_q8(x: &[f32; BLOCK], y: &mut [u8; Q8_BYTES]) {
    let amax = x.iter().fold(0.0, |max: f32, x| if x.abs() > max { x.abs() } else { max });
    let d = amax / 127.0;
    let id = reciprocal(d);
    y[..2].copy_from_slice(&ruvllm_abi::f32_to_f16(d).to_le_bytes());
    for (x, y) in x.iter().zip(&mut y[2..]) {
        // `f32::round` takes halves away from zero.
        let q = (x * id).round();
        *y = if q.is_finite() { q as i8 as u8 } else { 0 };
    }
}

fn pack_q4(x: &[f32; BLOCK], y: &mut [u8; Q4_BYTES]) {
    let max = x.iter().fold(0.0, |max: f32, &x| if x.abs() > max.abs() { x } else { max });
    let d = max / -8.0;
    let id = reciprocal(d);
    y[..2].copy_from_slice(&ruvllm_abi::f32_to_f16(d).to_le_bytes());
    let quant = |x: f32| {
        let q = x * id + 8.5;
        if q.is_finite() { (q as u8).min(15) } else { 0 }
    };
    for (j, y) in y[2..].iter_mut().enumerate() {
        *y = quant(x[j]) | quant(x[j + BLOCK / 2]) << 4;
    }
}

/// Vectors of a block at the narrowest width.
const MAX_VECTORS: usize = BLOCK / 4;

/// The block in vectors, those that this width does not need left zero, and its largest magnitude.
#[inline(always)]
fn load_block<S: Simd>(s: S, x: &[f32; BLOCK]) -> ([S::F; MAX_VECTORS], f32) {
    let mut v = [s.splat(0.0); MAX_VECTORS];
    let mut max = s.splat(0.0);
    for (v, x) in v.iter_mut().zip(x.chunks_exact(S::LANES)) {
        *v = s.load(x);
        max = s.max(s.abs(*v), max);
    }
    (v, s.max_lane(max))
}

/// Zero where `q` is not finite. Finite ones are below 2^8 by construction.
#[inline(always)]
fn finite<S: Simd>(s: S, q: S::F) -> S::F {
    s.select_le(s.abs(q), s.splat(f32::MAX), q, s.splat(0.0))
}

struct PackQ8<'a> {
    x: &'a [f32],
    y: &'a mut [u8],
}

impl SimdOp for PackQ8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // The largest number below one half: added with the sign of `q`, truncation then rounds to
        // nearest, halves away from zero.
        let half = s.splat(0.499_999_97);
        let blocks = self.y.as_chunks_mut::<Q8_BYTES>().0;
        for (x, y) in self.x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
            let (v, amax) = load_block(s, x);
            let d = amax / 127.0;
            let id = s.splat(reciprocal(d));
            y[..2].copy_from_slice(&s.narrow(d).to_le_bytes());
            for (v, y) in v.iter().zip(y[2..].chunks_exact_mut(S::LANES)) {
                let q = finite(s, s.mul(*v, id));
                s.store_low_bytes(s.add(q, s.copysign(half, q)), y);
            }
        }
    }
}

struct PackQ4<'a> {
    x: &'a [f32],
    y: &'a mut [u8],
}

impl SimdOp for PackQ4<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.y.as_chunks_mut::<Q4_BYTES>().0;
        for (x, y) in self.x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
            let (v, amax) = load_block(s, x);
            let mut largest = 0;
            for (i, v) in v[..BLOCK / S::LANES].iter().enumerate() {
                largest |= s.eq_bits(s.abs(*v), s.splat(amax)) << (i * S::LANES);
            }
            // An all-zero block has the scale -0, as the reference does.
            let first = largest.trailing_zeros() as usize % BLOCK;
            let max = if amax == 0.0 { 0.0 } else { x[first] };
            let d = max / -8.0;
            let id = s.splat(reciprocal(d));
            y[..2].copy_from_slice(&s.narrow(d).to_le_bytes());
            let half = BLOCK / 2 / S::LANES;
            for i in 0..half {
                let (low, high) = (nibble(s, v[i], id), nibble(s, v[i + half], id));
                let both = s.add(low, s.mul(high, s.splat(16.0)));
                s.store_low_bytes(both, &mut y[2 + i * S::LANES..]);
            }
        }
    }
}

#[inline(always)]
fn nibble<S: Simd>(s: S, v: S::F, id: S::F) -> S::F {
    // Not fused: the reference rounds the product.
    let q = finite(s, s.add(s.mul(v, id), s.splat(8.5)));
    s.trunc(s.min(q, s.splat(15.5)))
}

struct UnpackQ8<'a> {
    x: &'a [u8],
    y: &'a mut [f32],
}

impl SimdOp for UnpackQ8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        unpack_q8(s, self.x, self.y);
    }
}

/// Reads the whole blocks of `x` into the whole blocks of `y`.
#[inline(always)]
pub(crate) fn unpack_q8<S: Simd>(s: S, x: &[u8], y: &mut [f32]) {
    for (x, y) in x.as_chunks::<Q8_BYTES>().0.iter().zip(y.as_chunks_mut::<BLOCK>().0) {
        let d = s.splat(s.widen(u16::from_le_bytes([x[0], x[1]])));
        for i in 0..BLOCK / S::LANES {
            let q = s.load_i8(&x[2 + i * S::LANES..]);
            s.store(s.mul(q, d), &mut y[i * S::LANES..]);
        }
    }
}

struct UnpackQ4<'a> {
    x: &'a [u8],
    y: &'a mut [f32],
}

impl SimdOp for UnpackQ4<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        unpack_q4(s, self.x, self.y);
    }
}

/// Reads the whole blocks of `x` into the whole blocks of `y`.
#[inline(always)]
pub(crate) fn unpack_q4<S: Simd>(s: S, x: &[u8], y: &mut [f32]) {
    let eight = s.splat(8.0);
    for (x, y) in x.as_chunks::<Q4_BYTES>().0.iter().zip(y.as_chunks_mut::<BLOCK>().0) {
        let d = s.splat(s.widen(u16::from_le_bytes([x[0], x[1]])));
        for i in 0..BLOCK / 2 / S::LANES {
            let (low, high) = s.load_nibbles(&x[2 + i * S::LANES..]);
            s.store(s.mul(s.sub(low, eight), d), &mut y[i * S::LANES..]);
            s.store(s.mul(s.sub(high, eight), d), &mut y[BLOCK / 2 + i * S::LANES..]);
        }
    }
}

const _: () = assert!(BLOCK / 2 >= MAX_LANES, "half a block is at least one vector");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{noise, ranges};

    fn pack(isa: Isa, q4: bool, x: &[f32]) -> Vec<u8> {
        let mut y = vec![0xaa; x.len() / BLOCK * if q4 { Q4_BYTES } else { Q8_BYTES }];
        if q4 { kv_pack_q4(isa, x, &mut y) } else { kv_pack_q8(isa, x, &mut y) }.unwrap();
        y
    }

    /// Blocks of every awkward kind.
    fn corpus() -> Vec<f32> {
        let mut x: Vec<f32> = ranges(BLOCK * 40, 3).into_iter().flat_map(|(_, x)| x).collect();
        // Scaled elements that are exact halves, and their neighbours.
        for i in -127..127 {
            let half = i as f32 + 0.5;
            let below = f32::from_bits(half.to_bits() - 1);
            let above = f32::from_bits(half.to_bits() + 1);
            let mut block = [0.0; BLOCK];
            block[..6].copy_from_slice(&[127.0, half, below, above, -half, -127.0]);
            x.extend(block);
            x.extend(block.map(|x| x / 16.0));
        }
        // Both signs of the largest magnitude, in either order.
        for (i, j) in [(0, 31), (31, 0), (15, 16), (16, 15), (7, 8)] {
            let mut block = [0.25; BLOCK];
            (block[i], block[j]) = (2.0, -2.0);
            x.extend(block);
        }
        for scale in [1e-45, 1e-38, 1e-37, 4e-37, 1e-5, 6e-8, 1e38, 3e38] {
            x.extend(noise(BLOCK, 9).iter().map(|x| x * scale));
        }
        x.extend([-0.0; BLOCK]);
        x.extend([f32::MAX; BLOCK]);
        x.extend([f32::NAN; BLOCK]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 5, 31] {
                let mut block = [1.5; BLOCK];
                block[place] = bad;
                x.extend(block);
            }
        }
        x
    }

    #[test]
    fn packing_gives_the_same_bytes_on_every_isa() {
        let x = corpus();
        for isa in Isa::every() {
            for q4 in [false, true] {
                let (got, want) = (pack(isa, q4, &x), pack(Isa::Scalar, q4, &x));
                let bytes = if q4 { Q4_BYTES } else { Q8_BYTES };
                for (i, (got, want)) in got.chunks(bytes).zip(want.chunks(bytes)).enumerate() {
                    assert_eq!(got, want, "{isa} q4={q4} {:?}", &x[i * BLOCK..][..BLOCK]);
                }
            }
        }
    }

    #[test]
    fn unpacking_gives_the_same_bits_on_every_isa() {
        // Every byte value, under every kind of scale.
        let mut bytes = Vec::new();
        for d in [0x3c00, 0x0001, 0x8000, 0x7bff, 0xfc00, 0x2e66, 0x7e00u16] {
            for i in 0..8u8 {
                bytes.extend(d.to_le_bytes());
                bytes.extend((0..32u8).map(|j| i * 32 + j));
            }
        }
        let blocks8 = bytes.len() / Q8_BYTES;
        bytes.resize(bytes.len().next_multiple_of(Q4_BYTES), 0);
        let blocks4 = bytes.len() / Q4_BYTES;
        let bits = |y: &[f32]| {
            y.iter().map(|y| if y.is_nan() { 0 } else { y.to_bits() }).collect::<Vec<_>>()
        };
        for isa in Isa::every() {
            let (mut got, mut want) = (vec![0.0; blocks8 * BLOCK], vec![0.0; blocks8 * BLOCK]);
            kv_unpack_q8(isa, &bytes[..blocks8 * Q8_BYTES], &mut got).unwrap();
            kv_unpack_q8(Isa::Scalar, &bytes[..blocks8 * Q8_BYTES], &mut want).unwrap();
            assert_eq!(bits(&got), bits(&want), "{isa}");
            let (mut got, mut want) = (vec![0.0; blocks4 * BLOCK], vec![0.0; blocks4 * BLOCK]);
            kv_unpack_q4(isa, &bytes, &mut got).unwrap();
            kv_unpack_q4(Isa::Scalar, &bytes, &mut want).unwrap();
            assert_eq!(bits(&got), bits(&want), "{isa}");
        }
    }

    #[test]
    fn known_blocks_have_the_bytes_of_the_reference() {
        let mut x = [0.0; BLOCK];
        (x[0], x[1], x[2], x[17]) = (-127.0, 2.5, -2.5, 63.49);
        let y = pack(Isa::Scalar, false, &x);
        assert_eq!(y[..5], [0x00, 0x3c, 0x81, 3, 0xfd]);
        assert_eq!(y[2 + 17], 63);
        // Largest magnitude -8: d = 1, so x = q - 8 directly.
        let mut x = [0.0; BLOCK];
        (x[0], x[1], x[2], x[16], x[17]) = (-8.0, 7.4, 7.9, 3.0, -0.6);
        let y = pack(Isa::Scalar, true, &x);
        assert_eq!(y[..5], [0x00, 0x3c, 0xb0, 0x7f, 0x8f]);
        // Zeros: a scale of minus zero.
        assert_eq!(pack(Isa::Scalar, true, &[0.0; BLOCK])[..3], [0x00, 0x80, 0x88]);
        assert_eq!(pack(Isa::Scalar, false, &[0.0; BLOCK]), [0; Q8_BYTES]);
    }

    #[test]
    fn rounding_error_is_half_a_step() {
        let x: Vec<f32> = noise(BLOCK * 64, 1).iter().map(|x| x * 10.0).collect();
        for isa in Isa::every() {
            let mut y = vec![0.0; x.len()];
            kv_unpack_q8(isa, &pack(isa, false, &x), &mut y).unwrap();
            for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
                let amax = x.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
                // Half a step, and the rounding of the scale to f16 over 127 steps.
                let allowed = amax / 254.0 + amax * 4.9e-4;
                assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= allowed));
            }
            kv_unpack_q4(isa, &pack(isa, true, &x), &mut y).unwrap();
            for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
                let amax = x.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
                // The side opposite the largest element is clipped to 7 steps of 8.
                assert!(x.iter().zip(y).all(|(x, y)| (x - y).abs() <= amax / 8.0 * 1.01));
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        for isa in Isa::every() {
            assert!(kv_pack_q8(isa, &[0.0; 33], &mut [0; 34]).is_err());
            assert!(kv_pack_q8(isa, &[0.0; 32], &mut [0; 33]).is_err());
            assert!(kv_pack_q4(isa, &[0.0; 32], &mut [0; 34]).is_err());
            assert!(kv_unpack_q8(isa, &[0; 34], &mut [0.0; 31]).is_err());
            assert!(kv_unpack_q4(isa, &[0; 17], &mut [0.0; 32]).is_err());
            assert!(kv_pack_q4(isa, &[], &mut []).is_ok());
        }
    }
}
