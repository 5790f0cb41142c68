//! What the format says of graphs.

use crate::{GRAPH_EXAMPLE, findings};
use ruvllm_manifest::{Dim, GraphEntry, GraphFormat, GraphType, Manifest, Pooling};
use serde_json::{Value, json};

fn edited(pointer: &str, value: Value) -> Vec<String> {
    let mut json: Value = serde_json::from_str(GRAPH_EXAMPLE).unwrap();
    *json.pointer_mut(pointer).unwrap_or_else(|| panic!("nothing at {pointer}")) = value;
    findings(&json)
}

#[test]
fn the_example_means_what_it_says_and_writes_back() {
    let manifest = Manifest::parse(GRAPH_EXAMPLE.as_bytes()).unwrap();
    let graph = manifest.graph("sentences").unwrap();
    assert_eq!((graph.format, graph.inputs[0].ty), (GraphFormat::Onnx, GraphType::I64));
    assert_eq!(graph.outputs[0].shape[2], Dim::Fixed(2));
    assert_eq!(graph.largest(&graph.outputs[0]), 256);
    assert_eq!(graph.checks[0].outputs[0].values, [0.25, -1.5, 0.75, 1e-7]);
    assert_eq!(graph.embedding.as_ref().unwrap().pooling, Pooling::Mean);
    let files: Vec<&str> = manifest.files().iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["graphs/sentences.onnx", "graphs/tokenizer.json"]);
    let written = manifest.to_json().unwrap();
    assert_eq!(Manifest::parse(written.as_bytes()).unwrap(), manifest);
    let alone = graph.to_json().unwrap();
    assert_eq!(GraphEntry::parse(alone.as_bytes()).unwrap(), *graph);
}

#[test]
fn a_graph_that_is_not_bounded_or_not_proved_is_refused_by_name() {
    let g = "/graphs/0";
    for (pointer, value, found) in [
        ("/format", json!("tflite"), "graph_format_unknown@graphs[0].format"),
        ("/path", json!("../x.onnx"), "path_escapes@graphs[0].path"),
        (
            "/path",
            json!("graphs/tokenizer.json"),
            "path_duplicate@graphs[0].embedding.tokenizer.path",
        ),
        ("/size", json!(1u64 << 40), "size_out_of_range@graphs[0].size"),
        ("/inputs", json!([]), "tensor_count@graphs[0].inputs"),
        ("/inputs/1/name", json!("input_ids"), "tensor_name_duplicate@graphs[0].inputs[1].name"),
        ("/inputs/0/dtype", json!("f16"), "dtype_unknown@graphs[0].inputs[0].dtype"),
        ("/extents", json!({"batch": 1}), "extent_unbounded@graphs[0].inputs[0].shape"),
        ("/extents/tokens", json!(1u64 << 31), "tensor_too_large@graphs[0].inputs[0].shape"),
        (
            "/resource_limits/max_millis",
            json!(0),
            "limit_out_of_range@graphs[0].resource_limits.max_millis",
        ),
        ("/checks", json!([]), "check_count@graphs[0].checks"),
        ("/checks/0/inputs/0/name", json!("other"), "check_inputs@graphs[0].checks[0].inputs"),
        (
            "/checks/0/inputs/0/values/0",
            json!(0.5),
            "check_value@graphs[0].checks[0].inputs[0].values",
        ),
        (
            "/checks/0/outputs/0/shape",
            json!([1, 3, 2]),
            "check_shape@graphs[0].checks[0].outputs[0].values",
        ),
        (
            "/checks/0/outputs/0/shape",
            json!([1, 2, 3]),
            "check_shape@graphs[0].checks[0].outputs[0].shape",
        ),
        ("/checks/0/outputs/0/name", json!("other"), "check_tensor@graphs[0].checks[0].outputs[0]"),
        (
            "/checks/0/outputs/0/values/0",
            json!("NaN"),
            "wrong_type@graphs[0].checks[0].outputs[0].values[0]",
        ),
        ("/embedding/pooling", json!("max"), "pooling_unknown@graphs[0].embedding.pooling"),
        ("/embedding/pooling", json!("none"), "embedding_output@graphs[0].embedding"),
        ("/embedding/max_tokens", json!(129), "embedding_tokens@graphs[0].embedding.max_tokens"),
    ] {
        let all = edited(&format!("{g}{pointer}"), value.clone());
        assert!(all.iter().any(|one| one == found), "{pointer} = {value}: {all:?}");
    }
    assert_eq!(edited("/graphs", json!([])), ["graph_count@graphs"]);
}

#[test]
fn ids_are_unique_among_kernels_and_graphs() {
    let mut json = crate::example();
    let mut graph: Value =
        serde_json::from_str::<Value>(GRAPH_EXAMPLE).unwrap()["graphs"][0].take();
    graph["id"] = json!("ROPE_F32");
    json["graphs"] = json!([graph]);
    assert_eq!(findings(&json), ["graph_id_duplicate@graphs[0].id"]);
}
