//! Weights in blocks and activations in 8 bits: products of integers.
#![allow(unsafe_code)]

use super::{ActBlock, ActTile, Input, MAX_LANES, PADDED, Rows, Simd, unroll};
use crate::gemm::ActChunk;
use crate::gemm::out::Columns;
use crate::quant::{CHUNK, GROUP, Unpacked, tag};

/// `y[act.first + i, r] = act[i] · rows[r]` for all rows and `M` rows of activations. The rows are
/// the columns of `y`.
#[inline(always)]
pub(in crate::gemm) unsafe fn dot_int<S: Simd, const T: u8, const M: usize>(
    rows: &Rows,
    y: &mut Columns<'_>,
    act: Input<ActChunk>,
) {
    // SAFETY: the module's contract; `act` holds `M` rows of as many chunks as a weight row.
    unsafe {
        let whole = rows.k / CHUNK;
        let start = y.range().start;
        for r in 0..rows.count {
            let p = rows.data.add(r * rows.bytes);
            let mut acc = [[S::zero(); 2]; M];
            for c in 0..whole {
                let p = p.add(c * rows.chunk_bytes);
                for line in 0..rows.chunk_bytes.div_ceil(64) {
                    S::fetch_ahead(p.wrapping_add(64 * line));
                }
                let chunk = S::unpack_for_dot::<T>(p);
                for (i, acc) in acc.iter_mut().enumerate() {
                    S::dot::<T>(&chunk, act.data.add(i * act.stride + c), acc);
                }
            }
            if whole * CHUNK < rows.k {
                let chunk = S::unpack_for_dot::<T>(rows.chunk(r, whole, &mut [0; PADDED]));
                for (i, acc) in acc.iter_mut().enumerate() {
                    S::dot::<T>(&chunk, act.data.add(i * act.stride + whole), acc);
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                let sum = S::sum(S::fma(acc[0], S::splat(1.0), acc[1]));
                y.put(act.first + i, start + r, &[sum], false);
            }
        }
    }
}

/// [`Simd::block_dots`] one by one.
#[inline(always)]
pub(in crate::gemm) unsafe fn dots_apart<
    S: Simd + ?Sized,
    const G: usize,
    const FOLD: usize,
    const P: usize,
    const C: usize,
>(
    blocks: [*const u8; P],
    act: ActBlock<G, C>,
) -> [[S::F; C]; P] {
    // SAFETY: the contract of `block_dots` is that of `block_dot` for each panel and row.
    unsafe {
        let mut dots = [[S::zero(); C]; P];
        unroll!(p < P, 2 {
            let mut w = [S::load_bytes(blocks[p]); G];
            unroll!(g < G, 8 {
                w[g] = S::load_bytes(blocks[p].add(4 * S::LANES * g));
            });
            unroll!(i < C, 16 {
                dots[p][i] = S::block_dot::<G, FOLD>(&w, act.bytes(i).cast());
            });
        });
        dots
    }
}

/// An instruction set that multiplies four unsigned bytes by four signed ones, and adds the products
/// to a lane, in one step.
///
/// # Safety
/// As [`Simd`].
#[cfg(target_arch = "x86_64")]
pub(in crate::gemm) unsafe trait Dpbusd: Simd {
    /// Adds to `sum` in each lane four products of a byte of `w`, unsigned, and one of `a`, signed.
    unsafe fn dpbusd(sum: Self::B, w: Self::B, a: Self::B) -> Self::B;
    /// `x` in every lane.
    unsafe fn splat_int(x: i32) -> Self::B;
    /// The integer in each lane as f32.
    unsafe fn from_ints(x: Self::B) -> Self::F;
}

/// [`Simd::block_dots`] with sums in integers that begin with what the bias adds, so that it costs no
/// product, and with each activation read once for all panels.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(in crate::gemm) unsafe fn dots_biased<
    S: Dpbusd,
    const G: usize,
    const BIAS: u32,
    const P: usize,
    const C: usize,
>(
    blocks: [*const u8; P],
    act: ActBlock<G, C>,
) -> [[S::F; C]; P] {
    // SAFETY: the contract of `block_dots`.
    unsafe {
        let mut sums = [[S::splat_int(0); C]; P];
        if BIAS != 0 {
            unroll!(i < C, 8 {
                let start = S::splat_int(act.start(i));
                unroll!(p < P, 2 { sums[p][i] = start; });
            });
        }
        unroll!(g < G, 8 {
            let mut w = [S::splat_int(0); P];
            unroll!(p < P, 2 { w[p] = S::load_bytes(blocks[p].add(4 * S::LANES * g)); });
            unroll!(i < C, 8 {
                let four = S::splat_int(act.bytes(i).add(g).read_unaligned());
                unroll!(p < P, 2 { sums[p][i] = S::dpbusd(sums[p][i], w[p], four); });
            });
        });
        let mut dots = [[S::zero(); C]; P];
        unroll!(p < P, 2 { unroll!(i < C, 8 { dots[p][i] = S::from_ints(sums[p][i]); }); });
        dots
    }
}

/// Bytes of a chunk of a panel of integers with `lanes` rows and scales per `4 * groups` elements.
pub(in crate::gemm) const fn int_chunk_bytes(lanes: usize, groups: usize) -> usize {
    CHUNK / (4 * groups) * int_block_bytes(lanes, groups)
}

/// Bytes of a block: `groups` vectors of four bytes a lane, a vector of scales, one of offsets.
pub(in crate::gemm) const fn int_block_bytes(lanes: usize, groups: usize) -> usize {
    (groups + 2) * 4 * lanes
}

/// Writes the panel of up to `LANES` rows that [`tile_int`] reads. Lanes beyond `rows.count` repeat
/// the last row.
#[inline(always)]
pub(in crate::gemm) unsafe fn pack_int<S: Simd, const T: u8, const G: usize>(
    rows: &Rows,
    panel: *mut u8,
) {
    // SAFETY: the module's contract; `panel` has room for as many panel chunks as a row has. Four
    // bytes travel as an f32 that nothing computes with.
    unsafe {
        let lanes = S::LANES;
        let (mut chunk, mut padded) = (Unpacked::ZERO, [0; PADDED]);
        let mut q = [[0f32; CHUNK / 4]; MAX_LANES];
        for c in 0..rows.k.div_ceil(CHUNK) {
            let to = panel.add(c * int_chunk_bytes(lanes, G));
            for (lane, q) in q[..lanes].iter_mut().enumerate() {
                let p = rows.chunk(lane.min(rows.count - 1), c, &mut padded);
                S::spill(&S::unpack::<T>(p), &mut chunk);
                let less = const { less::<S>(T) };
                if less != 0 {
                    chunk.q.iter_mut().for_each(|q| *q = q.wrapping_sub(less));
                }
                q.as_mut_ptr()
                    .cast::<u8>()
                    .copy_from_nonoverlapping(chunk.q.as_ptr().cast(), CHUNK);
                for b in 0..CHUNK / (4 * G) {
                    let group = 4 * G * b / GROUP;
                    let block = to.add(b * int_block_bytes(lanes, G));
                    let scale = block.add(4 * lanes * G).cast::<f32>().add(lane);
                    scale.write_unaligned(chunk.scale[group]);
                    scale.add(lanes).write_unaligned(chunk.offset[group]);
                }
            }
            // A vector of the panel is a column of `q`.
            for g in (0..CHUNK / 4).step_by(lanes) {
                let mut columns = [0f32; MAX_LANES * MAX_LANES];
                let from = q.as_ptr().cast::<f32>().add(g);
                S::transpose(from, CHUNK / 4, columns.as_mut_ptr(), lanes);
                for (i, column) in columns[..lanes * lanes].chunks_exact(lanes).enumerate() {
                    let (b, g) = ((g + i) / G, (g + i) % G);
                    let vector = to.add(b * int_block_bytes(lanes, G) + 4 * lanes * g);
                    S::store(vector.cast(), S::load(column.as_ptr()));
                }
            }
            for b in 0..CHUNK / (4 * G) {
                S::arrange::<G>(to.add(b * int_block_bytes(lanes, G)));
            }
        }
    }
}

/// The exponent of what the elements of format `t`, as unsigned numbers, are too large by; 0 where
/// offsets say so.
pub(in crate::gemm) const fn bias(t: u8) -> u32 {
    match t {
        tag::Q8_0 => 7,
        tag::Q4_0 => 3,
        tag::Q5_0 => 4,
        tag::Q6_K => 5,
        _ => 0,
    }
}

/// What weights of format `t` are less in a panel of bytes than unpacked, modulo 256.
const fn less<S: Simd>(t: u8) -> i8 {
    match (t, bias(t)) {
        (tag::Q8_0, _) if S::BIASED => -128,
        (tag::Q8_0, _) | (_, 0) => 0,
        (_, bias) if S::SIGNED => 1 << bias,
        _ => 0,
    }
}

/// `y[act.first + i, col + r] = act[i] · panels[r]` for `C` rows of activations and the rows of `P`
/// panels, one after the other.
#[inline(always)]
pub(in crate::gemm) unsafe fn tile_int<
    S: Simd + ?Sized,
    const G: usize,
    const FOLD: usize,
    const BIAS: u32,
    const P: usize,
    const C: usize,
>(
    panels: *const u8,
    chunks: usize,
    act: ActTile,
    col: usize,
    y: &mut Columns<'_>,
) {
    if const { C > S::INT_COLS || P > S::INT_PANELS } {
        return;
    }
    // SAFETY: the module's contract; each panel holds `chunks` chunks and so does the tile `act`.
    unsafe {
        let lanes = S::LANES;
        let panel_bytes = chunks * int_chunk_bytes(lanes, G);
        let mut acc = [[S::zero(); C]; P];
        let mut blocks = [panels; P];
        unroll!(p < P, 2 { blocks[p] = panels.add(p * panel_bytes); });
        let mut act_block = ActBlock::<G, C>::first(act);
        for _ in 0..chunks * (CHUNK / (4 * G)) {
            let dots = S::block_dots::<G, FOLD, BIAS, P, C>(blocks, act_block);
            unroll!(p < P, 2 {
                let scale = S::load(blocks[p].add(4 * lanes * G).cast());
                unroll!(i < C, 16 {
                    let a_scale = S::splat(act_block.scale(i));
                    acc[p][i] = S::fma(dots[p][i], S::mul(scale, a_scale), acc[p][i]);
                });
                if const { BIAS == 0 || !(S::BIASED || S::SIGNED) } {
                    let offset = S::load(blocks[p].add(4 * lanes * (G + 1)).cast());
                    unroll!(i < C, 16 {
                        acc[p][i] = S::fnma(offset, S::splat(act_block.sum(i)), acc[p][i]);
                    });
                }
                blocks[p] = blocks[p].add(int_block_bytes(lanes, G));
            });
            act_block = act_block.next();
        }
        for (p, acc) in acc.iter().enumerate() {
            let col = col + p * lanes;
            if !y.range().contains(&col) {
                break;
            }
            for (i, acc) in acc.iter().enumerate() {
                let mut values = [0.0; MAX_LANES];
                S::store(values.as_mut_ptr(), *acc);
                y.put(act.first + i, col, &values[..lanes], false);
            }
        }
    }
}
