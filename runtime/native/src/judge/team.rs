//! What elements of team operations must be: of products, of gathered rows and of attention, each by its
//! f64 definition from the bytes that the operation was given.
//!
//! One element of a product, or one head of one query, takes as long as any other and far less than the
//! whole, so that some drawn by chance can be checked in service.

use super::Wrong;
use crate::attention::{AttnSequence, AttnShape, KvLayout, KvRows, KvSegment};
use crate::gemm::{ActForm, Activations, Weights};
use crate::ops::simd::{Simd, SimdOp, dispatch};
use crate::pool::{ThreadPool, lock, split};
use crate::quant::dequantize_row;
use crate::{Isa, NativeError, oracle};
use half::bf16;
use ruvllm_abi::{DType, TeamOp};
use std::sync::{Mutex, PoisonError};

/// What an element of a team operation may be off by.
pub const fn error_of(op: TeamOp) -> f64 {
    match op {
        // Relative to the sum of the magnitudes of its terms: what rounding to f32 adds up to in sums of some ten
        // thousand terms.
        TeamOp::Matmul => 1e-5,
        // Rows are as their type defines them.
        TeamOp::Embed => 0.0,
        // Relative to the largest value that a query sees.
        TeamOp::Attention => 2e-5,
    }
}

/// Buffers of checks, kept so that they allocate little.
#[derive(Clone, Debug, Default)]
pub struct TeamBuffers {
    weights: Vec<f32>,
    row: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    positions: Vec<usize>,
}

/// Holds the product of row `row` of the activations with row `col` of the weights, both in range, against its
/// definition: that of the activations in the form that was read.
///
/// # Errors
/// [`Wrong`]; [`Wrong::Refused`] says nothing against who computed it.
pub fn check_product(
    weights: &Weights<'_>,
    x: &Activations,
    form: ActForm,
    at: [usize; 2],
    got: f32,
    buffers: &mut TeamBuffers,
) -> Result<(), Wrong> {
    let TeamBuffers { weights: w, row: a, .. } = buffers;
    a.resize(weights.cols(), 0.0);
    x.read_row(form, at[0], a)?;
    check_element(weights, a, form, at, got, w)
}

/// Holds the product `got[n]` of one row of activations with each row of the weights against its definition, on all
/// threads of a pool.
///
/// # Errors
/// As [`check_product`], for the first of the rows that is wrong or refused.
pub fn check_rows(
    pool: &ThreadPool,
    weights: &Weights<'_>,
    x: &Activations,
    form: ActForm,
    got: &[f32],
) -> Result<(), Wrong> {
    let mut a = vec![0.0; weights.cols()];
    x.read_row(form, 0, &mut a)?;
    let first: Mutex<Option<(usize, Wrong)>> = Mutex::new(None);
    pool.run(&|tid| {
        let mut w = Vec::new();
        for row in split(weights.rows(), pool.threads(), tid) {
            let checked = check_element(weights, &a, form, [0, row], got[row], &mut w);
            let Err(wrong) = checked else { continue };
            let mut first = lock(&first);
            if first.as_ref().is_none_or(|(found, _)| row < *found) {
                *first = Some((row, wrong));
            }
            return;
        }
    });
    let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
    first.map_or(Ok(()), |(_, wrong)| Err(wrong))
}

/// Holds the product of the activations `a` with row `col` of the weights against its definition.
fn check_element(
    weights: &Weights<'_>,
    a: &[f32],
    form: ActForm,
    [row, col]: [usize; 2],
    got: f32,
    w: &mut Vec<f32>,
) -> Result<(), Wrong> {
    w.resize(weights.cols(), 0.0);
    dequantize_row(weights.dtype(), weights.row(col), w)?;
    let (want, size) = dispatch(Isa::detect(), Dot { w, a });
    if !want.is_finite() && got.is_finite() {
        let detail = format!("row {row}, column {col} is {got:e} instead of {want}");
        return Err(Wrong::Mismatch { detail });
    }
    if !want.is_finite() || want.abs() > f64::from(f32::MAX) {
        return Ok(());
    }
    if !got.is_finite() {
        return Err(Wrong::NonFinite { index: col });
    }
    // Weights of 16 bits are rounded to 8 bits of precision where activations are.
    let rounded = match (form, weights.dtype()) {
        (ActForm::Pairs, DType::BF16) | (ActForm::Ints | ActForm::Floats, _) => 0.0,
        (ActForm::Pairs, _) => f64::from(bf16::EPSILON.to_f32()) / 2.0,
    };
    let allowed = (error_of(TeamOp::Matmul) + rounded) * size + 1e-30;
    let off = (f64::from(got) - want).abs();
    if off <= allowed {
        return Ok(());
    }
    let detail = format!("row {row}, column {col} is {got:e}, off by {off:.1e} of {allowed:.1e}");
    Err(Wrong::Mismatch { detail })
}

/// `Σ w[i] a[i]` and `Σ |w[i] a[i]|`, in f64.
struct Dot<'a> {
    w: &'a [f32],
    a: &'a [f32],
}

impl SimdOp for Dot<'_> {
    type Output = (f64, f64);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (f64, f64) {
        // As many sums as make up for what one waits for the one before, in the widest registers.
        const SUMS: usize = 32;
        let (mut sum, mut size) = ([0.0; SUMS], [0.0; SUMS]);
        let mut add = |i: usize, w: f32, a: f32| {
            let term = f64::from(w) * f64::from(a);
            sum[i] += term;
            size[i] += term.abs();
        };
        let (w, last_w) = self.w.as_chunks::<SUMS>();
        let (a, last_a) = self.a.as_chunks::<SUMS>();
        for (w, a) in w.iter().zip(a) {
            (0..SUMS).for_each(|i| add(i, w[i], a[i]));
        }
        last_w.iter().zip(last_a).for_each(|(w, a)| add(0, *w, *a));
        (sum.iter().sum(), size.iter().sum())
    }
}

/// Holds a row that was gathered from a table against the table's.
///
/// # Errors
/// As [`check_product`].
pub fn check_gathered(
    table: &Weights<'_>,
    token: usize,
    got: &[f32],
    buffers: &mut TeamBuffers,
) -> Result<(), Wrong> {
    let want = &mut buffers.row;
    want.resize(table.cols(), 0.0);
    dequantize_row(table.dtype(), table.row(token), want)?;
    let same = |(got, want): (&f32, &f32)| got.to_bits() == want.to_bits() || want.is_nan();
    match got.iter().zip(&*want).position(|pair| !same(pair)) {
        None => Ok(()),
        Some(at) => {
            let detail = format!("row {token}, element {at} is {}, not {}", got[at], want[at]);
            Err(Wrong::Mismatch { detail })
        }
    }
}

/// Holds one head of one query of a sequence against its definition.
///
/// # Errors
/// As [`check_product`]; [`Wrong::Refused`] also where rows come with constants of a codec, which are not read here.
pub fn check_attention(
    shape: &AttnShape,
    sequence: &AttnSequence<'_>,
    [query, head]: [usize; 2],
    buffers: &mut TeamBuffers,
) -> Result<(), Wrong> {
    let AttnShape { heads, kv_heads, head_dim, .. } = *shape;
    let at = (query * heads + head) * head_dim;
    let q = &sequence.q[at..at + head_dim];
    let got = &sequence.y[at..at + head_dim];
    let TeamBuffers { keys, values, positions, row, .. } = buffers;
    keys.clear();
    values.clear();
    positions.clear();
    for segment in sequence.kv {
        let head = head / (heads / kv_heads);
        let KvSegment { start, len, keys: k, values: v } = *segment;
        read_head(k, len, [kv_heads, head, head_dim], row, keys)?;
        read_head(v, len, [kv_heads, head, head_dim], row, values)?;
        positions.extend(start..start + len);
    }
    let one = AttnShape { heads: 1, kv_heads: 1, ..*shape };
    let position = sequence.q_pos + query;
    let want = oracle::attention(&one, q, position, keys, values, positions);
    if !want.iter().all(|want| want.is_finite()) {
        return Ok(());
    }
    let visible = positions.iter().zip(values.chunks_exact(head_dim));
    let visible = visible.filter(|&(&key, _)| shape.sees(position, key));
    let values = visible.flat_map(|(_, row)| row);
    let largest = values.fold(0.0, |largest: f32, value| largest.max(value.abs()));
    for (index, (got, want)) in got.iter().zip(&want).enumerate() {
        if !got.is_finite() {
            return Err(Wrong::NonFinite { index });
        }
        let off = (f64::from(*got) - want).abs();
        if off > error_of(TeamOp::Attention) * f64::from(largest) {
            let detail = format!(
                "query {query}, head {head}, element {index} is {got:e}, off by {off:.1e}, with values \
                 up to {largest:.1e}"
            );
            return Err(Wrong::Mismatch { detail });
        }
    }
    Ok(())
}

/// Adds the rows `[len, head_dim]` of one head of a segment's keys or values.
fn read_head(
    rows: KvRows<'_>,
    len: usize,
    [kv_heads, head, head_dim]: [usize; 3],
    row: &mut Vec<f32>,
    to: &mut Vec<f32>,
) -> Result<(), NativeError> {
    rows.check_constants()?;
    let KvRows { dtype, layout, data, .. } = rows;
    let first = to.len();
    to.resize(first + len * head_dim, 0.0);
    let to = &mut to[first..];
    match layout {
        KvLayout::Tokens => {
            let size = dtype.bytes_for(head_dim).unwrap_or(0);
            for (token, to) in to.chunks_exact_mut(head_dim).enumerate() {
                let at = (token * kv_heads + head) * size;
                dequantize_row(dtype, &data[at..at + size], to)?;
            }
        }
        KvLayout::Channels => {
            let size = data.len() / (kv_heads * head_dim);
            let block = dtype.layout();
            row.resize(size / block.bytes * block.elems, 0.0);
            for channel in 0..head_dim {
                let at = (head * head_dim + channel) * size;
                dequantize_row(dtype, &data[at..at + size], row)?;
                let column = to.iter_mut().skip(channel).step_by(head_dim);
                column.zip(&*row).for_each(|(to, value)| *to = *value);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::{MatMut, matmul};
    use crate::judge::{Kind, encode, fill};
    use crate::random::Random;

    #[test]
    fn attention_over_rows_with_constants_has_no_truth_here() {
        let shape = AttnShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            scale: 1.0,
            window: None,
            deterministic: false,
        };
        let mut kv = [KvSegment::tokens(DType::F32, 1, &[0; 32], &[0; 32])];
        let check = |kv: &[KvSegment<'_>]| {
            let sequence = AttnSequence { q: &[0.0; 8], q_pos: 0, kv, y: &mut [0.0; 8] };
            check_attention(&shape, &sequence, [0, 0], &mut TeamBuffers::default())
        };
        check(&kv).unwrap();
        kv[0].keys.constants = &[1];
        assert!(matches!(check(&kv), Err(Wrong::Refused(_))));
        (kv[0].keys.constants, kv[0].values.constants) = (&[], &[1]);
        assert!(matches!(check(&kv), Err(Wrong::Refused(_))));
    }

    #[test]
    fn the_first_of_the_rows_that_are_wrong_is_told() {
        let (rows, cols, random) = (40, 64, &mut Random::new(1));
        let numbers = fill(random, rows * cols, Kind::Normal, DType::Q8_0, 1.0);
        let bytes = encode(DType::Q8_0, &numbers).unwrap();
        let weights = Weights::new(DType::Q8_0, rows, cols, &bytes).unwrap();
        let x = fill(random, cols, Kind::Normal, DType::F32, 1.0);
        let isa = Isa::detect();
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            let mut act = Activations::new();
            let form = act.form(isa, 1, DType::Q8_0);
            act.prepare(&pool, isa, &x, 1, cols, form.into()).unwrap();
            let mut y = vec![0.0; rows];
            let out = MatMut { data: &mut y, stride: rows };
            matmul(&pool, isa, &weights, &act, out).unwrap();
            let check = |y: &[f32]| check_rows(&pool, &weights, &act, form, y);
            check(&y).unwrap();
            y[30] = f32::NAN;
            assert!(matches!(check(&y), Err(Wrong::NonFinite { index: 30 })));
            y[7] += 1.0;
            let wrong = check(&y).unwrap_err().to_string();
            assert!(wrong.contains("column 7 "), "{wrong}");
        }
    }
}
