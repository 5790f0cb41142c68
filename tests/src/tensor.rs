//! Tensors for the model files that tests write, in every weight type.

use ruvllm_abi::DType;
use ruvllm_native::quant;

/// Elements of a block of the types with two levels of scales.
const SUPER: usize = 256;

/// A tensor as a file holds it.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// The type of its elements.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Its rows, one after the other.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Numbers as a tensor of `dtype`, rounded to what it can hold.
    ///
    /// # Panics
    /// When the numbers do not fill the shape, or the last dimension is no number of whole blocks.
    pub fn new(dtype: DType, shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{shape:?}");
        assert!(
            shape.last().is_some_and(|row| dtype.bytes_for(*row).is_some()),
            "{dtype} {shape:?}"
        );
        Self { dtype, shape: shape.to_vec(), bytes: encode(dtype, values) }
    }

    /// Its elements as numbers.
    ///
    /// # Panics
    /// When the bytes are not as many as the shape says.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape.iter().product()];
        quant::dequantize_row(self.dtype, &self.bytes, &mut values).expect("whole rows");
        values
    }
}

/// Numbers as blocks of `dtype`. The types that the runtime itself can write are written by it; the others
/// are as good as tests of reading them need, no better.
fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let blocks = |elements: usize, block: fn(&[f32]) -> Vec<u8>| {
        values.chunks_exact(elements).flat_map(block).collect()
    };
    match dtype {
        DType::Q4_1 => blocks(32, |x| with_minimum(x, 15)),
        DType::Q5_0 => blocks(32, q5_0),
        DType::Q5_1 => blocks(32, |x| with_minimum(x, 31)),
        DType::Q4_K => blocks(SUPER, |x| with_scaled_minima(x, 15)),
        DType::Q5_K => blocks(SUPER, |x| with_scaled_minima(x, 31)),
        DType::Q6_K => blocks(SUPER, q6_k),
        _ => {
            let size = dtype.bytes_for(values.len()).expect("whole blocks");
            let mut bytes = vec![0; size];
            quant::quantize_row(dtype, values, &mut bytes).expect("a type that it writes");
            bytes
        }
    }
}

fn half(x: f32) -> [u8; 2] {
    half::f16::from_f32(x).to_le_bytes()
}

fn halved(x: f32) -> f32 {
    half::f16::from_f32(x).to_f32()
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// The number of largest magnitude, the first of several.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

fn bounds(x: &[f32]) -> (f32, f32) {
    x.iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), x| (least.min(*x), most.max(*x)))
}

/// The fifth bits of 32 codes, then their lower ones: code `j` with `j + 16` in a byte.
fn fifth_bits_and_nibbles(codes: &[u8]) -> Vec<u8> {
    let high = codes.iter().rev().fold(0u32, |bits, code| bits << 1 | u32::from(code >> 4));
    let (low, upper) = codes.split_at(16);
    let nibbles = low.iter().zip(upper).map(|(low, upper)| low & 15 | upper << 4);
    high.to_le_bytes().into_iter().chain(nibbles).collect()
}

/// `Q4_1` and `Q5_1`: codes of 0 to `most` from the least number on.
fn with_minimum(x: &[f32], most: u8) -> Vec<u8> {
    let (least, largest) = bounds(x);
    let scale = (largest - least) / f32::from(most);
    let inverse = inverse(scale);
    let codes: Vec<u8> =
        x.iter().map(|x| (((x - least) * inverse + 0.5) as u8).min(most)).collect();
    let bits = fifth_bits_and_nibbles(&codes);
    let bits = if most > 15 { &bits[..] } else { &bits[4..] };
    [&half(scale), &half(least), bits].concat()
}

fn q5_0(x: &[f32]) -> Vec<u8> {
    let scale = extreme(x) / -16.0;
    let inverse = inverse(scale);
    let codes: Vec<u8> = x.iter().map(|x| ((x * inverse + 16.5) as u8).min(31)).collect();
    [&half(scale)[..], &fifth_bits_and_nibbles(&codes)].concat()
}

/// Scale and offset (0 or less) of codes 0 to `most` with a small squared error: codes for given scale and
/// offset, and these for given codes, in turn.
fn fit_with_offset(x: &[f32], most: i32) -> (f32, f32) {
    let (least, largest) = bounds(x);
    if least == largest {
        return (0.0, 0.0);
    }
    let mut offset = least.min(0.0);
    let mut inverse = most as f32 / (largest - offset);
    let mut codes = vec![0; x.len()];
    let mut scale = inverse.recip();
    for _ in 0..5 {
        let rounded: Vec<i32> =
            x.iter().map(|x| ((inverse * (x - offset)).round() as i32).clamp(0, most)).collect();
        let settled = rounded == codes;
        codes = rounded;
        let product: f32 =
            x.iter().zip(&codes).fold(0.0, |sum, (x, q)| sum + (x - offset) * *q as f32);
        scale = product / codes.iter().map(|q| q * q).sum::<i32>() as f32;
        let rest: f32 = x.iter().zip(&codes).map(|(x, q)| x - scale * *q as f32).sum();
        offset = (rest / x.len() as f32).min(0.0);
        inverse = scale.recip();
        if settled {
            break;
        }
    }
    (scale, offset)
}

/// `Q4_K` and `Q5_K`: eight groups of 32, whose scales and offsets are 6-bit parts of the largest.
fn with_scaled_minima(x: &[f32], most: i32) -> Vec<u8> {
    let fits: Vec<(f32, f32)> = x.chunks_exact(32).map(|x| fit_with_offset(x, most)).collect();
    let largest = fits.iter().fold(0.0f32, |most, fit| most.max(fit.0));
    let deepest = fits.iter().fold(0.0f32, |most, fit| most.max(-fit.1));
    let part = |x: f32, of: f32| match of > 0.0 {
        true => ((63.0 / of * x).round() as i32).min(63) as u8,
        false => 0,
    };
    let (scale, minimum) = (largest / 63.0, deepest / 63.0);
    let mut packed = [0u8; 12];
    let mut codes = Vec::with_capacity(SUPER);
    for (j, (x, fit)) in x.chunks_exact(32).zip(fits).enumerate() {
        let (s, m) = (part(fit.0, largest), part(-fit.1, deepest));
        if j < 4 {
            packed[j] = s;
            packed[j + 4] = m;
        } else {
            packed[j + 4] = s & 15 | m << 4;
            packed[j - 4] |= s >> 4 << 6;
            packed[j] |= m >> 4 << 6;
        }
        let (d, offset) = (halved(scale) * f32::from(s), halved(minimum) * f32::from(m));
        codes.extend(x.iter().map(|x| match d == 0.0 {
            true => 0,
            false => (((x + offset) / d).round() as i32).clamp(0, most) as u8,
        }));
    }
    let mut high = [0u8; 32];
    for (group, codes) in codes.chunks_exact(32).enumerate() {
        high.iter_mut().zip(codes).for_each(|(bits, code)| *bits |= (code >> 4) << group);
    }
    let nibbles = codes.chunks_exact(64).flat_map(|pair| {
        let (low, upper) = pair.split_at(32);
        low.iter().zip(upper).map(|(low, upper)| low & 15 | upper << 4)
    });
    let nibbles: Vec<u8> = nibbles.collect();
    let high = if most > 15 { &high[..] } else { &[] };
    [&half(scale), &half(minimum), &packed[..], high, &nibbles].concat()
}

/// The scale of codes -32 to 31 with a small error, squares of numbers being its weights: from the scale that
/// the number of largest magnitude asks for, then code by code as long as that helps.
fn fit_symmetric(x: &[f32]) -> f32 {
    const MOST: i32 = 32;
    let largest = extreme(x);
    if largest == 0.0 {
        return 0.0;
    }
    let code = |x: f32| (x.round() as i32).clamp(-MOST, MOST - 1);
    let all = |inverse: f32| -> Vec<i32> { x.iter().map(|x| code(inverse * x)).collect() };
    let sums = |codes: &[i32]| {
        x.iter().zip(codes).fold((0.0f32, 0.0f32), |(product, square), (x, q)| {
            let (w, q) = (x * x, *q as f32);
            (product + w * x * q, square + w * q * q)
        })
    };
    let mut codes = all(-(MOST as f32) / largest);
    let (mut product, mut square) = sums(&codes);
    for _ in 0..3 {
        let again = all((product / square).recip());
        let (p, s) = sums(&again);
        if again == codes || s == 0.0 || p * p <= product / square * product * s {
            break;
        }
        (codes, product, square) = (again, p, s);
    }
    for _ in 0..5 {
        let mut changed = false;
        for (x, q) in x.iter().zip(&mut codes) {
            let (w, old) = (x * x, *q as f32);
            let (p, s) = (product - w * x * old, square - w * old * old);
            if p <= 0.0 {
                continue;
            }
            let new = code(x * s / p);
            let (p, s) = (p + w * x * new as f32, s + w * new as f32 * new as f32);
            if new != *q && s > 0.0 && p * p * square > product * product * s {
                (*q, product, square) = (new, p, s);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    product / square
}

fn q6_k(x: &[f32]) -> Vec<u8> {
    let fits: Vec<f32> = x.chunks_exact(16).map(fit_symmetric).collect();
    let inverse_scale = -128.0 / extreme(&fits);
    let scale = inverse_scale.recip();
    let mut scales = Vec::with_capacity(16);
    let mut codes = Vec::with_capacity(SUPER);
    for (x, fit) in x.chunks_exact(16).zip(fits) {
        let s = ((inverse_scale * fit).round() as i32).min(127) as i8;
        let d = halved(scale) * f32::from(s);
        scales.push(s.cast_unsigned());
        codes.extend(x.iter().map(|x| match d == 0.0 {
            true => 32,
            false => (((x / d).round() as i32).clamp(-32, 31) + 32) as u8,
        }));
    }
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for codes in codes.chunks_exact(128) {
        let quarter = |i: usize| &codes[32 * i..][..32];
        for (a, b) in [(quarter(0), quarter(2)), (quarter(1), quarter(3))] {
            low.extend(a.iter().zip(b).map(|(a, b)| a & 15 | b << 4));
        }
        high.extend((0..32).map(|i| {
            (0..4).fold(0, |bits, quarter| bits | (codes[32 * quarter + i] >> 4) << (2 * quarter))
        }));
    }
    [&low[..], &high, &scales, &half(scale)].concat()
}
