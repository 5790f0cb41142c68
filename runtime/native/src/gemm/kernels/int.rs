//! Weights in blocks and activations in 8 bits: products of integers.
#![allow(unsafe_code)]

use core::arch::asm;

use super::{ActBlock, ActTile, MAX_LANES, Simd, scaled, strassen, unroll};
use crate::gemm::out::Columns;
use crate::quant::tag;

/// How the products of a block are added up, as integers.
pub(in crate::gemm) mod sums {
    use super::{Simd, tag};

    /// Four bytes to a lane at a time, in 32 bits.
    pub(in crate::gemm) const QUADS: u8 = 0;
    /// In 16 bits, two bytes to half a lane at a time, or one to a quarter. These are added up at the end of
    /// the block. Sums wrap around on the way, but a block's is within 16 bits: sixteen products of a weight
    /// within 16 and an activation within 127, or eight of a weight within 32.
    pub(in crate::gemm) const PAIRS: u8 = 1;
    /// As [`PAIRS`], of weights that need no correction, so that the first products are the first sums.
    pub(in crate::gemm) const PAIRS_FROM_ZERO: u8 = 4;
    /// Two numbers of 16 bits at a time, in 32 bits: for 8-bit weights, since a pair of their products is
    /// beyond 16 bits. A vector of bytes becomes two, of its even and of its odd bytes.
    pub(in crate::gemm) const WIDE: u8 = 2;
    /// As [`WIDE`], but of weights and activations that are both 128 more, so that no product is negative, and added up
    /// by the units for floats: an integer below 2^23 is, read as f32, a subnormal number, and sums of these are exact.
    /// Pays where some of the units that add integers multiply them too, so that sums wait for products, and others
    /// add floats: see [`Simd::sums_in_tiles`].
    pub(in crate::gemm) const FLOATS: u8 = 3;

    /// What sums of [`FLOATS`] start at, besides what the activations ask for, which is within 2^19: enough for them to
    /// stay positive, and with products of up to 32 * 255^2 they are below 2^23.
    pub(in crate::gemm) const FLOATS_START: i32 = 1 << 20;

    /// In 32 bits, of a block's halves, two panels and two rows of activations at a time: see
    /// [`strassen`](super::super::strassen).
    pub(in crate::gemm) const STRASSEN: u8 = 5;

    /// As [`PAIRS`], of two blocks at a time, with scales that are integers: see [`scaled`](super::super::scaled).
    pub(in crate::gemm) const SCALED: u8 = 6;

    /// The kind for a format.
    pub(in crate::gemm) const fn of<S: Simd>(t: u8) -> u8 {
        match t {
            _ if S::QUADS => QUADS,
            tag::Q4_K if S::SCALED => SCALED,
            tag::Q8_0 if S::SIGNED => QUADS,
            tag::Q8_0 => WIDE,
            _ => PAIRS,
        }
    }

    /// Whether there are formats of the kind.
    pub(in crate::gemm) const fn any<S: Simd>(sums: u8) -> bool {
        let of_bytes = of::<S>(tag::Q8_0);
        sums == of_bytes
            || sums == of::<S>(tag::Q4_0)
            || (S::FLOAT_SUMS && sums == FLOATS && of_bytes == WIDE)
            || sums == of::<S>(tag::Q4_K)
            || (!S::SIGNED && sums == PAIRS_FROM_ZERO && of::<S>(tag::Q4_0) == PAIRS)
    }
}

/// What products with a format need besides its elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::gemm) struct Form {
    /// How products are added up.
    pub(in crate::gemm) sums: u8,
    /// Words of activations, and vectors of weights, of a block, the elements that share scales; with [`sums::SCALED`] of
    /// two blocks.
    pub(in crate::gemm) groups: usize,
    /// The exponent of what elements, as unsigned numbers, are too large by; 0 if they are not.
    pub(in crate::gemm) bias: u32,
    /// Whether weights have offsets.
    pub(in crate::gemm) offsets: bool,
}

impl Form {
    /// The form of format `t` with the instructions of `S`.
    pub(in crate::gemm) const fn of<S: Simd>(t: u8) -> Form {
        let sums = sums::of::<S>(t);
        let bias = match t {
            // Made signed as they are read.
            tag::Q8_0 if S::SIGNED => 0,
            tag::Q8_0 => 7,
            tag::Q4_0 => 3,
            tag::Q4_K if sums == sums::SCALED => 3,
            tag::Q5_0 => 4,
            tag::Q6_K => 5,
            // Sixteen products are within 16 bits if they are less 16, which is taken off their offset too.
            tag::Q5_1 | tag::Q5_K if sums == sums::PAIRS && !S::SIGNED => 4,
            _ => 0,
        };
        let groups = match (t, sums) {
            (tag::Q6_K, _) => 4,
            (_, sums::WIDE) => 16,
            (_, sums::SCALED) => scaled::GROUPS,
            _ => 8,
        };
        let offsets = matches!(t, tag::Q4_1 | tag::Q5_1 | tag::Q4_K | tag::Q5_K);
        Form { sums, groups, bias, offsets }
    }

    /// The form in which tiles are multiplied, with what is faster on this processor; by Strassen's algorithm only where
    /// the caller says that it pays.
    pub(in crate::gemm) fn of_tiles<S: Simd>(t: u8, strassen_pays: bool) -> Form {
        let form = Form::of::<S>(t);
        match form.sums {
            sums::WIDE => match S::sums_in_tiles() {
                sums::STRASSEN if strassen_pays => {
                    Form { sums: sums::STRASSEN, groups: strassen::GROUPS_EACH, bias: 0, ..form }
                }
                sums::STRASSEN => form,
                sums => Form { sums, ..form },
            },
            sums::PAIRS if form.bias == 0 && !S::SIGNED => {
                Form { sums: sums::PAIRS_FROM_ZERO, ..form }
            }
            _ => form,
        }
    }

    /// Words of a row of activations in a block, and vectors of a block of a panel before the last two: those of its
    /// groups, and with [`sums::SCALED`] two more of either.
    pub(in crate::gemm) const fn row_words(self) -> usize {
        match self.sums {
            sums::SCALED => self.groups + 2,
            _ => self.groups,
        }
    }
}

/// The products of a block of each of `P` panels of bytes with `C` rows of activations, added up: each activation
/// is read once for all panels.
#[inline(always)]
pub(super) unsafe fn block_sums<
    S: Simd,
    const G: usize,
    const SUMS: u8,
    const P: usize,
    const C: usize,
>(
    blocks: [*const u8; P],
    act: ActBlock<C>,
) -> [[S::Sum; C]; P] {
    // SAFETY: the module's contract.
    unsafe {
        let from_zero = const { S::SIGNED || SUMS == sums::PAIRS_FROM_ZERO };
        let kind = const { without_start(SUMS) };
        let mut sums = [[S::start(0); C]; P];
        unroll!(i < C, 16 {
            let start = S::start(if from_zero { 0 } else { act.start(i) });
            unroll!(p < P, 2 { sums[p][i] = start; });
        });
        unroll!(g in [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]; g < G => {
            let mut w = [S::splat_int(0); P];
            unroll!(p < P, 2 { w[p] = S::load_bytes(blocks[p].add(4 * S::LANES * g)); });
            unroll!(i < C, 16 {
                let a = S::splat_int(*act.words(i).add(g));
                S::add_row(kind, &mut sums, i, w, a);
            });
        });
        sums
    }
}

/// The kind, without the difference in what sums start at.
const fn without_start(sums: u8) -> u8 {
    if sums == sums::PAIRS_FROM_ZERO { sums::PAIRS } else { sums }
}

/// The body of [`Simd::block_dots`].
#[inline(always)]
pub(in crate::gemm) unsafe fn block_dots<
    S: Simd,
    const G: usize,
    const SUMS: u8,
    const P: usize,
    const C: usize,
>(
    blocks: [*const u8; P],
    act: ActBlock<C>,
) -> [[S::F; C]; P] {
    // SAFETY: the module's contract.
    unsafe {
        let mut sums = block_sums::<S, G, SUMS, P, C>(blocks, act);
        let mut dots = [[S::zero(); C]; P];
        unroll!(p < P, 2 {
            if const { SUMS == sums::FLOATS } {
                let extra = S::load_bytes(blocks[p].add(4 * S::LANES * (G + 1)));
                unroll!(i < C, 16 { sums[p][i] = S::less(sums[p][i], extra); });
            }
            unroll!(i < C, 16 {
                dots[p][i] = S::total(const { without_start(SUMS) }, sums[p][i]);
            });
        });
        dots
    }
}

/// A sum of row `i` of activations with the dot product of one more block, whose scale and, where there
/// are any, offset are given. All products from panels add up so, to the same bits.
#[inline(always)]
pub(in crate::gemm) unsafe fn with_block<S: Simd, const C: usize>(
    sum: S::F,
    dot: S::F,
    [scale, offset]: [S::F; 2],
    act: ActBlock<C>,
    i: usize,
    offsets: bool,
) -> S::F {
    // SAFETY: the module's contract.
    unsafe {
        let sum = S::fma(dot, S::mul(scale, S::splat(act.scale(i))), sum);
        if offsets { S::fnma(offset, S::splat(act.sum(i)), sum) } else { sum }
    }
}

/// `y[first + i, col + r] = sums[i]`, lane `r`, as far as there are columns.
#[inline(always)]
pub(in crate::gemm) unsafe fn put<S: Simd>(
    sums: &[S::F],
    first: usize,
    col: usize,
    y: &mut Columns<'_>,
) {
    if !y.range().contains(&col) {
        return;
    }
    for (i, sum) in sums.iter().enumerate() {
        let mut values = [0.0; MAX_LANES];
        // SAFETY: the module's contract; no vector has more lanes.
        unsafe { S::store(values.as_mut_ptr(), *sum) };
        y.put(first + i, col, &values[..S::LANES], false);
    }
}

/// Sets `sums[i]`, lane `r`, to `y[first + i, col + r]`, as far as there are columns.
#[inline(always)]
pub(in crate::gemm) unsafe fn take<S: Simd>(
    sums: &mut [S::F],
    first: usize,
    col: usize,
    y: &Columns<'_>,
) {
    if !y.range().contains(&col) {
        return;
    }
    for (i, sum) in sums.iter_mut().enumerate() {
        let mut values = [0.0; MAX_LANES];
        y.get(first + i, col, &mut values[..S::LANES]);
        // SAFETY: the module's contract; no vector has more lanes.
        unsafe { *sum = S::load(values.as_ptr()) };
    }
}

/// Bytes of a block of a panel of integers with `lanes` rows: `groups` vectors of four bytes a lane, a
/// vector of scales, one of offsets, or of what [`sums::FLOATS`] are too large by; [`scaled`] says what it has there.
pub(in crate::gemm) const fn int_block_bytes(lanes: usize, groups: usize) -> usize {
    (groups + 2) * 4 * lanes
}

/// `y[act.first + i, col + r] = act[i] · panels[r]` for `C` rows of activations and the rows of `P`
/// panels, one after the other.
#[inline(always)]
pub(in crate::gemm) unsafe fn tile_int<
    S: Simd,
    const G: usize,
    const SUMS: u8,
    const OFFSETS: bool,
    const P: usize,
    const C: usize,
>(
    panels: &[u8],
    blocks: usize,
    act: ActTile<'_>,
    col: usize,
    y: &mut Columns<'_>,
) {
    if const { C > S::INT_COLS || P > S::INT_PANELS || !sums::any::<S>(SUMS) } {
        return;
    }
    if const { SUMS == sums::SCALED } {
        // SAFETY: the module's contract.
        return unsafe { scaled::tile::<S, P, C>(panels, blocks, act, col, y) };
    }
    let lanes = S::LANES;
    let block_bytes = int_block_bytes(lanes, G);
    let mut at = panel_starts::<P>(panels, blocks * block_bytes);
    let mut act_block = ActBlock::<C>::first(act, blocks, G);
    // SAFETY: the module's contract; the panels and the tile have so many blocks.
    unsafe {
        let mut acc = [[S::zero(); C]; P];
        y.fetch(act.first, C, col, P * lanes);
        for _ in 0..blocks {
            let dots = S::block_dots::<G, SUMS, P, C>(at, act_block);
            let acc =
                if const { in_memory::<S>(P * C, P * C) } { elsewhere(&mut acc) } else { &mut acc };
            unroll!(p < P, 2 {
                let scale = S::load(at[p].add(4 * lanes * G).cast());
                let offset = S::load(at[p].add(4 * lanes * (G + 1)).cast());
                unroll!(i < C, 16 {
                    acc[p][i] = with_block::<S, C>(
                        acc[p][i], dots[p][i], [scale, offset], act_block, i, OFFSETS,
                    );
                });
                at[p] = at[p].add(block_bytes);
            });
            act_block = act_block.next();
        }
        for (p, acc) in acc.iter().enumerate() {
            put::<S>(acc, act.first, col + p * lanes, y);
        }
    }
}

/// Whether so many sums of a product stay in memory while so many of a block are in registers. Then
/// products are added to where they lie; of itself a compiler would read and write them apart.
pub(super) const fn in_memory<S: Simd>(sums: usize, of_block: usize) -> bool {
    // Weights and activations need some too.
    sums + of_block + 4 > S::REGISTERS
}

/// The same place, of which compilers do not know what it holds, so that this is in memory.
#[inline(always)]
pub(super) fn elsewhere<T>(place: &mut T) -> &mut T {
    let mut at: *mut T = place;
    // SAFETY: there are no instructions in it.
    unsafe { asm!("/* {0} */", inout(reg) at, options(nostack, preserves_flags)) };
    // SAFETY: where `place` points to, for as long.
    unsafe { &mut *at }
}

/// Where each of `P` panels of so many bytes, one after the other, begins.
///
/// # Panics
/// There are less.
#[inline(always)]
pub(in crate::gemm) fn panel_starts<const P: usize>(panels: &[u8], bytes: usize) -> [*const u8; P] {
    assert!(panels.len() >= P * bytes, "less panels than to multiply");
    std::array::from_fn(|p| panels[p * bytes..].as_ptr())
}
