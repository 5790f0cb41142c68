//! Files that the walk refuses, each by a code of its own.

use ruvllm_graph::onnx::walk;
use ruvllm_tests::graphs::{MEMORY, entry};
use ruvllm_tests::onnx::{
    FLOAT, Graph, INT64, Message, floats, int, integers, ints, mlp, node, port, tensor,
};
use serde_json::json;

use crate::parsed;

/// The codes of what is wrong with a file.
fn codes(bytes: &[u8]) -> Vec<&'static str> {
    let found = walk(bytes, MEMORY).expect_err("the walk takes it");
    assert!(found.iter().all(|violation| !violation.message.is_empty()));
    found.iter().map(|violation| violation.code).collect()
}

/// The MLP with one more node, whose output nobody reads.
fn with(extra: Message) -> Vec<u8> {
    let mut graph = mlp();
    graph.nodes.push(extra);
    graph.model()
}

fn with_weight(weight: Message) -> Vec<u8> {
    let mut graph = mlp();
    graph.weights.push(weight);
    graph.model()
}

#[test]
fn data_outside_of_the_file_is_refused_wherever_it_would_be() {
    for place in ["weights.bin", "../../../etc/passwd", "/etc/shadow"] {
        let location = Message::new().bytes(1, "location").bytes(2, place);
        let external =
            Message::new().number(1, 2).number(2, FLOAT).bytes(8, "w").bytes(13, location);
        let bytes = with_weight(external.clone().number(14, 1));
        let found = walk(&bytes, MEMORY).unwrap_err();
        assert_eq!(found[0].code, "onnx_external_data");
        assert!(found[0].message.contains(place), "{}", found[0].message);
        // Also where only one of the two fields says so, and in a node.
        assert_eq!(codes(&with_weight(external.clone())), ["onnx_external_data"]);
        let value = Message::new().bytes(1, "value").bytes(5, external).number(20, 4);
        assert_eq!(codes(&with(node("Constant", &[], &["c"], &[value]))), ["onnx_external_data"]);
    }
}

#[test]
fn weights_are_there_and_as_long_as_their_shape_says() {
    let mut graph = mlp();
    graph.weights.remove(2);
    assert_eq!(codes(&graph.model()), ["onnx_missing_weight"]);
    assert_eq!(codes(&with_weight(tensor("w", FLOAT, &[2], &[]))), ["onnx_missing_weight"]);
    assert_eq!(codes(&with_weight(tensor("w", FLOAT, &[2], &[0; 7]))), ["onnx_tensor_size"]);
    let huge = tensor("w", FLOAT, &[1 << 40, 1 << 40], &[0; 4]);
    assert_eq!(codes(&with_weight(huge)), ["onnx_tensor_shape"]);
    assert_eq!(codes(&with_weight(tensor("w", FLOAT, &[-1], &[0; 4]))), ["onnx_tensor_shape"]);
    assert_eq!(codes(&with_weight(tensor("w", 8, &[1], b"text"))), ["onnx_type"]);
    assert_eq!(codes(&with_weight(floats("w1", &[1], &[0.0]))), ["onnx_name_twice"]);
}

#[test]
fn cycles_and_names_that_nobody_defines_are_refused() {
    let mut graph = mlp();
    graph.nodes.push(node("Add", &["a", "x"], &["b"], &[]));
    graph.nodes.push(node("Relu", &["b"], &["a"], &[]));
    assert_eq!(codes(&graph.model()), ["onnx_cycle"]);
    assert_eq!(codes(&with(node("Relu", &["self"], &["self"], &[]))), ["onnx_cycle"]);
    assert_eq!(codes(&with(node("Relu", &["nobody"], &["c"], &[]))), ["onnx_missing_weight"]);
    let twice = codes(&with(node("Relu", &["x"], &["h1"], &[])));
    assert_eq!(twice[0], "onnx_name_twice");
    let mut graph = mlp();
    graph.nodes.swap(0, 1);
    assert_eq!(codes(&graph.model()), ["onnx_order"]);
    let mut graph = mlp();
    graph.outputs.push(port("z", FLOAT, &["1"]));
    assert_eq!(codes(&graph.model()), ["onnx_missing_output"]);
}

#[test]
fn shapes_that_do_not_fit_the_memory_are_refused() {
    let bomb = |op: &str, inputs: &[&str], numbers: &[i64]| {
        let mut graph = mlp();
        graph.weights.push(integers("shape", &[numbers.len() as i64], numbers));
        graph.nodes.push(node(op, inputs, &["c"], &[]));
        codes(&graph.model())
    };
    let large = ["onnx_shape_too_large"];
    assert_eq!(bomb("ConstantOfShape", &["shape"], &[1 << 20, 1 << 20]), large);
    assert_eq!(bomb("ConstantOfShape", &["shape"], &[i64::MAX, i64::MAX]), large);
    assert_eq!(bomb("Expand", &["x", "shape"], &[1 << 31]), large);
    assert_eq!(bomb("Tile", &["x", "shape"], &[1 << 20, 1 << 20]), large);
    assert_eq!(bomb("Pad", &["x", "shape"], &[0, 0, 0, 1 << 40]), large);
    // The numbers of a node count as those of a weight.
    let shape = node("Constant", &[], &["s"], &[ints("value_ints", &[1 << 20, 1 << 20])]);
    let mut graph = mlp();
    graph.nodes.extend([shape, node("ConstantOfShape", &["s"], &["c"], &[])]);
    assert_eq!(codes(&graph.model()), large);
    let mut graph = mlp();
    graph.inputs.push(port("large", FLOAT, &["1048576", "1048576"]));
    assert_eq!(codes(&graph.model()), large);
    let window = ints("kernel_shape", &[1 << 30, 1]);
    assert_eq!(codes(&with(node("MaxPool", &["x"], &["c"], &[window]))), ["onnx_window"]);
}

#[test]
fn what_no_bound_holds_for_is_refused() {
    let body = Graph::default();
    let graph = Message::new().bytes(1, "body").bytes(6, body.model()).number(20, 5);
    let found = codes(&with(node("Loop", &["", ""], &["c"], &[graph])));
    assert_eq!(found, ["onnx_control_flow", "onnx_subgraph"]);
    assert_eq!(codes(&with(node("RandomNormal", &[], &["c"], &[]))), ["onnx_random"]);
    let foreign = node("Mine", &["x"], &["c"], &[int("n", 1)]).bytes(7, "org.example");
    assert_eq!(codes(&with(foreign)), ["onnx_operator"]);
    let mut functions = mlp().model();
    functions.extend(Message::new().bytes(25, "f").into_bytes());
    assert_eq!(codes(&functions), ["onnx_functions"]);
}

#[test]
fn what_is_no_onnx_file_is_refused_and_nothing_panics() {
    assert_eq!(codes(b""), ["onnx_malformed"]);
    assert_eq!(codes(b"GGUF and no protocol buffer"), ["onnx_malformed"]);
    let good = mlp().model();
    for length in 0..good.len() {
        // Most are malformed, some lack a part.
        assert!(walk(&good[..length], MEMORY).is_err(), "{length} bytes");
    }
    let mut state = 1u64;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        let _ = walk(&bytes, MEMORY);
    }
}

#[test]
fn inputs_and_outputs_are_those_of_the_manifest() {
    let facts = walk(&mlp().model(), MEMORY).unwrap();
    assert_eq!((facts.nodes, facts.weight_bytes), (5, 4 * (128 + 16 + 64 + 4)));
    let mut other = entry("mlp");
    other["outputs"][0]["name"] = json!("z");
    other["checks"][0]["outputs"][0]["name"] = json!("z");
    other["checks"][1]["outputs"][0]["name"] = json!("z");
    let found = facts.disagreements(&parsed(&other));
    assert_eq!(found[0].code, "graph_io_mismatch");
    let mut more = mlp();
    more.inputs.push(port("y2", INT64, &["1"]));
    let found = walk(&more.model(), MEMORY).unwrap().disagreements(&parsed(&entry("mlp")));
    assert!(found[0].message.contains("does not list"), "{}", found[0].message);
}
