//! The decoder: a pre-norm transformer that computes what the model's [`LayerSpec`](crate::config::LayerSpec)s say.
//!
//! Per layer: norm, query/key/value projections, RoPE, KV store, attention, output projection and
//! residual; norm, gate and up projections, activation, down projection and residual. These are
//! operations of the registry ([`crate::kernels`]); residuals, biases and the Hadamard rotation of
//! heads are computed natively. Buffers grow to the largest step seen and are kept, so that a decoded
//! token allocates nothing, unless the sample that the host checks draws it: the buffers of a check
//! grow with the cache.
//!
//! A step computes chunks of one or more sequences. Its rows are the tokens of all chunks, one
//! after another; everything but the cache and what reads it ([`attention`]) treats them alike,
//! so that the weights are read once for all sequences, and the updates of their adapters
//! ([`adapters`]), which each adds to its own rows. A step begins in [`Decoder::forward`], which has the sequences'
//! blocks got to where they can be read ([`prepare`]) and all layers computed ([`layers`]).

mod adapters;
mod attention;
mod chunk;
mod forward;
mod layers;
mod prepare;
mod rows;
mod state;

pub(crate) use chunk::Chunk;
pub(crate) use state::{Decoder, EachLogits};
