//! Packs of graphs: made, shown, compared and tried.

#[cfg(feature = "graphs")]
#[path = "graphs/trials.rs"]
mod trials;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn fixture(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/graphs");
    fs::read(root.join(name)).expect("a fixture")
}

/// What another runtime computed with the graph `mlp`.
fn checks() -> Value {
    let fixture: Value = serde_json::from_slice(&fixture("mlp.json")).expect("JSON");
    fixture["checks"].clone()
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
    write("checks.json", checks().to_string().as_bytes());
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

#[test]
fn a_gguf_file_without_a_width_and_a_file_that_is_too_large_are_named_as_such() {
    let pack = pack(8);
    let (spec, file) = (pack.path().join("graph.toml"), pack.path().join("mlp.onnx"));
    let refused = || {
        let output = tool(&["graph", text(&spec)]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).expect("text")
    };
    fs::write(&file, b"GGUF\x03\0\0\0").expect("written");
    let said = refused();
    assert!(said.contains("graph `mlp`: a GGUF model needs `width`"), "{said}");
    let large = fs::File::create(&file).expect("a file");
    large.set_len((512 << 20) + 1).expect("a file with a hole");
    let said = refused();
    assert!(said.contains("it has 536870913 bytes") && said.contains("512 MiB at most"), "{said}");
}

/// What a kernel in C does with the graph of its pack.
#[cfg(feature = "graphs")]
const CLASSIFY_C: &str = r#"
#include "ruvllm_kernel.h"

#define WASI_NN(name) \
    __attribute__((import_module("wasi_ephemeral_nn"), import_name(#name))) int32_t name

typedef struct tensor {
    const uint32_t *dims;
    uint32_t rank;
    uint32_t type; /* 1: f32 */
    const void *data;
    uint32_t size;
} tensor;

WASI_NN(load_by_name)(const char *name, uint32_t len, uint32_t *graph);
WASI_NN(init_execution_context)(uint32_t graph, uint32_t *context);
WASI_NN(set_input)(uint32_t context, uint32_t index, const tensor *input);
WASI_NN(compute)(uint32_t context);
WASI_NN(get_output)(uint32_t context, uint32_t index, void *to, uint32_t size, uint32_t *written);

RUVLLM_KERNEL(classify_forward) {
    const uint32_t rows = ruvllm_symbol(call);
    const float *x = RUVLLM_INPUT(call, float, rows, 8);
    float *y = RUVLLM_OUTPUT(call, float, rows, 4);
    RUVLLM_READY(call);
    const uint32_t dims[2] = {rows, 8};
    const tensor input = {dims, 2, 1, x, rows * 32};
    uint32_t graph, context, written;
    if (rows == 0) return RUVLLM_OK;
    if (rows > 8) return RUVLLM_NOT_IMPLEMENTED;
    if (load_by_name("mlp", 3, &graph) || init_execution_context(graph, &context) ||
        set_input(context, 0, &input) || compute(context) ||
        get_output(context, 0, y, rows * 16, &written)) {
        return RUVLLM_INTERNAL_ERROR;
    }
    return RUVLLM_OK;
}
"#;

/// The same in Rust.
#[cfg(feature = "graphs")]
const CLASSIFY_RUST: &str = r#"
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use ruvllm_kernel_sdk::prelude::*;

#[repr(C)]
struct Tensor {
    dims: *const u32,
    rank: u32,
    /// 1: f32.
    ty: u32,
    data: *const f32,
    size: u32,
}

#[link(wasm_import_module = "wasi_ephemeral_nn")]
unsafe extern "C" {
    fn load_by_name(name: *const u8, len: u32, graph: *mut u32) -> i32;
    fn init_execution_context(graph: u32, context: *mut u32) -> i32;
    fn set_input(context: u32, index: u32, input: *const Tensor) -> i32;
    fn compute(context: u32) -> i32;
    fn get_output(context: u32, index: u32, to: *mut f32, size: u32, written: *mut u32) -> i32;
}

kernel! {
    fn classify_forward;
    revision 1;
    shape [rows];
    input x: f32 [rows, 8];
    output y: f32 [rows, 4];
    run {
        if rows == 0 {
            return Ok(());
        }
        if rows > 8 {
            return Err(Status::NotImplemented);
        }
        let dims = [rows as u32, 8];
        let data = x.as_slice();
        let input = Tensor { dims: dims.as_ptr(), rank: 2, ty: 1, data: data.as_ptr(), size: 4 * data.len() as u32 };
        let y = y.as_mut_slice();
        let (mut graph, mut context, mut written) = (0, 0, 0);
        // SAFETY: every pointer is to something that lives until the function returns, of the size that is said.
        let failed = unsafe {
            load_by_name("mlp".as_ptr(), 3, &mut graph) != 0
                || init_execution_context(graph, &mut context) != 0
                || set_input(context, 0, &input) != 0
                || compute(context) != 0
                || get_output(context, 0, y.as_mut_ptr(), 4 * y.len() as u32, &mut written) != 0
        };
        if failed { Err(Status::InternalError) } else { Ok(()) }
    }
}
"#;

/// A kernel that a compiler made computes the graph of its pack, to what another runtime gave.
#[cfg(feature = "graphs")]
fn a_kernel_computes_a_graph(lang: &str, extension: &str, source: &str) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pack = directory.path().join("classifier");
    let made = tool(&["new", "--custom", "--lang", lang, text(&pack)]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let write = |name: &str, bytes: &[u8]| fs::write(pack.join(name), bytes).expect("written");
    write(&format!("kernels/affine_f32.{extension}"), source.as_bytes());
    write("mlp.onnx", &fixture("mlp.onnx"));
    write("checks.json", checks().to_string().as_bytes());
    fs::remove_dir_all(pack.join("golden")).expect("removed");
    let toml = fs::read_to_string(pack.join("pack.toml")).expect("a file");
    let (head, _) = toml.split_once("[[kernel]]").expect("a kernel");
    let kernel = r#"[[kernel]]
id = "affine_f32"
name = "Classes of rows"
op = "classify"
custom = true
category = "custom"
entry_point = "classify_forward"
inputs = [{ name = "x", dtype = "f32", shape = ["rows", 8] }]
output = { name = "y", dtype = "f32", shape = ["rows", 4] }

[[graph]]
id = "mlp"
name = "two layers"
file = "mlp.onnx"
checks = "checks.json"
extents = { batch = 8 }
max_memory_bytes = 1048576
max_millis = 100
tolerance = { rel = 1e-4, abs = 1e-5 }
"#;
    write("pack.toml", format!("{head}{kernel}").as_bytes());
    let built = tool(&["build", "--json", text(&pack)]);
    let report: Value = serde_json::from_slice(&built.stdout).expect("JSON");
    if report["error"]["code"] == "toolchain_missing" {
        eprintln!("skipped: {}", report["error"]["message"]);
        return;
    }
    assert!(built.status.success(), "{report}\n{}", String::from_utf8_lossy(&built.stderr));
    let features = report["kernels"][0]["features"].as_array().expect("features");
    assert!(features.contains(&Value::from("wasi-nn")), "{features:?}");

    let near = ruvllm_native::judge::Tolerance { rel: 1e-4, abs: 1e-5 };
    for check in checks().as_array().expect("checks") {
        let input = directory.path().join("x.json");
        fs::write(&input, check["inputs"][0].to_string()).expect("written");
        let input = format!("x={}", text(&input));
        let called = tool(&["call", "--json", text(&pack), "affine_f32", "--input", &input]);
        let reply: Value = serde_json::from_slice(&called.stdout).expect("JSON");
        let y = &reply["output"];
        let numbers = |tensor: &Value| -> Vec<f64> {
            let values = tensor["values"].as_array().expect("values");
            values.iter().map(|value| value.as_f64().expect("a number")).collect()
        };
        let (got, want) = (numbers(y), numbers(&check["outputs"][0]));
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert!(near.holds(*got, *want), "{got} for {want}");
        }
    }

    // Without its graph it fails the first call.
    let alone = format!("{head}{}", kernel.split("[[graph]]").next().expect("a part"));
    write("pack.toml", alone.as_bytes());
    let refused = tool(&["build", "--json", text(&pack)]);
    let report: Value = serde_json::from_slice(&refused.stdout).expect("JSON");
    assert_eq!(report["error"]["code"], "kernel_status", "{report}");
}

#[cfg(feature = "graphs")]
#[test]
fn a_kernel_in_c_computes_a_graph() {
    a_kernel_computes_a_graph("c", "c", CLASSIFY_C);
}

#[cfg(feature = "graphs")]
#[test]
fn a_kernel_in_rust_computes_a_graph() {
    a_kernel_computes_a_graph("rust", "rs", CLASSIFY_RUST);
}

/// A build that computes no graphs says so, instead of a verdict that it cannot give.
#[cfg(not(feature = "graphs"))]
#[test]
fn without_the_feature_graphs_are_not_tried_and_nobody_is_told_that_they_are_right() {
    use ruvllm_tests::{PackBuilder, graphs, onnx};
    let entry = graphs::entry("mlp").to_string();
    let entry = ruvllm_manifest::GraphEntry::parse(entry.as_bytes()).expect("an entry");
    let (kernel, module) = graphs::kernel("");
    let alone = PackBuilder::new();
    let asked = PackBuilder::new().entry(kernel, module);
    for pack in [alone, asked] {
        let pack = pack.graph(entry.clone(), onnx::mlp().model(), Vec::new()).build();
        let policy = pack.policy_file();
        let granted = fs::read_to_string(&policy).expect("a policy") + "wasi_nn = true\n";
        fs::write(&policy, granted).expect("written");
        let tested = tool(&["test", text(&pack.path())]);
        assert_eq!(tested.status.code(), Some(2));
        let said = String::from_utf8_lossy(&tested.stderr).into_owned();
        assert!(said.contains("--features graphs"), "{said}");
        let explained = tool(&["explain", "--trust", text(&policy), text(&pack.path())]);
        let said = String::from_utf8_lossy(&explained.stdout).into_owned();
        assert!(said.contains("cannot be tried to the end here"), "{said}");
        assert!(said.contains("--features graphs") && !said.contains("REFUSED"), "{said}");
        assert_eq!(explained.status.code(), Some(1));
    }
}
