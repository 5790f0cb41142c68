//! Weights rearranged once so that sixteen rows are read side by side.
//!
//! In a file each row is a stream of its own, and its scales lie between its elements: every vector
//! of it must be picked apart before it can be multiplied, for every group of activation rows again.
//! Here a *panel* holds [`PANEL`] rows in the order in which a product takes them: one vector of 512 bits,
//! two of 256 or four of 128, has four neighbouring elements of each row, one lane to a row, so that sums
//! need no reduction, scales no permutation, and activations are a broadcast that all lanes share. Elements keep their bits and
//! scales their precision; a panel is at most 3 % larger than its rows.
//!
//! A panel is a sequence of units, of two blocks of 32 elements or of a k-quant's 256 (`r` is a lane):
//!
//! ```text
//! Q8_0 Q4_0 Q5_0   f16 scale[2][r]                        then per block: low, high
//! Q4_1 Q5_1        f16 scale[2][r], f16 min[2][r]
//! Q4_K Q5_K        f16 d[r], f16 dmin[r], u8 scale[8][r], u8 min[8][r]
//! Q6_K             f16 d[r], 32 bytes unused, i8 scale[16][r]
//!
//! low   8 bits:  vectors 0..8, group g (elements 4g..4g+4 of the block) in vector g
//!       6 bits:  vectors 0..6, groups 4i, 4i + 1 and 4i + 2 in the low six bits of vectors 3i, 3i + 1 and 3i + 2,
//!                group 4i + 3 in the high two of these, from its lowest two to its highest
//!       4 bits:  vectors 0..4, group 2i in the low nibbles of vector i, 2i + 1 in the high ones
//! high  1 bit:   one vector, the bit of group g is bit g
//! ```
//!
//! For products with AVX2 alone ([`PackedWeights::takes_side_by_side`]), two blocks of Q4_K have their eight vectors in
//! common: in vector g, low nibbles hold the first two elements of group g of the first block and then those of the
//! second, high ones the other two of either.
//!
//! 8-bit elements are stored 128 higher, as unsigned numbers. Rows beyond the last repeat it; blocks
//! beyond the end of a row are zero, scales included.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use ruvllm_abi::DType;

use super::Weights;
use super::pack::pack_panel;
use crate::mapped::Mapped;
use crate::pool::ThreadPool;
use crate::prefetch::{Addresses, PLACES};
use crate::quant::{is_blocked, tag};
use crate::{Isa, NativeError};

/// Rows of a panel.
pub(super) const PANEL: usize = 16;

/// Elements of a row that a block has.
pub(super) const BLOCK: usize = 32;

/// Blocks of the least unit.
pub(super) const UNIT: usize = 2;

/// A vector: four bytes of each row.
pub(super) const LINE: usize = 4 * PANEL;

/// How the units of a type are made.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Blocks in a unit.
    pub(super) blocks: usize,
    /// Bytes of scales at the start of a unit.
    pub(super) header: usize,
    /// Vectors of whole bytes, of six bits or of nibbles in a block.
    pub(super) low: usize,
    /// Vectors of fifth bits that follow.
    pub(super) high: usize,
}

impl Layout {
    /// The layout of a blocked type.
    pub(super) const fn of(dtype: DType) -> Layout {
        Layout::of_tag(dtype as u8)
    }

    /// The same by the type's constant.
    pub(super) const fn of_tag(tag: u8) -> Layout {
        let (blocks, header, low, high) = match tag {
            tag::Q8_0 => (UNIT, LINE, 8, 0),
            tag::Q4_0 => (UNIT, LINE, 4, 0),
            tag::Q5_0 => (UNIT, LINE, 4, 1),
            tag::Q4_1 => (UNIT, 2 * LINE, 4, 0),
            tag::Q5_1 => (UNIT, 2 * LINE, 4, 1),
            tag::Q4_K => (8, 5 * LINE, 4, 0),
            tag::Q5_K => (8, 5 * LINE, 4, 1),
            _ => (8, 5 * LINE, 6, 0),
        };
        Layout { blocks, header, low, high }
    }

    /// Bytes of a block without its scales.
    pub(super) const fn block_bytes(self) -> usize {
        (self.low + self.high) * LINE
    }

    /// Bytes of a unit.
    pub(super) const fn unit_bytes(self) -> usize {
        self.header + self.blocks * self.block_bytes()
    }

    /// Bytes of a panel of rows of `cols` elements.
    pub(super) const fn panel_bytes(self, cols: usize) -> usize {
        self.units(cols) * self.unit_bytes()
    }

    /// Units of a row of `cols` elements.
    pub(super) const fn units(self, cols: usize) -> usize {
        cols.div_ceil(self.blocks * BLOCK)
    }
}

/// A matrix of weights in panels of sixteen rows; see the module's notes for when that pays.
/// Made once from [`Weights`] and given to products with [`Weights::with_packed`].
#[derive(Debug)]
pub struct PackedWeights {
    dtype: DType,
    rows: usize,
    cols: usize,
    side_by_side: bool,
    panel_bytes: usize,
    data: Mapped,
    /// The panels that were read after these the last time; of matrices that are read together, the first one's is used.
    next: Arc<Addresses>,
}

thread_local! {
    /// What follows on the panels that this thread has read last.
    static LAST: Cell<Option<Arc<Addresses>>> = const { Cell::new(None) };
}

impl PackedWeights {
    /// Whether products with weights of this type are faster from panels with these instructions:
    /// blocked types wherever there are vectors.
    pub fn pays(dtype: DType, isa: Isa) -> bool {
        is_blocked(dtype) && isa.usable() != Isa::Scalar
    }

    /// Whether products with `isa`, as [`matmul`](super::matmul) runs it, take two blocks of this type side by side: see `kernels::scaled`.
    pub(super) fn takes_side_by_side(dtype: DType, isa: Isa) -> bool {
        dtype == DType::Q4_K && isa == Isa::Avx2
    }

    /// Rearranges `weights` for products with `isa`, on all threads of `pool`. Takes about as much memory as they do.
    ///
    /// # Errors
    /// [`NativeError::Unsupported`] for a type that is not in blocks, and
    /// [`NativeError::OutOfMemory`].
    pub fn new(
        pool: &ThreadPool,
        isa: Isa,
        weights: &Weights<'_>,
    ) -> Result<PackedWeights, NativeError> {
        let side_by_side = PackedWeights::takes_side_by_side(weights.dtype, isa.usable().widest());
        PackedWeights::arranged(pool, side_by_side, weights)
    }

    /// [`new`](Self::new) for products that take two blocks side by side, or do not.
    pub(super) fn arranged(
        pool: &ThreadPool,
        side_by_side: bool,
        weights: &Weights<'_>,
    ) -> Result<PackedWeights, NativeError> {
        let Weights { dtype, rows, cols, .. } = *weights;
        let mut packed = PackedWeights::zeros(dtype, side_by_side, rows, cols)?;
        pool.for_chunks(&mut packed.data, packed.panel_bytes, &|panel, out| {
            pack_panel(weights, panel * PANEL, side_by_side, out);
        });
        Ok(packed)
    }

    /// Weights of whole panels, about so many bytes, that are all the same small number.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn uniform(
        pool: &ThreadPool,
        isa: Isa,
        dtype: DType,
        cols: usize,
        bytes: usize,
    ) -> Result<PackedWeights, NativeError> {
        let panels = bytes / Layout::of(dtype).panel_bytes(cols);
        let side_by_side = PackedWeights::takes_side_by_side(dtype, isa.usable().widest());
        let mut packed = PackedWeights::zeros(dtype, side_by_side, panels * PANEL, cols)?;
        // As a scale about 2^-8.
        pool.for_chunks(&mut packed.data, packed.panel_bytes, &|_, panel| panel.fill(0x1c));
        Ok(packed)
    }

    fn zeros(
        dtype: DType,
        side_by_side: bool,
        rows: usize,
        cols: usize,
    ) -> Result<PackedWeights, NativeError> {
        if !is_blocked(dtype) {
            return Err(NativeError::unsupported("packing weights", dtype));
        }
        let panel_bytes = Layout::of(dtype).panel_bytes(cols);
        let bytes = rows.div_ceil(PANEL).saturating_mul(panel_bytes);
        let out_of_memory = |_| NativeError::OutOfMemory { what: "packed weights", bytes };
        let data = Mapped::zeros(bytes).map_err(out_of_memory)?;
        Ok(PackedWeights {
            dtype,
            rows,
            cols,
            side_by_side,
            panel_bytes,
            data,
            next: Arc::default(),
        })
    }

    /// Notes that this thread reads these now, together, and gives the addresses of what it has read next the last time: a
    /// model's matrices are read in the same order for every token.
    pub(super) fn follow<'a>(
        these: impl Iterator<Item = &'a PackedWeights> + Clone,
    ) -> [Range<usize>; PLACES] {
        let Some(PackedWeights { next, .. }) = these.clone().next() else {
            return [const { 0..0 }; PLACES];
        };
        if let Some(last) = LAST.replace(Some(Arc::clone(next))) {
            last.set(these.map(|packed| {
                let bytes = packed.data.as_ptr_range();
                bytes.start.addr()..bytes.end.addr()
            }));
        }
        next.get()
    }

    /// Rows of the matrix.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The matrix without the file's rows, for products that read panels only.
    pub(super) fn alone(&self) -> Weights<'_> {
        let PackedWeights { dtype, rows, cols, .. } = *self;
        Weights { dtype, rows, cols, row_bytes: 0, data: &[], packed: Some(self) }
    }

    /// Bytes that the panels take.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Whether these are the panels of a matrix of that type and size.
    pub(super) fn fits(&self, weights: &Weights<'_>) -> bool {
        (self.dtype, self.rows, self.cols) == (weights.dtype, weights.rows, weights.cols)
    }

    /// Whether these are panels as products with `isa`, as [`matmul`](super::matmul) runs it, take them.
    pub(super) fn suits(&self, isa: Isa) -> bool {
        self.side_by_side == PackedWeights::takes_side_by_side(self.dtype, isa)
    }

    /// The panel that row `row` is in.
    pub(super) fn panel(&self, row: usize) -> &[u8] {
        self.panels(row, 1)
    }

    /// That panel and those behind it, so many in all.
    pub(super) fn panels(&self, row: usize, count: usize) -> &[u8] {
        &self.data[row / PANEL * self.panel_bytes..][..count * self.panel_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_last_time_is_expected() {
        let pool = ThreadPool::new(1);
        let [a, b, c, d] = [1, 2, 3, 4]
            .map(|n| PackedWeights::uniform(&pool, Isa::Scalar, DType::Q8_0, 64, n << 16).unwrap());
        let bytes = |of: &PackedWeights| {
            let bytes = of.data.as_ptr_range();
            bytes.start.addr()..bytes.end.addr()
        };
        for first in [true, false] {
            let follow = |these: &[&PackedWeights]| PackedWeights::follow(these.iter().copied());
            let expected = [follow(&[&a]), follow(&[&b, &c]), follow(&[&d])];
            let known = [vec![bytes(&b), bytes(&c)], vec![bytes(&d)], vec![bytes(&a)]];
            for (places, known) in expected.iter().zip(known) {
                let known = if first { vec![] } else { known };
                assert_eq!(places[..known.len()], known);
                assert!(places[known.len()..].iter().all(Range::is_empty));
            }
        }
        drop((b, c));
        let follow = |one| PackedWeights::follow(std::iter::once(one))[0].clone();
        follow(&a);
        assert_eq!(follow(&d), bytes(&a));
        assert_eq!(follow(&a), bytes(&d));
    }
}
