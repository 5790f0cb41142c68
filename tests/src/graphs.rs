//! Graphs of tests: the manifests' entries of those that [`crate::onnx`] writes, with what another runtime
//! computed, and a tokenizer for the encoder.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Memory that the graphs may take.
pub const MEMORY: u64 = 256 << 20;

/// Where the graphs and what another runtime computed with them are.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/graphs")
}

/// The manifest's entry of a graph, with the checks that another runtime computed. Size and hash are for
/// [`crate::PackBuilder::graph`] to fill in.
///
/// # Panics
/// Where there is no fixture of the name.
pub fn entry(name: &str) -> Value {
    let checks =
        std::fs::read_to_string(fixtures().join(format!("{name}.json"))).expect("a fixture");
    let checks: Value = serde_json::from_str(&checks).expect("a fixture of JSON");
    let tensor =
        |name: &str, ty: &str, shape: Value| json!({"name": name, "dtype": ty, "shape": shape});
    let tokens = json!(["batch", "tokens"]);
    let (inputs, outputs) = match name {
        "mlp" => (
            json!([tensor("x", "f32", json!(["batch", 8]))]),
            tensor("y", "f32", json!(["batch", 4])),
        ),
        "convolution" => {
            (json!([tensor("x", "f32", json!([1, 3, 16, 16]))]), tensor("y", "f32", json!([1, 5])))
        }
        _ => (
            json!([
                tensor("input_ids", "i64", tokens.clone()),
                tensor("attention_mask", "i64", tokens)
            ]),
            tensor("hidden", "f32", json!(["batch", "tokens", 16])),
        ),
    };
    json!({
        "id": name, "name": name, "format": "onnx", "path": format!("graphs/{name}.onnx"), "size": 1,
        "hash": format!("sha256:{}", "0".repeat(64)), "inputs": inputs, "outputs": [outputs],
        "extents": {"batch": 8, "tokens": 16},
        "resource_limits": {"max_memory_bytes": MEMORY, "max_millis": 5000},
        "tolerance": {"rel": 1e-4, "abs": 1e-5}, "checks": checks,
    })
}

/// The entry of the encoder, which makes vectors of texts with [`tokenizer`].
pub fn sentences(pooling: &str) -> Value {
    let mut entry = entry("encoder");
    entry["embedding"] = json!({"tokenizer": {"path": "graphs/tokenizer.json", "size": 1,
        "hash": format!("sha256:{}", "0".repeat(64))}, "pooling": pooling, "normalize": true, "max_tokens": 8});
    entry
}

/// A tokenizer with a vocabulary of 32 words, as the encoder's table has rows.
pub fn tokenizer() -> String {
    let words = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "fox", "owl", "runs", "##s", "##ing",
        "run", "sea", "ship", ".", ",",
    ];
    let more = (0..16).map(|i| format!("w{i}"));
    let all: Vec<String> = words.iter().map(|word| (*word).to_owned()).chain(more).collect();
    let vocab: Value = all.iter().enumerate().map(|(i, word)| (word.clone(), json!(i))).collect();
    let special = |id: u32| {
        json!({"id": id, "content": words[id as usize], "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [], "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
    .to_string()
}
