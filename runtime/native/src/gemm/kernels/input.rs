//! What the inner loops read: rows of weights and of activations.
#![allow(unsafe_code)]

use core::arch::asm;

use crate::quant::{CHUNK, MAX_CHUNK_BYTES};

/// Weight rows, `bytes` apart, each of `k` elements.
pub(in crate::gemm) struct Rows<'a> {
    pub(in crate::gemm) data: &'a [u8],
    pub(in crate::gemm) bytes: usize,
    pub(in crate::gemm) chunk_bytes: usize,
    pub(in crate::gemm) k: usize,
}

/// Activation rows: row `first` of the product begins `data`, the next is `stride` elements on.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct Input<'a, T> {
    pub(in crate::gemm) data: &'a [T],
    pub(in crate::gemm) stride: usize,
    pub(in crate::gemm) first: usize,
}

impl<T> Input<'_, T> {
    /// Whether there are so many rows of so many elements.
    #[inline(always)]
    pub(in crate::gemm) fn holds(&self, rows: usize, elems: usize) -> bool {
        self.data.len() >= (rows - 1) * self.stride + elems
    }
}

/// Activation rows side by side: row `first` of the product and those behind it, as [`ActBlock`]s.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct ActTile<'a> {
    pub(in crate::gemm) blocks: &'a [u32],
    pub(in crate::gemm) first: usize,
}

impl ActTile<'_> {
    /// The tile without the first blocks, each of so many groups and rows.
    #[inline(always)]
    pub(in crate::gemm) fn skip(self, skipped: usize, groups: usize, rows: usize) -> Self {
        let blocks = &self.blocks[skipped * act_block_words(groups, rows)..];
        ActTile { blocks, ..self }
    }
}

/// Activations of `C` rows that share a scale, as [`tiles`](crate::gemm::tiles) lay them out, in words of
/// four bytes: the integers, `[C, groups]`, as [`sums`](super::int::sums) say; then of each row the scale, as
/// f32; what its sums start at, so that unsigned weights count as less their bias; and the sum of the
/// activations, as f32. [`scaled::lay`](super::scaled::lay) says what differs where two blocks lie side by side.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct ActBlock<const C: usize> {
    words: *const u32,
    groups: usize,
}

/// Words of an [`ActBlock`] of so many groups and rows.
pub(in crate::gemm) const fn act_block_words(groups: usize, rows: usize) -> usize {
    (groups + 3) * rows
}

/// Two numbers of 16 bits as a word, the first in the low bits.
#[inline(always)]
pub(in crate::gemm) fn pair(low: i16, high: i16) -> u32 {
    u32::from(low.cast_unsigned()) | u32::from(high.cast_unsigned()) << 16
}

/// The same place, of which compilers do not know that it is: they would keep what they read there in registers, until
/// these run out.
#[inline(always)]
pub(super) fn read_anew<T>(place: *const T) -> *const T {
    let mut at = place;
    #[allow(clippy::pointers_in_nomem_asm_block)] // Nothing is read or written, only later, again.
    // SAFETY: there are no instructions in it.
    unsafe {
        asm!("/* {0} */", inout(reg) at, options(nomem, nostack, preserves_flags));
    }
    at
}

impl<const C: usize> ActBlock<C> {
    /// The first block of a tile that has so many of them, of so many groups each.
    ///
    /// # Panics
    /// It has less.
    #[inline(always)]
    pub(in crate::gemm) fn first(tile: ActTile<'_>, blocks: usize, groups: usize) -> Self {
        assert!(tile.blocks.len() >= blocks * act_block_words(groups, C), "a tile of less blocks");
        ActBlock { words: tile.blocks.as_ptr(), groups }
    }

    /// The same block, by [`read_anew`].
    #[inline(always)]
    pub(in crate::gemm) fn read_anew(self) -> Self {
        ActBlock { words: read_anew(self.words), ..self }
    }

    /// The block behind this one. Kernels go on from block to block instead of counting them, so that
    /// each has one address register: products whose address has two are split up by some processors.
    #[inline(always)]
    pub(in crate::gemm) fn next(self) -> Self {
        ActBlock { words: self.words.wrapping_add(act_block_words(self.groups, C)), ..self }
    }

    /// The block's words of row `i`, of which there are as many as groups.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn words(self, i: usize) -> *const i32 {
        // SAFETY: `i < C`, by the module's contract.
        unsafe { self.words.add(i * self.groups).cast() }
    }

    /// The scale of row `i`.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn scale(self, i: usize) -> f32 {
        // SAFETY: as for `words`.
        unsafe { *self.words.add(C * self.groups + i).cast() }
    }

    /// Word `at` of row `i`, one behind its integers, which is an f32: see [`scaled::lay`](super::scaled::lay).
    #[inline(always)]
    pub(in crate::gemm) unsafe fn more(self, i: usize, at: usize) -> f32 {
        // SAFETY: as for `words`.
        unsafe { *self.words(i).add(at).cast() }
    }

    /// The scale of row `i` where this is two factors.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn factors(self, i: usize) -> i32 {
        // SAFETY: as for `words`.
        unsafe { *self.words.add(C * self.groups + i).cast() }
    }

    /// What sums of row `i` start at.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn start(self, i: usize) -> i32 {
        // SAFETY: as for `words`.
        unsafe { *self.words.add(C * (self.groups + 1) + i).cast() }
    }

    /// The sum of the activations of row `i`.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn sum(self, i: usize) -> f32 {
        // SAFETY: as for `words`.
        unsafe { *self.words.add(C * (self.groups + 2) + i).cast() }
    }
}

impl Rows<'_> {
    /// Rows that there are.
    #[inline(always)]
    pub(in crate::gemm) fn count(&self) -> usize {
        self.data.len() / self.bytes
    }

    /// Row `i`.
    #[inline(always)]
    pub(in crate::gemm) fn row(&self, i: usize) -> &[u8] {
        &self.data[i * self.bytes..][..self.bytes]
    }

    /// Chunk `c` of row `i`, whole: the last of a row is copied to `padded`, before zeros, if need
    /// be.
    #[inline(always)]
    pub(in crate::gemm) fn chunk<'b>(
        &'b self,
        i: usize,
        c: usize,
        padded: &'b mut [u8; PADDED],
    ) -> &'b [u8] {
        let rest = &self.row(i)[c * self.chunk_bytes..];
        if rest.len() >= self.chunk_bytes {
            return &rest[..self.chunk_bytes];
        }
        padded.fill(0);
        padded[..rest.len()].copy_from_slice(rest);
        &padded[..self.chunk_bytes]
    }
}

/// Bytes of the largest chunk of any type, f32 included.
pub(in crate::gemm) const PADDED: usize =
    if MAX_CHUNK_BYTES > 4 * CHUNK { MAX_CHUNK_BYTES } else { 4 * CHUNK };
