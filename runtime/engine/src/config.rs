//! What a model is made of: one configuration for every family.
//!
//! Families differ in data only: where a value is found in the file, the order of rotated pairs,
//! which projections have a bias. Everything is checked here once, so that the decoder can rely on
//! it: sizes are not zero, query heads divide into KV heads, a head has 8 to 256 elements.

mod from_gguf;
mod from_hf;

use crate::error::EngineError;

pub use from_gguf::from_gguf;
pub use from_hf::from_hf;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Elements `2i` and `2i + 1`: GGUF files of the llama family.
    Interleaved,
    /// Elements `i` and `i + rotated / 2`: GPT-NeoX order, all Hugging Face checkpoints.
    NeoX,
}

/// How rotation angles are stretched beyond the trained context.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All angles divided by one factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a smooth ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided fully.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context length before stretching.
        original_context: f64,
    },
    /// One divisor per rotated pair, as the tensor `rope_freqs.weight` gives them.
    Factors(Vec<f32>),
}

/// Rotary position embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of angles.
    pub theta: f64,
    /// Elements of a head that are rotated; even, at most the head size.
    pub dims: usize,
    /// Which elements form a pair.
    pub layout: RopeLayout,
    /// Stretching.
    pub scaling: RopeScaling,
}

/// A checked model configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family: `llama` or `qwen2`.
    pub architecture: String,
    /// Elements of a hidden state.
    pub dim: usize,
    /// Elements of the gated unit's inner state.
    pub ffn_dim: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head, 8 to 256.
    pub head_dim: usize,
    /// Tokens that the model was made to attend to.
    pub context: usize,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Per layer, the number of positions a token sees (itself included), or `None` for all.
    pub windows: Vec<Option<usize>>,
    /// Whether the query, key and value projections must have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection must be the embedding table, whatever the file holds.
    pub tied_embeddings: bool,
}

impl ModelConfig {
    /// Number of decoder layers.
    pub fn layers(&self) -> usize {
        self.windows.len()
    }

    /// Elements of all query heads of a token.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads of a token; values have as many.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks what the decoder relies on.
    fn validate(&self, origin: &str) -> Result<(), EngineError> {
        let refuse = |key: &str, value: String, reason: &str| {
            Err(EngineError::ConfigInvalid {
                path: origin.to_owned(),
                key: key.to_owned(),
                value,
                reason: reason.to_owned(),
            })
        };
        for (key, value, most) in [
            ("number of layers", self.layers(), MAX_LAYERS),
            ("hidden size", self.dim, 1 << 20),
            ("feed-forward size", self.ffn_dim, 1 << 22),
            ("number of heads", self.heads, 1 << 12),
            ("number of KV heads", self.kv_heads, 1 << 12),
            ("context length", self.context, 1 << 30),
        ] {
            if value == 0 || value > most {
                return refuse(key, value.to_string(), "out of the range of any known model");
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let value = format!("{} query heads over {} KV heads", self.heads, self.kv_heads);
            return refuse("number of KV heads", value, "query heads must divide evenly");
        }
        if !(8..=256).contains(&self.head_dim) {
            return refuse("head size", self.head_dim.to_string(), "supported are 8 to 256");
        }
        let rope = &self.rope;
        if rope.dims == 0 || rope.dims > self.head_dim || !rope.dims.is_multiple_of(2) {
            let reason = "must be even and within the head size";
            return refuse("rotated dimensions", rope.dims.to_string(), reason);
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !positive(rope.theta) {
            return refuse("rope base", rope.theta.to_string(), "must be a positive number");
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return refuse("norm epsilon", self.norm_eps.to_string(), "must not be negative");
        }
        match &rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                if !positive(*factor) {
                    return refuse("rope scaling factor", factor.to_string(), "must be positive");
                }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let all = [factor, low_freq_factor, high_freq_factor, original_context];
                if !all.into_iter().all(|x| positive(*x)) || high_freq_factor <= low_freq_factor {
                    let value = format!("{:?}", rope.scaling);
                    return refuse("rope scaling", value, "its factors contradict each other");
                }
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != rope.dims / 2 || !factors.iter().all(|&f| positive(f.into())) {
                    let value = format!("{} factors", factors.len());
                    let reason = "one positive factor per rotated pair is needed";
                    return refuse("rope_freqs.weight", value, reason);
                }
            }
        }
        if self.windows.contains(&Some(0)) {
            return refuse("sliding window", "0".to_owned(), "must be at least 1");
        }
        Ok(())
    }
}

/// More layers than any known model has; bounds what a hostile file can make us allocate.
const MAX_LAYERS: usize = 1 << 12;
