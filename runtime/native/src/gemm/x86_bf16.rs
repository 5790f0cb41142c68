//! Products of 16-bit float weights with activations as bf16, in pairs summed as f32, by the
//! instructions of AVX-512 BF16. Twice the products of f32 in a step. An activation, and a weight in
//! f16, loses what is beyond 8 bits of precision (`2^-9` of it at most); weights in bf16 are taken as
//! they are.
#![allow(unsafe_code)]

use core::arch::x86_64::*;
use std::ops::Range;

use ruvllm_abi::DType;

use super::kernels::{Input, MAX_LANES, PADDED, Rows, Simd, unroll};
use super::out::Columns;
use super::tiled::{Panels, Tile};
use super::x86_avx512::{Avx512, PLAIN};
use super::{Job, Product, x86};
use crate::quant::CHUNK;
use crate::{Isa, ThreadPool};

/// Weight rows of a panel: two vectors of pairs.
const PANEL: usize = 2 * MAX_LANES;

/// Pairs of a row that a panel holds at a time.
const DEPTH: usize = 2 * CHUNK;

/// Bytes of a panel.
const PANEL_BYTES: usize = DEPTH * PANEL * size_of::<u32>();

/// Panels that a thread takes at a time: as many as stay in the second-level cache.
const PANELS: usize = 4;

/// Whether the processor has the instructions.
pub(super) fn is_available() -> bool {
    Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16")
}

/// Whether they make products faster, too. Intel's processors take them apart: prompts of 16-bit float
/// weights take 1.8 times as long with them as with f32 on a Xeon of 2023. Tests run them anywhere.
pub(super) fn pays() -> bool {
    is_available() && (cfg!(test) || !x86::is_by(b"GenuineIntel"))
}

/// Rounds a row of activations to bf16, in pairs; `pairs` has room for them, and is zero behind.
pub(super) fn round(x: &[f32], pairs: &mut [u32]) {
    assert!(is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { round_row(x, pairs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn round_row(x: &[f32], pairs: &mut [u32]) {
    let mut last = [0.0; 2 * MAX_LANES];
    let (whole, rest) = x.as_chunks::<{ 2 * MAX_LANES }>();
    last[..rest.len()].copy_from_slice(rest);
    let mut vectors = pairs.chunks_mut(MAX_LANES);
    for (x, pairs) in whole.iter().chain([&last]).zip(&mut vectors) {
        let mut both = [0u32; MAX_LANES];
        // SAFETY: 32 numbers are there to read.
        let (low, high) =
            unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))) };
        store_rounded(low, high, &mut both);
        let len = pairs.len();
        pairs.copy_from_slice(&both[..len]);
    }
    vectors.for_each(|pairs| pairs.fill(0));
}

/// Stores 32 numbers, rounded to bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
fn store_rounded(low: __m512, high: __m512, pairs: &mut [u32; MAX_LANES]) {
    // SAFETY: there is room for sixteen pairs; the transmutation is between vectors of the same bits.
    unsafe {
        let rounded = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
        _mm512_storeu_si512(pairs.as_mut_ptr().cast(), rounded);
    }
}

/// Computes products of weights in bf16 or f16.
pub(super) fn run(pool: &ThreadPool, products: &mut [Product<'_>]) {
    assert!(is_available(), "dispatched to instructions that are missing");
    for Product { job, out, .. } in products {
        // SAFETY: just checked.
        out.deal(pool, PANELS * PANEL, &|y| unsafe { panels(job, y) });
    }
}

/// # Safety
/// The processor has the instructions, and the job's weights are in bf16 or f16.
unsafe fn panels(job: &Job<'_>, y: &mut Columns<'_>) {
    let row = job.w.cols.div_ceil(2);
    let panels = Panels { rows: PANEL, row, depth: DEPTH, bytes: PANEL_BYTES, cols: 12 };
    let pack = |rows: &Rows<'_>, pairs, to: &mut [u8]| {
        // SAFETY: the caller's contract.
        unsafe { pack(rows, job.w.dtype == DType::F16, pairs, bytemuck::cast_slice_mut(to)) };
    };
    let tile = |Tile { panel, depth, start, first, cols }: Tile<'_>, y: &mut Columns<'_>| {
        let (panel, act) = (bytemuck::cast_slice(panel), job.pairs(first, depth.start));
        let (len, add) = (depth.len(), depth.start > 0);
        // SAFETY: the caller's contract.
        unsafe {
            match cols {
                12 => tile::<12>(panel, len, act, start, add, y),
                8 => tile::<8>(panel, len, act, start, add, y),
                6 => tile::<6>(panel, len, act, start, add, y),
                4 => tile::<4>(panel, len, act, start, add, y),
                2 => tile::<2>(panel, len, act, start, add, y),
                _ => tile::<1>(panel, len, act, start, add, y),
            }
        }
    };
    panels.run(job, y, pack, tile);
}

/// Writes the panel of up to [`PANEL`] rows that [`tile`] reads: some pairs, from whole chunks on, as
/// `[pairs, rows]`, padded to whole chunks; `halves` says that the rows are in f16. Lanes beyond
/// `rows.count` repeat the last row.
///
/// # Panics
/// `panel` has no room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn pack(rows: &Rows<'_>, halves: bool, pairs: Range<usize>, panel: &mut [u32]) {
    const PAIRS: usize = CHUNK / 2;
    let room = (pairs.end.next_multiple_of(PAIRS) - pairs.start) * PANEL;
    assert!(panel.len() >= room, "no room for a panel");
    // SAFETY: the size was just checked; pairs travel as f32 that nothing computes with.
    unsafe {
        let (mut buffer, mut padded) = ([[0u32; PAIRS]; MAX_LANES], [0; PADDED]);
        for c in pairs.start / PAIRS..pairs.end.div_ceil(PAIRS) {
            for vector in 0..PANEL / MAX_LANES {
                for (lane, buffer) in buffer.iter_mut().enumerate() {
                    let row = (vector * MAX_LANES + lane).min(rows.count() - 1);
                    let chunk = rows.chunk(row, c, &mut padded);
                    bytemuck::cast_slice_mut(buffer).copy_from_slice(chunk);
                    if halves {
                        for pairs in buffer.as_chunks_mut::<MAX_LANES>().0 {
                            let low = _mm256_loadu_si256(pairs.as_ptr().cast());
                            let high = _mm256_loadu_si256(pairs.as_ptr().add(8).cast());
                            let (low, high) = (_mm512_cvtph_ps(low), _mm512_cvtph_ps(high));
                            store_rounded(low, high, pairs);
                        }
                    }
                }
                let to =
                    panel.as_mut_ptr().add((c * PAIRS - pairs.start) * PANEL + vector * MAX_LANES);
                for k in (0..PAIRS).step_by(MAX_LANES) {
                    let from = buffer.as_ptr().cast::<f32>().add(k);
                    Avx512::<PLAIN>::transpose(from, PAIRS, to.add(k * PANEL).cast(), PANEL);
                }
            }
        }
    }
}

/// `y[act.first + i, col + r] = act[i] · panel[r]` over `len` pairs, for `C` rows of activations; with
/// `add`, added to what is there.
///
/// # Panics
/// `panel` or the rows of `act` hold less than `len` pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
fn tile<const C: usize>(
    panel: &[u32],
    len: usize,
    act: Input<'_, u32>,
    col: usize,
    add: bool,
    y: &mut Columns<'_>,
) {
    assert!(panel.len() >= len * PANEL && act.holds(C, len), "less pairs than to multiply");
    // SAFETY: the sizes were just checked. The transmutations are between vectors of the same bits.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 2]; C];
        for k in 0..len {
            let row = panel.as_ptr().add(k * PANEL);
            let load = |at: usize| {
                let bits = _mm512_loadu_si512(row.add(at).cast());
                std::mem::transmute::<__m512i, __m512bh>(bits)
            };
            let w = [load(0), load(MAX_LANES)];
            unroll!(i < C, 16 {
                let pair = (*act.data.get_unchecked(i * act.stride + k)).cast_signed();
                let a = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair));
                acc[i] = [_mm512_dpbf16_ps(acc[i][0], w[0], a), _mm512_dpbf16_ps(acc[i][1], w[1], a)];
            });
        }
        for (i, acc) in acc.iter().enumerate() {
            let mut values = [0.0; PANEL];
            _mm512_storeu_ps(values.as_mut_ptr(), acc[0]);
            _mm512_storeu_ps(values.as_mut_ptr().add(MAX_LANES), acc[1]);
            y.put(act.first + i, col, &values, add);
        }
    }
}
