//! A checked configuration.

use ruvllm_native::attention::AttnShape;

use super::layer::{Attention, LayerSpec, Norm};
use crate::error::EngineError;
use crate::tensors::ROPE_FACTORS;

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Elements `2i` and `2i + 1`: GGUF files of the llama family.
    Interleaved,
    /// Elements `i` and `i + rotated / 2`: GPT-NeoX order, all Hugging Face checkpoints.
    NeoX,
}

/// How rotation angles are stretched beyond the context of the first training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Position interpolation (arXiv 2306.15595): all angles divided by one factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK-aware: the base times `factor^(dims / (dims - 2))`, which keeps the highest frequency and
    /// divides the lowest by the factor.
    Ntk {
        /// What the lowest frequency is divided by.
        factor: f64,
    },
    /// NTK-aware for the sequence at hand: nothing up to `original_context`, and for a sequence of `n`
    /// times that a factor of `factor * n - (factor - 1)`. Sessions end at `original_context`, since keys
    /// that were turned before a sequence grew would have to differ from those turned after.
    DynamicNtk {
        /// How fast the base grows with the context.
        factor: f64,
        /// The context length before stretching.
        original_context: f64,
    },
    /// YaRN: high frequencies kept, low ones divided, and attention sharpened.
    Yarn(Yarn),
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

impl RopeScaling {
    /// The tokens that a model attends to with this scaling, where its file speaks of `context`:
    /// for YaRN that may be the length before stretching or the one after it.
    pub(super) fn stretched_context(&self, context: usize) -> usize {
        match self {
            RopeScaling::Yarn(Yarn { factor, original_context, .. }) => {
                context.max((factor * original_context) as usize)
            }
            _ => context,
        }
    }
}

/// YaRN (arXiv 2309.00071).
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// The divisor of low frequencies.
    pub factor: f64,
    /// The context length before stretching.
    pub original_context: f64,
    /// Pairs that turn more often than this in `original_context` are kept.
    pub beta_fast: f64,
    /// Pairs that turn less often than this in `original_context` are divided fully.
    pub beta_slow: f64,
    /// What cosine and sine are multiplied by, so that logits of attention grow by its square.
    pub attention_factor: f64,
    /// Whether the ramp between the two begins and ends at whole pairs, as reference
    /// implementations do.
    pub truncate: bool,
}

impl Yarn {
    /// YaRN with the paper's parameters.
    pub fn new(factor: f64, original_context: f64) -> Yarn {
        Yarn {
            factor,
            original_context,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: Yarn::temperature(factor, 1.0),
            truncate: true,
        }
    }

    /// `0.1 * weight * ln(factor) + 1`: with a weight of 1 the paper's root of the inverse
    /// temperature.
    pub(crate) fn temperature(factor: f64, weight: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
    }
}

/// Rotary position embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of angles; above 1.
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
    /// The family, as GGUF files name it, such as `llama`.
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
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The layers, in the order in which they are computed.
    pub layers: Vec<LayerSpec>,
    /// What the output projection reads the hidden states through.
    pub output_norm: Norm,
    /// Whether the output projection must be the embedding table, whatever the file holds.
    pub tied_embeddings: bool,
}

impl ModelConfig {
    /// Elements of all query heads of a token.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// What attention of a layer is called with.
    pub(crate) fn attention_shape(&self, attention: &Attention, deterministic: bool) -> AttnShape {
        AttnShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: attention.scale,
            window: attention.window,
            deterministic,
        }
    }

    /// Elements of all key heads of a token; values have as many.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Checks what the decoder relies on.
    pub(super) fn validate(&self, origin: &str) -> Result<(), EngineError> {
        let refuse = |key: &str, value: String, reason: &str| {
            Err(EngineError::ConfigInvalid {
                path: origin.to_owned(),
                key: key.to_owned(),
                value,
                reason: reason.to_owned(),
            })
        };
        for (key, value, most) in [
            ("number of layers", self.layers.len(), MAX_LAYERS),
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
        if !(rope.theta.is_finite() && rope.theta > 1.0) {
            return refuse("rope base", rope.theta.to_string(), "must be a number above 1");
        }
        let norms = self.layers.iter().flat_map(|layer| [layer.attn_norm, layer.ffn_norm]);
        for Norm { eps, .. } in norms.chain([self.output_norm]) {
            if !(eps.is_finite() && eps >= 0.0) {
                return refuse("norm epsilon", eps.to_string(), "must not be negative");
            }
        }
        match &rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } | RopeScaling::Ntk { factor } => {
                if !positive(*factor) {
                    return refuse("rope scaling factor", factor.to_string(), "must be positive");
                }
            }
            RopeScaling::DynamicNtk { factor, original_context } => {
                if !(factor.is_finite() && *factor >= 1.0) {
                    return refuse("rope scaling factor", factor.to_string(), "must be at least 1");
                }
                if !positive(*original_context) {
                    let value = original_context.to_string();
                    return refuse("context before rope scaling", value, "must be positive");
                }
            }
            RopeScaling::Yarn(yarn) => {
                let Yarn { factor, original_context, beta_fast, beta_slow, .. } = yarn;
                let all = [factor, original_context, beta_fast, beta_slow, &yarn.attention_factor];
                if !all.into_iter().all(|x| positive(*x)) || beta_fast <= beta_slow {
                    let value = format!("{yarn:?}");
                    return refuse("rope scaling", value, "its factors contradict each other");
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
                    return refuse(ROPE_FACTORS, value, reason);
                }
            }
        }
        if self.layers.iter().any(|layer| layer.attention.window == Some(0)) {
            return refuse("sliding window", "0".to_owned(), "must be at least 1");
        }
        Ok(())
    }
}

/// More layers than any known model has; bounds what a hostile file can make us allocate.
pub(super) const MAX_LAYERS: usize = 1 << 12;
