//! A step as its callers see it: sequences are made ready, computed and put in order.

use ruvllm_host::Team;

use super::chunk::Chunk;
use super::state::{Decoder, EachLogits};
use crate::error::EngineError;
use crate::model::Model;

impl Decoder {
    /// Computes a step: logits or hidden states of the chunks' wanted tokens, and the keys and values of
    /// all. First comes whatever the sequences lack, `batch` tokens at once of what is computed again.
    ///
    /// # Errors
    /// What the memory or a kernel refuses, and [`EngineError::NonFiniteLogits`]. Every sequence is then
    /// as it was.
    pub(crate) fn forward(
        &mut self,
        team: Team<'_>,
        model: &Model,
        chunks: &mut [Chunk<'_>],
        batch: usize,
        each: &mut EachLogits<'_>,
    ) -> Result<(), EngineError> {
        self.load_blocks(team, model, chunks, batch)?;
        let ready = self.attach_prefixes(team, model, chunks);
        let computed = ready.and_then(|()| self.step(team, model, chunks, each));
        for chunk in chunks {
            if computed.is_err() {
                let len = chunk.table.len() - chunk.skipped;
                chunk.table.truncate(len);
            } else {
                self.settle(team, chunk.table, chunk.tokens.len());
            }
        }
        computed
    }
}
