//! What a layer of the decoder computes.
//!
//! A layer is attention and then a feed-forward network; each reads the hidden states through a norm and
//! adds to them. Whatever differs between models is a value here that the decoder follows.

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerSpec {
    /// What attention reads the hidden states through.
    pub attn_norm: Norm,
    /// Attention, over heads of the model's size.
    pub attention: Attention,
    /// What the feed-forward network reads the hidden states through.
    pub ffn_norm: Norm,
    /// What the feed-forward network makes of its gate and up projections.
    pub activation: Activation,
    /// The bias of the gate, up and down projections.
    pub ffn_bias: Bias,
}

/// A norm of hidden states, with a weight for each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The formula.
    pub kind: NormKind,
    /// Keeps the formula from dividing by zero; not negative.
    pub eps: f32,
}

/// The formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm (arXiv 1910.07467): `x / sqrt(mean(x^2) + eps) * weight`.
    Rms,
}

/// Attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The number of positions that a token sees, itself included, or `None` for all.
    pub window: Option<usize>,
    /// What scores are multiplied by before the softmax.
    pub scale: f32,
    /// The bias of the query, key and value projections.
    pub qkv_bias: Bias,
    /// The bias of the output projection.
    pub output_bias: Bias,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// If the checkpoint holds one.
    IfPresent,
    /// Always: a checkpoint without it is incomplete.
    Required,
    /// Never: a checkpoint that holds one contradicts its configuration.
    Absent,
}

/// What stands between the projections of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// SwiGLU (arXiv 2002.05202): `silu(gate) * up`.
    SwiGlu,
}
