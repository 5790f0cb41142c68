//! What comes before and after the layers of a step: the sequences' blocks.
//!
//! Before, blocks that were spilled are read back, tokens whose blocks are lost are computed again, and
//! beginnings that others have computed are attached. After, blocks that are full are put in order.

use ruvllm_host::{Scope, Team};

use super::attention::{hadamard_heads, rope_rows};
use super::chunk::Chunk;
use super::state::Decoder;
use crate::error::EngineError;
use crate::kernels::Kernels;
use crate::kv::{KvKernels, KvTable};
use crate::model::Model;

impl Decoder {
    /// Gets the blocks of a step's sequences into memory, computing what is lost again, `batch` tokens at
    /// once.
    pub(super) fn load_blocks(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        batch: usize,
    ) -> Result<(), EngineError> {
        // All are pinned before room is made for one.
        self.kv.begin(&self.kernels);
        for chunk in chunks.iter() {
            self.kv.touch(chunk.table);
        }
        let mut chunks = chunks.iter_mut();
        chunks.try_for_each(|chunk| self.catch_up(team, model, chunk.table, batch))
    }

    /// Makes endless sequences forget what is in the way of their chunks, and leaves out of these what
    /// others have computed.
    pub(super) fn attach_prefixes(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
    ) -> Result<(), EngineError> {
        for chunk in chunks {
            self.shift_context(team, model, chunk.table, chunk.tokens.len())?;
            let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool: team.pool };
            let found = self.kv.attach(chunk.table, &chunk.tokens[..chunk.from], &mut kv_kernels);
            chunk.skip(found);
        }
        Ok(())
    }

    /// Attaches to a sequence what others have computed of `tokens`, a prompt but for its last with which it goes on, and
    /// gives how many of them that holds. Blocks of the last step's sequences stay where they are.
    pub(crate) fn adopt(&mut self, team: Team<'_>, table: &mut KvTable, tokens: &[u32]) -> usize {
        self.kv.refresh(&self.kernels);
        self.kv.touch(table);
        // The next turn of a chat may part from this one where the answer begins.
        if !tokens.is_empty() {
            table.expect_parting(table.computed + tokens.len() + 1);
        }
        let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool: team.pool };
        self.kv.adopt(table, tokens, &mut kv_kernels).unwrap_or(0)
    }

    /// Gets all of a sequence's blocks into memory.
    pub(crate) fn load_sequence(
        &mut self,
        team: Team<'_>,
        model: &Model,
        table: &mut KvTable,
        batch: usize,
    ) -> Result<(), EngineError> {
        self.kv.begin(&self.kernels);
        self.kv.touch(table);
        self.catch_up(team, model, table, batch)
    }

    /// Reads a sequence's spilled blocks back, and computes what was evicted again.
    fn catch_up(
        &mut self,
        team: Team<'_>,
        model: &Model,
        table: &mut KvTable,
        batch: usize,
    ) -> Result<(), EngineError> {
        let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool: team.pool };
        self.kv.restore(table, &mut kv_kernels)?;
        while table.computed < table.len() {
            let rest = table.tokens[table.computed..].to_vec();
            let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool: team.pool };
            let found = self.kv.attach(table, &rest, &mut kv_kernels);
            let tokens = &rest[found..(found + batch).min(rest.len())];
            let (mut last, from) = (Vec::new(), tokens.len());
            let (table, last) = (&mut *table, &mut last);
            let chunk = Chunk { table, last, tokens, from, skipped: 0, hidden: None };
            self.step(team, model, &mut [chunk], &mut |_, _, _| ())?;
            self.settle(team, table, tokens.len());
        }
        Ok(())
    }

    /// Makes an endless sequence forget tokens where `extra` more do not fit. What is forgotten stays so
    /// also where the step then fails.
    fn shift_context(
        &mut self,
        team: Team<'_>,
        model: &Model,
        table: &mut KvTable,
        extra: usize,
    ) -> Result<(), EngineError> {
        let Some(range) = self.kv.slide_range(table, extra) else { return Ok(()) };
        let Team { pool, .. } = team;
        let config = model.config();
        let shape = rope_rows(config, config.kv_heads);
        let angles = self.rope_tables.back(range.len);
        let rotates = self.kv.rotates();
        let mut turned = Vec::new();
        let mut rerotate = |kernels: &mut Kernels, scope: Scope, rows: &mut [f32]| {
            if rotates {
                hadamard_heads(team, rows, config.head_dim)?;
            }
            turned.resize(rows.len(), 0.0);
            kernels.rope_alike(pool, scope, rows, &angles, &shape, &mut turned)?;
            rows.copy_from_slice(&turned);
            if rotates {
                hadamard_heads(team, rows, config.head_dim)?;
            }
            Ok(())
        };
        let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool };
        self.kv.forget_tokens(table, range, &mut rerotate, &mut kv_kernels)
    }

    /// Puts a sequence's blocks in order. A kernel that fails here has left the block as it was, so the
    /// sequence is whole, only larger than it could be.
    pub(super) fn settle(&mut self, team: Team<'_>, table: &mut KvTable, added: usize) {
        let mut kv_kernels = KvKernels { kernels: &mut self.kernels, pool: team.pool };
        let _ = self.kv.settle(table, added, &mut kv_kernels);
    }
}
