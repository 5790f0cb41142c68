//! The definition of every operation, in f64 and without cleverness.
//!
//! Whatever computes an operation, native code or a pack's kernel, is right when it is within that
//! operation's tolerance of these functions. They are slow, single-threaded, and share no code with
//! what they judge, save the block quantisers: those are defined by their bytes, not by numbers.
//!
//! The functions of this module trust their callers on sizes; [`run`] checks them.

pub mod backward;
mod call;

pub(crate) use call::numbers;
pub use call::{backward, run};

use crate::attention::AttnShape;
use crate::ops::{self, LoraShape, RopeShape};
use crate::{Isa, NativeError};
use ruvllm_abi::f16_to_f32;

fn wide(x: &[f32]) -> impl Iterator<Item = f64> + Clone + '_ {
    x.iter().map(|&x| f64::from(x))
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    wide(a).zip(wide(b)).map(|(a, b)| a * b).sum()
}

/// `x / sqrt(mean(x^2) + eps) * weight` for each row of `weight.len()` elements.
pub fn rmsnorm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let row = |x| {
        let mean = wide(x).map(|x| x * x).sum::<f64>() / weight.len() as f64;
        let root = (mean + f64::from(eps)).sqrt();
        wide(x).zip(wide(weight)).map(move |(x, w)| x / root * w)
    };
    x.chunks(weight.len().max(1)).flat_map(row).collect()
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` for each row of `weight.len()` elements.
pub fn layernorm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let n = weight.len() as f64;
    let mut y = Vec::with_capacity(x.len());
    for x in x.chunks(weight.len().max(1)) {
        let mean = wide(x).sum::<f64>() / n;
        let variance = wide(x).map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let root = (variance + f64::from(eps)).sqrt();
        for (i, (x, w)) in wide(x).zip(wide(weight)).enumerate() {
            y.push((x - mean) / root * w + bias.map_or(0.0, |bias| f64::from(bias[i])));
        }
    }
    y
}

/// Rotary position embedding; shapes as in [`RopeShape`].
///
/// # Panics
/// Where `x` or `freqs` is shorter than `shape` says.
pub fn rope(shape: &RopeShape, x: &[f32], freqs: &[f32]) -> Vec<f64> {
    let RopeShape { batch, seq, heads, dim, dim_half, interleaved } = *shape;
    let mut y: Vec<f64> = wide(x).collect();
    for position in 0..batch * seq {
        for head in 0..heads {
            let start = (position * heads + head) * dim;
            for i in 0..dim_half {
                let (p, q) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + dim_half) };
                let (p, q) = (start + p, start + q);
                let angle = (position % seq * dim_half + i) * 2;
                let (cos, sin) = (f64::from(freqs[angle]), f64::from(freqs[angle + 1]));
                let (a, b) = (f64::from(x[p]), f64::from(x[q]));
                (y[p], y[q]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
    y
}

/// `gate * sigmoid(gate) * up`; at `gate` = -infinity the limit, -0.
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f64> {
    let silu = |g: f64| if g == f64::NEG_INFINITY { -0.0 } else { g / (1.0 + (-g).exp()) };
    wide(gate).zip(wide(up)).map(|(gate, up)| silu(gate) * up).collect()
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))` (Hendrycks and Gimpel, arXiv 1606.08415); at
/// `x` = -infinity the limit, -0.
pub fn gelu(x: &[f32]) -> Vec<f64> {
    wide(x).map(gelu_of).collect()
}

/// `gelu(gate) * up` (Shazeer, arXiv 2002.05202).
pub fn geglu(gate: &[f32], up: &[f32]) -> Vec<f64> {
    wide(gate).zip(wide(up)).map(|(gate, up)| gelu_of(gate) * up).collect()
}

fn gelu_of(x: f64) -> f64 {
    if x == f64::NEG_INFINITY {
        return -0.0;
    }
    // (1 + tanh(u)) / 2 is the sigmoid of 2 u, which keeps its digits where it is small.
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / (1.0 + (-2.0 * u).exp())
}

/// `sum over j of (-1)^popcount(i & j) x[j] / sqrt(dim)` for each element `i` of each row of `dim`.
pub fn hadamard(x: &[f32], dim: usize) -> Vec<f64> {
    let row = |x| {
        let sign = |i: usize, j: usize| [1.0, -1.0][((i & j).count_ones() % 2) as usize];
        let sum = move |i| wide(x).enumerate().map(|(j, x)| sign(i, j) * x).sum::<f64>();
        (0..dim).map(move |i| sum(i) / (dim as f64).sqrt())
    };
    x.chunks(dim.max(1)).flat_map(row).collect()
}

/// `exp(x - max) / sum(exp(x - max))` over one row.
pub fn softmax(x: &[f32]) -> Vec<f64> {
    let x: Vec<f64> = wide(x).collect();
    normalised_exp(&x)
}

fn normalised_exp(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

/// What the `Q8_0` blocks that GGML's reference makes of `x` stand for.
///
/// # Errors
/// Where `x` is not whole blocks of 32.
pub fn kv_pack_q8(x: &[f32]) -> Result<Vec<f64>, NativeError> {
    let mut blocks = vec![0; x.len() / 32 * 34];
    ops::kv_pack_q8(Isa::Scalar, x, &mut blocks)?;
    Ok(kv_unpack_q8(&blocks))
}

/// What the `Q4_0` blocks that GGML's reference makes of `x` stand for.
///
/// # Errors
/// Where `x` is not whole blocks of 32.
pub fn kv_pack_q4(x: &[f32]) -> Result<Vec<f64>, NativeError> {
    let mut blocks = vec![0; x.len() / 32 * 18];
    ops::kv_pack_q4(Isa::Scalar, x, &mut blocks)?;
    Ok(kv_unpack_q4(&blocks))
}

/// The numbers that `Q8_0` blocks stand for: `d * q`.
pub fn kv_unpack_q8(blocks: &[u8]) -> Vec<f64> {
    let mut y = Vec::with_capacity(blocks.len());
    for block in blocks.as_chunks::<34>().0 {
        let d = f64::from(f16_to_f32(u16::from_le_bytes([block[0], block[1]])));
        y.extend(block[2..].iter().map(|&q| d * f64::from(q as i8)));
    }
    y
}

/// The numbers that `Q4_0` blocks stand for: `d * (q - 8)`.
pub fn kv_unpack_q4(blocks: &[u8]) -> Vec<f64> {
    let mut y = Vec::with_capacity(2 * blocks.len());
    for block in blocks.as_chunks::<18>().0 {
        let d = f64::from(f16_to_f32(u16::from_le_bytes([block[0], block[1]])));
        y.extend(block[2..].iter().map(|q| d * (f64::from(q & 15) - 8.0)));
        y.extend(block[2..].iter().map(|q| d * (f64::from(q >> 4) - 8.0)));
    }
    y
}

/// `scale * (x A^T) B^T` with `a` `[rank, in_dim]` and `b` `[out_dim, rank]`, not interleaved.
///
/// # Panics
/// Where a buffer is shorter than `shape` says.
pub fn lora(shape: &LoraShape, x: &[f32], a: &[f32], b: &[f32]) -> Vec<f64> {
    let LoraShape { rows, in_dim, rank, out_dim, scale } = *shape;
    let mut y = Vec::with_capacity(rows * out_dim);
    for row in 0..rows {
        let x = &x[row * in_dim..][..in_dim];
        let t: Vec<f64> = (0..rank).map(|r| dot(x, &a[r * in_dim..][..in_dim])).collect();
        for j in 0..out_dim {
            let update: f64 = wide(&b[j * rank..][..rank]).zip(&t).map(|(b, t)| b * t).sum();
            y.push(f64::from(scale) * update);
        }
    }
    y
}

/// `y[m, n] = x[m, k] . w[n, k]^T`, as a decoder's linear layers have it.
///
/// # Panics
/// Where `x` or `w` is not whole rows of `k`.
pub fn gemm(x: &[f32], w: &[f32], k: usize) -> Vec<f64> {
    if k == 0 {
        return Vec::new();
    }
    let rows = x.chunks_exact(k);
    assert!(rows.remainder().is_empty() && w.len().is_multiple_of(k), "whole rows of k");
    rows.flat_map(|x| w.chunks_exact(k).map(move |w| dot(x, w))).collect()
}

/// `y[n] = w[n, k] . x[k]`.
///
/// # Panics
/// Where `w` is not whole rows of `x.len()`.
pub fn gemv(x: &[f32], w: &[f32]) -> Vec<f64> {
    gemm(x, w, x.len())
}

/// Causal attention with grouped queries (Vaswani et al., arXiv 1706.03762; Ainslie et al.,
/// arXiv 2305.13245).
///
/// `q` is `[m, heads, head_dim]`, its row 0 at position `q_pos`; `k` and `v` are
/// `[n, kv_heads, head_dim]` with row `j` at `positions[j]`. A query at position `p` sees positions up
/// to `p` and, with a window `w`, above `p - w`; one that sees nothing gives zeros.
///
/// # Panics
/// Where `k` or `v` is shorter than `positions` says.
pub fn attention(
    shape: &AttnShape,
    q: &[f32],
    q_pos: usize,
    k: &[f32],
    v: &[f32],
    positions: &[usize],
) -> Vec<f64> {
    let AttnShape { heads, kv_heads, head_dim, scale, .. } = *shape;
    let row = |x: usize, head: usize| {
        (x * kv_heads + head) * head_dim..(x * kv_heads + head + 1) * head_dim
    };
    let mut y = Vec::with_capacity(q.len());
    for (i, q) in q.chunks_exact((heads * head_dim).max(1)).enumerate() {
        let sees = |&j: &usize| shape.sees(q_pos + i, positions[j]);
        let visible: Vec<usize> = (0..positions.len()).filter(sees).collect();
        for (head, q) in q.chunks_exact(head_dim).enumerate() {
            let kv_head = head / (heads / kv_heads);
            let score = |&j: &usize| dot(q, &k[row(j, kv_head)]) * f64::from(scale);
            let weights = normalised_exp(&visible.iter().map(score).collect::<Vec<_>>());
            let mut sum = vec![0.0; head_dim];
            for (&j, weight) in visible.iter().zip(weights) {
                sum.iter_mut().zip(wide(&v[row(j, kv_head)])).for_each(|(y, v)| *y += weight * v);
            }
            y.extend(sum);
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_hold_on_cases_worked_by_hand() {
        assert_eq!(
            rmsnorm(&[3.0, 4.0], &[1.0, 2.0], 0.0),
            [3.0 / 12.5f64.sqrt(), 8.0 / 12.5f64.sqrt()]
        );
        assert_eq!(layernorm(&[1.0, 3.0], &[2.0, 2.0], Some(&[0.0, 1.0]), 0.0), [-2.0, 3.0]);
        assert_eq!(swiglu(&[0.0, f32::NEG_INFINITY], &[5.0, 1.0]), [0.0, 0.0]);
        assert_eq!(gelu(&[0.0, f32::NEG_INFINITY]), [0.0, 0.0]);
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-13, "{got} {want}");
        near(gelu(&[1.0])[0], 0.841_191_990_608_276_2);
        near(geglu(&[-1.0], &[3.0])[0], -3.0 * 0.158_808_009_391_723_8);
        assert_eq!(softmax(&[7.0, 7.0]), [0.5, 0.5]);
        assert_eq!(hadamard(&[1.0, 2.0, 3.0, 5.0], 4), [5.5, -1.5, -2.5, 0.5]);
        assert_eq!(gemm(&[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0, 1.0, -1.0], 2), [3.0, -1.0, 7.0, -1.0]);
        assert_eq!(gemv(&[1.0, 2.0], &[1.0, 1.0]), [3.0]);
        let shape =
            RopeShape { batch: 1, seq: 1, heads: 1, dim: 5, dim_half: 2, interleaved: false };
        let quarter = [0.0, 1.0, 0.0, 1.0];
        assert_eq!(rope(&shape, &[1.0, 2.0, 3.0, 4.0, 5.0], &quarter), [-3.0, -4.0, 1.0, 2.0, 5.0]);
        let shape = RopeShape { interleaved: true, ..shape };
        assert_eq!(rope(&shape, &[1.0, 2.0, 3.0, 4.0, 5.0], &quarter), [-2.0, 1.0, -4.0, 3.0, 5.0]);
        let shape = LoraShape { rows: 1, in_dim: 2, rank: 1, out_dim: 2, scale: 0.5 };
        assert_eq!(lora(&shape, &[1.0, 2.0], &[3.0, 4.0], &[1.0, -1.0]), [5.5, -5.5]);
    }

    #[test]
    fn attention_is_causal_and_windowed() {
        let shape = AttnShape {
            heads: 2,
            kv_heads: 1,
            head_dim: 1,
            scale: 1.0,
            window: None,
            deterministic: false,
        };
        let (k, v) = ([0.0, 0.0, 0.0], [1.0, 2.0, 6.0]);
        let q = [1.0; 6];
        let y = attention(&shape, &q, 0, &k, &v, &[0, 1, 2]);
        assert_eq!(y, [1.0, 1.0, 1.5, 1.5, 3.0, 3.0]);
        let shape = AttnShape { window: Some(2), ..shape };
        let y = attention(&shape, &q, 0, &k, &v, &[0, 1, 2]);
        assert_eq!(y, [1.0, 1.0, 1.5, 1.5, 4.0, 4.0]);
        assert_eq!(attention(&shape, &q[..2], 9, &k, &v, &[0, 1, 2]), [0.0, 0.0]);
    }
}
