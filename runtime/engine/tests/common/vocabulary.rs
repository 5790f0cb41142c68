//! As much of two vocabularies as the texts can touch that llama.cpp publishes ids for.
#![allow(missing_docs, unreachable_pub)] // Shared by several test programs.

use std::collections::HashMap;
use std::path::Path;

use ruvllm_engine::gguf::Value;
use serde::Deserialize;

/// A file of `tests/fixtures/vocabularies`.
#[derive(Deserialize)]
pub struct Vocabulary {
    model: String,
    pre: String,
    tokens: Vec<String>,
    types: Vec<i32>,
    scores: Option<Vec<f32>>,
    merges: Option<Vec<String>>,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    /// Texts with their ids.
    pub cases: Vec<(String, Vec<u32>)>,
}

impl Vocabulary {
    /// What a GGUF file with this vocabulary says.
    pub fn metadata(&self) -> HashMap<String, Value> {
        let texts = |texts: &[String]| texts.iter().cloned().map(Value::String).collect();
        let entries = [
            ("model", Some(Value::String(self.model.clone()))),
            ("pre", Some(Value::String(self.pre.clone()))),
            ("tokens", Some(Value::Array(texts(&self.tokens)))),
            (
                "token_type",
                Some(Value::Array(self.types.iter().copied().map(Value::I32).collect())),
            ),
            (
                "scores",
                self.scores
                    .as_ref()
                    .map(|all| Value::Array(all.iter().copied().map(Value::F32).collect())),
            ),
            ("merges", self.merges.as_deref().map(texts).map(Value::Array)),
            ("bos_token_id", self.bos.map(Value::U32)),
            ("eos_token_id", self.eos.map(Value::U32)),
            ("unknown_token_id", self.unknown.map(Value::U32)),
        ];
        let entries = entries.into_iter().filter_map(|(key, value)| Some((key, value?)));
        entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect()
    }
}

/// The vocabularies: SentencePiece of Llama 2, byte-level BPE of Qwen2.
pub fn vocabularies() -> [(&'static str, Vocabulary); 2] {
    ["llama-spm", "qwen2"].map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/fixtures/vocabularies")
            .join(format!("{name}.json"));
        (name, serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
    })
}
