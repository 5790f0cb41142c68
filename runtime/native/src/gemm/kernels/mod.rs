//! The inner loops of all products, written once over [`Simd`], which the instruction sets
//! implement: of integers in [`int`], [`packed`], [`scaled`] and [`strassen`], of floats in [`float`].
//!
//! Every body here is inlined into functions that enable the instructions ([`entries!`]); none
//! checks for them, which is why all are unsafe: the one contract is that the processor has the
//! instructions of `S`, and, of those that take pointers, that these are good for what the documentation
//! says is read. What comes from outside is slices, whose sizes are checked before pointers are made of
//! them. A closure would be compiled without the instructions if it is not inlined, so vectors pass through none.
#![allow(unsafe_code)]

mod entries;
pub(super) mod float;
mod input;
pub(super) mod int;
pub(super) mod packed;
pub(super) mod scaled;
pub(super) mod strassen;

use super::out::Columns;
use crate::prefetch::Ahead;

pub(super) use entries::{Entries, entries, entry};
use input::read_anew;
pub(super) use input::{ActBlock, ActTile, Input, PADDED, Rows, act_block_words, pair};

/// Vectors of f32 that a panel of floats is wide.
pub(super) const FLOAT_VECTORS: usize = 2;

/// The widest vector of any instruction set, in f32.
pub(super) const MAX_LANES: usize = 16;

/// Runs `$body` for each `$i` in `0..$n`, `$n` a constant of at most `$most`, as straight code: compilers
/// leave loops of this size rolled up, and accumulators indexed by a variable go to memory. The
/// inline constants keep what a width does not use from being compiled at all; it is read and checked
/// all the same, `$most` times for each loop around it, which is why `$most` is as small as can be.
/// `unroll!(i in [..]; cond => ..)` does so for those of some literals for which a constant holds.
macro_rules! unroll {
    ($i:ident in [$($at:literal)*]; $cond:expr => $body:block) => {
        $(
            if const { let $i = $at; $cond } {
                let $i = $at;
                $body
            }
        )*
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

/// Writes methods of [`Simd`] and the like whose bodies are intrinsics.
macro_rules! methods {
    ($(
        fn $name:ident $(<const $c:ident: $of:ty>)? ($($arg:ident: $arg_of:ty),*) $(-> $to:ty)?
            $body:block
    )*) => {$(
        #[inline(always)]
        // Safe where every processor of the target has the instructions.
        #[allow(unused_unsafe)]
        unsafe fn $name $(<const $c: $of>)? ($($arg: $arg_of),*) $(-> $to)? {
            // SAFETY: the trait's contract: the processor has the instructions, and pointers can be
            // read or written for as much as the method's documentation says.
            unsafe { $body }
        }
    )*};
}
pub(super) use methods;

/// One instruction set. A value of it says that the processor has the instructions.
///
/// # Safety
/// There are values only where the processor has the instructions. Methods may assume these; callers of
/// every method make sure of it, and that pointers can be read (or written) for what it loads (stores).
pub(super) unsafe trait Simd: Copy + Send + Sync {
    /// f32 in a vector; also the weight rows of a panel of bytes. At most [`MAX_LANES`].
    const LANES: usize;
    /// Vectors that there are registers for, where instructions can take an operand from memory instead;
    /// elsewhere none is better off there.
    const REGISTERS: usize;
    /// The panels that a tile of integers takes at a time, 1 or 2: two share what is read of the
    /// activations, which pays where products are so fast that reading them is the bound.
    const INT_PANELS: usize;
    /// The most activation rows of a tile of integers.
    const INT_COLS: usize;
    /// The most activation rows that are multiplied with packed panels as these are read. More are
    /// multiplied in tiles, for which panels are unpacked to bytes first.
    const STREAMED_COLS: usize;
    /// How many of these are multiplied at a time.
    const STREAMED_WIDTHS: &'static [usize] = &[8, 4, 2, 1];
    /// The most activation rows of a tile of floats.
    const FLOAT_COLS: usize;
    /// Whether four bytes of a lane are multiplied by four others and added up in one step. Else fewer
    /// are, in 16 bits; see [`sums`].
    const QUADS: bool;
    /// Whether bytes of weights are signed as those of activations are. Panels of bytes then hold weights
    /// less the bias of their format, so that products need no correction.
    const SIGNED: bool = false;
    /// Whether there are [`sums::FLOATS`](int::sums::FLOATS).
    const FLOAT_SUMS: bool = false;
    /// Whether there are sums of the kind [`sums::SCALED`](int::sums::SCALED).
    const SCALED: bool = false;
    /// Whether there are tiles by [`strassen`].
    const STRASSEN: bool = false;
    /// A vector of f32.
    type F: Copy;
    /// A vector of bytes: four for each lane.
    type B: Copy;
    /// Sums of products of integers while these are added up.
    type Sum: Copy;

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
    unsafe fn from_signed(p: *const i8) -> Self::F;
    /// Writes the transpose of the `LANES` x `LANES` matrix at `src` to `dst`.
    unsafe fn transpose(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize);

    /// Loads bytes, unaligned.
    unsafe fn load_bytes(p: *const u8) -> Self::B;
    /// Stores bytes, unaligned.
    unsafe fn store_bytes(p: *mut u8, x: Self::B);
    /// `x` in every lane.
    unsafe fn splat_int(x: i32) -> Self::B;
    /// The bits that are set in both.
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B;
    /// The bits that are set in either.
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// Moves the bits of each 16 so many places up, or down where the number is negative.
    unsafe fn shift(x: Self::B, by: i32) -> Self::B;
    /// `a - b` of each byte, modulo 256.
    unsafe fn sub_bytes(a: Self::B, b: Self::B) -> Self::B;
    /// `a - b` of each 16 bits, modulo 2^16, where there is [`Self::STRASSEN`].
    unsafe fn sub_halves(a: Self::B, _b: Self::B) -> Self::B {
        a
    }
    /// Loads a vector of unsigned bytes as f32.
    unsafe fn from_unsigned(p: *const u8) -> Self::F;

    /// Sums that start at a word of an [`ActBlock`], in every lane.
    unsafe fn start(word: i32) -> Self::Sum;
    /// Adds the products of four bytes of weights and of activations, or of two 16-bit numbers, to each
    /// lane of sums of the kind [`sums`](int::sums).
    unsafe fn add_products(sums: u8, sum: Self::Sum, w: Self::B, a: Self::B) -> Self::Sum;
    /// Adds to `sums[p][i]` the products of the `p`th vector of weights and of the activations.
    #[inline(always)]
    unsafe fn add_row<const P: usize, const C: usize>(
        kind: u8,
        sums: &mut [[Self::Sum; C]; P],
        i: usize,
        w: [Self::B; P],
        a: Self::B,
    ) {
        // SAFETY: the contract is the same.
        unsafe {
            unroll!(p < P, 2 { sums[p][i] = Self::add_products(kind, sums[p][i], w[p], a); });
        }
    }
    /// Adds the products of two vectors of weights and of the two words of activations at `words`.
    #[inline(always)]
    unsafe fn add_two(sums: u8, sum: Self::Sum, w: [Self::B; 2], words: *const i32) -> Self::Sum {
        // SAFETY: the contract is the same.
        unsafe {
            let a = [Self::splat_int(*words), Self::splat_int(*words.add(1))];
            Self::add_products(sums, Self::add_products(sums, sum, w[0], a[0]), w[1], a[1])
        }
    }
    /// The kind of sums by which tiles of 8-bit weights are multiplied, on this processor, the fastest of
    /// [`sums::WIDE`](int::sums::WIDE) and of those that there are instead.
    fn sums_in_tiles() -> u8 {
        int::sums::WIDE
    }
    /// Sums of the kind [`sums::FLOATS`](int::sums::FLOATS) less a vector of integers of 32 bits.
    unsafe fn less(sum: Self::Sum, _extra: Self::B) -> Self::Sum {
        sum
    }
    /// `a - b` of sums of the kind [`sums::WIDE`](int::sums::WIDE), where there is [`Self::STRASSEN`].
    unsafe fn sub_sums(a: Self::Sum, _b: Self::Sum) -> Self::Sum {
        a
    }
    /// Lanes that hold a byte of those at `a` and one of those at `b`, unsigned, as two numbers of 16 bits, where there
    /// is [`Self::SCALED`].
    unsafe fn factors(_a: *const u8, _b: *const u8) -> Self::B {
        // SAFETY: the contract is the same.
        unsafe { Self::splat_int(0) }
    }
    /// Adds to each lane of `sum` the two numbers of 16 bits of `of_block`, times those of `a` and those of `b`, where
    /// there is [`Self::SCALED`]. Products of the latter two are within 16 bits.
    unsafe fn add_scaled(
        sum: Self::Sum,
        _of_block: Self::Sum,
        _a: Self::B,
        _b: Self::B,
    ) -> Self::Sum {
        sum
    }
    /// Sums of the kind `sums` as f32.
    unsafe fn total(sums: u8, sum: Self::Sum) -> Self::F;
    /// The dot products of a block of each of `P` panels of bytes with `C` rows of activations.
    #[inline(always)]
    unsafe fn block_dots<const G: usize, const SUMS: u8, const P: usize, const C: usize>(
        blocks: [*const u8; P],
        act: ActBlock<C>,
    ) -> [[Self::F; C]; P] {
        // SAFETY: the contract is the same.
        unsafe { int::block_dots::<Self, G, SUMS, P, C>(blocks, act) }
    }
    /// Completes a panel's block of `groups` vectors: these are put into the order that [`tile`](Self::tile) reads,
    /// and what [`sums::FLOATS`](int::sums::FLOATS) are too large by takes the place of the offsets.
    #[inline(always)]
    unsafe fn arrange(_block: *mut u8, _groups: usize) {}
    /// See [`int::tile_int`].
    #[inline(always)]
    unsafe fn tile<
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
        // SAFETY: the contract is the same.
        unsafe { int::tile_int::<Self, G, SUMS, OFFSETS, P, C>(panels, blocks, act, col, y) }
    }
    /// Asks for what a stream reads so far after the cache line at `p`, which need not be there.
    fn fetch_ahead(p: *const u8, ahead: Ahead);
}
