//! Graphs of tests: the manifests' entries of those that [`crate::onnx`] writes, with what another runtime
//! computed, and a tokenizer for the encoder.

use crate::{custom_entry, wat};
use ruvllm_manifest::{Dim, KernelEntry, WASI_NN};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Memory that the graphs may take.
pub const MEMORY: u64 = 256 << 20;

/// Where the graphs are, and what another runtime computed with them, which is named in the files as their source.
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
        "tolerance": {"rel": 1e-4, "abs": 1e-5}, "checks": checks["checks"],
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

/// Rows of a call that [`kernel`] does something else for; no case of admission that it takes has as many.
pub const LATER: u32 = 3;

/// A kernel `y[n, 4]` of `x[n, 8]` as the graph `mlp` has it, for up to 8 rows, and the entry of a manifest that asks
/// for it. In calls of [`LATER`] rows it does `later` first, with `$d` (the descriptor), `$n` and `$i` as
/// locals, and `$e` for an error of WASI-NN; the status is 100 more than that where it leaves the block
/// `$failed`.
///
/// Static memory: the name of the graph at 0; from 64 on the handles of graph and context and the length of the
/// output; at 80 the extents, at 96 the record of a tensor, which `$tensor` fills in. The host's part begins at
/// 64 KiB, and the pages before it but the first are never written to.
///
/// # Panics
/// Where `later` is not valid: it is part of a test.
pub fn kernel(later: &str) -> (KernelEntry, Vec<u8>) {
    let mut entry = custom_entry("classify", "classify", "run");
    entry.inputs[0].shape.push(Dim::Fixed(8));
    entry.outputs[0].shape.push(Dim::Fixed(4));
    let platform = entry.platforms.wasmtime.as_mut().expect("the entry of a test");
    platform.features.push(WASI_NN.to_owned());
    let module = wat::assemble(&format!(
        r#"(module
  (import "wasi_ephemeral_nn" "load" (func $load (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_ephemeral_nn" "load_by_name" (func $load_by_name (param i32 i32 i32) (result i32)))
  (import "wasi_ephemeral_nn" "init_execution_context" (func $init (param i32 i32) (result i32)))
  (import "wasi_ephemeral_nn" "set_input" (func $set_input (param i32 i32 i32) (result i32)))
  (import "wasi_ephemeral_nn" "compute" (func $compute (param i32) (result i32)))
  (import "wasi_ephemeral_nn" "get_output"
    (func $get_output (param i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 128 256)
  (global (export "__heap_base") i32 (i32.const 65536))
  (data (i32.const 0) "mlp")
  (func $tensor (param $rows i32) (param $columns i32) (param $at i32) (result i32)
    (i32.store (i32.const 80) (local.get $rows))
    (i32.store (i32.const 84) (local.get $columns))
    (i32.store (i32.const 96) (i32.const 80))
    (i32.store (i32.const 100) (i32.const 2))
    (i32.store (i32.const 104) (i32.const 1))
    (i32.store (i32.const 108) (local.get $at))
    (i32.store (i32.const 112)
      (i32.mul (i32.const 4) (i32.mul (local.get $rows) (local.get $columns))))
    (i32.const 96))
  (func (export "run") (param $d i32) (result i32)
    (local $n i32) (local $e i32) (local $i i32)
    (local.set $n (i32.load (i32.load offset=32 (local.get $d))))
    (if (i32.gt_u (local.get $n) (i32.const 8)) (then (return (i32.const 1))))
    (block $failed
      (br_if $failed
        (local.tee $e (call $load_by_name (i32.const 0) (i32.const 3) (i32.const 64))))
      (if (i32.eq (local.get $n) (i32.const {LATER})) (then {later}))
      (br_if $failed (local.tee $e (call $init (i32.load (i32.const 64)) (i32.const 68))))
      (br_if $failed (local.tee $e (call $set_input (i32.load (i32.const 68)) (i32.const 0)
        (call $tensor (local.get $n) (i32.const 8) (i32.load (local.get $d))))))
      (br_if $failed (local.tee $e (call $compute (i32.load (i32.const 68)))))
      (br_if $failed (local.tee $e (call $get_output (i32.load (i32.const 68)) (i32.const 0)
        (i32.load offset=16 (local.get $d)) (i32.load offset=20 (local.get $d))
        (i32.const 72))))
      (return (i32.const 0)))
    (i32.add (i32.const 100) (local.get $e))))"#
    ));
    (entry, module)
}
