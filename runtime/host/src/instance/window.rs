//! The host's part of an instance's memory: its division, and how large a window calls need.

use crate::exec::fence::page_size;
use crate::op::call::{OpCall, Operand, Owner, Words};
use crate::op::plan::{CallBytes, CallPlan};
use ruvllm_abi::{BackwardDescriptor, REGION_ALIGN, SCRATCH_BYTES};
use std::ops::Range;

/// Bytes of operands and output together above which a call is cut into runs of rows: what is
/// copied in and what the kernel writes then stay in a core's second-level cache until they are
/// read. Tiles for the first level were measured no faster: each starts its streams anew.
pub(crate) const TILE_BYTES: usize = 128 << 10;

const KIB: usize = 1 << 10;

pub(super) const DESCRIPTOR_BYTES: usize = align(BackwardDescriptor::SIZE);

pub(super) const PARAMS_BYTES: usize = Words::BYTES.next_multiple_of(REGION_ALIGN);

/// Where the host's part of an instance's memory is divided.
pub(super) struct Layout {
    pub(super) descriptor: usize,
    pub(super) params: usize,
    pub(super) scratch: usize,
    /// Up to the end of a page, where the limit allows.
    pub(super) window: Range<usize>,
}

impl Layout {
    /// With a window of so many bytes, or what the limit allows.
    pub(super) fn new(heap_base: u32, limit: usize, size: WindowSize, bytes: usize) -> Self {
        let descriptor = align(heap_base as usize);
        let params = descriptor + DESCRIPTOR_BYTES;
        let scratch = params + PARAMS_BYTES;
        let from = taken(heap_base, CallBytes::default());
        // Constants get at least half of what there is, unless a call would not fit otherwise.
        let most = match size {
            WindowSize::Row(_) => limit.saturating_sub(from),
            WindowSize::Tile => limit.saturating_sub(from) / 2,
        };
        let end = (from + bytes.min(most)).next_multiple_of(page_size());
        Self { descriptor, params, scratch, window: from..end.min(limit).max(from) }
    }
}

/// How large a window calls need, which decides what instance answers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WindowSize {
    /// Calls of one row that copy and write so many KiB: a small window, because its bytes are set back
    /// at every change of scope.
    Row(usize),
    /// Runs of many rows.
    Tile,
}

impl WindowSize {
    /// For calls whose copied operands and outputs have so many bytes.
    #[inline]
    pub(crate) fn row<const N: usize>(regions: [usize; N]) -> Self {
        let bytes: usize = regions.into_iter().map(align).fold(0, usize::saturating_add);
        WindowSize::Row(bytes.div_ceil(KIB))
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            WindowSize::Row(kib) => kib.saturating_mul(KIB),
            WindowSize::Tile => TILE_BYTES + 3 * REGION_ALIGN,
        }
    }
}

/// What instance a call needs: how large a window, and whose constants.
#[inline]
pub(crate) fn wanted(
    plan: &CallPlan,
    call: &OpCall<'_>,
    bytes: &CallBytes,
) -> (WindowSize, Option<Owner>) {
    let mut owner = None;
    let mut copied = |operand: &Operand<'_>, size: usize| match operand {
        Operand::Resident(resident, range) => {
            owner = owner.or(resident.owner());
            // The ABI promises aligned regions; a range that starts elsewhere is copied.
            if range.start.is_multiple_of(REGION_ALIGN) { 0 } else { size }
        }
        Operand::None | Operand::Bytes(_) => size,
    };
    let (a, b) = (copied(&call.a, bytes.a), copied(&call.b, bytes.b));
    if call.is_backward() {
        // Of its own size, so that the windows of other calls stay small. Runs of a large one have that of its
        // first run, which is the longest.
        let first = plan.backward_tiles(call, bytes).and_then(|mut tiles| tiles.next());
        let bytes = first.map_or(*bytes, |tile| tile.bytes);
        let CallBytes { gradient, out, out_b, .. } = bytes;
        return (WindowSize::row([a.min(bytes.a), b.min(bytes.b), gradient, out, out_b]), owner);
    }
    let regions = [a, b, bytes.out];
    let many = plan.split_word(call.words.as_slice()).is_some();
    (if many { WindowSize::Tile } else { WindowSize::row(regions) }, owner)
}

/// Bytes of memory that a call of these sizes takes, of which no operand is in place already, where the host's part
/// begins at `heap_base`. Of a call without operands, what an instance takes before any.
pub(crate) fn taken(heap_base: u32, bytes: CallBytes) -> usize {
    let CallBytes { a, b, gradient, out, out_b } = bytes;
    let from = align(heap_base as usize) + DESCRIPTOR_BYTES + PARAMS_BYTES + SCRATCH_BYTES;
    [a, b, gradient, out, out_b].map(align).into_iter().fold(from, usize::saturating_add)
}

pub(super) const fn align(bytes: usize) -> usize {
    bytes.saturating_add(REGION_ALIGN - 1) & !(REGION_ALIGN - 1)
}
