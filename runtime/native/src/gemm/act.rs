//! Activations in the forms that the kernels read: 8-bit blocks, or f32 with padded rows.

use ruvllm_abi::DType;

use super::{Form, Plan};
use crate::quant::{CHUNK, GROUP};
use crate::{Isa, NativeError, ThreadPool};

/// 256 activations of one row as 8-bit integers: `x = scale * q`. Past the end of a row all is 0.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct ActChunk {
    pub(super) q: [i8; CHUNK],
    /// One per 16 elements; pairs are equal, since scales are chosen per [`BLOCK`].
    pub(super) scale: [f32; CHUNK / GROUP],
    /// `scale * Σq` per 16 elements: what a weight's offset is multiplied with.
    pub(super) sum: [f32; CHUNK / GROUP],
    /// The same per 32 elements.
    pub(super) block_sum: [f32; CHUNK / BLOCK],
    /// `Σq` per 16 elements.
    pub(super) total: [i16; CHUNK / GROUP],
    /// `Σq` per 32 elements.
    pub(super) block_total: [i16; CHUNK / BLOCK],
}

/// Activations that share a scale.
const BLOCK: usize = 32;

/// The inverse of a block's largest number, where that is smaller, would overflow; the block is as
/// good as zero.
pub(super) const SMALLEST: f32 = 1e-35;

/// 1.5 · 2²³: adding it leaves the nearest integer, ties to even, in the low bits of the sum.
pub(super) const ROUNDER: f32 = 12_582_912.0;

impl ActChunk {
    const ZERO: ActChunk = ActChunk {
        q: [0; CHUNK],
        scale: [0.0; CHUNK / GROUP],
        sum: [0.0; CHUNK / GROUP],
        block_sum: [0.0; CHUNK / BLOCK],
        total: [0; CHUNK / GROUP],
        block_total: [0; CHUNK / BLOCK],
    };
}

/// Floats at the end of each row, beyond whole vectors: row strides that are a power of two
/// would put the columns of a tile in the same few cache sets.
const STAGGER: usize = 16;

/// An input of matrix products, `[m, k]`, in the forms that given weights need. A buffer to reuse:
/// it grows to the largest input it has held.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    m: usize,
    k: usize,
    forms: [bool; 3],
    bf16: bool,
    chunks: Vec<ActChunk>,
    floats: Vec<f32>,
    /// Pairs of bf16, the first of each in the low bits.
    #[cfg(target_arch = "x86_64")]
    pairs: Vec<u32>,
}

impl Activations {
    /// An empty input.
    pub fn new() -> Self {
        Activations::default()
    }

    /// Whether products of many rows with 16-bit float weights may be computed as bf16, from the next
    /// [`prepare`](Self::prepare) on; at first they may not. About twice as fast where the processor
    /// has the instructions, but activations, and f16 weights, are rounded to 8 bits of precision.
    pub fn allow_bf16(&mut self, allow: bool) {
        if self.bf16 != allow {
            (self.bf16, self.forms) = (allow, [false; 3]);
        }
    }

    /// Takes in `x`, `[m, k]`, for products with weights of the types `for_weights`, to be
    /// computed with `isa`. `x` is not needed afterwards.
    ///
    /// # Errors
    /// `x` does not have `m * k` elements; the buffer is then empty.
    pub fn prepare(
        &mut self,
        pool: &ThreadPool,
        isa: Isa,
        x: &[f32],
        m: usize,
        k: usize,
        for_weights: &[DType],
    ) -> Result<(), NativeError> {
        (self.m, self.k, self.forms) = (0, 0, [false; 3]);
        let elems = m.saturating_mul(k);
        NativeError::check("activations: elements", elems, x.len())?;
        if elems == 0 {
            (self.m, self.k) = (m, k);
            return Ok(());
        }
        let isa = isa.usable().widest();
        (self.m, self.k) = (m, k);
        for w in for_weights {
            self.forms[Plan::of(*w, isa, m, self.bf16).form() as usize] = true;
        }
        if self.has(Form::Ints) {
            let stride = k.div_ceil(CHUNK);
            grow(&mut self.chunks, m * stride, ActChunk::ZERO);
            by_rows(pool, &mut self.chunks[..m * stride], stride, &|i, row| {
                quantize(isa, &x[i * k..][..k], row);
            });
        }
        if self.has(Form::Floats) {
            let stride = self.float_stride();
            grow(&mut self.floats, m * stride, 0.0);
            by_rows(pool, &mut self.floats[..m * stride], stride, &|i, row| {
                row[..k].copy_from_slice(&x[i * k..][..k]);
                row[k..].fill(0.0);
            });
        }
        #[cfg(target_arch = "x86_64")]
        if self.has(Form::Pairs) {
            let stride = self.pair_stride();
            grow(&mut self.pairs, m * stride, 0);
            by_rows(pool, &mut self.pairs[..m * stride], stride, &|i, row| {
                super::x86_bf16::round(&x[i * k..][..k], row);
            });
        }
        Ok(())
    }

    /// Rows, `m`.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// Columns, `k`.
    pub fn cols(&self) -> usize {
        self.k
    }

    /// Whether products as bf16 are allowed.
    pub(super) fn bf16(&self) -> bool {
        self.bf16
    }

    /// Whether the input was prepared in this form.
    pub(super) fn has(&self, form: Form) -> bool {
        self.forms[form as usize]
    }

    /// `[m, chunks of k]`, rows contiguous.
    pub(super) fn chunks(&self) -> &[ActChunk] {
        &self.chunks[..self.m * self.chunk_stride()]
    }

    /// Chunks of a row.
    pub(super) fn chunk_stride(&self) -> usize {
        self.k.div_ceil(CHUNK)
    }

    /// `[m, float_stride]`; beyond `k` a row holds zeros, at least to a multiple of 64.
    pub(super) fn floats(&self) -> &[f32] {
        &self.floats[..self.m * self.float_stride()]
    }

    /// `[m, pair_stride]`; beyond `k` a row holds zeros.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pairs(&self) -> &[u32] {
        &self.pairs[..self.m * self.pair_stride()]
    }

    /// Pairs from the start of a row to the start of the next.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pair_stride(&self) -> usize {
        self.k.next_multiple_of(64) / 2 + STAGGER
    }

    /// Floats from the start of a row to the start of the next.
    pub(super) fn float_stride(&self) -> usize {
        self.k.next_multiple_of(64) + STAGGER
    }
}

/// Calls `f` for every row, on all threads where there is enough to do: entering a region costs
/// about what quantising a thousand numbers does.
fn by_rows<T: Send>(
    pool: &ThreadPool,
    data: &mut [T],
    stride: usize,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if size_of_val(data) < 32 * 1024 {
        data.chunks_mut(stride).enumerate().for_each(|(i, row)| f(i, row));
    } else {
        pool.for_chunks(data, stride, f);
    }
}

fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        buffer.resize(len, value);
    }
}

/// Quantises one row; the same result for every `isa`.
fn quantize(isa: Isa, x: &[f32], row: &mut [ActChunk]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::x86_avx512::quantize(x, row),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::x86_avx2::quantize(x, row),
        _ => quantize_row(x, row, quantize_chunk),
    }
}

/// The body of [`quantize`], by what quantises a chunk.
#[inline(always)]
pub(super) fn quantize_row(
    x: &[f32],
    row: &mut [ActChunk],
    quantize_chunk: impl Fn(&[f32; CHUNK], &mut ActChunk),
) {
    let (head, tail) = x.as_chunks::<CHUNK>();
    for (x, chunk) in head.iter().zip(row.iter_mut()) {
        quantize_chunk(x, chunk);
    }
    if let Some(last) = row.get_mut(head.len()) {
        let mut padded = [0.0; CHUNK];
        padded[..tail.len()].copy_from_slice(tail);
        quantize_chunk(&padded, last);
    }
}

/// Quantises a chunk, in operations that compile to vectors where they are enabled.
#[inline(always)]
pub(super) fn quantize_chunk(x: &[f32; CHUNK], chunk: &mut ActChunk) {
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(chunk.q.as_chunks_mut::<BLOCK>().0);
    for (b, (x, q)) in blocks.enumerate() {
        // Written as operations on whole lanes and a tree, which compile to vectors; a NaN is
        // passed over.
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let [low, high] = x.as_chunks::<GROUP>().0 else { continue };
        let mut lanes = [0.0f32; GROUP];
        for (lane, (low, high)) in lanes.iter_mut().zip(low.iter().zip(high)) {
            *lane = larger(low.abs(), high.abs());
        }
        for width in [8, 4, 2, 1] {
            let (low, high) = lanes.split_at_mut(width);
            low.iter_mut().zip(high).for_each(|(low, high)| *low = larger(*low, *high));
        }
        let amax = larger(0.0, lanes[0]);
        let (scale, inverse) =
            if amax > SMALLEST { (amax / 127.0, 127.0 / amax) } else { (0.0, 0.0) };
        chunk.scale[2 * b..2 * b + 2].fill(scale);
        let groups = q.as_chunks_mut::<GROUP>().0.iter_mut().zip(x.as_chunks::<GROUP>().0);
        for (i, (q, x)) in groups.enumerate() {
            let mut sum = 0;
            for (q, x) in q.iter_mut().zip(x) {
                let rounded = nearest(x * inverse);
                *q = rounded as i8;
                sum += rounded;
            }
            chunk.total[2 * b + i] = sum as i16;
            chunk.sum[2 * b + i] = scale * sum as f32;
        }
        chunk.block_total[b] = chunk.total[2 * b] + chunk.total[2 * b + 1];
        chunk.block_sum[b] = chunk.sum[2 * b] + chunk.sum[2 * b + 1];
    }
}

/// The nearest integer, ties to even, of a number within ±127 (for NaN any within ±128).
#[inline(always)]
fn nearest(x: f32) -> i32 {
    let bits = (x + ROUNDER).to_bits();
    i32::from((bits & 0xff) as u8 as i8)
}
