//! What a decoder holds, and the room that a step needs of it.

use std::ops::Range;

use ruvllm_host::Team;
use ruvllm_native::attention::{AttnSequence, KvSegment};
use ruvllm_native::gemm::Activations;

use super::chunk::Chunk;
use crate::config::ModelConfig;
use crate::error::EngineError;
use crate::kernels::{Kernels, RowScopes};
use crate::kv::{KvKernels, KvStore};
use crate::memory::{Exhausted, Reservation};
use crate::model::Model;
use crate::rope::RopeTables;

/// Rows of logits that are computed at a time; bounds memory for large vocabularies.
pub(super) const LOGIT_ROWS: usize = 32;

/// Working memory of a decoder and the kernels it calls.
pub(crate) struct Decoder {
    pub(crate) kernels: Kernels,
    /// The blocks of all sequences.
    pub(crate) kv: KvStore,
    pub(super) rope_tables: RopeTables,
    /// The position in its sequence of each row of the step.
    pub(super) positions: Vec<usize>,
    pub(super) scopes: StepScopes,
    pub(super) buffers: Buffers,
    pub(super) lists: Lists,
    /// What the buffers count for in the memory pool.
    pub(super) scratch: Reservation,
}

/// Whose the rows of a step are.
#[derive(Default)]
pub(super) struct StepScopes {
    /// Of all rows.
    pub(super) all: RowScopes,
    /// Of the rows that matter after the last layer's keys and values.
    pub(super) wanted: RowScopes,
    /// Of the rows whose logits are wanted.
    pub(super) logits: RowScopes,
}

impl StepScopes {
    fn set(&mut self, chunks: &[Chunk<'_>]) {
        let Self { all, wanted, logits } = self;
        [&mut *all, &mut *wanted, &mut *logits].into_iter().for_each(RowScopes::clear);
        for chunk in chunks {
            let (scope, rows) = (chunk.table.isolation, chunk.wanted().len());
            all.push(chunk.tokens.len(), scope);
            wanted.push(rows, scope);
            logits.push(if chunk.hidden.is_none() { rows } else { 0 }, scope);
        }
    }
}

/// Lists of one layer, empty in between: kept so that a decoded token allocates nothing.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) segments: Vec<KvSegment<'static>>,
    pub(super) runs: Vec<Run>,
    pub(super) sequences: Vec<AttnSequence<'static>>,
    pub(super) tokens: Vec<u32>,
}

/// Queries of a chunk that read the same versions of all blocks.
pub(super) struct Run {
    /// Their rows in the step.
    pub(super) rows: Range<usize>,
    /// The first of their rows among those that the layer needs.
    pub(super) to: usize,
    /// Where their segments end in the list.
    pub(super) segments: usize,
}

/// Activations, each `[rows, ..]` of the widest step so far.
#[derive(Default)]
pub(super) struct Buffers {
    /// Hidden states `[m, dim]`.
    pub(super) x: Vec<f32>,
    /// Queries `[m, q_dim]`, then keys `[m, kv_dim]`, before rotation.
    pub(super) raw: Vec<f32>,
    /// Queries, keys, then values `[m, kv_dim]`, as attention and the cache take them.
    pub(super) qkv: Vec<f32>,
    /// Attention output `[m, q_dim]`.
    pub(super) attn_out: Vec<f32>,
    /// What a block adds to the hidden states `[m, dim]`, which the next norm does on its way.
    pub(super) delta: Vec<f32>,
    pub(super) gate: Vec<f32>,
    pub(super) up: Vec<f32>,
    /// A norm, or a gated unit, where adapters read it or it is asked for `[m, dim]` or `[m, ffn]`.
    pub(super) plain: Vec<f32>,
    pub(super) logits: Vec<f32>,
    pub(super) activations: Activations,
}

/// Receives the index of a chunk, the index of a token in it, and the token's logits `[vocab]`.
pub(crate) type EachLogits<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

impl Decoder {
    /// `activations` has the settings of products, and `scratch` counts the working memory.
    pub(crate) fn new(
        kernels: Kernels,
        kv: KvStore,
        rope_tables: RopeTables,
        activations: Activations,
        scratch: Reservation,
    ) -> Decoder {
        Decoder {
            kernels,
            kv,
            rope_tables,
            positions: Vec::new(),
            scopes: StepScopes::default(),
            buffers: Buffers { activations, ..Buffers::default() },
            lists: Lists::default(),
            scratch,
        }
    }

    /// Bytes of working memory for steps of up to `rows` rows, of which at most [`LOGIT_ROWS`] have
    /// their logits computed at a time: the buffers, and activations of 8 bits with their scales.
    pub(crate) fn scratch_bytes(config: &ModelConfig, vocab: usize, rows: usize) -> usize {
        let ModelConfig { dim, ffn_dim, .. } = config;
        let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
        let heads = (q_dim + kv_dim) + (q_dim + 2 * kv_dim) + q_dim;
        let widest = ffn_dim.max(dim);
        let row = size_of::<f32>() * (2 * dim + heads + 2 * ffn_dim + widest) + 2 * widest;
        rows * row + LOGIT_ROWS.min(rows) * vocab * size_of::<f32>()
    }

    /// Gives each row of the step its position, and makes room for keys, values and working memory.
    pub(super) fn allocate(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
    ) -> Result<(), EngineError> {
        self.positions.clear();
        self.lists.segments.reserve(chunks.iter().map(|chunk| chunk.table.room()).sum());
        let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool: team.pool };
        for chunk in chunks.iter_mut() {
            self.kv.extend(chunk.table, chunk.tokens.len(), &mut kv_kernels)?;
            let end = chunk.table.computed + chunk.tokens.len();
            self.rope_tables.reserve(end);
            self.positions.extend(chunk.table.computed..end);
        }
        self.scopes.set(chunks);
        let needed = Decoder::scratch_bytes(model.config(), model.vocab(), self.positions.len());
        if needed > self.scratch.bytes() && self.scratch.resize(needed).is_err() {
            self.kv.give_up_ahead();
            self.scratch.resize(needed).map_err(|Exhausted| self.kv.exhausted(needed))?;
        }
        Ok(())
    }
}
