//! What adapters add to the projections of a layer.
//!
//! The rows of a step are those of its chunks, one after another, so the rows of an adapter are a few
//! runs. Each run is a call of the `lora_apply` kernel on the same input as the projection; rows
//! without an adapter cost nothing.

use std::ops::Range;

use super::attention::queries;
use super::{Chunk, Machine, add};
use crate::adapter::{Adapter, Target};
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::memory::room;

/// The adapters of a layer's rows.
#[derive(Clone, Copy)]
pub(super) struct Adapted<'a, 'c> {
    chunks: &'a [Chunk<'c>],
    layer: usize,
    /// Whether rows are only those whose logits are wanted.
    wanted: bool,
}

impl<'a, 'c> Adapted<'a, 'c> {
    /// Of the projections before attention, which all rows have.
    pub(super) fn inputs(chunks: &'a [Chunk<'c>], layer: usize) -> Adapted<'a, 'c> {
        Adapted { chunks, layer, wanted: false }
    }

    /// Of the projections from attention's output on, which in the last of `layers` only the wanted
    /// rows have.
    pub(super) fn outputs(chunks: &'a [Chunk<'c>], layer: usize, layers: usize) -> Adapted<'a, 'c> {
        Adapted { chunks, layer, wanted: layer + 1 == layers }
    }

    /// Adds to `y` `[m, out]`, a projection of `x` `[m, in]`, what the adapters of the rows make of
    /// `x`; `delta` is memory for as much as `y`.
    pub(super) fn add(
        self,
        machine: Machine<'_>,
        kernels: &mut Kernels,
        target: Target,
        x: &[f32],
        y: &mut [f32],
        delta: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        for (rows, adapter) in self.runs() {
            let Some(update) = adapter.update(self.layer, target) else { continue };
            let of = |dim: u32| rows.start * dim as usize..rows.end * dim as usize;
            let y = &mut y[of(update.dims.out_dim)];
            let delta = room(delta, y.len());
            kernels.lora(machine.pool, &x[of(update.dims.in_dim)], update, delta)?;
            add(machine, y, delta)?;
        }
        Ok(())
    }

    /// The rows of each adapter, neighbours together.
    fn runs(self) -> impl Iterator<Item = (Range<usize>, &'a Adapter)> {
        let rows = queries(self.chunks, self.wanted).map(|queries| {
            let rows = queries.to..queries.to + queries.rows.len();
            (rows, queries.chunk.table.standing.adapter.as_ref())
        });
        let mut rows = rows.peekable();
        let runs = std::iter::from_fn(move || {
            let (mut run, adapter) = rows.next()?;
            while let Some((next, _)) = rows.next_if(|(_, other)| *other == adapter) {
                run.end = next.end;
            }
            Some((run, adapter))
        });
        runs.filter_map(|(run, adapter)| Some((run, adapter?)))
    }
}
