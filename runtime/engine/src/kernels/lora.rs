//! Calls of `lora_apply`: what updates of projections add to some rows.

use ruvllm_host::{LoraDims, OpCall, OpSlot, Operand, RegistrySnapshot, Scope, Worker};
use ruvllm_native::{Isa, ThreadPool, ops};
use smallvec::SmallVec;

use super::Kernels;
use crate::adapter::LoraUpdate;
use crate::error::EngineError;
use crate::memory::room;

/// Multiplications below which waking the other threads costs more than it saves.
const SPLIT_PRODUCTS: usize = 32 * 1024;

/// Elements that are computed before they are added: few enough to stay in a core's cache.
const TILE: usize = 64 * 1024;

/// Threads, and pieces of a thread, up to which nothing is taken from the heap.
const FEW: usize = 16;

/// Some rows of a projection, of one scope, and their update: `x` `[m, in_dim]` and `y` `[m, out_dim]`.
pub(crate) struct LoraRows<'a> {
    pub(crate) scope: Scope,
    pub(crate) update: &'a LoraUpdate,
    pub(crate) x: &'a [f32],
    pub(crate) y: &'a mut [f32],
}

/// A few of them.
pub(crate) type LoraList<'a> = SmallVec<[LoraRows<'a>; FEW]>;

impl LoraRows<'_> {
    fn rows(&self) -> usize {
        self.y.len() / self.update.dims.out_dim as usize
    }

    /// Multiplications of a row.
    fn row_products(&self) -> usize {
        let LoraDims { in_dim, rank, out_dim, .. } = self.update.dims;
        (in_dim as usize + out_dim as usize) * rank as usize
    }

    /// Takes the first rows off.
    fn split_off_front(&mut self, rows: usize) -> Self {
        let LoraDims { in_dim, out_dim, .. } = self.update.dims;
        let (x, x_rest) = self.x.split_at(rows * in_dim as usize);
        let (y, y_rest) = std::mem::take(&mut self.y).split_at_mut(rows * out_dim as usize);
        (self.x, self.y) = (x_rest, y_rest);
        Self { scope: self.scope, update: self.update, x, y }
    }
}

/// One thread's share of the rows, and how it went.
struct LoraThreadRows<'a, 'r> {
    worker: &'a mut Worker,
    delta: &'a mut Vec<f32>,
    pieces: LoraList<'r>,
    result: Result<(), EngineError>,
}

/// Who answers, and how sums are made.
#[derive(Clone, Copy)]
struct LoraKernel<'a> {
    snapshot: &'a RegistrySnapshot,
    slot: OpSlot,
    isa: Isa,
}

impl Kernels {
    /// `y += scale * (x A^T) B^T` for all rows, shared out over the threads where that pays: many rows
    /// of an update, and single rows of several.
    pub(crate) fn lora(
        &mut self,
        pool: &ThreadPool,
        isa: Isa,
        mut all: LoraList<'_>,
    ) -> Result<(), EngineError> {
        let Kernels { workers, deltas, pinned, .. } = self;
        let kernel = LoraKernel { snapshot: &pinned.snapshot, slot: pinned.lora()?, isa };
        let products: usize = all.iter().map(|rows| rows.rows() * rows.row_products()).sum();
        let threads = pool.threads().min(workers.len());
        if threads == 1 || products < SPLIT_PRODUCTS {
            return match (workers.first_mut(), deltas.first_mut()) {
                (Some(worker), Some(delta)) => {
                    all.iter_mut().try_for_each(|rows| kernel.add(worker, delta, rows))
                }
                _ => Ok(()),
            };
        }
        let mut shares: SmallVec<[LoraThreadRows<'_, '_>; FEW]> = SmallVec::new();
        let mut rest = all.into_iter().peekable();
        let mut done = 0;
        for (i, (worker, delta)) in workers.iter_mut().zip(deltas).enumerate().take(threads) {
            let mut pieces = LoraList::new();
            // The last thread takes whatever rounding has left.
            let end = if i + 1 == threads { usize::MAX } else { products * (i + 1) / threads };
            while let Some(rows) = rest.peek_mut() {
                let row = rows.row_products();
                let count =
                    (end.saturating_sub(done).saturating_add(row / 2) / row).min(rows.rows());
                if count == 0 {
                    break;
                }
                done += count * row;
                pieces.push(rows.split_off_front(count));
                if rows.rows() == 0 {
                    rest.next();
                }
            }
            shares.push(LoraThreadRows { worker, delta, pieces, result: Ok(()) });
        }
        pool.run_with(&mut shares, &|_, share: &mut LoraThreadRows<'_, '_>| {
            let LoraThreadRows { worker, delta, pieces, .. } = share;
            let mut pieces = pieces.iter_mut();
            share.result = pieces.try_for_each(|rows| kernel.add(worker, delta, rows));
        });
        shares.into_iter().try_for_each(|share| share.result)
    }
}

impl LoraKernel<'_> {
    /// Computes and adds some rows, a tile at a time.
    fn add(
        self,
        worker: &mut Worker,
        delta: &mut Vec<f32>,
        rows: &mut LoraRows<'_>,
    ) -> Result<(), EngineError> {
        let LoraUpdate { factors, dims, scale } = rows.update;
        let (in_dim, out_dim) = (dims.in_dim as usize, dims.out_dim as usize);
        let tile = (TILE / out_dim).max(1);
        let tiles = rows.x.chunks(tile * in_dim).zip(rows.y.chunks_mut(tile * out_dim));
        for (x, y) in tiles {
            let delta = room(delta, y.len());
            let dims = LoraDims { rows: (y.len() / out_dim) as u32, ..*dims };
            let call =
                OpCall::lora(Operand::f32(x), factors.all(), dims, *scale).within(rows.scope);
            worker.call(self.snapshot, self.slot, &call, bytemuck::cast_slice_mut(delta))?;
            ops::add(self.isa, y, delta)?;
        }
        Ok(())
    }
}
