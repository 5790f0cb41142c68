//! Packs with graphs before the trials of authors: `test`.

#[path = "../../../../runtime/graph/tests/graph/tiny.rs"]
mod tiny;

use ruvllm_abi::DType;
use ruvllm_manifest::GraphEntry;
use ruvllm_tests::graphs::entry;
use ruvllm_tests::{PackBuilder, TestPack, onnx};
use serde_json::{Value, json};

use crate::{text, tool};

fn parsed(entry: &Value) -> GraphEntry {
    GraphEntry::parse(entry.to_string().as_bytes()).expect("an entry")
}

/// A signed pack of this graph alone.
fn alone(entry: &Value, file: Vec<u8>) -> TestPack {
    PackBuilder::new().graph(parsed(entry), file, Vec::new()).build()
}

/// The entry of `mlp`, which says that it gives something else than it does.
fn wrong() -> Value {
    let mut wrong = entry("mlp");
    wrong["checks"][0]["outputs"][0]["values"][1] = json!(7.0);
    wrong
}

/// What `test` says of a pack, and its exit code.
fn tested(pack: &TestPack) -> (Value, Option<i32>) {
    let output = tool(&["test", "--json", text(&pack.path())]);
    (serde_json::from_slice(&output.stdout).expect("JSON"), output.status.code())
}

#[test]
fn graphs_that_a_host_refuses_are_refused_by_test_though_no_kernel_computes_them() {
    let (report, code) = tested(&alone(&entry("mlp"), onnx::mlp().model()));
    assert_eq!((code, &report["graphs"]), (Some(0), &json!([["mlp", 2]])), "{report}");
    let mut circle = onnx::mlp();
    circle.nodes[0] = onnx::node("MatMul", &["h3", "w1"], &["h1"], &[]);
    for (entry, graph, code) in [
        (wrong(), onnx::mlp(), "graph_mismatch"),
        (entry("mlp"), circle, "onnx_cycle"),
        (entry("mlp"), onnx::Graph { weights: Vec::new(), ..onnx::mlp() }, "onnx_missing_weight"),
    ] {
        let (report, exit) = tested(&alone(&entry, graph.model()));
        assert_eq!((exit, &report["error"]["code"]), (Some(1), &code.into()), "{report}");
        let first = &report["error"]["details"][0];
        assert_eq!((&first["location"], &first["code"]), (&"mlp".into(), &code.into()), "{report}");
    }
}

#[test]
fn a_gguf_graph_is_tried_like_an_onnx_one() {
    let tiny = tiny::Tiny::new(DType::Q8_0);
    let pack = PackBuilder::new().graph(tiny.entry(), tiny.file(), Vec::new()).build();
    let (report, code) = tested(&pack);
    assert_eq!((code, &report["graphs"]), (Some(0), &json!([["tiny", 1]])), "{report}");
}

/// Together they take fifteen times what the graph may, and no node for itself as much.
#[test]
fn a_graph_that_takes_more_memory_than_it_may_is_stopped() {
    let mut entry = entry("mlp");
    entry["inputs"] = json!([{"name": "x", "dtype": "f32", "shape": [1, 4]}]);
    entry["outputs"] = json!([{"name": "y", "dtype": "f32", "shape": []}]);
    entry["checks"] = json!([{
        "inputs": [{"name": "x", "shape": [1, 4], "values": [0, 0, 0, 0]}],
        "outputs": [{"name": "y", "shape": [], "values": [0]}],
    }]);
    entry["resource_limits"] = json!({"max_memory_bytes": 64 << 20, "max_millis": 30_000});
    let (report, code) = tested(&alone(&entry, onnx::alive_at_once(60, 1 << 20).model()));
    assert_eq!((code, &report["error"]["code"]), (Some(1), &"graph_memory".into()), "{report}");
}
