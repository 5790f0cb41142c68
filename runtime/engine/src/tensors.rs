//! The names of a model's tensors, in GGUF files and in Hugging Face checkpoints.
//!
//! This is the one place that knows them; everything else speaks of a [`Module`], which has a weight and
//! perhaps a bias.

/// Whose names a file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    Gguf,
    HuggingFace,
}

/// A part of a model that has weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Module {
    TokenEmbedding,
    /// The norm after the last layer.
    OutputNorm,
    /// The projection from hidden states to logits.
    Output,
    /// A part of the layer of that index.
    Layer(usize, LayerModule),
}

/// A part of a layer that has weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerModule {
    AttnNorm,
    FfnNorm,
    /// Queries, keys and values in one matrix, whose rows follow each other in that order.
    Qkv,
    Projection(Projection),
}

/// A matrix of a layer, perhaps with a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Projection {
    Query,
    Key,
    Value,
    Output,
    Gate,
    Up,
    Down,
}

/// What a GGUF file divides the rotation's frequencies by, where it holds that.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Whether a tensor can be left out, because it holds nothing that the configuration does not say too.
pub(crate) fn is_redundant(naming: Naming, name: &str) -> bool {
    match naming {
        Naming::Gguf => name == ROPE_FACTORS,
        // Old checkpoints have the rotation's frequencies, of each layer or of all.
        Naming::HuggingFace => name.ends_with("rotary_emb.inv_freq"),
    }
}

impl Module {
    /// The name of its weight.
    pub(crate) fn weight(self, naming: Naming) -> String {
        self.name(naming) + ".weight"
    }

    /// The name of its bias.
    pub(crate) fn bias(self, naming: Naming) -> String {
        self.name(naming) + ".bias"
    }

    fn name(self, naming: Naming) -> String {
        let name = match self {
            Module::TokenEmbedding => ("token_embd", "model.embed_tokens"),
            Module::OutputNorm => ("output_norm", "model.norm"),
            Module::Output => ("output", "lm_head"),
            Module::Layer(index, module) => {
                let layers = naming.choose(("blk", "model.layers"));
                return format!("{layers}.{index}.{}", module.name(naming));
            }
        };
        naming.choose(name).to_owned()
    }
}

impl LayerModule {
    fn name(self, naming: Naming) -> &'static str {
        naming.choose(match self {
            LayerModule::AttnNorm => ("attn_norm", "input_layernorm"),
            LayerModule::FfnNorm => ("ffn_norm", "post_attention_layernorm"),
            LayerModule::Qkv => ("attn_qkv", "self_attn.qkv_proj"),
            LayerModule::Projection(projection) => return projection.name(naming),
        })
    }
}

impl Projection {
    pub(crate) const ALL: [Projection; 7] = [
        Projection::Query,
        Projection::Key,
        Projection::Value,
        Projection::Output,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// Its name within a layer.
    pub(crate) fn name(self, naming: Naming) -> &'static str {
        naming.choose(match self {
            Projection::Query => ("attn_q", "self_attn.q_proj"),
            Projection::Key => ("attn_k", "self_attn.k_proj"),
            Projection::Value => ("attn_v", "self_attn.v_proj"),
            Projection::Output => ("attn_output", "self_attn.o_proj"),
            Projection::Gate => ("ffn_gate", "mlp.gate_proj"),
            Projection::Up => ("ffn_up", "mlp.up_proj"),
            Projection::Down => ("ffn_down", "mlp.down_proj"),
        })
    }

    /// The projection of that name within a layer.
    pub(crate) fn named(naming: Naming, name: &str) -> Option<Projection> {
        Projection::ALL.into_iter().find(|projection| projection.name(naming) == name)
    }
}

impl Naming {
    fn choose(self, (gguf, hugging_face): (&'static str, &'static str)) -> &'static str {
        match self {
            Naming::Gguf => gguf,
            Naming::HuggingFace => hugging_face,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_names_of_both_conventions() {
        let key = Module::Layer(11, LayerModule::Projection(Projection::Key));
        assert_eq!(key.bias(Naming::Gguf), "blk.11.attn_k.bias");
        assert_eq!(key.bias(Naming::HuggingFace), "model.layers.11.self_attn.k_proj.bias");
        let norm = Module::Layer(0, LayerModule::FfnNorm);
        assert_eq!(norm.weight(Naming::Gguf), "blk.0.ffn_norm.weight");
        assert_eq!(
            norm.weight(Naming::HuggingFace),
            "model.layers.0.post_attention_layernorm.weight"
        );
        assert_eq!(Module::Output.weight(Naming::Gguf), "output.weight");
        assert_eq!(Module::Output.weight(Naming::HuggingFace), "lm_head.weight");
    }

    #[test]
    fn projections_are_found_by_their_names() {
        for naming in [Naming::Gguf, Naming::HuggingFace] {
            for projection in Projection::ALL {
                let found = Projection::named(naming, projection.name(naming));
                assert_eq!(found, Some(projection));
            }
        }
        assert_eq!(Projection::named(Naming::Gguf, "attn_norm"), None);
    }
}
