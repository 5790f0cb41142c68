//! What the inner loops read: rows of weights and of activations.

use super::ActChunk;
use crate::quant::{CHUNK, GROUP, MAX_CHUNK_BYTES};

/// Weight rows: `count` of them at `data`, `bytes` apart, each of `k` elements.
pub(in crate::gemm) struct Rows {
    pub(in crate::gemm) data: *const u8,
    pub(in crate::gemm) bytes: usize,
    pub(in crate::gemm) chunk_bytes: usize,
    pub(in crate::gemm) k: usize,
    pub(in crate::gemm) count: usize,
}

/// Activation rows: row `first` of the product is at `data`, the next `stride` elements on.
pub(in crate::gemm) struct Input<T> {
    pub(in crate::gemm) data: *const T,
    pub(in crate::gemm) stride: usize,
    pub(in crate::gemm) first: usize,
}

/// A block of activations in several rows: block `at` of the chunk at `chunk` and of those `stride`
/// chunks on.
#[derive(Clone, Copy)]
pub(in crate::gemm) struct BlockInput {
    pub(in crate::gemm) chunk: *const ActChunk,
    pub(in crate::gemm) stride: usize,
    pub(in crate::gemm) at: usize,
}

impl BlockInput {
    /// The first of the block's `4 * G` bytes in row `i`.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn bytes<const G: usize>(self, i: usize) -> *const i32 {
        // SAFETY: the maker has as many rows, of chunks with as many blocks.
        unsafe { (&raw const (*self.chunk.add(i * self.stride)).q).cast::<i32>().add(G * self.at) }
    }

    /// The scale of the block in row `i`.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn scale<const G: usize>(self, i: usize) -> *const f32 {
        // SAFETY: as for `bytes`.
        unsafe {
            let chunk = self.chunk.add(i * self.stride);
            (&raw const (*chunk).scale).cast::<f32>().add(4 * G * self.at / GROUP)
        }
    }

    /// The sum of the block's `4 * G` activations in row `i`.
    #[inline(always)]
    pub(in crate::gemm) unsafe fn sum<const G: usize>(self, i: usize) -> *const f32 {
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
    pub(in crate::gemm) unsafe fn total<const G: usize>(self, i: usize) -> i32 {
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
    pub(in crate::gemm) unsafe fn chunk(
        &self,
        i: usize,
        c: usize,
        padded: &mut [u8; PADDED],
    ) -> *const u8 {
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
pub(in crate::gemm) const PADDED: usize =
    if MAX_CHUNK_BYTES > 4 * CHUNK { MAX_CHUNK_BYTES } else { 4 * CHUNK };
