//! The families of models that the engine runs: what a checkpoint of each is, as data.
//!
//! A row says what the metadata of a file leaves unsaid. [`from_gguf`](super::from_gguf) and
//! [`from_hf`](super::from_hf) turn it and the metadata into a [`LayerSpec`] per layer; nothing after
//! them knows a family. How tensors are called is in [`crate::tensors`].

use super::layer::{Activation, Attention, Bias, LayerSpec, Norm, NormKind};
use super::model::RopeLayout;
use crate::error::EngineError;

/// What the checkpoints of a family have in common.
pub(crate) struct Family {
    /// Its `general.architecture` in GGUF files, and its name in messages.
    pub(crate) architecture: &'static str,
    /// Its `model_type`s in `config.json`.
    config_classes: &'static [ConfigClass],
    /// Models of other names that belong to it.
    models: &'static [&'static str],
    /// The order of rotated pairs in its GGUF files; Hugging Face checkpoints have one order for all.
    pub(crate) gguf_rope: RopeLayout,
    pub(super) norm: NormKind,
    pub(super) activation: Activation,
    qkv_bias: Bias,
}

/// A configuration class of Hugging Face's library: what its `config.json` means by saying nothing.
pub(super) struct ConfigClass {
    model_type: &'static str,
    /// The default of `max_position_embeddings`.
    pub(super) context: usize,
    /// The default of `num_key_value_heads`; `None` is as many as there are query heads, which null means
    /// in every class.
    pub(super) kv_heads: Option<usize>,
    /// The default of `sliding_window`; null means none.
    pub(super) window: Option<usize>,
    /// When `sliding_window` counts.
    pub(super) windows: Windows,
    /// The default of `max_window_layers`, below which layers see everything.
    pub(super) max_window_layers: usize,
    /// The biases that its models have.
    pub(super) biases: Biases,
}

/// When the `sliding_window` of a configuration class counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// Not at all: its attention has none, whatever the configuration says.
    Never,
    Always,
    /// With `use_sliding_window`.
    Switched,
}

/// Which projections of a configuration class have biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Biases {
    /// None, whatever the configuration says.
    None,
    /// Those of attention with `attention_bias`, those of the feed-forward network with `mlp_bias`.
    Switched,
    /// Those of queries, keys and values.
    Qkv,
}

const FAMILIES: &[Family] = &[
    Family {
        architecture: "llama",
        config_classes: &[
            ConfigClass {
                model_type: "llama",
                context: 2048,
                kv_heads: None,
                window: None,
                windows: Windows::Never,
                max_window_layers: 0,
                biases: Biases::Switched,
            },
            ConfigClass {
                model_type: "mistral",
                context: 131_072,
                kv_heads: Some(8),
                window: Some(4096),
                windows: Windows::Always,
                max_window_layers: 0,
                biases: Biases::None,
            },
        ],
        models: &["Mistral", "TinyLlama", "SmolLM"],
        gguf_rope: RopeLayout::Interleaved,
        norm: NormKind::Rms,
        activation: Activation::SwiGlu,
        qkv_bias: Bias::IfPresent,
    },
    Family {
        architecture: "qwen2",
        config_classes: &[ConfigClass {
            model_type: "qwen2",
            context: 32_768,
            kv_heads: Some(32),
            window: Some(4096),
            windows: Windows::Switched,
            max_window_layers: 28,
            biases: Biases::Qkv,
        }],
        models: &[],
        gguf_rope: RopeLayout::NeoX,
        norm: NormKind::Rms,
        activation: Activation::SwiGlu,
        qkv_bias: Bias::Required,
    },
];

impl Family {
    /// The family of a GGUF file.
    pub(crate) fn of_gguf(architecture: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.architecture == architecture)
    }

    /// The family of a `config.json`, and what its class of configuration assumes.
    pub(super) fn of_hf(model_type: &str) -> Option<(&'static Family, &'static ConfigClass)> {
        let classes = FAMILIES
            .iter()
            .flat_map(|family| family.config_classes.iter().map(move |class| (family, class)));
        classes.into_iter().find(|(_, class)| class.model_type == model_type)
    }

    /// A norm of the family.
    pub(super) fn norm(&self, eps: f32) -> Norm {
        Norm { kind: self.norm, eps }
    }

    /// A layer of the family, with heads of `head_dim` elements.
    pub(super) fn layer(&self, norm_eps: f32, head_dim: usize, window: Option<usize>) -> LayerSpec {
        let norm = self.norm(norm_eps);
        let scale = 1.0 / (head_dim as f32).sqrt();
        LayerSpec {
            attn_norm: norm,
            attention: Attention {
                window,
                scale,
                qkv_bias: self.qkv_bias,
                output_bias: Bias::IfPresent,
            },
            ffn_norm: norm,
            activation: self.activation,
            ffn_bias: Bias::IfPresent,
        }
    }
}

/// The refusal of a file whose architecture is that of no family.
pub(super) fn architecture_unknown(path: &str, architecture: String) -> EngineError {
    EngineError::ArchitectureUnknown {
        path: path.to_owned(),
        architecture,
        supported: supported_families(),
    }
}

/// The families by name, for messages.
fn supported_families() -> String {
    let name = |family: &Family| match family.models {
        [] => family.architecture.to_owned(),
        models => format!("{} (also {})", family.architecture, models.join(", ")),
    };
    let names: Vec<_> = FAMILIES.iter().map(name).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_named_in_a_sentence() {
        assert_eq!(supported_families(), "llama (also Mistral, TinyLlama, SmolLM) and qwen2");
    }
}
