//! What the file of an adapter says.

use std::collections::BTreeMap;

use crate::config::RopeLayout;
use crate::error::EngineError;
use crate::storage::Tensor;
use crate::tensors::Projection;

/// A factor of an update.
#[derive(Clone, Copy)]
pub(super) enum Factor {
    A,
    B,
}

/// The factors of one update, each with the name of its tensor.
#[derive(Default)]
pub(super) struct FactorPair {
    pub(super) a: Option<(String, Tensor)>,
    pub(super) b: Option<(String, Tensor)>,
    /// Its own alpha, where the file gives it one.
    pub(super) alpha: Option<f32>,
    /// The rank that the file says it has.
    pub(super) rank: Option<usize>,
}

/// What alpha is divided by.
#[derive(Clone, Copy)]
pub(super) enum Scaling {
    Rank,
    /// Rank-stabilised (arXiv 2312.03732).
    RankRoot,
    /// Updates are added as they are.
    None,
}

/// What a file says, before it meets a model.
pub(super) struct AdapterFile {
    /// What to call the file in messages.
    pub(super) origin: String,
    pub(super) name: String,
    /// That of updates without their own.
    pub(super) alpha: f32,
    pub(super) scaling: Scaling,
    /// The family that it is for, where the file says so.
    pub(super) architecture: Option<String>,
    /// The order in which the rows of queries and keys are.
    pub(super) layout: RopeLayout,
    pub(super) pairs: BTreeMap<(usize, Projection), FactorPair>,
}

impl AdapterFile {
    pub(super) fn damaged(&self, reason: String) -> EngineError {
        EngineError::AdapterDamaged { path: self.origin.clone(), reason }
    }

    pub(super) fn mismatch(&self, reason: String) -> EngineError {
        EngineError::AdapterMismatch { path: self.origin.clone(), reason }
    }

    /// Takes up a factor under the name of its tensor; the update that it belongs to.
    pub(super) fn insert(
        &mut self,
        layer: usize,
        target: Projection,
        factor: Factor,
        name: String,
        tensor: Tensor,
    ) -> &mut FactorPair {
        let pair = self.pairs.entry((layer, target)).or_default();
        match factor {
            Factor::A => pair.a = Some((name, tensor)),
            Factor::B => pair.b = Some((name, tensor)),
        }
        pair
    }
}
