//! Weights and activations as f32.
#![allow(unsafe_code)]

use super::{FLOAT_VECTORS, Input, MAX_LANES, PADDED, Rows, Simd, unroll};
use crate::gemm::out::Columns;
use crate::prefetch::Ahead;
use crate::quant::{CHUNK, tag};

/// `y[act.first + i, r] = act[i] · rows[r]` for all rows and `M` rows of activations. The rows are
/// the columns of `y`.
#[inline(always)]
pub(in crate::gemm) unsafe fn dot_float<S: Simd, const T: u8, const M: usize>(
    rows: &Rows<'_>,
    y: &mut Columns<'_>,
    act: Input<'_, f32>,
) {
    let (step, size) = (4 * S::LANES, rows.chunk_bytes / CHUNK);
    // Zeros behind the last element are part of an activation row.
    assert!(act.holds(M, rows.k.next_multiple_of(step)), "activation rows of less elements");
    assert!(rows.bytes >= rows.k * size, "weight rows of less elements");
    // SAFETY: the module's contract; the sizes were just checked.
    unsafe {
        let whole = rows.k / step;
        let start = y.range().start;
        for r in 0..rows.count() {
            let p = rows.row(r).as_ptr();
            let mut acc = [[S::zero(); 2]; M];
            for s in 0..whole {
                let p = p.add(s * step * size);
                for line in 0..(step * size).div_ceil(64) {
                    S::fetch_ahead(p.wrapping_add(64 * line), Ahead::FAR);
                }
                step_float::<S, T, M>(p, size, &act, s * step, &mut acc);
            }
            let done = whole * step;
            if done < rows.k {
                let mut padded = [0u8; 4 * 4 * MAX_LANES];
                let rest = p.add(done * size);
                rest.copy_to_nonoverlapping(padded.as_mut_ptr(), (rows.k - done) * size);
                step_float::<S, T, M>(padded.as_ptr(), size, &act, done, &mut acc);
            }
            for (i, acc) in acc.iter().enumerate() {
                let sum = S::sum(S::fma(acc[0], S::splat(1.0), acc[1]));
                y.put(act.first + i, start + r, &[sum], false);
            }
        }
    }
}

/// Adds the products of the four vectors of weights at `p` and of the activations from `at` on.
#[inline(always)]
unsafe fn step_float<S: Simd, const T: u8, const M: usize>(
    p: *const u8,
    size: usize,
    act: &Input<'_, f32>,
    at: usize,
    acc: &mut [[S::F; 2]; M],
) {
    // SAFETY: the module's contract.
    unsafe {
        for j in 0..4 {
            let w = S::convert::<T>(p.add(j * S::LANES * size));
            for (i, acc) in acc.iter_mut().enumerate() {
                let a = S::load(act.data.as_ptr().add(i * act.stride + at + j * S::LANES));
                acc[j % 2] = S::fma(w, a, acc[j % 2]);
            }
        }
    }
}

/// Writes the panel of up to `FLOAT_VECTORS * LANES` rows that [`tile_float`] reads: elements
/// `from..to`, where `from` is a multiple of [`CHUNK`], as `[to - from, rows]`, padded to a whole
/// chunk. Lanes beyond `rows.count` repeat the last row.
#[inline(always)]
pub(in crate::gemm) unsafe fn pack_float<S: Simd, const T: u8>(
    rows: &Rows<'_>,
    from: usize,
    to: usize,
    panel: &mut [f32],
) {
    let (lanes, width) = (S::LANES, FLOAT_VECTORS * S::LANES);
    assert!(panel.len() >= (to.next_multiple_of(CHUNK) - from) * width, "no room for a panel");
    // SAFETY: the module's contract; the size was just checked.
    unsafe {
        let (mut buffer, mut padded) = ([[0.0f32; CHUNK]; MAX_LANES], [0; PADDED]);
        for c in from / CHUNK..to.div_ceil(CHUNK) {
            for vector in 0..FLOAT_VECTORS {
                for (lane, buffer) in buffer[..lanes].iter_mut().enumerate() {
                    let row = (vector * lanes + lane).min(rows.count() - 1);
                    numbers::<S, T>(rows.chunk(row, c, &mut padded), buffer);
                }
                let panel = panel.as_mut_ptr().add((c * CHUNK - from) * width + vector * lanes);
                for k in (0..CHUNK).step_by(lanes) {
                    let buffer = buffer.as_ptr().cast::<f32>().add(k);
                    S::transpose(buffer, CHUNK, panel.add(k * width), width);
                }
            }
        }
    }
}

/// The numbers of a chunk.
#[inline(always)]
unsafe fn numbers<S: Simd, const T: u8>(chunk: &[u8], out: &mut [f32; CHUNK]) {
    let size = if T == tag::F32 { 4 } else { 2 };
    assert!(chunk.len() >= CHUNK * size, "a part of a chunk");
    // SAFETY: the module's contract; the size was just checked.
    unsafe {
        for i in (0..CHUNK).step_by(S::LANES) {
            S::store(out.as_mut_ptr().add(i), S::convert::<T>(chunk.as_ptr().add(i * size)));
        }
    }
}

/// `y[act.first + i, col + r] = act[i] · panel[r]` over `len` elements, for `C` rows of
/// activations; with `add`, added to what is there.
#[inline(always)]
pub(in crate::gemm) unsafe fn tile_float<S: Simd, const C: usize>(
    panel: &[f32],
    len: usize,
    act: Input<'_, f32>,
    col: usize,
    add: bool,
    y: &mut Columns<'_>,
) {
    if const { C > S::FLOAT_COLS } {
        return;
    }
    let (lanes, width) = (S::LANES, FLOAT_VECTORS * S::LANES);
    assert!(panel.len() >= len * width && act.holds(C, len), "less elements than to multiply");
    // SAFETY: the module's contract; the sizes were just checked.
    unsafe {
        let mut acc = [[S::zero(); FLOAT_VECTORS]; C];
        for k in 0..len {
            let row = panel.as_ptr().add(k * width);
            let w = [S::load(row), S::load(row.add(lanes))];
            unroll!(i < C, 16 {
                let a = S::splat(*act.data.get_unchecked(i * act.stride + k));
                acc[i] = [S::fma(w[0], a, acc[i][0]), S::fma(w[1], a, acc[i][1])];
            });
        }
        for (i, acc) in acc.iter().enumerate() {
            let mut values = [0.0; FLOAT_VECTORS * MAX_LANES];
            for (v, acc) in acc.iter().enumerate() {
                S::store(values.as_mut_ptr().add(v * lanes), *acc);
            }
            y.put(act.first + i, col, &values[..width], add);
        }
    }
}
