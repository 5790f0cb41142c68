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
//!       4 bits:  vectors 0..4, group 2i in the low nibbles of vector i, 2i + 1 in the high ones
//! high  1 bit:   one vector, the bit of group g is bit g
//!       2 bits:  two vectors, the bits of group g are bits 2 (g mod 4) and up of vector g / 4
//! ```
//!
//! 8-bit elements are stored 128 higher, as unsigned numbers. Rows beyond the last repeat it; blocks
//! beyond the end of a row are zero, scales included.

use memmap2::MmapMut;
use ruvllm_abi::DType;

use super::{ReadPattern, Weights};
use crate::pool::ThreadPool;
use crate::quant::{
    CHUNK, MAX_CHUNK_BYTES, Unpacked, chunk_bytes, is_blocked, scales_and_mins, tag,
};
use crate::{Isa, NativeError};

/// Rows of a panel.
pub(super) const PANEL: usize = 16;

/// Elements of a row that a block has.
pub(super) const BLOCK: usize = 32;

/// A vector: four bytes of each row.
pub(super) const LINE: usize = 4 * PANEL;

/// Groups of four elements in a block.
const GROUPS: usize = BLOCK / 4;

/// How the units of a type are made.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Blocks in a unit.
    pub(super) blocks: usize,
    /// Bytes of scales at the start of a unit.
    pub(super) header: usize,
    /// Vectors of whole bytes or of nibbles in a block.
    pub(super) low: usize,
    /// Vectors of higher bits that follow.
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
            tag::Q8_0 => (2, LINE, 8, 0),
            tag::Q4_0 => (2, LINE, 4, 0),
            tag::Q5_0 => (2, LINE, 4, 1),
            tag::Q4_1 => (2, 2 * LINE, 4, 0),
            tag::Q5_1 => (2, 2 * LINE, 4, 1),
            tag::Q4_K => (8, 5 * LINE, 4, 0),
            tag::Q5_K => (8, 5 * LINE, 4, 1),
            _ => (8, 5 * LINE, 4, 2),
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
    panel_bytes: usize,
    pattern: ReadPattern,
    data: MmapMut,
}

impl PackedWeights {
    /// Whether products with weights of this type are faster from panels with these instructions:
    /// blocked types wherever there are vectors.
    pub fn pays(dtype: DType, isa: Isa) -> bool {
        is_blocked(dtype) && isa.usable() != Isa::Scalar
    }

    /// Rearranges `weights` on all threads of `pool`. Takes about as much memory as they do.
    ///
    /// # Errors
    /// [`NativeError::Unsupported`] for a type that is not in blocks, and
    /// [`NativeError::OutOfMemory`].
    pub fn new(pool: &ThreadPool, weights: &Weights<'_>) -> Result<PackedWeights, NativeError> {
        let Weights { dtype, rows, cols, .. } = *weights;
        let mut packed = PackedWeights::zeros(dtype, rows, cols)?;
        pool.for_chunks(&mut packed.data, packed.panel_bytes, &|panel, out| {
            pack_panel(&PanelRows::new(weights, panel * PANEL), out);
        });
        Ok(packed)
    }

    /// Weights of whole panels, about so many bytes, that are all the same small number.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn uniform(
        pool: &ThreadPool,
        dtype: DType,
        cols: usize,
        bytes: usize,
    ) -> Result<PackedWeights, NativeError> {
        let panels = bytes / Layout::of(dtype).panel_bytes(cols);
        let mut packed = PackedWeights::zeros(dtype, panels * PANEL, cols)?;
        // As a scale about 2^-8.
        pool.for_chunks(&mut packed.data, packed.panel_bytes, &|_, panel| panel.fill(0x1c));
        Ok(packed)
    }

    fn zeros(dtype: DType, rows: usize, cols: usize) -> Result<PackedWeights, NativeError> {
        if !is_blocked(dtype) {
            return Err(NativeError::unsupported("packing weights", dtype));
        }
        let panel_bytes = Layout::of(dtype).panel_bytes(cols);
        let bytes = rows.div_ceil(PANEL).saturating_mul(panel_bytes);
        let out_of_memory = |_| NativeError::OutOfMemory { what: "packed weights", bytes };
        let data = MmapMut::map_anon(bytes).map_err(out_of_memory)?;
        // Fewer page faults now and fewer misses of the translation cache later, where the system
        // has large pages to give.
        #[cfg(target_os = "linux")]
        let _ = data.advise(memmap2::Advice::HugePage);
        Ok(PackedWeights { dtype, rows, cols, panel_bytes, pattern: ReadPattern::default(), data })
    }

    /// Sets how products with few rows of activations read the panels.
    pub fn set_pattern(&mut self, pattern: ReadPattern) {
        self.pattern = pattern;
    }

    /// How products with few rows of activations read the panels.
    pub fn pattern(&self) -> ReadPattern {
        self.pattern
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

    /// The panel that row `row` is in.
    pub(super) fn panel(&self, row: usize) -> &[u8] {
        &self.data[row / PANEL * self.panel_bytes..][..self.panel_bytes]
    }
}

/// Writes the panel of `rows` to `out` with the best instructions there are.
fn pack_panel(rows: &PanelRows<'_>, out: &mut [u8]) {
    match Isa::detect().plain() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::x86_avx512::pack(rows, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::x86_avx2::pack(rows, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => super::neon::pack(rows, out),
        _ => pack_portable(rows, out),
    }
}

/// [`pack_panel`] without vectors.
pub(super) fn pack_portable(rows: &PanelRows<'_>, out: &mut [u8]) {
    let dtype = rows.dtype();
    pack(rows, out, |chunk, out| crate::quant::unpack(dtype, chunk, out), gather);
}

/// The rows of a panel, in the file's layout.
pub(super) struct PanelRows<'a> {
    weights: &'a Weights<'a>,
    first: usize,
}

impl<'a> PanelRows<'a> {
    /// The rows of `weights` from row `first` on.
    pub(super) fn new(weights: &'a Weights<'a>, first: usize) -> PanelRows<'a> {
        PanelRows { weights, first }
    }

    pub(super) fn dtype(&self) -> DType {
        self.weights.dtype
    }

    /// Chunk `c` of the row in `lane`, copied before zeros where the row ends in it.
    #[inline(always)]
    fn chunk<'b>(
        &'b self,
        lane: usize,
        c: usize,
        padded: &'b mut [u8; MAX_CHUNK_BYTES],
    ) -> &'b [u8] {
        let w = self.weights;
        let bytes = chunk_bytes(w.dtype);
        let rest = &w.row((self.first + lane).min(w.rows - 1))[c * bytes..];
        if rest.len() >= bytes {
            return &rest[..bytes];
        }
        padded.fill(0);
        padded[..rest.len()].copy_from_slice(rest);
        &padded[..bytes]
    }
}

/// The groups of four elements of a chunk, each of all rows of a panel.
pub(super) type Lines = [[u8; LINE]; CHUNK / 4];

/// Writes the panel of `rows` to `out`. `unpack` is [`crate::quant::unpack`] for their type, and `gather`
/// [`gather`], with whichever instructions the caller enables.
#[inline(always)]
pub(super) fn pack(
    rows: &PanelRows<'_>,
    out: &mut [u8],
    unpack: impl Fn(&[u8], &mut Unpacked),
    gather: impl Fn(&[Unpacked; PANEL], &mut Lines),
) {
    let dtype = rows.dtype();
    let layout = Layout::of(dtype);
    let (mut chunks, mut lines) = ([const { Unpacked::ZERO }; PANEL], [[0; LINE]; CHUNK / 4]);
    let mut padded = [0; MAX_CHUNK_BYTES];
    let chunk_units = CHUNK / (layout.blocks * BLOCK);
    for (c, units) in out.chunks_mut(chunk_units * layout.unit_bytes()).enumerate() {
        for (lane, chunk) in chunks.iter_mut().enumerate() {
            let bytes = rows.chunk(lane, c, &mut padded);
            unpack(bytes, chunk);
            for (u, unit) in units.chunks_exact_mut(layout.unit_bytes()).enumerate() {
                let scales = &bytes[u * bytes.len() / chunk_units..];
                pack_scales(dtype, scales, lane, &mut unit[..layout.header]);
            }
        }
        gather(&chunks, &mut lines);
        let packed = units.chunks_exact_mut(layout.unit_bytes());
        let blocks = lines.as_chunks::<GROUPS>().0.chunks_exact(layout.blocks);
        for (unit, blocks) in packed.zip(blocks) {
            let packed = unit[layout.header..].chunks_exact_mut(layout.block_bytes());
            packed.zip(blocks).for_each(|(packed, block)| pack_block(layout, block, packed));
        }
    }
}

/// Brings together what lies at the same place of each row.
fn gather(chunks: &[Unpacked; PANEL], lines: &mut Lines) {
    for (lane, chunk) in chunks.iter().enumerate() {
        for (line, q) in lines.iter_mut().zip(chunk.q.as_chunks::<4>().0) {
            line[4 * lane..][..4].copy_from_slice(&q.map(i8::cast_unsigned));
        }
    }
}

/// Copies what scales a unit of one row, whose bytes in the file's layout start `unit`.
#[inline(always)]
fn pack_scales(dtype: DType, unit: &[u8], lane: usize, header: &mut [u8]) {
    let mut half = |to: usize, from: usize| {
        header[to + 2 * lane..][..2].copy_from_slice(&unit[from..from + 2]);
    };
    match dtype {
        DType::Q4_K | DType::Q5_K => {
            half(0, 0);
            half(2 * PANEL, 2);
            for j in 0..8 {
                let (scale, min) = scales_and_mins(&unit[4..16], j);
                header[LINE + PANEL * j + lane] = scale;
                header[LINE + PANEL * (8 + j) + lane] = min;
            }
        }
        DType::Q6_K => {
            half(0, 208);
            for (j, scale) in unit[192..208].iter().enumerate() {
                header[LINE + PANEL * j + lane] = *scale;
            }
        }
        _ => {
            for block in 0..2 {
                let from = block * dtype.layout().bytes;
                half(2 * PANEL * block, from);
                if matches!(dtype, DType::Q4_1 | DType::Q5_1) {
                    half(LINE + 2 * PANEL * block, from + 2);
                }
            }
        }
    }
}

/// Puts the bits of a block's elements, in bytes of vectors as the module's notes number them, where
/// they belong.
#[inline(always)]
fn pack_block(layout: Layout, groups: &[[u8; LINE]; GROUPS], packed: &mut [u8]) {
    let (low, high) = packed.split_at_mut(layout.low * LINE);
    let low = low.as_chunks_mut::<LINE>().0;
    if layout.low == GROUPS {
        for (low, group) in low.iter_mut().zip(groups) {
            low.iter_mut().zip(group).for_each(|(low, q)| *low = q ^ 0x80);
        }
        return;
    }
    for (low, pair) in low.iter_mut().zip(groups.as_chunks::<2>().0) {
        for ((low, even), odd) in low.iter_mut().zip(&pair[0]).zip(&pair[1]) {
            *low = even & 15 | odd << 4;
        }
    }
    if layout.high == 0 {
        return;
    }
    let sharing = GROUPS / layout.high;
    for (high, groups) in high.as_chunks_mut::<LINE>().0.iter_mut().zip(groups.chunks(sharing)) {
        high.fill(0);
        for (g, group) in groups.iter().enumerate() {
            for (high, q) in high.iter_mut().zip(group) {
                *high |= q >> 4 << (g * layout.high);
            }
        }
    }
}
