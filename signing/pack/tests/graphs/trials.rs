//! Packs with graphs before the trials of authors: `test` and `explain`.

#[path = "../../../../runtime/graph/tests/graph/tiny.rs"]
mod tiny;

use ruvllm_abi::DType;
use ruvllm_manifest::GraphEntry;
use ruvllm_tests::graphs::{entry, kernel};
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

/// What `explain` says of a pack whose publisher is trusted, with graphs in kernels or without, and its exit code.
fn explained(pack: &TestPack, grant: bool) -> (Value, Option<i32>) {
    let policy = pack.policy_file();
    if grant {
        let text = std::fs::read_to_string(&policy).expect("a policy");
        std::fs::write(&policy, text + "wasi_nn = true\n").expect("written");
    }
    let output = tool(&["explain", "--json", "--trust", text(&policy), text(&pack.path())]);
    (serde_json::from_slice(&output.stdout).expect("JSON"), output.status.code())
}

/// Each gate of a kernel or graph with its verdict.
fn verdicts(gates: &Value) -> Vec<(&str, &str)> {
    let all = gates["gates"].as_array().expect("gates").iter();
    all.map(|gate| (gate["gate"].as_str().expect("a name"), gate["verdict"].as_str().expect("one")))
        .collect()
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

#[test]
fn explain_admits_packs_with_graphs_that_a_host_admits() {
    let all = ["compatibility", "graph", "numbers"];
    let (report, code) = explained(&alone(&entry("mlp"), onnx::mlp().model()), false);
    assert_eq!((code, &report["admitted"]), (Some(0), &true.into()), "{report:#}");
    assert_eq!(verdicts(&report["graphs"][0]), all.map(|gate| (gate, "passed")));

    let (own, module) = kernel("");
    let pack = PackBuilder::new().entry(own, module);
    let pack = pack.graph(parsed(&entry("mlp")), onnx::mlp().model(), Vec::new()).build();
    let (report, code) = explained(&pack, false);
    assert_eq!((code, &report["admitted"]), (Some(1), &false.into()), "{report:#}");
    let (report, code) = explained(&pack, true);
    assert_eq!((code, &report["admitted"]), (Some(0), &true.into()), "{report:#}");
    assert!(verdicts(&report["kernels"][0]).contains(&("numbers", "passed")), "{report:#}");
    assert_eq!(verdicts(&report["graphs"][0]), all.map(|gate| (gate, "passed")));
}

#[test]
fn explain_says_which_gate_refuses_a_graph_and_why() {
    let (report, code) = explained(&alone(&wrong(), onnx::mlp().model()), false);
    assert_eq!((code, &report["admitted"]), (Some(1), &false.into()), "{report:#}");
    let gates = &report["graphs"][0];
    let passed_to_numbers =
        [("compatibility", "passed"), ("graph", "passed"), ("numbers", "refused")];
    assert_eq!(verdicts(gates), passed_to_numbers);
    assert_eq!(gates["gates"][2]["findings"][0]["code"], "graph_mismatch");

    let mut hungry = entry("mlp");
    hungry["resource_limits"]["max_memory_bytes"] = json!(8u64 << 30);
    let mut graph = onnx::mlp();
    graph.nodes.push(onnx::node("RandomNormal", &[], &["r"], &[]));
    let (own, module) = kernel("");
    let pack = PackBuilder::new().entry(own, module);
    let pack = pack.graph(parsed(&hungry), graph.model(), Vec::new()).build();
    let (report, _) = explained(&pack, true);
    let refused = [("compatibility", "refused"), ("graph", "refused"), ("numbers", "not_reached")];
    assert_eq!(verdicts(&report["graphs"][0]), refused);
    // Its kernel was looked at, and not run without the graph.
    let kernel = verdicts(&report["kernels"][0]);
    assert!(kernel.contains(&("module", "passed")), "{kernel:?}");
    assert!(kernel.contains(&("numbers", "not_reached")), "{kernel:?}");
}
