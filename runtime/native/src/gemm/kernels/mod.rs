//! The inner loops of all products, written once over [`Simd`], which the instruction sets
//! implement: of integers in [`int`], of floats in [`float`].
//!
//! Every body here is inlined into functions that enable the instructions ([`entries!`]); none
//! checks for them, which is why all are unsafe: the one contract is that the processor has the
//! instructions of `S`, and that pointers are good for what the documentation says is read. A
//! closure would be compiled without the instructions if it is not inlined, so there are none.
#![allow(unsafe_code)]

mod entries;
pub(super) mod float;
mod input;
pub(super) mod int;

use super::ActChunk;
use super::out::Columns;
use crate::quant::Unpacked;

pub(super) use entries::{Entries, entries, entry};
pub(super) use input::{ActBlock, ActTile, Input, PADDED, Rows, act_block_words};

/// Vectors of f32 that a panel of floats is wide.
pub(super) const FLOAT_VECTORS: usize = 2;

/// The widest vector of any instruction set, in f32.
pub(super) const MAX_LANES: usize = 16;

/// Runs `$body` for each `$i` in `0..$n`, `$n` a constant of at most `$most`, as straight code: compilers
/// leave loops of this size rolled up, and accumulators indexed by a variable go to memory. The
/// inline constants keep what a width does not use from being compiled at all; it is read and checked
/// all the same, `$most` times for each loop around it, which is why `$most` is as small as can be.
/// `unroll!(i in [..] ..)` does so for each of some literals.
macro_rules! unroll {
    ($i:ident in [$($at:literal)*] $body:block) => {
        $({
            let $i = $at;
            $body
        })*
    };
    ($i:ident < $n:ident, 2 $body:block) => { unroll!(@ $i $n $body 2: 0 1) };
    ($i:ident < $n:ident, 4 $body:block) => { unroll!(@ $i $n $body 4: 0 1 2 3) };
    ($i:ident < $n:ident, 8 $body:block) => { unroll!(@ $i $n $body 8: 0 1 2 3 4 5 6 7) };
    ($i:ident < $n:ident, 16 $body:block) => {
        unroll!(@ $i $n $body 16: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $i:ident $n:ident $body:block $most:literal: $($at:literal)*) => {
        assert!(const { $n <= $most });
        $(
            if const { $at < $n } {
                let $i = $at;
                $body
            }
        )*
    };
}
pub(super) use unroll;

/// One instruction set.
///
/// # Safety
/// Implementations may assume that the processor has the instructions; callers of every method
/// make sure of it, and that pointers can be read (or written) for what the method loads (stores).
pub(super) unsafe trait Simd {
    /// f32 in a vector; also the weight rows of a panel of bytes. At most [`MAX_LANES`].
    const LANES: usize;
    /// The panels that a tile of integers takes at a time, 1 or 2: two share what is read of the
    /// activations, which pays where products are so fast that reading them is the bound.
    const INT_PANELS: usize;
    /// The most activation rows of a tile of integers.
    const INT_COLS: usize;
    /// The most activation rows of a tile of floats.
    const FLOAT_COLS: usize;
    /// Whether [`block_dots`](Self::block_dots) takes all weights as unsigned, 8-bit ones offset by
    /// 128, and takes off itself what the format's offset adds.
    const BIASED: bool;
    /// Whether panels of bytes hold weights less the bias of their format, so that products need
    /// no correction.
    const SIGNED: bool = false;
    /// An unpacked chunk in registers.
    type Chunk: Copy;
    /// A vector of f32.
    type F: Copy;
    /// A vector of bytes: four for each lane.
    type B: Copy;

    /// Unpacks the chunk of format `T` at `p`.
    unsafe fn unpack<const T: u8>(p: *const u8) -> Self::Chunk;
    /// Stores a chunk.
    unsafe fn spill(chunk: &Self::Chunk, out: &mut Unpacked);
    /// Unpacks the chunk of format `T` at `p` in the order that [`dot`](Self::dot) takes.
    #[inline(always)]
    unsafe fn unpack_for_dot<const T: u8>(p: *const u8) -> Self::Chunk {
        // SAFETY: the contract is the same.
        unsafe { Self::unpack::<T>(p) }
    }
    /// Adds the product of a chunk of format `T` and of activations to `acc`, whose lanes add up
    /// to the sum.
    unsafe fn dot<const T: u8>(chunk: &Self::Chunk, act: *const ActChunk, acc: &mut [Self::F; 2]);

    /// Zeros.
    unsafe fn zero() -> Self::F;
    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// Loads, unaligned.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Stores, unaligned.
    unsafe fn store(p: *mut f32, x: Self::F);
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sum of all lanes.
    unsafe fn sum(x: Self::F) -> f32;
    /// Loads a vector of numbers of the float type `T`.
    unsafe fn convert<const T: u8>(p: *const u8) -> Self::F;
    /// Loads a vector of signed bytes as f32.
    unsafe fn from_bytes(p: *const i8) -> Self::F;
    /// Writes the transpose of the `LANES` x `LANES` matrix at `src` to `dst`.
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize);

    /// Loads bytes, unaligned.
    unsafe fn load_bytes(p: *const u8) -> Self::B;
    /// In each lane the dot product of its `4 * G` bytes of `w` with as many activations at `a`,
    /// as f32. `FOLD` products of weight and activation fit an i16 pairwise.
    unsafe fn block_dot<const G: usize, const FOLD: usize>(
        w: &[Self::B; G],
        a: *const i8,
    ) -> Self::F;
    /// [`block_dot`](Self::block_dot) for each of `P` panels and `C` rows of activations. Where
    /// `BIASED`, each weight counts as `2^BIAS` less, if `BIAS` is not 0.
    #[inline(always)]
    unsafe fn block_dots<
        const G: usize,
        const FOLD: usize,
        const BIAS: u32,
        const P: usize,
        const C: usize,
    >(
        blocks: [*const u8; P],
        act: ActBlock<G, C>,
    ) -> [[Self::F; C]; P] {
        // SAFETY: the contract is the same.
        unsafe { int::dots_apart::<Self, G, FOLD, P, C>(blocks, act) }
    }
    /// Puts the `G` vectors of a panel's block into the order that [`tile`](Self::tile) reads.
    #[inline(always)]
    unsafe fn arrange<const G: usize>(_block: *mut u8) {}
    /// See [`int::tile_int`].
    #[inline(always)]
    unsafe fn tile<
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
        // SAFETY: the contract is the same.
        unsafe { int::tile_int::<Self, G, FOLD, BIAS, P, C>(panels, chunks, act, col, y) }
    }
    /// Asks for what a stream reads some time after the cache line at `p`, which need not be there.
    fn fetch_ahead(p: *const u8);
}
