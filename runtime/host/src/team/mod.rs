//! Team operations: products with weights, gathering of embeddings, attention. One call is computed by all
//! threads of a step together.
//!
//! Row operations are called by each thread for its own rows. What takes most of a step cannot be: a product reads
//! weights that are prepared once into whatever layout its provider reads fastest, and only the provider knows how
//! to split the work. So a provider is resolved when a step pins its snapshot, prepares what it needs, and is called once
//! per product with the whole pool. It may be code of this program, a plugin that gets the same as pointers, or a
//! sandboxed kernel whose instance `t` runs on thread `t` and holds its share of the rows as constants.
//!
//! Providers compete for an operation like kernels: they are pinned, timed, counted, checked on a sample and taken out of
//! service in the same way.

mod native;

use crate::OpKey;
use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnSequence, AttnShape};
use ruvllm_native::gemm::{ActForm, Activations, MatMut, Weights};
use ruvllm_native::{Isa, ThreadPool};
use std::any::Any;
use std::sync::Arc;

pub(crate) use native::{Native, native_weights, natives};

/// What a step computes on.
#[derive(Clone, Copy)]
pub struct Team<'a> {
    /// The threads.
    pub pool: &'a ThreadPool,
    /// The instructions that native code uses.
    pub isa: Isa,
}

/// Multiplies by matrices of one type of weights.
pub trait MatmulProvider: Send + Sync {
    /// Bytes that [`prepare`](Self::prepare) takes for a matrix, for as long as it is multiplied by: 0 where
    /// the weights are read as the file has them. `None` where the provider does not take such a matrix with
    /// these instructions.
    fn prepared_bytes(&self, weights: &Weights<'_>, isa: Isa) -> Option<usize>;

    /// Takes a matrix up, in whatever layout it is read fastest.
    ///
    /// # Errors
    /// Why it cannot be multiplied by.
    fn prepare(
        &self,
        weights: &Weights<'_>,
        team: Team<'_>,
    ) -> Result<Box<dyn PreparedMatmul>, String>;

    /// The form that products of `rows` rows read of activations with the settings of `x`.
    fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForm;
}

/// A matrix `[n, k]` as a provider has taken it up.
pub trait PreparedMatmul: Any + Send + Sync {
    /// `y[m, n] = x[m, k] w[n, k]^T`, on all threads. `weights` is the matrix that was taken up; `x` has the
    /// form that the provider reads.
    ///
    /// # Errors
    /// `y` may then have a part of the product.
    fn run(
        &self,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), String>;
}

/// Gathers rows of tables of one type as f32.
pub trait EmbedProvider: Send + Sync {
    /// Bytes that [`prepare`](Self::prepare) takes for a table, as for [`MatmulProvider::prepared_bytes`]: 0 where
    /// rows are read as the file has them.
    fn prepared_bytes(&self, table: &Weights<'_>, isa: Isa) -> Option<usize>;

    /// Takes a table up.
    ///
    /// # Errors
    /// Why its rows cannot be gathered.
    fn prepare(
        &self,
        table: &Weights<'_>,
        team: Team<'_>,
    ) -> Result<Box<dyn PreparedEmbed>, String>;
}

/// A table `[vocab, dim]` as a provider has taken it up.
pub trait PreparedEmbed: Send + Sync {
    /// Row `tokens[i]` of the table to row `i` of `y`, `[tokens, dim]`. `table` is the one that was taken up, and
    /// the tokens are in it.
    ///
    /// # Errors
    /// `y` may then have some of the rows.
    fn run(
        &self,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        team: Team<'_>,
    ) -> Result<(), String>;
}

/// Attention over a cache in any of its types and layouts.
pub trait AttentionProvider: Send + Sync {
    /// What one caller computes with.
    fn open(&self) -> Box<dyn AttentionSession>;
}

/// An attention provider with the working memory of one caller.
pub trait AttentionSession: Send {
    /// `y = softmax(scale * q k^T) v` for the queries of each sequence over its own cache, as
    /// [`ruvllm_native::attention::attention`] defines it; queries lie `heads * head_dim` elements apart.
    ///
    /// # Errors
    /// Some of the outputs may then be written.
    fn run(
        &mut self,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        team: Team<'_>,
    ) -> Result<(), String>;
}

/// Who computes a team operation.
#[derive(Clone)]
pub enum Provider {
    /// Products with weights of a type.
    Matmul(DType, Arc<dyn MatmulProvider>),
    /// Rows of a table of a type.
    Embed(DType, Arc<dyn EmbedProvider>),
    /// Attention.
    Attention(Arc<dyn AttentionProvider>),
}

/// One of two providers of a team operation that are compared.
#[derive(Clone, Copy)]
pub struct ComparedProvider<'a> {
    /// Its code.
    pub provider: &'a Provider,
    /// Its hash, by which what it has prepared is found.
    pub hash: &'a str,
    /// Whether it is the host's own. What that makes of weights takes the place of the file's bytes, and no budget
    /// counts it.
    pub is_native: bool,
}

/// A matrix as a provider has taken it up.
#[derive(Clone)]
pub(crate) enum Prepared {
    /// To multiply by.
    Matmul(Arc<dyn MatmulProvider>, Arc<dyn PreparedMatmul>),
    /// To gather rows of.
    Embed(Arc<dyn PreparedEmbed>),
}

impl Provider {
    /// Bytes that it takes to take a matrix up; `None` where it does not, as attention never does.
    pub(crate) fn prepared_bytes(&self, matrix: &Weights<'_>, isa: Isa) -> Option<usize> {
        match self {
            Provider::Matmul(_, provider) => provider.prepared_bytes(matrix, isa),
            Provider::Embed(_, provider) => provider.prepared_bytes(matrix, isa),
            Provider::Attention(_) => None,
        }
    }

    /// Takes a matrix up.
    pub(crate) fn prepare(&self, matrix: &Weights<'_>, team: Team<'_>) -> Result<Prepared, String> {
        match self {
            Provider::Matmul(_, provider) => {
                let prepared = provider.prepare(matrix, team)?.into();
                Ok(Prepared::Matmul(provider.clone(), prepared))
            }
            Provider::Embed(_, provider) => {
                Ok(Prepared::Embed(provider.prepare(matrix, team)?.into()))
            }
            Provider::Attention(_) => Err("attention takes no matrix up".to_owned()),
        }
    }

    /// The operation that it competes for.
    pub fn key(&self) -> OpKey {
        match self {
            Provider::Matmul(weights, _) => OpKey::matmul(*weights),
            Provider::Embed(table, _) => OpKey::embed(*table),
            Provider::Attention(_) => OpKey::attention(),
        }
    }
}

/// Providers that a host application brings: they are staged, tried, activated, watched and taken back as a pack is.
/// They are its own code, which nothing keeps from reaching all of the process.
pub struct ProviderPack {
    pub(crate) name: String,
    pub(crate) version: semver::Version,
    pub(crate) providers: Vec<(String, Provider)>,
}

impl ProviderPack {
    /// An empty pack. Packs of one name replace each other; where the code differs, so must the version.
    pub fn new(name: impl Into<String>, version: semver::Version) -> Self {
        Self { name: name.into(), version, providers: Vec::new() }
    }

    /// Adds a provider by an id, such as `matmul_q4_0`.
    #[must_use]
    pub fn with(mut self, id: impl Into<String>, provider: Provider) -> Self {
        self.providers.push((id.into(), provider));
        self
    }
}
