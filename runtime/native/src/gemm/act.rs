//! Activations in the forms that the kernels read: 8-bit blocks, or f32 with padded rows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ruvllm_abi::DType;
use ruvllm_abi::team::{self, ActChunk, ActForm, BLOCK, CHUNK, GROUP};

use super::{ActForms, Plan};
use crate::{Isa, NativeError, ThreadPool};

/// The power of two that the scales of a chunk are multiples of, for the largest of them, which is at least 32 and less
/// than 64 times as much.
#[inline(always)]
pub(super) fn step_below(largest: f32) -> f32 {
    const EXPONENT: u32 = 0xff << 23;
    // Steps have to be normal numbers; what is quantised with scales below 2^-100 is as good as zero.
    let largest = largest.max(f32::from_bits(27 << 23));
    f32::from_bits((largest.to_bits() & EXPONENT) - (5 << 23))
}

/// What the largest scale is multiplied by before [`step_below`] is asked, so that rounding it up does not make it 64
/// steps: a little more than 64 / 63.
pub(super) const WIDER: f32 = 1.016;

/// What a chunk's scales are multiples of.
#[inline(always)]
pub(super) fn scale_step(scales: &[f32; CHUNK / GROUP]) -> f32 {
    // None is negative or NaN, so their bits are in the same order, and several of these are compared at a time.
    step_below(f32::from_bits(scales.map(f32::to_bits).into_iter().max().unwrap_or(0)))
}

/// 1.5 · 2²³: adding it leaves the nearest integer, ties to even, in the low bits of the sum.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// Elements of the largest input: all forms of it together fit the address space.
const MOST_ELEMS: usize = isize::MAX as usize / 16;

/// Floats at the end of each row, beyond whole vectors: row strides that are a power of two
/// would put the columns of a tile in the same few cache sets.
const STAGGER: usize = 16;

/// The next version of an input; 0 is that of one that was never taken in.
static VERSIONS: AtomicU64 = AtomicU64::new(1);

/// An input of matrix products, `[m, k]`, in the forms that given weights need. A buffer to reuse:
/// it grows to the largest input it has held.
#[derive(Clone, Debug, Default)]
pub struct Activations {
    m: usize,
    k: usize,
    forms: ActForms,
    bf16: bool,
    deterministic: bool,
    /// Another one whenever anything may change.
    version: u64,
    chunks: Vec<ActChunk>,
    floats: Vec<f32>,
    /// Pairs of bf16, the first of each in the low bits.
    pairs: Vec<u32>,
}

impl Activations {
    /// An empty input.
    pub fn new() -> Self {
        Activations::default()
    }

    /// An empty input with the settings of another.
    pub fn like(other: &Activations) -> Activations {
        let Activations { bf16, deterministic, .. } = *other;
        Activations { bf16, deterministic, ..Activations::default() }
    }

    /// Whether products of many rows with 16-bit float weights may be computed as bf16, from the next
    /// [`prepare`](Self::prepare) on; at first they may not. They then are where the processor is
    /// faster with the instructions, about twice as fast on AMD's: activations, and f16 weights, are rounded
    /// to 8 bits of precision.
    pub fn allow_bf16(&mut self, allow: bool) {
        if self.bf16 != allow {
            (self.bf16, self.forms) = (allow, ActForms::NONE);
        }
    }

    /// Whether the number of rows may not change a bit of a product, from the next
    /// [`prepare`](Self::prepare) on; at first it may. Products of many rows with weights of floats are
    /// slower then: they are computed as those of one row are.
    pub fn set_deterministic(&mut self, deterministic: bool) {
        if self.deterministic != deterministic {
            (self.deterministic, self.forms) = (deterministic, ActForms::NONE);
        }
    }

    /// Whether the number of rows may not change a bit of a product.
    pub fn is_deterministic(&self) -> bool {
        self.deterministic
    }

    /// The form that [`matmul`](super::matmul) reads of an input of `m` rows with these settings, for weights
    /// of a type, with `isa`.
    pub fn form(&self, isa: Isa, m: usize, weights: DType) -> ActForm {
        Plan::of(weights, isa.usable().widest(), self.plan_rows_of(m), self.bf16).form()
    }

    /// [`Activations::form`] of each of several types.
    pub fn forms(&self, isa: Isa, m: usize, weights: &[DType]) -> ActForms {
        let form = |dtype: &DType| ActForms::from(self.form(isa, m, *dtype));
        weights.iter().map(form).fold(ActForms::NONE, ActForms::and)
    }

    /// Takes in `x`, `[m, k]`, in these forms, with `isa`. `x` is not needed afterwards.
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
        forms: ActForms,
    ) -> Result<(), NativeError> {
        (self.m, self.k, self.forms) = (0, 0, ActForms::NONE);
        NativeError::check("activations: elements", m.saturating_mul(k), x.len())?;
        let rows = self.rows_mut(isa, m, k, forms)?;
        rows.ints.each(pool, &|i, row| quantize(rows.isa, &x[i * k..][..k], row));
        rows.floats.each(pool, &|i, row| pad(&x[i * k..][..k], row));
        rows.pairs.each(pool, &|i, row| round(&x[i * k..][..k], row));
        Ok(())
    }

    /// Makes room for an input `[m, k]` as [`prepare`](Self::prepare) does, for rows that come a few
    /// at a time. Products read what was there before in place of rows that did not come.
    ///
    /// # Errors
    /// No memory holds `m * k` elements; the buffer is then empty.
    pub fn rows_mut(
        &mut self,
        isa: Isa,
        m: usize,
        k: usize,
        forms: ActForms,
    ) -> Result<ActRows<'_>, NativeError> {
        (self.m, self.k, self.forms) = (0, 0, ActForms::NONE);
        self.version = VERSIONS.fetch_add(1, Relaxed);
        let row = k.checked_next_multiple_of(CHUNK).unwrap_or(usize::MAX);
        let elems = m.max(1).saturating_mul(row);
        if elems > MOST_ELEMS {
            let what = "activations: elements";
            return Err(NativeError::Shape { what, expected: MOST_ELEMS, actual: elems });
        }
        let isa = isa.usable().widest();
        (self.m, self.k) = (m, k);
        if m > 0 && k > 0 {
            self.forms = forms;
        }
        let rows = |form: ActForm| if self.has(form) { m } else { 0 };
        let (ints, floats) = (rows(ActForm::Ints), rows(ActForm::Floats));
        let (pairs, pair_stride) = (rows(ActForm::Pairs), self.pair_stride());
        let (chunk_stride, float_stride) = (self.chunk_stride(), self.float_stride());
        Ok(ActRows {
            isa,
            m,
            k,
            ints: Matrix::new(&mut self.chunks, ints, chunk_stride, ActChunk::ZERO),
            floats: Matrix::new(&mut self.floats, floats, float_stride, 0.0),
            pairs: Matrix::new(&mut self.pairs, pairs, pair_stride, 0),
        })
    }

    /// Rows, `m`.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// A number that no other contents of any input have had.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Columns, `k`.
    pub fn cols(&self) -> usize {
        self.k
    }

    /// The number of rows that products are planned for.
    pub(super) fn plan_rows(&self) -> usize {
        self.plan_rows_of(self.m)
    }

    fn plan_rows_of(&self, m: usize) -> usize {
        if self.deterministic { m.min(1) } else { m }
    }

    /// Whether products as bf16 are allowed.
    pub(super) fn bf16(&self) -> bool {
        self.bf16
    }

    /// Whether the input was prepared in this form.
    pub fn has(&self, form: ActForm) -> bool {
        self.forms.has(form)
    }

    /// The form [`ActForm::Ints`]: `[m, k / 256 rounded up]`, rows contiguous. Empty where the input was not
    /// prepared in it.
    pub fn chunks(&self) -> &[ActChunk] {
        let chunks = if self.has(ActForm::Ints) { self.m * self.chunk_stride() } else { 0 };
        &self.chunks[..chunks]
    }

    /// The numbers of a row as a form has them, `[k]`.
    ///
    /// # Errors
    /// The input was not prepared in the form, has no such row, or `to` is not a row.
    pub fn read_row(&self, form: ActForm, row: usize, to: &mut [f32]) -> Result<(), NativeError> {
        NativeError::check("activations: elements of a row", self.k, to.len())?;
        if row >= self.m || !self.has(form) {
            let detail = format!("row {row} of {} as {form:?}", self.m);
            return Err(NativeError::Unsupported { what: "reading activations", detail });
        }
        match form {
            ActForm::Ints => {
                let chunks = &self.chunks()[row * self.chunk_stride()..][..self.chunk_stride()];
                let numbers = chunks.iter().flat_map(|chunk| {
                    let scales = chunk.scale.iter().flat_map(|scale| [*scale; GROUP]);
                    chunk.q.iter().zip(scales).map(|(q, scale)| f32::from(*q) * scale)
                });
                to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
            }
            ActForm::Floats => {
                to.copy_from_slice(&self.floats()[row * self.float_stride()..][..self.k]);
            }
            ActForm::Pairs => {
                let pairs = &self.pairs()[row * self.pair_stride()..][..self.pair_stride()];
                let numbers = pairs.iter().flat_map(|pair| [pair << 16, pair & 0xffff_0000]);
                to.iter_mut().zip(numbers).for_each(|(to, bits)| *to = f32::from_bits(bits));
            }
        }
        Ok(())
    }

    /// Chunks of a row.
    pub(super) fn chunk_stride(&self) -> usize {
        team::chunks(self.k)
    }

    /// The form [`ActForm::Floats`]: `[m, float_stride]`; beyond `k` a row holds zeros, at least to a multiple
    /// of 64. Empty where the input was not prepared in it.
    pub fn floats(&self) -> &[f32] {
        let floats = if self.has(ActForm::Floats) { self.m * self.float_stride() } else { 0 };
        &self.floats[..floats]
    }

    /// The form [`ActForm::Pairs`]: `[m, pair_stride]`; beyond `k` a row holds zeros. Empty where the input was
    /// not prepared in it.
    pub fn pairs(&self) -> &[u32] {
        let pairs = if self.has(ActForm::Pairs) { self.m * self.pair_stride() } else { 0 };
        &self.pairs[..pairs]
    }

    /// Pairs from the start of a row to the start of the next.
    pub fn pair_stride(&self) -> usize {
        self.k.next_multiple_of(64) / 2 + STAGGER
    }

    /// Floats from the start of a row to the start of the next.
    pub fn float_stride(&self) -> usize {
        self.k.next_multiple_of(64) + STAGGER
    }
}

/// Rows of an input that is being taken in, from [`Activations::rows_mut`]. They can be divided, so
/// that each thread takes in its own.
pub struct ActRows<'a> {
    isa: Isa,
    m: usize,
    k: usize,
    ints: Matrix<'a, ActChunk>,
    floats: Matrix<'a, f32>,
    pairs: Matrix<'a, u32>,
}

impl<'a> ActRows<'a> {
    /// Rows that there are.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// Columns of a row, `k`.
    pub fn cols(&self) -> usize {
        self.k
    }

    /// Takes the first `rows` of the rows away, at most all.
    pub fn split_off_front(&mut self, rows: usize) -> ActRows<'a> {
        let m = rows.min(self.m);
        self.m -= m;
        ActRows {
            isa: self.isa,
            m,
            k: self.k,
            ints: self.ints.split_off_front(m),
            floats: self.floats.split_off_front(m),
            pairs: self.pairs.split_off_front(m),
        }
    }

    /// Takes in `x`, `[n, k]`, as the rows from `first` on. `x` is not needed afterwards.
    ///
    /// # Errors
    /// `x` is not whole rows, or more than there are from `first` on.
    pub fn put(&mut self, first: usize, x: &[f32]) -> Result<(), NativeError> {
        let rows = x.len() / self.k.max(1);
        NativeError::check("activations: elements of whole rows", rows * self.k, x.len())?;
        let left = self.m.saturating_sub(first);
        if rows > left {
            let what = "activations: rows";
            return Err(NativeError::Shape { what, expected: left, actual: rows });
        }
        for (i, x) in x.chunks_exact(self.k.max(1)).enumerate() {
            if let Some(row) = self.ints.row(first + i) {
                quantize(self.isa, x, row);
            }
            if let Some(row) = self.floats.row(first + i) {
                pad(x, row);
            }
            if let Some(row) = self.pairs.row(first + i) {
                round(x, row);
            }
        }
        Ok(())
    }
}

/// The rows of an input in one form; none where it is not needed.
struct Matrix<'a, T> {
    data: &'a mut [T],
    stride: usize,
}

impl<'a, T: Clone + Send> Matrix<'a, T> {
    /// So many rows in a buffer, which grows where they do not fit.
    fn new(buffer: &'a mut Vec<T>, rows: usize, stride: usize, zero: T) -> Matrix<'a, T> {
        let len = rows * stride;
        if buffer.len() < len {
            buffer.resize(len, zero);
        }
        Matrix { data: &mut buffer[..len], stride }
    }

    fn row(&mut self, i: usize) -> Option<&mut [T]> {
        self.data.get_mut(i * self.stride..(i + 1) * self.stride)
    }

    fn split_off_front(&mut self, rows: usize) -> Matrix<'a, T> {
        let len = (rows * self.stride).min(self.data.len());
        let (front, rest) = std::mem::take(&mut self.data).split_at_mut(len);
        self.data = rest;
        Matrix { data: front, stride: self.stride }
    }

    /// Calls `f` for every row, on all threads where there is enough to do: entering a region costs
    /// about what quantising a thousand numbers does.
    fn each(self, pool: &ThreadPool, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
        if size_of_val(self.data) < 16 * 1024 {
            self.data.chunks_mut(self.stride.max(1)).enumerate().for_each(|(i, row)| f(i, row));
        } else {
            pool.for_chunks(self.data, self.stride, f);
        }
    }
}

/// Copies a row, with zeros behind.
fn pad(x: &[f32], row: &mut [f32]) {
    let (head, tail) = row.split_at_mut(x.len());
    head.copy_from_slice(x);
    tail.fill(0.0);
}

/// Rounds a row to pairs of bf16, with zeros behind; to the same bits on every processor.
fn round(x: &[f32], pairs: &mut [u32]) {
    #[cfg(target_arch = "x86_64")]
    if super::x86_bf16::is_available() {
        return super::x86_bf16::round(x, pairs);
    }
    round_plainly(x, pairs);
}

/// The body of [`round`] where the processor has no instructions for it. Those take subnormal numbers for zeros.
pub(super) fn round_plainly(x: &[f32], pairs: &mut [u32]) {
    let bits = |x: f32| {
        let x = if x.is_subnormal() { 0f32.copysign(x) } else { x };
        u32::from(half::bf16::from_f32(x).to_bits())
    };
    let (whole, last) = x.as_chunks::<2>();
    let whole = whole.iter().map(|&[low, high]| bits(low) | bits(high) << 16);
    let numbers = whole.chain(last.iter().map(|&low| bits(low)));
    pairs.iter_mut().zip(numbers.chain(std::iter::repeat(0))).for_each(|(to, pair)| *to = pair);
}

/// Quantises one row; the same result for every `isa`.
fn quantize(isa: Isa, x: &[f32], row: &mut [ActChunk]) {
    match isa.plain() {
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
    // Written as operations on whole lanes and a tree, which compile to vectors; a NaN is passed over.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut scales = [0.0f32; CHUNK / BLOCK];
    for (scale, x) in scales.iter_mut().zip(x.as_chunks::<BLOCK>().0) {
        let [low, high] = x.as_chunks::<GROUP>().0 else { continue };
        let mut lanes = [0.0f32; GROUP];
        for (lane, (low, high)) in lanes.iter_mut().zip(low.iter().zip(high)) {
            *lane = larger(low.abs(), high.abs());
        }
        for width in [8, 4, 2, 1] {
            let (low, high) = lanes.split_at_mut(width);
            low.iter_mut().zip(high).for_each(|(low, high)| *low = larger(*low, *high));
        }
        *scale = larger(0.0, lanes[0]) / 127.0;
    }
    let step = step_below(scales.iter().fold(0.0, |a, b| larger(a, *b)) * WIDER);
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(chunk.q.as_chunks_mut::<BLOCK>().0);
    for (b, (x, q)) in blocks.enumerate() {
        let scale = (scales[b] * (1.0 / step)).ceil() * step;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
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
