//! The inner loops of all products, written once over [`Simd`], which the instruction sets
//! implement.
//!
//! Every body here is inlined into functions that enable the instructions ([`entries!`]); none
//! checks for them, which is why all are unsafe: the one contract is that the processor has the
//! instructions of `S`, and that pointers are good for what the documentation says is read. A
//! closure would be compiled without the instructions if it is not inlined, so there are none.
#![allow(unsafe_code)]

use super::ActChunk;
use super::out::Columns;
use crate::quant::tag;
use crate::quant::{CHUNK, GROUP, MAX_CHUNK_BYTES, Unpacked};

/// Vectors of f32 that a panel of floats is wide.
pub(super) const FLOAT_VECTORS: usize = 2;

/// The widest vector of any instruction set, in f32.
pub(super) const MAX_LANES: usize = 16;

/// How far ahead of the loads the streamed weights are fetched, in bytes.
const PREFETCH: usize = 6 * 1024;

/// Runs `$body` for each `$i` in `0..$n`, `$n` a constant of at most 16, as straight code: compilers
/// leave loops of this size rolled up, and accumulators indexed by a variable go to memory. The
/// inline constants keep what a width does not use from being compiled at all.
/// `unroll!(i in [..] ..)` does so for each of some literals.
macro_rules! unroll {
    ($i:ident in [$($at:literal)*] $body:block) => {
        $({
            let $i = $at;
            $body
        })*
    };
    ($i:ident < $n:ident $body:block) => {
        unroll!(@ $i $n $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $i:ident $n:ident $body:block $($at:literal)*) => {
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
        act: BlockInput,
    ) -> [[Self::F; C]; P] {
        // SAFETY: the contract is the same.
        unsafe { dots_apart::<Self, G, FOLD, P, C>(blocks, act) }
    }
    /// Puts the `G` vectors of a panel's block into the order that [`tile`](Self::tile) reads.
    #[inline(always)]
    unsafe fn arrange<const G: usize>(_block: *mut u8) {}
    /// See [`tile_int`].
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
        act: Input<ActChunk>,
        col: usize,
        y: &mut Columns<'_>,
    ) {
        // SAFETY: the contract is the same.
        unsafe { tile_int::<Self, G, FOLD, BIAS, P, C>(panels, chunks, act, col, y) }
    }
    /// Asks for the cache line at `p`, which need not be readable.
    unsafe fn prefetch(p: *const u8);
}

/// [`Simd::block_dots`] one by one.
#[inline(always)]
pub(super) unsafe fn dots_apart<
    S: Simd + ?Sized,
    const G: usize,
    const FOLD: usize,
    const P: usize,
    const C: usize,
>(
    blocks: [*const u8; P],
    act: BlockInput,
) -> [[S::F; C]; P] {
    // SAFETY: the contract of `block_dots` is that of `block_dot` for each panel and row.
    unsafe {
        let mut dots = [[S::zero(); C]; P];
        unroll!(p < P {
            let mut w = [S::load_bytes(blocks[p]); G];
            unroll!(g < G {
                w[g] = S::load_bytes(blocks[p].add(4 * S::LANES * g));
            });
            unroll!(i < C {
                dots[p][i] = S::block_dot::<G, FOLD>(&w, act.bytes::<G>(i).cast());
            });
        });
        dots
    }
}

/// The non-inlined functions that enable the instructions of a [`Simd`]; `entries!` writes them.
///
/// # Safety
/// As [`Simd`].
pub(super) unsafe trait Entries: Simd {
    /// See [`dot_int`].
    unsafe fn dot_int<const T: u8, const M: usize>(
        rows: &Rows,
        y: &mut Columns<'_>,
        act: Input<ActChunk>,
    );
    /// See [`dot_float`].
    unsafe fn dot_float<const T: u8, const M: usize>(
        rows: &Rows,
        y: &mut Columns<'_>,
        act: Input<f32>,
    );
    /// See [`pack_int`].
    unsafe fn pack_int<const T: u8, const G: usize>(rows: &Rows, panel: *mut u8);
    /// See [`pack_float`].
    unsafe fn pack_float<const T: u8>(rows: &Rows, from: usize, to: usize, panel: *mut f32);
    /// See [`tile_int`].
    unsafe fn tile_int<
        const G: usize,
        const FOLD: usize,
        const BIAS: u32,
        const P: usize,
        const C: usize,
    >(
        panels: *const u8,
        chunks: usize,
        act: Input<ActChunk>,
        col: usize,
        y: &mut Columns<'_>,
    );
    /// See [`tile_float`].
    unsafe fn tile_float<const C: usize>(
        panel: *const f32,
        len: usize,
        act: Input<f32>,
        col: usize,
        add: bool,
        y: &mut Columns<'_>,
    );
}

/// Implements [`Entries`] for `$simd` with the instructions `$features`.
macro_rules! entries {
    ($simd:ty, $features:literal) => {
        // SAFETY: the functions inside enable what the trait's contract says the processor has.
        unsafe impl Entries for $simd {
            unsafe fn dot_int<const T: u8, const M: usize>(
                rows: &Rows,
                y: &mut Columns<'_>,
                act: Input<ActChunk>,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn go<const T: u8, const M: usize>(
                    rows: &Rows,
                    y: &mut Columns<'_>,
                    act: Input<ActChunk>,
                ) {
                    // SAFETY: the caller's contract is the same.
                    unsafe { kernels::dot_int::<$simd, T, M>(rows, y, act) }
                }
                // SAFETY: the caller's contract is the same.
                unsafe { go::<T, M>(rows, y, act) }
            }
            unsafe fn dot_float<const T: u8, const M: usize>(
                rows: &Rows,
                y: &mut Columns<'_>,
                act: Input<f32>,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn go<const T: u8, const M: usize>(
                    rows: &Rows,
                    y: &mut Columns<'_>,
                    act: Input<f32>,
                ) {
                    // SAFETY: the caller's contract is the same.
                    unsafe { kernels::dot_float::<$simd, T, M>(rows, y, act) }
                }
                // SAFETY: the caller's contract is the same.
                unsafe { go::<T, M>(rows, y, act) }
            }
            unsafe fn pack_int<const T: u8, const G: usize>(rows: &Rows, panel: *mut u8) {
                #[target_feature(enable = $features)]
                unsafe fn go<const T: u8, const G: usize>(rows: &Rows, panel: *mut u8) {
                    // SAFETY: the caller's contract is the same.
                    unsafe { kernels::pack_int::<$simd, T, G>(rows, panel) }
                }
                // SAFETY: the caller's contract is the same.
                unsafe { go::<T, G>(rows, panel) }
            }
            unsafe fn pack_float<const T: u8>(
                rows: &Rows,
                from: usize,
                to: usize,
                panel: *mut f32,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn go<const T: u8>(rows: &Rows, from: usize, to: usize, panel: *mut f32) {
                    // SAFETY: the caller's contract is the same.
                    unsafe { kernels::pack_float::<$simd, T>(rows, from, to, panel) }
                }
                // SAFETY: the caller's contract is the same.
                unsafe { go::<T>(rows, from, to, panel) }
            }
            unsafe fn tile_int<
                const G: usize,
                const FOLD: usize,
                const BIAS: u32,
                const P: usize,
                const C: usize,
            >(
                panels: *const u8,
                chunks: usize,
                act: Input<ActChunk>,
                col: usize,
                y: &mut Columns<'_>,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn go<
                    const G: usize,
                    const FOLD: usize,
                    const BIAS: u32,
                    const P: usize,
                    const C: usize,
                >(
                    panels: *const u8,
                    chunks: usize,
                    act: Input<ActChunk>,
                    col: usize,
                    y: &mut Columns<'_>,
                ) {
                    // SAFETY: the caller's contract is the same.
                    unsafe { <$simd>::tile::<G, FOLD, BIAS, P, C>(panels, chunks, act, col, y) }
                }
                // SAFETY: the caller's contract is the same.
                unsafe { go::<G, FOLD, BIAS, P, C>(panels, chunks, act, col, y) }
            }
            unsafe fn tile_float<const C: usize>(
                panel: *const f32,
                len: usize,
                act: Input<f32>,
                col: usize,
                add: bool,
                y: &mut Columns<'_>,
            ) {
                #[target_feature(enable = $features)]
                unsafe fn go<const C: usize>(
                    panel: *const f32,
                    len: usize,
                    act: Input<f32>,
                    col: usize,
                    add: bool,
                    y: &mut Columns<'_>,
                ) {
                    // SAFETY: the caller's contract is the same.
                    unsafe { kernels::tile_float::<$simd, C>(panel, len, act, col, add, y) }
                }
                // SAFETY: the caller's contract is the same.
                unsafe { go::<C>(panel, len, act, col, add, y) }
            }
        }
    };
}
pub(super) use entries;

/// Weight rows: `count` of them at `data`, `bytes` apart, each of `k` elements.
pub(super) struct Rows {
    pub(super) data: *const u8,
    pub(super) bytes: usize,
    pub(super) chunk_bytes: usize,
    pub(super) k: usize,
    pub(super) count: usize,
}

/// Activation rows: row `first` of the product is at `data`, the next `stride` elements on.
pub(super) struct Input<T> {
    pub(super) data: *const T,
    pub(super) stride: usize,
    pub(super) first: usize,
}

/// A block of activations in several rows: block `at` of the chunk at `chunk` and of those `stride`
/// chunks on.
#[derive(Clone, Copy)]
pub(super) struct BlockInput {
    pub(super) chunk: *const ActChunk,
    pub(super) stride: usize,
    pub(super) at: usize,
}

impl BlockInput {
    /// The first of the block's `4 * G` bytes in row `i`.
    #[inline(always)]
    pub(super) unsafe fn bytes<const G: usize>(self, i: usize) -> *const i32 {
        // SAFETY: the maker has as many rows, of chunks with as many blocks.
        unsafe { (&raw const (*self.chunk.add(i * self.stride)).q).cast::<i32>().add(G * self.at) }
    }

    /// The scale of the block in row `i`.
    #[inline(always)]
    pub(super) unsafe fn scale<const G: usize>(self, i: usize) -> *const f32 {
        // SAFETY: as for `bytes`.
        unsafe {
            let chunk = self.chunk.add(i * self.stride);
            (&raw const (*chunk).scale).cast::<f32>().add(4 * G * self.at / GROUP)
        }
    }

    /// The sum of the block's `4 * G` activations in row `i`.
    #[inline(always)]
    pub(super) unsafe fn sum<const G: usize>(self, i: usize) -> *const f32 {
        // SAFETY: as for `bytes`.
        unsafe {
            let chunk = self.chunk.add(i * self.stride);
            let sums = if 4 * G == GROUP {
                (&raw const (*chunk).sum).cast::<f32>()
            } else {
                (&raw const (*chunk).block_sum).cast::<f32>()
            };
            sums.add(self.at)
        }
    }

    /// The sum of the block's `4 * G` integers in row `i`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn total<const G: usize>(self, i: usize) -> i32 {
        // SAFETY: as for `bytes`.
        unsafe {
            let chunk = self.chunk.add(i * self.stride);
            let totals = if 4 * G == GROUP {
                (&raw const (*chunk).total).cast::<i16>()
            } else {
                (&raw const (*chunk).block_total).cast::<i16>()
            };
            i32::from(*totals.add(self.at))
        }
    }
}

impl Rows {
    /// Chunk `c` of row `i`, whole: the last of a row is copied to `padded`, before zeros, if need
    /// be.
    #[inline(always)]
    pub(super) unsafe fn chunk(&self, i: usize, c: usize, padded: &mut [u8; PADDED]) -> *const u8 {
        // SAFETY: `i < count` and chunk `c` starts inside the row, so `len` bytes can be read.
        unsafe {
            let p = self.data.add(i * self.bytes + c * self.chunk_bytes);
            let len = self.bytes - c * self.chunk_bytes;
            if len >= self.chunk_bytes {
                return p;
            }
            padded.fill(0);
            p.copy_to_nonoverlapping(padded.as_mut_ptr(), len);
            padded.as_ptr()
        }
    }
}

/// Bytes of the largest chunk of any type, f32 included.
pub(super) const PADDED: usize =
    if MAX_CHUNK_BYTES > 4 * CHUNK { MAX_CHUNK_BYTES } else { 4 * CHUNK };

/// `y[act.first + i, r] = act[i] · rows[r]` for all rows and `M` rows of activations. The rows are
/// the columns of `y`.
#[inline(always)]
pub(super) unsafe fn dot_int<S: Simd, const T: u8, const M: usize>(
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
                    S::prefetch(p.wrapping_add(PREFETCH + 64 * line));
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

/// [`dot_int`] for plain numbers and f32 activations.
#[inline(always)]
pub(super) unsafe fn dot_float<S: Simd, const T: u8, const M: usize>(
    rows: &Rows,
    y: &mut Columns<'_>,
    act: Input<f32>,
) {
    // SAFETY: the module's contract; rows of `act` hold zeros up to a multiple of 64 elements,
    // which is at least four vectors.
    unsafe {
        let (step, size) = (4 * S::LANES, rows.chunk_bytes / CHUNK);
        let whole = rows.k / step;
        let start = y.range().start;
        for r in 0..rows.count {
            let p = rows.data.add(r * rows.bytes);
            let mut acc = [[S::zero(); 2]; M];
            for s in 0..whole {
                let p = p.add(s * step * size);
                for line in 0..(step * size).div_ceil(64) {
                    S::prefetch(p.wrapping_add(PREFETCH + 64 * line));
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
    act: &Input<f32>,
    at: usize,
    acc: &mut [[S::F; 2]; M],
) {
    // SAFETY: the module's contract.
    unsafe {
        for j in 0..4 {
            let w = S::convert::<T>(p.add(j * S::LANES * size));
            for (i, acc) in acc.iter_mut().enumerate() {
                let a = S::load(act.data.add(i * act.stride + at + j * S::LANES));
                acc[j % 2] = S::fma(w, a, acc[j % 2]);
            }
        }
    }
}

/// Bytes of a chunk of a panel of integers with `lanes` rows and scales per `4 * groups` elements.
pub(super) const fn int_chunk_bytes(lanes: usize, groups: usize) -> usize {
    CHUNK / (4 * groups) * int_block_bytes(lanes, groups)
}

/// Bytes of a block: `groups` vectors of four bytes a lane, a vector of scales, one of offsets.
pub(super) const fn int_block_bytes(lanes: usize, groups: usize) -> usize {
    (groups + 2) * 4 * lanes
}

/// Writes the panel of up to `LANES` rows that [`tile_int`] reads. Lanes beyond `rows.count` repeat
/// the last row.
#[inline(always)]
pub(super) unsafe fn pack_int<S: Simd, const T: u8, const G: usize>(rows: &Rows, panel: *mut u8) {
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
pub(super) const fn bias(t: u8) -> u32 {
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
pub(super) unsafe fn tile_int<
    S: Simd + ?Sized,
    const G: usize,
    const FOLD: usize,
    const BIAS: u32,
    const P: usize,
    const C: usize,
>(
    panels: *const u8,
    chunks: usize,
    act: Input<ActChunk>,
    col: usize,
    y: &mut Columns<'_>,
) {
    if const { C > S::INT_COLS || P > S::INT_PANELS } {
        return;
    }
    // SAFETY: the module's contract; each panel holds `chunks` chunks and so does each row of `act`.
    unsafe {
        let lanes = S::LANES;
        let panel_bytes = chunks * int_chunk_bytes(lanes, G);
        let mut acc = [[S::zero(); C]; P];
        for c in 0..chunks {
            for b in 0..CHUNK / (4 * G) {
                let at = c * int_chunk_bytes(lanes, G) + b * int_block_bytes(lanes, G);
                let mut blocks = [panels.add(at); P];
                unroll!(p < P {
                    blocks[p] = panels.add(p * panel_bytes + at);
                });
                let input = BlockInput { chunk: act.data.add(c), stride: act.stride, at: b };
                let dots = S::block_dots::<G, FOLD, BIAS, P, C>(blocks, input);
                unroll!(p < P {
                    let scale = S::load(blocks[p].add(4 * lanes * G).cast());
                    unroll!(i < C {
                        let a_scale = S::splat(*input.scale::<G>(i));
                        acc[p][i] = S::fma(dots[p][i], S::mul(scale, a_scale), acc[p][i]);
                    });
                    if const { BIAS == 0 || !(S::BIASED || S::SIGNED) } {
                        let offset = S::load(blocks[p].add(4 * lanes * (G + 1)).cast());
                        unroll!(i < C {
                            acc[p][i] = S::fnma(offset, S::splat(*input.sum::<G>(i)), acc[p][i]);
                        });
                    }
                });
            }
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

/// Writes the panel of up to `FLOAT_VECTORS * LANES` rows that [`tile_float`] reads: elements
/// `from..to`, where `from` is a multiple of [`CHUNK`], as `[to - from, rows]`, padded to a whole
/// chunk. Lanes beyond `rows.count` repeat the last row.
#[inline(always)]
pub(super) unsafe fn pack_float<S: Simd, const T: u8>(
    rows: &Rows,
    from: usize,
    to: usize,
    panel: *mut f32,
) {
    // SAFETY: the module's contract; `panel` has room for the elements, padded to whole chunks.
    unsafe {
        let (lanes, width) = (S::LANES, FLOAT_VECTORS * S::LANES);
        let (mut buffer, mut padded) = ([[0.0f32; CHUNK]; MAX_LANES], [0; PADDED]);
        for c in from / CHUNK..to.div_ceil(CHUNK) {
            for vector in 0..FLOAT_VECTORS {
                for (lane, buffer) in buffer[..lanes].iter_mut().enumerate() {
                    let row = (vector * lanes + lane).min(rows.count - 1);
                    numbers::<S, T>(rows.chunk(row, c, &mut padded), buffer);
                }
                let panel = panel.add((c * CHUNK - from) * width + vector * lanes);
                for k in (0..CHUNK).step_by(lanes) {
                    let buffer = buffer.as_ptr().cast::<f32>().add(k);
                    S::transpose(buffer, CHUNK, panel.add(k * width), width);
                }
            }
        }
    }
}

/// The numbers of the chunk at `p`.
#[inline(always)]
unsafe fn numbers<S: Simd, const T: u8>(p: *const u8, out: &mut [f32; CHUNK]) {
    // SAFETY: the module's contract; `p` holds a chunk of type `T`.
    unsafe {
        let size = match T {
            tag::F32 => 4,
            tag::F16 | tag::BF16 => 2,
            _ => {
                let mut chunk = Unpacked::ZERO;
                S::spill(&S::unpack::<T>(p), &mut chunk);
                for i in (0..CHUNK).step_by(S::LANES) {
                    let group = i / GROUP;
                    let q = S::from_bytes(chunk.q.as_ptr().add(i));
                    let offset = S::splat(-chunk.offset[group]);
                    let x = S::fma(q, S::splat(chunk.scale[group]), offset);
                    S::store(out.as_mut_ptr().add(i), x);
                }
                return;
            }
        };
        for i in (0..CHUNK).step_by(S::LANES) {
            S::store(out.as_mut_ptr().add(i), S::convert::<T>(p.add(i * size)));
        }
    }
}

/// `y[act.first + i, col + r] = act[i] · panel[r]` over `len` elements, for `C` rows of
/// activations; with `add`, added to what is there.
#[inline(always)]
pub(super) unsafe fn tile_float<S: Simd, const C: usize>(
    panel: *const f32,
    len: usize,
    act: Input<f32>,
    col: usize,
    add: bool,
    y: &mut Columns<'_>,
) {
    if const { C > S::FLOAT_COLS } {
        return;
    }
    // SAFETY: the module's contract; `panel` and the rows of `act` hold `len` elements.
    unsafe {
        let (lanes, width) = (S::LANES, FLOAT_VECTORS * S::LANES);
        let mut acc = [[S::zero(); FLOAT_VECTORS]; C];
        for k in 0..len {
            let row = panel.add(k * width);
            let w = [S::load(row), S::load(row.add(lanes))];
            unroll!(i < C {
                let a = S::splat(*act.data.add(i * act.stride + k));
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
