//! What adapters add to the projections of a layer.
//!
//! The rows of a step are those of its chunks, one after another, so the rows of an adapter, and of a
//! scope, are a few runs. Each run is a call of the `lora_apply` kernel, or several, on the same input as the
//! projection; rows without an adapter cost nothing.

use std::ops::Range;

use ruvllm_host::{Scope, Team};

use super::chunk::{Chunk, Layer, queries};
use crate::adapter::Adapter;
use crate::error::EngineError;
use crate::kernels::{Kernels, LoraList, LoraRows};
use crate::tensors::Projection;

/// The adapters of a layer's rows.
#[derive(Clone, Copy)]
pub(super) struct LayerAdapters<'a, 'c> {
    chunks: &'a [Chunk<'c>],
    layer: usize,
    /// Whether rows are only those whose logits are wanted.
    wanted: bool,
}

impl<'a, 'c> LayerAdapters<'a, 'c> {
    /// Of the projections before attention, which all rows have.
    pub(super) fn inputs(chunks: &'a [Chunk<'c>], layer: Layer<'_>) -> LayerAdapters<'a, 'c> {
        LayerAdapters { chunks, layer: layer.index, wanted: false }
    }

    /// Of the projections from attention's output on, which in the last layer only the wanted rows
    /// have.
    pub(super) fn outputs(chunks: &'a [Chunk<'c>], layer: Layer<'_>) -> LayerAdapters<'a, 'c> {
        LayerAdapters { chunks, layer: layer.index, wanted: layer.last }
    }

    /// Whether rows are only those whose logits are wanted.
    pub(super) fn of_wanted(self) -> bool {
        self.wanted
    }

    /// Whether any row has one.
    pub(super) fn any(self) -> bool {
        self.chunks.iter().any(|chunk| chunk.table.options.adapter.is_some())
    }

    /// Adds to projections of `x` `[m, in]`, each `[m, out]`, what the adapters of the rows make of
    /// `x`, which is not read where there is none.
    pub(super) fn add<const N: usize>(
        self,
        team: Team<'_>,
        kernels: &mut Kernels,
        x: &[f32],
        projections: [(Projection, &mut [f32]); N],
    ) -> Result<(), EngineError> {
        let mut all = LoraList::new();
        for (target, mut rest) in projections {
            let mut at = 0;
            for (rows, (adapter, scope)) in self.runs() {
                let Some(update) = adapter.update(self.layer, target) else { continue };
                let of = |dim: u32| rows.start * dim as usize..rows.end * dim as usize;
                let Range { start, end } = of(update.dims.out_dim);
                let (y, after) = rest[start - at..].split_at_mut(end - start);
                (rest, at) = (after, end);
                all.push(LoraRows { scope, update, x: &x[of(update.dims.in_dim)], y });
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        kernels.lora(team.pool, team.isa, all)
    }

    /// The rows of each adapter and scope, neighbours together.
    fn runs(self) -> impl Iterator<Item = (Range<usize>, (&'a Adapter, Scope))> {
        let rows = queries(self.chunks, self.wanted).map(|queries| {
            let rows = queries.to..queries.to + queries.rows.len();
            let table = &*queries.chunk.table;
            (rows, (table.options.adapter.as_ref(), table.isolation))
        });
        let mut rows = rows.peekable();
        let runs = std::iter::from_fn(move || {
            let (mut run, whose) = rows.next()?;
            while let Some((next, _)) = rows.next_if(|(_, other)| *other == whose) {
                run.end = next.end;
            }
            Some((run, whose))
        });
        runs.filter_map(|(run, (adapter, scope))| Some((run, (adapter?, scope))))
    }
}
