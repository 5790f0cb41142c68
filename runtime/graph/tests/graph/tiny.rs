//! A language model that is small enough to be computed by hand, as a GGUF file.

use ruvllm_abi::DType;
use ruvllm_engine::gguf::{self, TensorView, Value};
use ruvllm_manifest::GraphEntry;
use ruvllm_tests::Tensor;
use serde_json::json;

/// Numbers of a vector.
pub(crate) const WIDTH: usize = 32;
/// Tokens: three for control, and all bytes.
const TOKENS: usize = 259;
const EPSILON: f32 = 1e-5;

/// Its weights: a table of embeddings, and one layer that adds nothing to them, since its two last products are
/// with zeros. So the final hidden state of a token is its row of the table, normed.
pub(crate) struct Tiny {
    table: Tensor,
    norm: Vec<f32>,
}

impl Tiny {
    /// One whose matrices are of this type.
    pub(crate) fn new(dtype: DType) -> Self {
        Self::with(dtype, |_| 1.0)
    }

    /// One whose numbers are scaled by what this gives for their place in a vector.
    pub(crate) fn with(dtype: DType, scale: impl Fn(usize) -> f32) -> Self {
        let number = |i: usize| ((i * 37 + i / 11 * 13) % 101) as f32 / 50.0 - 1.0;
        let table: Vec<f32> = (0..TOKENS * WIDTH).map(|i| number(i) * scale(i % WIDTH)).collect();
        let table = Tensor::new(dtype, &[TOKENS, WIDTH], &table);
        Self { table, norm: (0..WIDTH).map(|i| 0.5 + i as f32 / 32.0).collect() }
    }

    /// The mean of the final hidden states, in f64.
    pub(crate) fn mean(&self, tokens: &[u32]) -> Vec<f64> {
        let values = self.table.values();
        let mut mean = vec![0.0; WIDTH];
        for token in tokens {
            let row = &values[*token as usize * WIDTH..][..WIDTH];
            let squares = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            let scale = 1.0 / (squares / WIDTH as f64 + f64::from(EPSILON)).sqrt();
            for ((sum, x), norm) in mean.iter_mut().zip(row).zip(&self.norm) {
                *sum += f64::from(*x) * scale * f64::from(*norm) / tokens.len() as f64;
            }
        }
        mean
    }

    /// The file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let text = |text: &str| Value::String(text.into());
        let mut metadata = vec![
            ("general.architecture".to_owned(), text("llama")),
            ("llama.attention.layer_norm_rms_epsilon".to_owned(), Value::F32(EPSILON)),
        ];
        for (key, value) in [
            ("embedding_length", WIDTH),
            ("feed_forward_length", WIDTH),
            ("block_count", 1),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 16),
            ("attention.value_length", 16),
            ("rope.dimension_count", 16),
            ("context_length", 64),
        ] {
            metadata.push((format!("llama.{key}"), Value::U32(value as u32)));
        }
        let control = ["<unk>", "<s>", "</s>"].map(str::to_owned);
        let names = control.into_iter().chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let kinds = [2, 3, 3].into_iter().chain([6; 256]);
        for (key, value) in [
            ("model", text("llama")),
            ("tokens", Value::Array(names.map(|name| text(&name)).collect())),
            ("scores", Value::Array(vec![Value::F32(0.0); TOKENS])),
            ("token_type", Value::Array(kinds.map(Value::I32).collect())),
            ("bos_token_id", Value::U32(1)),
            ("eos_token_id", Value::U32(2)),
            ("unknown_token_id", Value::U32(0)),
        ] {
            metadata.push((format!("tokenizer.ggml.{key}"), value));
        }
        let dtype = self.table.dtype;
        let square = |spread: f32| {
            let values: Vec<f32> = (0..WIDTH * WIDTH).map(|i| (i % 7) as f32 * spread).collect();
            Tensor::new(dtype, &[WIDTH, WIDTH], &values)
        };
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), self.table.clone()),
            ("output.weight".to_owned(), self.table.clone()),
            ("output_norm.weight".to_owned(), Tensor::new(DType::F32, &[WIDTH], &self.norm)),
        ];
        for part in ["attn_norm", "ffn_norm"] {
            let norm = Tensor::new(DType::F32, &[WIDTH], &self.norm);
            tensors.push((format!("blk.0.{part}.weight"), norm));
        }
        for (part, spread) in [
            ("attn_q", 0.1),
            ("attn_k", 0.1),
            ("attn_v", 0.1),
            ("attn_output", 0.0),
            ("ffn_gate", 0.1),
            ("ffn_up", 0.1),
            ("ffn_down", 0.0),
        ] {
            tensors.push((format!("blk.0.{part}.weight"), square(spread)));
        }
        let views = tensors.iter().map(|(name, Tensor { dtype, shape, bytes })| TensorView {
            name,
            dtype: *dtype,
            shape,
            bytes,
        });
        let mut file = Vec::new();
        let metadata = metadata.iter().map(|(key, value)| (key.as_str(), value));
        gguf::write(&mut file, metadata, &views.collect::<Vec<_>>()).unwrap();
        file
    }

    /// The entry of a manifest, with one check.
    pub(crate) fn entry(&self) -> GraphEntry {
        let tokens = [1, 100, 7, 258];
        let entry = json!({
            "id": "tiny", "name": "tiny", "format": "gguf", "path": "graphs/tiny.gguf", "size": 1,
            "hash": format!("sha256:{}", "0".repeat(64)),
            "inputs": [{"name": "input_ids", "dtype": "i64", "shape": [1, "tokens"]}],
            "outputs": [{"name": "embedding", "dtype": "f32", "shape": [1, WIDTH]}],
            "extents": {"tokens": 16},
            "resource_limits": {"max_memory_bytes": 256 << 20, "max_millis": 20_000},
            "tolerance": {"rel": 1e-4, "abs": 1e-5},
            "checks": [{
                "inputs": [{"name": "input_ids", "shape": [1, tokens.len()], "values": tokens}],
                "outputs": [{"name": "embedding", "shape": [1, WIDTH], "values": self.mean(&tokens)}],
            }],
        });
        GraphEntry::parse(entry.to_string().as_bytes()).unwrap()
    }
}
