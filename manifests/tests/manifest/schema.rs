//! The JSON schema and the Rust types describe one format. The validator is a stock one.

use crate::{edited, example, findings};
use boon::{Compiler, SchemaIndex, Schemas};
use ruvllm_abi::DType;
use ruvllm_manifest::{MAX_FILE_BYTES, MAX_GRAPH_FILE_BYTES, MAX_KERNELS, Manifest};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const SCHEMA: &str = include_str!("../../schema/kernel-pack-v1.json");
const ID: &str = "https://ruvllm.dev/schemas/kernel-pack-v1.json";

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

fn library(path: &str) -> Value {
    json!({ "path": path, "size": 1, "hash": format!("sha256:{}", "0".repeat(64)) })
}

struct Validator(Schemas, SchemaIndex);

impl Validator {
    fn new() -> Self {
        let mut schemas = Schemas::new();
        let mut compiler = Compiler::new();
        compiler.add_resource(ID, schema()).unwrap();
        let index = compiler.compile(ID, &mut schemas).unwrap();
        Self(schemas, index)
    }

    fn accepts(&self, json: &Value) -> bool {
        self.0.validate(json, self.1).is_ok()
    }
}

#[test]
fn the_example_validates_and_names_the_schema() {
    assert!(Validator::new().accepts(&example()));
    assert_eq!(example()["$schema"], ID);
    assert_eq!(schema()["$id"], ID);
}

#[test]
fn schema_and_parser_refuse_the_same_values() {
    let validator = Validator::new();
    let set = |pointer: &str, value: Value| edited(|m| *m.pointer_mut(pointer).unwrap() = value);
    let k = "/kernels/0";
    let refused = [
        ("/version", json!("1.0")),
        ("/version", json!("01.0.0")),
        ("/version", json!(null)),
        ("/name", json!("Upper")),
        ("/name", json!("dot.")),
        ("/description", json!("\u{7}")),
        ("/abi_version", json!(0)),
        ("/abi_version", json!("1")),
        ("/created_at", json!("2026-11-20")),
        ("/author/signing_key", json!("rsa:xyz")),
        ("/author/email", json!("")),
        ("/kernels", json!([])),
        ("/fallbacks", json!({"rope_f32": "a b"})),
        (&format!("{k}/id"), json!("a b")),
        (&format!("{k}/op"), json!("RoPE")),
        (&format!("{k}/path"), json!("../x")),
        (&format!("{k}/path"), json!("/x")),
        (&format!("{k}/path"), json!("a//b")),
        (&format!("{k}/path"), json!(".x")),
        (&format!("{k}/path"), json!("x.")),
        (&format!("{k}/path"), json!("a/nul.wasm")),
        (&format!("{k}/path"), json!("COM1")),
        (&format!("{k}/path"), json!("a/b/c/d/e/f/g/h/i")),
        (&format!("{k}/size"), json!(0)),
        (&format!("{k}/size"), json!(MAX_FILE_BYTES + 1)),
        (&format!("{k}/hash"), json!("sha256:AA")),
        (&format!("{k}/entry_point"), json!("1st")),
        (&format!("{k}/backward"), json!("yes")),
        (&format!("{k}/threads"), json!(0)),
        (&format!("{k}/threads"), json!(5)),
        (&format!("{k}/threads"), json!("4")),
        (&format!("{k}/outputs"), json!([])),
        (&format!("{k}/inputs/0/dtype"), json!("f64")),
        (&format!("{k}/inputs/0/shape"), json!([])),
        (&format!("{k}/inputs/0/shape/0"), json!(0)),
        (&format!("{k}/inputs/0/shape/0"), json!(1u64 << 32)),
        (&format!("{k}/inputs/0/shape/0"), json!("Seq")),
        (&format!("{k}/params/theta/type"), json!("f64")),
        (&format!("{k}/params/theta/default"), json!(1e39)),
        (&format!("{k}/params/theta/default"), json!("1")),
        (&format!("{k}/params/interleaved/default"), json!(0.5)),
        (&format!("{k}/params/interleaved/default"), json!(-1)),
        (&format!("{k}/resource_limits/max_memory_pages"), json!(65537)),
        (&format!("{k}/resource_limits/max_epoch_ticks"), json!(0)),
        (&format!("{k}/resource_limits/max_table_elements"), json!(-1)),
        (&format!("{k}/platforms"), json!({})),
        (&format!("{k}/platforms/wasmtime/features"), json!(["simd", "simd"])),
        (&format!("{k}/platforms/wamr/aot_available"), json!("no")),
        (&format!("{k}/platforms"), json!({"native": {"targets": {"a": library("a.so")}}})),
        (&format!("{k}/platforms/native/targets"), json!({})),
        (&format!("{k}/platforms/native/targets"), json!({"X86": library("a.so")})),
        (&format!("{k}/platforms/native/targets"), json!({"x86_64-linux": library("../a.so")})),
        (&format!("{k}/platforms/native/targets"), json!({"x86_64-linux": "a.so"})),
        (&format!("{k}/platforms/native/min_runtime_version"), json!("1")),
        (&format!("{k}/tolerance/rel"), json!(-1)),
        (&format!("{k}/benchmarks"), json!({"x": {}})),
    ];
    for (pointer, value) in refused {
        let json = set(pointer, value.clone());
        assert!(!validator.accepts(&json), "the schema takes {pointer} = {value}");
        assert!(!findings(&json).is_empty(), "the parser takes {pointer} = {value}");
    }
    let accepted = [
        ("/version", json!("1.0.0-rc.1+build.5")),
        ("/created_at", json!("2026-11-20T00:00:00.5+01:00")),
        ("/fallbacks", json!({"rope_f32": "native:rope_f32"})),
        (&format!("{k}/path"), json!("a/b/c/d/e/f/g/com10.wasm")),
        (&format!("{k}/params/theta/default"), json!(1)),
        (&format!("{k}/platforms/native/targets"), json!({"aarch64-macos": library("n/a.dylib")})),
        (&format!("{k}/benchmarks"), json!({"x": {"latency_us": 1}})),
    ];
    for (pointer, value) in accepted {
        let json = set(pointer, value.clone());
        assert!(validator.accepts(&json), "the schema refuses {pointer} = {value}");
        assert_eq!(findings(&json), [""; 0], "{pointer} = {value}");
    }
}

/// Every object of the schema with fixed members, with where the example of kernels has one.
const OBJECTS: [(&str, &str); 13] = [
    ("", ""),
    ("/properties/author", "/author"),
    ("/$defs/kernel", "/kernels/0"),
    ("/$defs/tensor", "/kernels/0/inputs/0"),
    ("/$defs/param", "/kernels/0/params/theta"),
    ("/$defs/kernel/properties/resource_limits", "/kernels/0/resource_limits"),
    ("/$defs/kernel/properties/platforms", "/kernels/0/platforms"),
    ("/$defs/kernel/properties/platforms/properties/wasmtime", "/kernels/0/platforms/wasmtime"),
    ("/$defs/kernel/properties/platforms/properties/wamr", "/kernels/0/platforms/wamr"),
    ("/$defs/kernel/properties/platforms/properties/native", "/kernels/0/platforms/native"),
    ("/$defs/library", "/kernels/0/platforms/native/targets/x86_64-linux"),
    ("/$defs/kernel/properties/tolerance", "/kernels/0/tolerance"),
    ("/$defs/benchmark", "/kernels/0/benchmarks/seq_512_dim_128"),
];

/// And where the example of graphs has one.
const GRAPH_OBJECTS: [(&str, &str); 8] = [
    ("/$defs/graph", "/graphs/0"),
    ("/$defs/graph_tensors/items", "/graphs/0/inputs/0"),
    ("/$defs/graph/properties/resource_limits", "/graphs/0/resource_limits"),
    ("/$defs/graph/properties/tolerance", "/graphs/0/tolerance"),
    ("/$defs/graph/properties/checks/items", "/graphs/0/checks/0"),
    ("/$defs/graph_values/items", "/graphs/0/checks/0/outputs/0"),
    ("/$defs/graph/properties/embedding", "/graphs/0/embedding"),
    ("/$defs/graph/properties/embedding/properties/tokenizer", "/graphs/0/embedding/tokenizer"),
];

#[test]
fn schema_and_types_have_the_same_fields_and_the_same_required_ones() {
    same_fields(crate::EXAMPLE, &OBJECTS, &["graphs"]);
    same_fields(crate::GRAPH_EXAMPLE, &GRAPH_OBJECTS, &[]);
}

/// Compares objects of the schema with what the types write of an example, which has every field there is
/// but for these of the manifest itself.
fn same_fields(example: &str, objects: &[(&str, &str)], elsewhere: &[&str]) {
    let schema = schema();
    let example: Value = serde_json::from_str(example).unwrap();
    let manifest = Manifest::parse(example.to_string().as_bytes()).unwrap();
    let written: Value = serde_json::from_str(&manifest.to_json().unwrap()).unwrap();
    for (in_schema, in_example) in objects {
        let object = schema.pointer(in_schema).unwrap();
        assert_eq!(object["additionalProperties"], false, "{in_schema}");
        let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let mut fields = keys(&object["properties"]);
        fields.retain(|field| !in_example.is_empty() || !elsewhere.contains(&field.as_str()));
        assert_eq!(fields, keys(written.pointer(in_example).unwrap()), "{in_schema}");
        let required: BTreeSet<String> = object["required"]
            .as_array()
            .map(|names| names.iter().map(|n| n.as_str().unwrap().to_owned()).collect())
            .unwrap_or_default();
        for field in fields {
            let mut json = example.clone();
            json.pointer_mut(in_example).unwrap().as_object_mut().unwrap().remove(&field);
            let missing = findings(&json).iter().any(|f| f.starts_with("missing_field"));
            assert_eq!(missing, required.contains(&field), "{in_schema}: {field}");
        }
    }
}

#[test]
fn the_schema_has_the_abi_s_dtypes_and_the_parser_s_caps() {
    let schema = schema();
    let dtypes: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    assert_eq!(schema["$defs"]["tensor"]["properties"]["dtype"]["enum"], json!(dtypes));
    assert_eq!(schema["properties"]["kernels"]["maxItems"], json!(MAX_KERNELS));
    let kernel = &schema["$defs"]["kernel"]["properties"];
    assert_eq!(schema["$defs"]["size"]["maximum"], json!(MAX_FILE_BYTES));
    assert_eq!(schema["$defs"]["graph_size"]["maximum"], json!(MAX_GRAPH_FILE_BYTES));
    assert_eq!(kernel["inputs"]["maxItems"], json!(ruvllm_abi::MAX_INPUTS));
    assert_eq!(kernel["params"]["maxProperties"], json!(ruvllm_abi::MAX_PARAM_WORDS));
}
