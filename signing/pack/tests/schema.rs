//! The published schema, in the hands of a validator that anybody can get, says about manifests what
//! this program makes and reads.

use std::fs;
use std::path::Path;
use std::process::Command;

use boon::{Compiler, Schemas};
use serde_json::{Value, json};

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

/// What the published schema says against a manifest.
fn validate(manifest: &Value) -> Result<(), String> {
    let id = "https://ruvllm.dev/schemas/kernel-pack-v1.json";
    let schema = read(&root().join("manifests/schema/kernel-pack-v1.json"));
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler.add_resource(id, schema).expect("the schema is one");
    let schema = compiler.compile(id, &mut schemas).expect("the schema compiles");
    schemas.validate(manifest, schema).map_err(|errors| errors.to_string())
}

#[track_caller]
fn valid(manifest: &Value) {
    validate(manifest).unwrap_or_else(|errors| panic!("{errors}"));
}

fn core() -> Value {
    read(&root().join("kernel-packs/core/dist/kernels.json"))
}

#[test]
fn the_core_pack_and_the_example_are_valid() {
    valid(&core());
    valid(&read(&root().join("manifests/schema/example.json")));
}

#[test]
fn the_manifest_of_a_new_pack_is_valid_with_and_without_figures() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pack = dir.path().join("new-pack");
    let run = |args: &[&str]| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_ruvllm-pack"));
        tool.args(args).arg("--json").arg(&pack).output().expect("the tool runs")
    };
    assert!(run(&["new", "--lang", "c", "--custom", "--op", "kv_pack"]).status.success());
    let built = run(&["build"]);
    if String::from_utf8_lossy(&built.stdout).contains("toolchain_missing") {
        eprintln!("skipped: no compiler of C for wasm32 here");
        return;
    }
    valid(&read(&pack.join("dist/kernels.json")));
    assert!(run(&["bench", "--write", "--time", "1"]).status.success());
    let manifest = read(&pack.join("dist/kernels.json"));
    assert!(manifest["kernels"][0]["benchmarks"].is_object());
    valid(&manifest);
}

#[test]
fn what_the_parser_refuses_field_by_field_the_schema_refuses_too() {
    let cases: [(&str, Value); 9] = [
        ("/version", json!("1.0")),
        ("/name", json!("Upper")),
        ("/kernels", json!([])),
        ("/author/signing_key", json!("ed25519:short")),
        ("/kernels/0/path", json!("../escape.wasm")),
        ("/kernels/0/hash", json!("sha256:00")),
        ("/kernels/0/inputs/0/dtype", json!("f64")),
        ("/kernels/0/resource_limits/max_memory_pages", json!(0)),
        ("/kernels/0/entry_point", json!("no spaces")),
    ];
    for (at, value) in cases {
        let mut manifest = core();
        *manifest.pointer_mut(at).expect("a field") = value;
        assert!(validate(&manifest).is_err(), "{at}");
        let text = serde_json::to_vec(&manifest).expect("JSON");
        assert!(ruvllm_manifest::Manifest::parse(&text).is_err(), "{at}");
    }
    let mut manifest = core();
    manifest["surprise"] = json!(true);
    assert!(validate(&manifest).is_err(), "an unknown field");
}
