//! A configuration as bytes, for the hash that tells models apart.
//!
//! Session files and cached blocks are found by that hash, so the encoding is stated here, field by field:
//! numbers in little-endian order, 64 bits each, texts and lists behind their length, a choice behind its
//! number. A field that is added to a configuration does not compile until it is added here; whoever
//! changes the encoding gives the hash of [`crate::model::Model::fingerprint`] another version.

use super::layer::{Activation, Attention, Bias, LayerSpec, Norm, NormKind};
use super::model::{ModelConfig, RopeConfig, RopeLayout, RopeScaling, Yarn};

/// Collects the bytes.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn number(&mut self, n: usize) {
        self.0.extend((n as u64).to_le_bytes());
    }

    fn real(&mut self, x: f64) {
        self.0.extend(x.to_le_bytes());
    }

    fn reals<const N: usize>(&mut self, choice: usize, all: [f64; N]) {
        self.number(choice);
        all.into_iter().for_each(|x| self.real(x));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend(text.as_bytes());
    }

    fn layer(&mut self, layer: &LayerSpec) {
        // Biases other than those of queries, keys and values decide whether a checkpoint opens, not
        // what is computed once it has; so does `Absent`.
        let LayerSpec { attn_norm, attention, ffn_norm, activation, ffn_bias: _ } = layer;
        let Attention { window, scale, qkv_bias, output_bias: _ } = attention;
        self.norm(attn_norm);
        self.number(window.map_or(0, |tokens| tokens.saturating_add(1)));
        self.real((*scale).into());
        self.number(match qkv_bias {
            Bias::IfPresent | Bias::Absent => 0,
            Bias::Required => 1,
        });
        self.norm(ffn_norm);
        self.number(match activation {
            Activation::SwiGlu => 0,
        });
    }

    fn norm(&mut self, Norm { kind, eps }: &Norm) {
        self.number(match kind {
            NormKind::Rms => 0,
        });
        self.real((*eps).into());
    }

    fn rope(&mut self, RopeConfig { theta, dims, layout, scaling }: &RopeConfig) {
        self.real(*theta);
        self.number(*dims);
        self.number(match layout {
            RopeLayout::Interleaved => 0,
            RopeLayout::NeoX => 1,
        });
        match scaling {
            RopeScaling::None => self.number(0),
            RopeScaling::Linear { factor } => self.reals(1, [*factor]),
            RopeScaling::Ntk { factor } => self.reals(2, [*factor]),
            RopeScaling::DynamicNtk { factor, original_context } => {
                self.reals(3, [*factor, *original_context]);
            }
            RopeScaling::Yarn(yarn) => {
                let Yarn {
                    factor,
                    original_context,
                    beta_fast,
                    beta_slow,
                    attention_factor,
                    truncate,
                } = *yarn;
                self.reals(4, [factor, original_context, beta_fast, beta_slow, attention_factor]);
                self.number(truncate.into());
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                self.reals(5, [*factor, *low_freq_factor, *high_freq_factor, *original_context]);
            }
            RopeScaling::Factors(factors) => {
                self.number(6);
                self.number(factors.len());
                factors.iter().for_each(|&x| self.real(x.into()));
            }
        }
    }
}

impl ModelConfig {
    /// Every field, in a form that depends on the values alone.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let ModelConfig {
            architecture,
            dim,
            ffn_dim,
            heads,
            kv_heads,
            head_dim,
            context,
            rope,
            layers,
            output_norm,
            tied_embeddings,
        } = self;
        let mut fields = Fields::default();
        fields.text(architecture);
        for &n in [dim, ffn_dim, heads, kv_heads, head_dim, context] {
            fields.number(n);
        }
        fields.rope(rope);
        fields.number(layers.len());
        layers.iter().for_each(|layer| fields.layer(layer));
        fields.norm(output_norm);
        fields.number((*tied_embeddings).into());
        fields.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let norm = Norm { kind: NormKind::Rms, eps: 1e-5 };
        let layer = |window| LayerSpec {
            attn_norm: norm,
            attention: Attention {
                window,
                scale: 0.25,
                qkv_bias: Bias::IfPresent,
                output_bias: Bias::IfPresent,
            },
            ffn_norm: norm,
            activation: Activation::SwiGlu,
            ffn_bias: Bias::IfPresent,
        };
        ModelConfig {
            architecture: "llama".to_owned(),
            dim: 64,
            ffn_dim: 128,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            context: 256,
            rope: RopeConfig {
                theta: 1e4,
                dims: 16,
                layout: RopeLayout::NeoX,
                scaling: RopeScaling::None,
            },
            layers: [None, Some(32)].map(layer).to_vec(),
            output_norm: norm,
            tied_embeddings: true,
        }
    }

    #[test]
    fn the_bytes_of_a_configuration_are_those_of_earlier_builds() {
        let mut want = Vec::new();
        want.extend(5u64.to_le_bytes());
        want.extend(b"llama");
        want.extend([64u64, 128, 4, 2, 16, 256].into_iter().flat_map(u64::to_le_bytes));
        want.extend(1e4f64.to_le_bytes());
        want.extend([16u64, 1, 0, 2].into_iter().flat_map(u64::to_le_bytes));
        let norm = [0u64.to_le_bytes(), f64::from(1e-5f32).to_le_bytes()].concat();
        for window in [0u64, 33] {
            want.extend(&norm);
            want.extend(window.to_le_bytes());
            want.extend(0.25f64.to_le_bytes());
            want.extend(0u64.to_le_bytes());
            want.extend(&norm);
            want.extend(0u64.to_le_bytes());
        }
        want.extend(&norm);
        want.extend(1u64.to_le_bytes());
        assert_eq!(config().to_bytes(), want);
    }

    #[test]
    fn every_field_tells_configurations_apart() {
        let changes: [fn(&mut ModelConfig); 17] = [
            |c| c.architecture.push('2'),
            |c| c.dim += 1,
            |c| c.ffn_dim += 1,
            |c| c.heads += 1,
            |c| c.kv_heads += 1,
            |c| c.head_dim += 1,
            |c| c.context += 1,
            |c| c.layers[1].attn_norm.eps = 1e-6,
            |c| c.layers[1].ffn_norm.eps = 1e-6,
            |c| c.output_norm.eps = 1e-6,
            |c| c.rope.theta = 5e5,
            |c| c.rope.layout = RopeLayout::Interleaved,
            |c| c.rope.scaling = RopeScaling::Linear { factor: 2.0 },
            |c| c.layers[0].attention.window = Some(32),
            |c| c.layers[0].attention.scale = 1.0,
            |c| c.layers[0].attention.qkv_bias = Bias::Required,
            |c| c.tied_embeddings = false,
        ];
        let mut all: Vec<Vec<u8>> = changes
            .into_iter()
            .map(|change| {
                let mut config = config();
                change(&mut config);
                config.to_bytes()
            })
            .chain([config().to_bytes()])
            .collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), changes.len() + 1);
    }
}
