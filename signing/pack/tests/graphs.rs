//! Packs of graphs: made, shown and compared.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn fixture(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/graphs");
    fs::read(root.join(name)).expect("a fixture")
}

fn tool(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ruvllm-pack")).args(args).output().expect("the tool runs")
}

/// A pack of the graph `mlp`, whose batches are so large at most, in a directory of its own.
fn pack(batch: u32) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(directory.path().join(name), bytes).expect("written");
    };
    write("mlp.onnx", &fixture("mlp.onnx"));
    write("checks.json", &fixture("mlp.json"));
    let toml = format!(
        r#"[pack]
name = "graphs"
version = "1.0.0"
description = "a graph"
min_runtime_version = "0.1.0"
created_at = "2026-01-01T00:00:00Z"
author = {{ name = "a", signing_key = "ed25519:U1w6stVLs6KD+VVwOSmTd+kgk8sADTIVa2F+DsEU5Nk=" }}

[[graph]]
id = "mlp"
name = "two layers"
file = "mlp.onnx"
checks = "checks.json"
extents = {{ batch = {batch} }}
max_memory_bytes = 1048576
max_millis = 100
tolerance = {{ rel = 1e-4, abs = 1e-5 }}
"#
    );
    write("graph.toml", toml.as_bytes());
    let output = tool(&["graph", text(&directory.path().join("graph.toml"))]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

#[test]
fn inspecting_shows_what_a_graph_is_and_what_is_wrong_with_its_file() {
    let pack = pack(8);
    let dist = pack.path().join("dist");
    let shown = tool(&["inspect", text(&dist)]).stdout;
    let shown = String::from_utf8(shown).expect("text");
    for part in [
        " bytes in 1 graph(s)",
        "graph mlp: two layers",
        "(x: f32[batch <= 8, 8]) -> y: f32[batch <= 8, 4]",
        "onnx, graphs/mlp.onnx, ",
        "1048576 bytes of memory, 100 ms",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("PROBLEM"), "{shown}");
    let file = dist.join("graphs/mlp.onnx");
    let bytes = fs::read(&file).expect("the graph");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
    let report: Value =
        serde_json::from_slice(&tool(&["inspect", "--json", text(&dist)]).stdout).expect("JSON");
    let problems = report["graphs"][0]["problems"].as_array().expect("problems");
    assert!(problems.len() >= 2, "{problems:?}");
    assert!(problems[0].as_str().is_some_and(|what| what.contains("hash")), "{problems:?}");
}

#[test]
fn comparing_names_what_changes_in_a_graph() {
    let (small, large) = (pack(8), pack(16));
    let [small, large] = [&small, &large].map(|pack| pack.path().join("dist"));
    let shown = tool(&["diff", text(&small), text(&large)]).stdout;
    let shown = String::from_utf8(shown).expect("text");
    assert!(shown.contains("mlp: signature"), "{shown}");
    assert!(shown.contains("+ (x: f32[batch <= 16, 8]) -> y: f32[batch <= 16, 4]"), "{shown}");
    assert!(!shown.contains("mlp: hash"), "{shown}");
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist");
    let shown = tool(&["diff", text(&core), text(&small)]).stdout;
    let shown = String::from_utf8(shown).expect("text");
    assert!(shown.contains("+ graph mlp: (x: f32[batch <= 8, 8])"), "{shown}");
}
