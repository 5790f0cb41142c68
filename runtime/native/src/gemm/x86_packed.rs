//! Products with [`PackedWeights`] by the 8-bit dot products of AVX-512.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use ruvllm_abi::DType;

use super::Job;
use super::kernels::int::{Dpbusd, bias, int_chunk_bytes};
use super::kernels::{ActBlock, ActTile, Entries, entry, unroll};
use super::out::{Columns, Out};
use super::packed::{self, Layout, PANEL, PackedWeights, PanelRows};
use super::tiled::{self, STREAMED, blocked};
use super::tiles::with_tiles;
use super::x86::fetch_ahead;
use super::x86_avx512::{Avx512, VNNI, has_vnni};
use crate::quant::x86::{spill_512, unpack_512};
use crate::quant::{CHUNK, tag};
use crate::{Isa, ThreadPool};

/// The most activation rows that meet each panel while it is in the first-level cache. More are
/// multiplied in tiles, for which panels are unpacked to bytes first.
const MAX_STREAMED: usize = 32;

/// Blocks in a chunk of activations.
const BLOCKS: usize = CHUNK / 32;

/// Whether [`run`] can be called.
pub(super) fn is_available() -> bool {
    Isa::Avx512.is_available() && has_vnni()
}

/// [`packed::pack`] with AVX-512, which is available.
pub(super) fn pack(rows: &PanelRows<'_>, out: &mut [u8]) {
    assert!(Isa::Avx512.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { blocked!(rows.dtype(), self::pack_as<_>(rows, out)) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn pack_as<const T: u8>(rows: &PanelRows<'_>, out: &mut [u8]) {
    packed::pack(rows, out, |chunk, out| {
        debug_assert_eq!(chunk.len(), crate::quant::chunk_bytes(rows.dtype()));
        // SAFETY: this function has the instructions; `chunk` is one chunk of the format.
        unsafe { spill_512(&unpack_512::<T>(chunk.as_ptr()), out) };
    });
}

/// Computes a product with the panels of its weights, which fit them.
pub(super) fn run(pool: &ThreadPool, job: &Job<'_>, packed: &PackedWeights, out: Out<'_>) {
    assert!(is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { run_as::<Avx512<VNNI>>(pool, job, packed, out) }
}

/// [`run`] as a processor with VNNI would.
#[cfg(test)]
pub(super) fn run_model(pool: &ThreadPool, job: &Job<'_>, packed: &PackedWeights, out: Out<'_>) {
    assert!(Isa::Avx512.is_available(), "dispatched to instructions that are missing");
    // SAFETY: just checked.
    unsafe { run_as::<Avx512<{ super::x86_avx512::MODEL }>>(pool, job, packed, out) }
}

/// # Safety
/// The processor has the instructions of `S`.
unsafe fn run_as<S: PackedDot>(
    pool: &ThreadPool,
    job: &Job<'_>,
    packed: &PackedWeights,
    out: Out<'_>,
) {
    assert!(packed.fits(job.w), "panels of other weights");
    let (dtype, m) = (job.w.dtype, job.act.rows());
    if m > MAX_STREAMED {
        // SAFETY: the caller's contract; the panel has as many units, which `to` has room for.
        return unsafe {
            tiled::deal_int_panels::<S>(pool, job, out, &|row, _, to| {
                let (panel, units) = packed.panel(row);
                blocked!(dtype, self::unpack_panel<_>(panel.as_ptr(), units, to));
            });
        };
    }
    let rows = (STREAMED / packed.panel_bytes()).max(1) * PANEL;
    with_tiles(pool, job.act, tiled::tile_shape(dtype, &[8, 4, 2]), |tiles| {
        out.share(pool, rows, PANEL, &|y| {
            for row in y.range().step_by(PANEL) {
                let (panel, units) = packed.panel(row);
                let (panel, mut y) = (panel.as_ptr(), y.part(row..row + PANEL));
                for (cols, act) in tiles.iter() {
                    let input = (panel, units, act);
                    // SAFETY: the caller's contract; the panel has as many units, and the tile is
                    // `cols` rows of as many chunks as a weight row.
                    unsafe {
                        match cols {
                            8 => blocked!(dtype, S::dot_packed < _, 8 > (input, &mut y)),
                            4 => blocked!(dtype, S::dot_packed < _, 4 > (input, &mut y)),
                            2 => blocked!(dtype, S::dot_packed < _, 2 > (input, &mut y)),
                            _ => blocked!(dtype, S::dot_packed < _, 1 > (input, &mut y)),
                        }
                    }
                }
            }
        });
    });
}

/// A panel, its units, and the tile of activations that it is multiplied with.
type PanelInput = (*const u8, usize, ActTile);

/// The functions that enable the instructions.
///
/// # Safety
/// As [`Entries`].
unsafe trait PackedDot: Entries {
    /// See [`dot_packed`].
    unsafe fn dot_packed<const T: u8, const C: usize>(input: PanelInput, y: &mut Columns<'_>);
}

macro_rules! packed_dot {
    ($dot:expr, $features:literal) => {
        // SAFETY: the function inside enables what the trait's contract says the processor has.
        unsafe impl PackedDot for Avx512<{ $dot }> {
            entry!($features, dot_packed<T: u8, C: usize>(
                input: PanelInput,
                y: &mut Columns<'_>,
            ) => self::dot_packed::<{ $dot }, T, C>(input, y));
        }
    };
}
packed_dot!(VNNI, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c");
#[cfg(test)]
packed_dot!(super::x86_avx512::MODEL, "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c");

/// A block of a panel in registers.
struct Block {
    /// Vector `g` holds elements `4g..4g + 4` of every row.
    q: [__m512i; 8],
    /// Scales of the two halves, which only `Q6_K` has different ones for.
    scale: [__m512; 2],
    /// What is taken off, where the type has no bias.
    offset: __m512,
}

/// Loads block `b` of a unit.
#[inline(always)]
unsafe fn block<const T: u8>(unit: *const u8, b: usize) -> Block {
    let layout = const { Layout::of_tag(T) };
    // SAFETY: the unit has the bytes that its layout says; the caller has the instructions.
    unsafe {
        let halves = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(unit.add(at).cast()));
        let bytes = |at: usize| _mm_loadu_si128(unit.add(64 + 16 * at).cast());
        let (scale, offset) = match T {
            tag::Q4_K | tag::Q5_K => {
                let times = |d, x| _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x)));
                let (scale, min) = (times(halves(0), bytes(b)), times(halves(32), bytes(8 + b)));
                ([scale; 2], min)
            }
            tag::Q6_K => {
                let times =
                    |x| _mm512_mul_ps(halves(0), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)));
                ([times(bytes(2 * b)), times(bytes(2 * b + 1))], _mm512_setzero_ps())
            }
            tag::Q4_1 | tag::Q5_1 => {
                // The file has what is added.
                let min = _mm512_xor_ps(halves(64 + 32 * b), _mm512_set1_ps(-0.0));
                ([halves(32 * b); 2], min)
            }
            _ => ([halves(32 * b); 2], _mm512_setzero_ps()),
        };
        let data = unit.add(layout.header + b * layout.block_bytes());
        let line = |i: usize| _mm512_loadu_si512(data.add(64 * i).cast());
        let mut q = [_mm512_setzero_si512(); 8];
        if const { T == tag::Q8_0 } {
            unroll!(g in [0 1 2 3 4 5 6 7] { q[g] = line(g); });
            return Block { q, scale, offset };
        }
        let nibble = _mm512_set1_epi8(15);
        unroll!(i in [0 1 2 3] {
            let pair = line(i);
            q[2 * i] = _mm512_and_si512(pair, nibble);
            q[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16::<4>(pair), nibble);
        });
        Block { q: with_high_bits::<T>(q, line), scale, offset }
    }
}

/// Adds the fifth and sixth bits of elements, from the vectors that follow those of the nibbles.
#[inline(always)]
unsafe fn with_high_bits<const T: u8>(
    mut q: [__m512i; 8],
    line: impl Fn(usize) -> __m512i,
) -> [__m512i; 8] {
    let bits = const { Layout::of_tag(T).high };
    if bits == 0 {
        return q;
    }
    // SAFETY: the caller has the instructions.
    unsafe {
        let mask = _mm512_set1_epi8(if bits == 1 { 0x10 } else { 0x30 });
        unroll!(g in [0 1 2 3 4 5 6 7] {
            let (high, at) = (line(4 + g * bits / 8), (g * bits % 8) as i16);
            let high = if at <= 4 {
                _mm512_sllv_epi16(high, _mm512_set1_epi16(4 - at))
            } else {
                _mm512_srlv_epi16(high, _mm512_set1_epi16(at - 4))
            };
            q[g] = _mm512_or_si512(q[g], _mm512_and_si512(high, mask));
        });
    }
    q
}

/// `y[act.first + i, r] = act[i] · panel[r]` for `C` rows of activations and the rows of a panel,
/// which are the columns of `y`.
#[inline(always)]
unsafe fn dot_packed<const DOT: u8, const T: u8, const C: usize>(
    (panel, units, mut act): PanelInput,
    y: &mut Columns<'_>,
) {
    let layout = const { Layout::of_tag(T) };
    // SAFETY: the panel holds `units` units, the tile chunks for as many elements; the caller has the
    // instructions.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); C];
        for u in 0..units {
            let unit = panel.add(u * layout.unit_bytes());
            for b in 0..layout.blocks {
                // Spread out, since few misses can be under way at a time.
                let lines = (layout.unit_bytes() / 64).div_ceil(layout.blocks);
                for line in b * lines..(b + 1) * lines {
                    fetch_ahead(unit.wrapping_add(64 * line));
                }
                let block = block::<T>(unit, b);
                if const { T == tag::Q6_K } {
                    for part in 0..2 {
                        act = add::<DOT, T, 4, C>(&mut acc, &block, part, act);
                    }
                } else {
                    act = add::<DOT, T, 8, C>(&mut acc, &block, 0, act);
                }
            }
        }
        let col = y.range().start;
        unroll!(i < C, 8 {
            let mut values = [0.0; PANEL];
            _mm512_storeu_ps(values.as_mut_ptr(), acc[i]);
            y.put(act.first + i, col, &values, false);
        });
    }
}

/// Adds to `acc` the products of the `part`th `G` vectors of a block, which share a scale, and of `C`
/// rows of as many activations, the first of the tile's; returns the rest of these. The rows' sums grow
/// side by side, since each waits for its last product.
#[inline(always)]
unsafe fn add<const DOT: u8, const T: u8, const G: usize, const C: usize>(
    acc: &mut [__m512; C],
    block: &Block,
    part: usize,
    tile: ActTile,
) -> ActTile {
    let act = ActBlock::<G, C>::first(tile);
    let has_bias = const { bias(T) != 0 };
    // SAFETY: the activations are there; the caller has the instructions.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); C];
        if has_bias {
            unroll!(i < C, 8 { sums[i] = _mm512_set1_epi32(act.start(i)); });
        }
        unroll!(g < G, 8 {
            unroll!(i < C, 8 {
                let four = _mm512_set1_epi32(*act.bytes(i).add(g));
                sums[i] = Avx512::<DOT>::dpbusd(sums[i], block.q[part * G + g], four);
            });
        });
        unroll!(i < C, 8 {
            let scale = _mm512_mul_ps(block.scale[part], _mm512_set1_ps(act.scale(i)));
            acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]), scale, acc[i]);
            if !has_bias {
                acc[i] = _mm512_fnmadd_ps(block.offset, _mm512_set1_ps(act.sum(i)), acc[i]);
            }
        });
    }
    act.rest(tile)
}

/// Writes the panel of bytes that [`tile_int`](super::kernels::int::tile_int) reads, whole chunks of
/// it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn unpack_panel<const T: u8>(panel: *const u8, units: usize, to: *mut u8) {
    let layout = const { Layout::of_tag(T) };
    let halves = if const { T == tag::Q6_K } { 2 } else { 1 };
    let groups = 8 / halves;
    let bytes = int_chunk_bytes(PANEL, groups) / BLOCKS;
    // SAFETY: the panel holds `units` units, and there is room for their chunks at `to`.
    unsafe {
        for u in 0..units {
            let unit = panel.add(u * layout.unit_bytes());
            for line in 0..layout.unit_bytes() / 64 {
                fetch_ahead(unit.wrapping_add(64 * line));
            }
            for b in 0..layout.blocks {
                let block = block::<T>(unit, b);
                let to = to.add((u * layout.blocks + b) * bytes);
                for h in 0..halves {
                    let to = to.add(h * bytes / halves);
                    for g in 0..groups {
                        _mm512_storeu_si512(to.add(64 * g).cast(), block.q[h * groups + g]);
                    }
                    _mm512_storeu_ps(to.add(64 * groups).cast(), block.scale[h]);
                    _mm512_storeu_ps(to.add(64 * (groups + 1)).cast(), block.offset);
                }
            }
        }
        let blocks = units * layout.blocks;
        to.add(blocks * bytes).write_bytes(0, (blocks.next_multiple_of(BLOCKS) - blocks) * bytes);
    }
}
