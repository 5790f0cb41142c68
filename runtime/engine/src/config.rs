//! What a model is made of: its sizes, and a [`LayerSpec`] for each of its layers.
//!
//! A family is a row of a table (`family`), which turns a file's metadata into a configuration; what
//! computes is driven by that alone. Everything is checked here once, so that the decoder can rely on
//! it: sizes are not zero, query heads divide into KV heads, a head has 8 to 256 elements.

mod family;
mod from_gguf;
mod from_hf;
mod identity;
mod layer;
mod model;

pub(crate) use family::Family;
pub use from_gguf::from_gguf;
pub use from_hf::from_hf;
pub use layer::{Activation, Attention, Bias, LayerSpec, Norm, NormKind};
pub use model::{ModelConfig, RopeConfig, RopeLayout, RopeScaling, Yarn};
