//! Model files that hold more, less or something else than the engine computes: obeyed, or refused by name.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::{Fixture, LLAMA, QWEN2, engine, repository, some_tokens, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::gguf::Value;
use ruvllm_engine::{EngineError, Model};
use ruvllm_tests::Tensor;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

fn logits(model: &Arc<Model>) -> Vec<f32> {
    engine(model, two_threads()).session().prefill_all(&some_tokens(9)).unwrap()
}

#[test]
fn a_tensor_that_the_family_does_not_use_is_refused_by_name() {
    for (sizes, name) in [
        (LLAMA, "blk.0.attn_q_norm.weight"),
        (LLAMA, "blk.1.post_attention_norm.weight"),
        (LLAMA, "blk.0.ffn_gate_exps.weight"),
        (LLAMA, "rope_factors_long.weight"),
        (LLAMA, "blk.2.attn_norm.weight"),
        (QWEN2, "blk.1.attn_k_norm.weight"),
        (QWEN2, "output_norm.bias"),
    ] {
        let mut fixture = Fixture::new(&sizes, DType::F32);
        fixture.vector(name, sizes.head_dim, 1.0);
        let (code, text) = fixture.refusal();
        assert_eq!(code, "tensor_unused", "{name}: {text}");
        assert!(text.contains(name) && !text.contains("more)"), "{text}");
        fixture.vector("zzz.weight", sizes.head_dim, 1.0);
        let text = fixture.refusal().1;
        assert!(text.contains(&format!("`{name}` (and 1 more)")), "{text}");
    }
}

#[test]
fn a_bias_of_the_output_projection_is_added() {
    for sizes in [LLAMA, QWEN2] {
        let mut fixture = Fixture::new(&sizes, DType::F32);
        let plain = logits(&fixture.model());
        let vocab = fixture.tensors["output.weight"].shape[0];
        fixture.vector("output.bias", vocab, 3.0);
        let bias = fixture.tensors["output.bias"].values();
        let expected =
            plain.chunks(vocab).flat_map(|row| row.iter().zip(&bias).map(|(x, b)| x + b));
        assert_eq!(logits(&fixture.model()), expected.collect::<Vec<_>>());
        // The embedding table has none.
        fixture.tensors.remove("output.weight");
        assert_eq!(fixture.refusal().0, "tensor_unused");
    }
}

#[test]
fn metadata_that_changes_what_is_computed_is_refused_by_name() {
    for (key, value) in [
        ("attention.causal", Value::Bool(false)),
        ("attention.causal", Value::U32(1)),
        ("logit_scale", Value::F32(0.5)),
        ("attention.scale", Value::F32(0.25)),
        ("final_logit_softcapping", Value::F32(30.0)),
    ] {
        let mut fixture = Fixture::new(&LLAMA, DType::F32);
        fixture.set(&format!("llama.{key}"), value);
        let (code, text) = fixture.refusal();
        assert_eq!(code, "config_invalid", "{key}: {text}");
        assert!(text.contains(key), "{text}");
    }
    let mut fixture = Fixture::new(&LLAMA, DType::F32);
    fixture.set("general.type", Value::String("model".into()));
    fixture.set("llama.attention.causal", Value::Bool(true));
    fixture.set("llama.logit_scale", Value::F32(1.0));
    fixture.set("llama.attention.scale", Value::F32(0.0));
    fixture.model();
    fixture.set("general.type", Value::String("adapter".into()));
    let (code, text) = fixture.refusal();
    assert_eq!(code, "not_a_model");
    assert!(text.contains("`adapter`") && text.contains("--lora"), "{text}");
}

#[test]
fn queries_keys_and_values_in_one_tensor_are_split_by_rows() {
    for (sizes, dtype) in [
        (LLAMA, DType::F32),
        (LLAMA, DType::BF16),
        (LLAMA, DType::Q8_0),
        (LLAMA, DType::Q4_K),
        (QWEN2, DType::F32),
        (QWEN2, DType::Q4_0),
    ] {
        let mut fixture = Fixture::new(&sizes, dtype);
        let expected = logits(&fixture.model());
        for layer in 0..sizes.layers {
            for kind in ["weight", "bias"] {
                let name = |part: &str| format!("blk.{layer}.{part}.{kind}");
                let parts =
                    ["attn_q", "attn_k", "attn_v"].map(|part| fixture.tensors.remove(&name(part)));
                let [Some(q), Some(k), Some(v)] = parts else { continue };
                let shape = [&[q.shape[0] + k.shape[0] + v.shape[0]], &q.shape[1..]].concat();
                let bytes = [q.bytes, k.bytes, v.bytes].concat();
                let fused = Tensor { dtype: q.dtype, shape, bytes };
                fixture.tensors.insert(name("attn_qkv"), fused);
            }
        }
        assert_eq!(logits(&fixture.model()), expected, "{dtype:?}");

        let mut short = Fixture::new(&sizes, dtype);
        short.tensors = std::mem::take(&mut fixture.tensors);
        short.matrix("blk.0.attn_qkv.weight", 64, sizes.dim, dtype, 0.1);
        let (code, text) = short.refusal();
        assert_eq!(code, "tensor_shape");
        assert!(text.contains("blk.0.attn_qkv.weight"), "{text}");
    }
}

/// A model directory of the test fixtures, changed at will before writing.
struct Checkpoint {
    config: serde_json::Value,
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
    tokenizer: Vec<u8>,
}

impl Checkpoint {
    fn of(family: &str) -> Checkpoint {
        let dir = repository().join("tests/fixtures/models").join(family);
        let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
        let bytes = read("model.safetensors");
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let tensors = tensors.into_iter().map(|(name, view)| {
            assert_eq!(view.dtype(), Dtype::F32);
            (name, (view.shape().to_vec(), view.data().to_vec()))
        });
        Checkpoint {
            config: serde_json::from_slice(&read("config.json")).unwrap(),
            tensors: tensors.collect(),
            tokenizer: read("tokenizer.json"),
        }
    }

    /// Adds a tensor of small numbers.
    fn add(&mut self, name: &str, shape: &[usize]) {
        let len: usize = shape.iter().product();
        let bytes = (0..len).flat_map(|i| (i as f32 * 1e-3).to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), (shape.to_vec(), bytes));
    }

    fn write(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(dir.join("tokenizer.json"), &self.tokenizer).unwrap();
        let views = self.tensors.iter().map(|(name, (shape, bytes))| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    }

    fn open(&self) -> Result<Arc<Model>, EngineError> {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        Model::open(dir.path()).map(Arc::new)
    }

    fn refusal(&self) -> (&'static str, String) {
        let Err(error) = self.open() else { panic!("the checkpoint was accepted") };
        (error.code(), error.to_string())
    }
}

#[test]
fn biases_beside_a_configuration_without_them_are_refused() {
    let mut checkpoint = Checkpoint::of("llama2");
    let dim = checkpoint.tensors["model.norm.weight"].0[0];
    let name = "model.layers.0.self_attn.o_proj.bias";
    checkpoint.add(name, &[dim]);
    for config in [json!(false), json!(null)] {
        checkpoint.config["attention_bias"] = config;
        let (code, text) = checkpoint.refusal();
        assert_eq!(code, "tensor_unused");
        assert!(text.contains(name), "{text}");
    }
    // With it, all four projections of every layer have one.
    checkpoint.config["attention_bias"] = json!(true);
    assert_eq!(checkpoint.refusal().0, "tensor_missing");

    let mut checkpoint = Checkpoint::of("qwen2");
    checkpoint.add("lm_head.bias", &[8]);
    assert!(checkpoint.refusal().1.contains("lm_head.bias"));

    // What the configuration says too may stand in a checkpoint.
    let mut checkpoint = Checkpoint::of("llama2");
    let expected = logits(&checkpoint.open().unwrap());
    checkpoint.add("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]);
    assert_eq!(logits(&checkpoint.open().unwrap()), expected);
}

#[test]
fn the_output_projection_is_what_the_configuration_says() {
    // Without a head the configuration must say that the embedding table is it.
    let mut checkpoint = Checkpoint::of("llama2");
    let head = checkpoint.tensors.remove("lm_head.weight").unwrap();
    let (code, text) = checkpoint.refusal();
    assert_eq!(code, "config_invalid");
    assert!(text.contains("tie_word_embeddings") && text.contains("lm_head.weight"), "{text}");
    checkpoint.config["tie_word_embeddings"] = json!(true);
    let tied = logits(&checkpoint.open().unwrap());

    // A head beside it is the same matrix, or a contradiction.
    let embedding = checkpoint.tensors["model.embed_tokens.weight"].clone();
    checkpoint.tensors.insert("lm_head.weight".to_owned(), embedding);
    assert_eq!(logits(&checkpoint.open().unwrap()), tied);
    checkpoint.tensors.insert("lm_head.weight".to_owned(), head);
    let (code, text) = checkpoint.refusal();
    assert_eq!(code, "config_invalid");
    assert!(text.contains("tie_word_embeddings") && text.contains("lm_head.weight"), "{text}");
    checkpoint.config["tie_word_embeddings"] = json!(false);
    assert_ne!(logits(&checkpoint.open().unwrap()), tied);
}
