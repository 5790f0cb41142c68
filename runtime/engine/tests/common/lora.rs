//! Random LoRA adapters, written in both file formats and merged into weights.

use std::path::Path;
use std::sync::Arc;

use ruvllm_abi::DType;
use ruvllm_engine::gguf::{self, Value};
use ruvllm_engine::{Adapter, Engine, EngineConfig, KvCodec, Model, SessionOptions};
use ruvllm_tests::Tensor;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::{Fixture, Sizes, random, two_threads, view};

/// With keys and values in f32: sums of another order, as fractions of the largest logit.
pub const TOLERANCE: f32 = 1e-4;

/// The projections: their names in GGUF and in Hugging Face files.
pub const PARTS: [(&str, &str); 7] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Factors of one projection, `a` `[rank, cols]` and `b` `[rows, rank]`.
#[derive(Clone)]
pub struct Factors {
    pub layer: usize,
    pub part: &'static str,
    pub module: &'static str,
    pub rows: usize,
    pub cols: usize,
    pub a: Vec<f32>,
    pub b: Vec<f32>,
}

/// An adapter to be written, changed at will before.
#[derive(Clone)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f32,
    pub factors: Vec<Factors>,
}

impl Lora {
    /// Random factors for these projections of all layers.
    pub fn new(sizes: &Sizes, rank: usize, seed: u64, parts: &[&str]) -> Lora {
        let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        let (dim, ffn) = (sizes.dim, sizes.ffn);
        let shapes = [(q, dim), (kv, dim), (kv, dim), (dim, q), (ffn, dim), (ffn, dim), (dim, ffn)];
        let mut factors = Vec::new();
        for layer in 0..sizes.layers {
            for (i, ((part, module), (rows, cols))) in PARTS.into_iter().zip(shapes).enumerate() {
                if !parts.contains(&part) {
                    continue;
                }
                let seed = seed * 1000 + (layer * 10 + i) as u64;
                let (a, b) = (random(seed, rank * cols, 0.1), random(seed + 500, rows * rank, 0.1));
                factors.push(Factors { layer, part, module, rows, cols, a, b });
            }
        }
        Lora { rank, alpha: 1.5 * rank as f32, factors }
    }

    pub fn all(sizes: &Sizes, rank: usize, seed: u64) -> Lora {
        Lora::new(sizes, rank, seed, &PARTS.map(|(part, _)| part))
    }

    /// Writes it as llama.cpp's converter does.
    pub fn write_gguf(&self, path: &Path, architecture: &str, dtype: DType) {
        let text = |text: &str| Value::String(text.to_owned());
        let metadata = [
            ("general.type", text("adapter")),
            ("general.architecture", text(architecture)),
            ("adapter.type", text("lora")),
            ("adapter.lora.alpha", Value::F32(self.alpha)),
        ];
        let mut tensors = Vec::new();
        for Factors { layer, part, rows, cols, a, b, .. } in &self.factors {
            for (half, values, shape) in
                [("lora_a", a, [self.rank, *cols]), ("lora_b", b, [*rows, self.rank])]
            {
                // As quantising programs do where rows are no whole blocks.
                let dtype = if dtype.bytes_for(shape[1]).is_some() { dtype } else { DType::F32 };
                let name = format!("blk.{layer}.{part}.weight.{half}");
                tensors.push((name, Tensor::new(dtype, &shape, values)));
            }
        }
        write_gguf(path, &metadata, &tensors);
    }

    /// Writes a PEFT directory; `extra` are further settings, as JSON.
    pub fn write_peft(&self, dir: &Path, extra: &str) {
        std::fs::create_dir_all(dir).unwrap();
        let config = format!(
            r#"{{"peft_type":"LORA","r":{},"lora_alpha":{},"bias":"none"{extra}}}"#,
            self.rank, self.alpha
        );
        std::fs::write(dir.join("adapter_config.json"), config).unwrap();
        let mut tensors = Vec::new();
        for Factors { layer, module, rows, cols, a, b, .. } in &self.factors {
            let name = |half: &str| {
                format!("base_model.model.model.layers.{layer}.{module}.{half}.weight")
            };
            tensors.push((name("lora_A"), vec![self.rank, *cols], a.clone()));
            tensors.push((name("lora_B"), vec![*rows, self.rank], b.clone()));
        }
        write_safetensors(&dir.join("adapter_model.safetensors"), &tensors);
    }

    /// The adapter with rows of queries and keys in the order of GGUF files of the llama family: pairs
    /// that are rotated together lie next to each other instead of half a head apart.
    pub fn interleaved(&self, head_dim: usize) -> Lora {
        let mut lora = self.clone();
        let rank = self.rank;
        for factors in lora.factors.iter_mut().filter(|f| ["attn_q", "attn_k"].contains(&f.part)) {
            let half = head_dim / 2;
            let row = |row: usize| {
                let (head, at) = (row / head_dim, row % head_dim);
                head * head_dim + (at % 2) * half + at / 2
            };
            let rows = (0..factors.rows).flat_map(|r| &factors.b[row(r) * rank..][..rank]);
            factors.b = rows.copied().collect();
        }
        lora
    }

    /// Adds `scale * alpha / rank * B A` to the weights `[rows, cols]` of a projection, summed in f64.
    pub fn add(&self, factors: &Factors, scale: f32, weights: &mut [f32]) {
        let Factors { cols, a, b, .. } = factors;
        let scale = f64::from(scale) * f64::from(self.alpha) / self.rank as f64;
        for (i, w) in weights.iter_mut().enumerate() {
            let (row, col) = (i / cols, i % cols);
            let products = (0..self.rank)
                .map(|r| f64::from(b[row * self.rank + r]) * f64::from(a[r * cols + col]));
            *w = (f64::from(*w) + scale * products.sum::<f64>()) as f32;
        }
    }

    /// The model of a fixture with the adapter in its weights.
    pub fn merged(&self, fixture: &Fixture, scale: f32) -> Arc<Model> {
        let mut merged = fixture.dequantized();
        for factors in &self.factors {
            let name = format!("blk.{}.{}.weight", factors.layer, factors.part);
            let mut weights = merged.tensors[&name].values();
            self.add(factors, scale, &mut weights);
            let shape = [factors.rows, factors.cols];
            merged.tensors.insert(name, Tensor::new(DType::F32, &shape, &weights));
        }
        merged.model()
    }

    pub fn open(&self, engine: &Engine, scale: f32) -> Adapter {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("adapter.gguf");
        self.write_gguf(&path, &engine.model().config().architecture, DType::F32);
        Adapter::open(engine, &path, scale).unwrap()
    }
}

pub fn write_gguf(path: &Path, metadata: &[(&str, Value)], tensors: &[(String, Tensor)]) {
    let mut file = std::fs::File::create(path).unwrap();
    let metadata = metadata.iter().map(|(key, value)| (*key, value));
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| view(name, tensor)).collect();
    gguf::write(&mut file, metadata, &tensors).unwrap();
}

pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let views = tensors.iter().map(|(name, shape, values)| {
        let bytes = bytemuck::cast_slice(values);
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

pub fn exact() -> EngineConfig {
    EngineConfig { kv: KvCodec::F32.into(), batch: 16, ..two_threads() }
}

pub fn with(adapter: &Adapter) -> SessionOptions {
    SessionOptions { adapter: Some(adapter.clone()), ..SessionOptions::default() }
}

/// Logits of each of the tokens, some computed at once and some one by one.
pub fn logits(engine: &Engine, adapter: Option<&Adapter>, tokens: &[u32]) -> Vec<f32> {
    let options =
        SessionOptions { scope: None, adapter: adapter.cloned(), ..SessionOptions::default() };
    let mut session = engine.session_with(&options);
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    let mut all = session.prefill_all(prompt).unwrap();
    for &token in rest {
        all.extend_from_slice(session.decode(token).unwrap());
    }
    all
}
