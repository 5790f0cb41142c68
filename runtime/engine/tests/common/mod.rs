//! Small random models, written as GGUF files by the tests that need them.
#![allow(missing_docs, dead_code, unreachable_pub)] // Shared by several test programs.

pub mod lora;
pub mod requests;
pub mod swapping;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_abi::DType;
use ruvllm_engine::gguf::{self, TensorView, Value};
use ruvllm_engine::{Engine, EngineConfig, Model};
use ruvllm_host::{Host, HostConfig};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use ruvllm_tests::Tensor;

/// A model to be written: metadata and tensors, changed at will before writing.
pub struct Fixture {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, Tensor>,
}

/// Sizes of a random model.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub architecture: &'static str,
    pub dim: usize,
    pub ffn: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub layers: usize,
    pub context: usize,
}

/// Wide enough for blocks of 256.
pub const LLAMA: Sizes = Sizes {
    architecture: "llama",
    dim: 256,
    ffn: 512,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    layers: 2,
    context: 512,
};

pub const QWEN2: Sizes =
    Sizes { architecture: "qwen2", dim: 64, ffn: 96, heads: 4, kv_heads: 2, head_dim: 32, ..LLAMA };

/// Uniform numbers of the given spread, the same for the same seed.
pub fn random(seed: u64, n: usize, spread: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * spread
        })
        .collect()
}

impl Fixture {
    pub fn new(sizes: &Sizes, dtype: DType) -> Fixture {
        let mut fixture = Fixture { metadata: BTreeMap::new(), tensors: BTreeMap::new() };
        fixture.describe(sizes);
        let tokens = fixture.vocabulary();
        let (q, kv) = (sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim);
        fixture.matrix("token_embd.weight", tokens, sizes.dim, dtype, 1.0);
        fixture.vector("output_norm.weight", sizes.dim, 1.0);
        fixture.matrix("output.weight", tokens, sizes.dim, dtype, 0.2);
        for layer in 0..sizes.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            fixture.vector(&name("attn_norm.weight"), sizes.dim, 1.0);
            fixture.vector(&name("ffn_norm.weight"), sizes.dim, 1.0);
            for (part, rows, cols) in [
                ("attn_q", q, sizes.dim),
                ("attn_k", kv, sizes.dim),
                ("attn_v", kv, sizes.dim),
                ("attn_output", sizes.dim, q),
                ("ffn_gate", sizes.ffn, sizes.dim),
                ("ffn_up", sizes.ffn, sizes.dim),
                ("ffn_down", sizes.dim, sizes.ffn),
            ] {
                fixture.matrix(&name(&format!("{part}.weight")), rows, cols, dtype, 0.1);
                if sizes.architecture == "qwen2" && cols == sizes.dim && !part.starts_with("ffn") {
                    fixture.vector(&name(&format!("{part}.bias")), rows, 0.5);
                }
            }
        }
        fixture
    }

    fn describe(&mut self, sizes: &Sizes) {
        self.set("general.architecture", Value::String(sizes.architecture.into()));
        for (key, value) in [
            ("embedding_length", sizes.dim),
            ("feed_forward_length", sizes.ffn),
            ("block_count", sizes.layers),
            ("attention.head_count", sizes.heads),
            ("attention.head_count_kv", sizes.kv_heads),
            ("attention.key_length", sizes.head_dim),
            ("attention.value_length", sizes.head_dim),
            ("rope.dimension_count", sizes.head_dim),
            ("context_length", sizes.context),
        ] {
            self.set(&format!("{}.{key}", sizes.architecture), Value::U32(value as u32));
        }
        let epsilon = format!("{}.attention.layer_norm_rms_epsilon", sizes.architecture);
        self.set(&epsilon, Value::F32(1e-5));
    }

    /// A vocabulary of the SentencePiece kind: control tokens, all bytes, some letters and words.
    fn vocabulary(&mut self) -> usize {
        let mut tokens: Vec<(String, f32, i32)> =
            vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3), ("</s>".into(), 0.0, 3)];
        tokens.extend((0..=255u8).map(|b| (format!("<0x{b:02X}>"), 0.0, 6)));
        tokens.push(("\u{2581}".into(), -1.0, 1));
        tokens.extend(('a'..='z').map(|c| (c.to_string(), -2.0, 1)));
        tokens.extend(["\u{2581}the", "\u{2581}cat", "th"].map(|t| (t.to_owned(), -0.5, 1)));
        let array =
            |f: &dyn Fn(&(String, f32, i32)) -> Value| Value::Array(tokens.iter().map(f).collect());
        let texts = array(&|t| Value::String(t.0.clone()));
        let scores = array(&|t| Value::F32(t.1));
        let types = array(&|t| Value::I32(t.2));
        self.set("tokenizer.ggml.model", Value::String("llama".into()));
        self.set("tokenizer.ggml.tokens", texts);
        self.set("tokenizer.ggml.scores", scores);
        self.set("tokenizer.ggml.token_type", types);
        self.set("tokenizer.ggml.bos_token_id", Value::U32(1));
        self.set("tokenizer.ggml.eos_token_id", Value::U32(2));
        self.set("tokenizer.ggml.unknown_token_id", Value::U32(0));
        self.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
        self.set("tokenizer.ggml.add_eos_token", Value::Bool(false));
        tokens.len()
    }

    pub fn set(&mut self, key: &str, value: Value) {
        self.metadata.insert(key.to_owned(), value);
    }

    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize, dtype: DType, spread: f32) {
        let seed = name.bytes().fold(7, |h: u64, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let values = random(seed, rows * cols, spread);
        self.tensors.insert(name.to_owned(), Tensor::new(dtype, &[rows, cols], &values));
    }

    pub fn vector(&mut self, name: &str, len: usize, centre: f32) {
        let values = random(len as u64 + name.len() as u64, len, 0.2);
        let values: Vec<f32> = values.iter().map(|x| x + centre).collect();
        self.tensors.insert(name.to_owned(), Tensor::new(DType::F32, &[len], &values));
    }

    /// The same model with every tensor widened to f32.
    pub fn dequantized(&self) -> Fixture {
        let widen = |t: &Tensor| Tensor::new(DType::F32, &t.shape, &t.values());
        Fixture {
            metadata: self.metadata.clone(),
            tensors: self.tensors.iter().map(|(n, t)| (n.clone(), widen(t))).collect(),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let metadata = self.metadata.iter().map(|(k, v)| (k.as_str(), v));
        let tensors: Vec<_> = self.tensors.iter().map(|(name, t)| view(name, t)).collect();
        gguf::write(&mut out, metadata, &tensors).unwrap();
        out
    }

    pub fn write(&self, dir: &Path) -> PathBuf {
        let path = dir.join("model.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        path
    }

    pub fn model(&self) -> Arc<Model> {
        let dir = tempfile::tempdir().unwrap();
        Arc::new(Model::open(&self.write(dir.path())).unwrap())
    }

    /// The code and text of the error that opening the model gives.
    pub fn refusal(&self) -> (&'static str, String) {
        let dir = tempfile::tempdir().unwrap();
        match Model::open(&self.write(dir.path())) {
            Ok(_) => panic!("the file was accepted"),
            Err(error) => (error.code(), error.to_string()),
        }
    }
}

pub fn view<'a>(name: &'a str, tensor: &'a Tensor) -> TensorView<'a> {
    TensorView { name, dtype: tensor.dtype, shape: &tensor.shape, bytes: &tensor.bytes }
}

pub fn native_host() -> Host {
    Host::new(HostConfig::default()).unwrap()
}

/// A host that runs the core pack's kernels.
pub fn core_pack_host() -> Host {
    core_pack_host_with(HostConfig::default())
}

/// A host of this configuration that runs the core pack's kernels.
pub fn core_pack_host_with(config: HostConfig) -> Host {
    let dist = repository().join("kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default()).unwrap();
    let host = Host::new(config).unwrap();
    host.install(pack.verify(&TrustPolicy::builtin(), None).unwrap()).unwrap();
    host
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directories of small models, one for each family.
pub fn families() -> Vec<PathBuf> {
    let root = repository().join("tests/fixtures/models");
    let mut all: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.safetensors").is_file())
        .collect();
    all.sort();
    assert!(!all.is_empty(), "no fixtures under {}", root.display());
    all
}

pub fn engine(model: &Arc<Model>, config: EngineConfig) -> Engine {
    Engine::new(Arc::clone(model), native_host(), config).unwrap()
}

pub fn two_threads() -> EngineConfig {
    EngineConfig { threads: 2, ..EngineConfig::default() }
}

/// Token ids over the whole vocabulary of a random model.
pub fn some_tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 3 + (i * 97 + i * i * 13) % 280).collect()
}

/// The likeliest token.
pub fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// The largest difference, as a fraction of the largest expected magnitude.
pub fn relative_error(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert!(largest > 0.0 && actual.iter().all(|x| x.is_finite()));
    let difference = actual.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    difference / largest
}
