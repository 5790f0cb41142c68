//! Graphs that compute, in this process, against what onnxruntime computed.

use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_graph::{
    AdmittedGraph, GatedGraph, GraphCaps, GraphPackError, OnnxProvider, TextEncoder,
};
use ruvllm_host::graph::{GraphError, GraphProvider, GraphValue};
use ruvllm_manifest::{GraphType, GraphValues};
use ruvllm_signing::VerifiedPack;
use ruvllm_tests::graphs::{entry, sentences, tokenizer};
use ruvllm_tests::{PackBuilder, onnx};
use serde_json::{Value, json};

use crate::{graphs, parsed};

fn pack(entry: &Value, file: Vec<u8>, tokenizer: &str) -> VerifiedPack {
    let builder = PackBuilder::new().graph(parsed(entry), file, tokenizer.as_bytes().to_vec());
    builder.build().verify().unwrap()
}

fn admit(entry: &Value, file: Vec<u8>) -> Result<AdmittedGraph, GraphPackError> {
    let pack = pack(entry, file, "");
    let id = entry["id"].as_str().unwrap();
    GatedGraph::pass(&pack, id, &GraphCaps::default())?.admit(&OnnxProvider)
}

fn value(shape: &[u32], numbers: &[f64], ty: GraphType) -> GraphValue {
    let values = GraphValues { name: String::new(), shape: shape.into(), values: numbers.into() };
    GraphValue::of(&values, ty).unwrap()
}

#[test]
fn graphs_give_what_another_runtime_gives() {
    for (name, bytes) in graphs() {
        let admitted = admit(&entry(name), bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(admitted.entry().id, name);
    }
}

#[test]
fn a_graph_that_gives_other_numbers_is_not_admitted() {
    let mut other = entry("mlp");
    let first = &mut other["checks"][0]["outputs"][0]["values"][0];
    *first = json!(first.as_f64().unwrap() + 0.01);
    let error = admit(&other, onnx::mlp().model()).unwrap_err();
    assert_eq!(error.code(), "graph_mismatch", "{error}");
    let mut loose = entry("mlp");
    loose["tolerance"]["abs"] = json!(1.0);
    assert_eq!(admit(&loose, onnx::mlp().model()).unwrap_err().code(), "tolerance_too_loose");
    let mut hungry = entry("mlp");
    hungry["resource_limits"]["max_memory_bytes"] = json!(8u64 << 30);
    assert_eq!(admit(&hungry, onnx::mlp().model()).unwrap_err().code(), "limit_over_cap");
    let mut hostile = onnx::mlp();
    hostile.nodes.push(onnx::node("RandomNormal", &[], &["r"], &[]));
    assert_eq!(admit(&entry("mlp"), hostile.model()).unwrap_err().code(), "onnx_random");
    let pack = pack(&entry("mlp"), onnx::mlp().model(), "");
    let error = GatedGraph::pass(&pack, "other", &GraphCaps::default()).unwrap_err();
    assert!(error.to_string().contains("it has: mlp"), "{error}");
}

#[test]
fn inputs_are_held_to_the_manifest_and_outputs_exist_after_computing() {
    let admitted = admit(&entry("mlp"), onnx::mlp().model()).unwrap();
    let mut context = admitted.graph().context().unwrap();
    assert!(matches!(context.compute(&|| true), Err(GraphError::Input { .. })));
    assert!(matches!(context.output(0), Err(GraphError::Output { index: 0 })));
    let numbers = [0.5; 9 * 8];
    for (shape, ty) in
        [(&[1, 7][..], GraphType::F32), (&[9, 8], GraphType::F32), (&[1, 8], GraphType::I32)]
    {
        let count = shape.iter().product::<u32>() as usize;
        let ones = vec![1.0; count];
        let wrong = value(shape, if ty == GraphType::I32 { &ones } else { &numbers[..count] }, ty);
        let error = context.set_input(0, wrong).unwrap_err();
        assert!(matches!(error, GraphError::Input { .. }), "{error}");
    }
    assert!(context.set_input(1, value(&[1, 8], &numbers[..8], GraphType::F32)).is_err());
    context.set_input(0, value(&[2, 8], &numbers[..16], GraphType::F32)).unwrap();
    context.compute(&|| true).unwrap();
    let output = context.output(0).unwrap();
    assert_eq!(output.shape(), [2, 4]);
    assert!((output.numbers()[..4].iter().sum::<f64>() - 1.0).abs() < 1e-6);
    // Nothing of it is left for the next computation.
    assert!(matches!(context.compute(&|| true), Err(GraphError::Input { .. })));
    assert!(context.output(0).is_err());
}

#[test]
fn a_computation_ends_where_nobody_waits_and_where_its_time_or_memory_is_up() {
    let asked = AtomicUsize::new(0);
    let admitted = admit(&entry("encoder"), onnx::encoder().model()).unwrap();
    let mut context = admitted.graph().context().unwrap();
    let set = |context: &mut Box<dyn ruvllm_host::graph::GraphContext + '_>| {
        context.set_input(0, value(&[1, 2], &[2.0, 3.0], GraphType::I64)).unwrap();
        context.set_input(1, value(&[1, 2], &[1.0, 1.0], GraphType::I64)).unwrap();
    };
    set(&mut context);
    let waited_for = || asked.fetch_add(1, Ordering::Relaxed) < 5;
    assert_eq!(context.compute(&waited_for), Err(GraphError::Cancelled));
    set(&mut context);
    context.compute(&|| true).unwrap();

    // What it makes follows from its input, which no look at the file can tell.
    let mut bomb = entry("mlp");
    bomb["inputs"] = json!([{"name": "n", "dtype": "i64", "shape": []}]);
    bomb["outputs"] = json!([{"name": "y", "dtype": "f32", "shape": []}]);
    bomb["checks"] = json!([{"inputs": [{"name": "n", "shape": [], "values": [4]}],
        "outputs": [{"name": "y", "shape": [], "values": [6]}]}]);
    bomb["resource_limits"]["max_memory_bytes"] = json!(1 << 20);
    let admitted = admit(&bomb, onnx::sum_below().model()).unwrap();
    let mut context = admitted.graph().context().unwrap();
    context.set_input(0, value(&[], &[1048576.0], GraphType::I64)).unwrap();
    let error = context.compute(&|| true).unwrap_err();
    assert!(matches!(error, GraphError::Memory { .. }), "{error}");

    // A thousand products one after the other take longer than a millisecond.
    let mut graph = onnx::Graph {
        inputs: vec![onnx::port("x", onnx::FLOAT, &["128", "128"])],
        outputs: vec![onnx::port("m1000", onnx::FLOAT, &["128", "128"])],
        ..onnx::Graph::default()
    };
    for i in 0..1000 {
        let (from, to) = (format!("m{i}"), format!("m{}", i + 1));
        let from = if i == 0 { "x" } else { from.as_str() };
        graph.nodes.push(onnx::node("MatMul", &[from, "x"], &[&to], &[]));
    }
    let mut slow = entry("mlp");
    slow["inputs"] = json!([{"name": "x", "dtype": "f32", "shape": [128, 128]}]);
    slow["outputs"] = json!([{"name": "m1000", "dtype": "f32", "shape": [128, 128]}]);
    slow["checks"] = json!([{"inputs": [{"name": "x", "shape": [128, 128], "values": vec![0; 16384]}],
        "outputs": [{"name": "m1000", "shape": [128, 128], "values": vec![0; 16384]}]}]);
    slow["resource_limits"]["max_millis"] = json!(1);
    let error = admit(&slow, graph.model()).unwrap_err();
    assert_eq!(error.code(), "graph_time", "{error}");
}

#[test]
fn files_that_tract_does_not_take_are_errors() {
    let unknown = onnx::node("NoSuchOperator", &["x"], &["y2"], &[]);
    let mut graph = onnx::mlp();
    graph.nodes.push(unknown);
    graph.nodes[4] = onnx::node("Add", &["h4", "y2"], &["y"], &[]);
    let swap = graph.nodes.remove(5);
    graph.nodes.insert(4, swap);
    let error = OnnxProvider.load(&parsed(&entry("mlp")), &graph.model()).unwrap_err();
    assert_eq!(error.code(), "graph_refused");
}

#[test]
fn texts_become_vectors_by_the_tokenizer_and_the_pooling_of_the_pack() {
    let build = |pooling: &str| {
        let pack = pack(&sentences(pooling), onnx::encoder().model(), &tokenizer());
        let gated = GatedGraph::pass(&pack, "encoder", &GraphCaps::default()).unwrap();
        TextEncoder::new(gated.admit(&OnnxProvider).unwrap()).unwrap()
    };
    let encoder = build("mean");
    assert_eq!((encoder.dim(), encoder.max_tokens()), (16, 8));
    let tokens = encoder.tokens("The F\u{f3}x runs, ship.").unwrap();
    assert_eq!(tokens, [2, 5, 6, 8, 15, 13, 14, 3]);
    let vector = encoder.embed(&tokens, &|| true).unwrap();
    assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    // By hand, of the graph's own rows.
    let admitted = admit(&entry("encoder"), onnx::encoder().model()).unwrap();
    let mut context = admitted.graph().context().unwrap();
    let ids: Vec<f64> = tokens.iter().map(|id| f64::from(*id)).collect();
    context.set_input(0, value(&[1, 8], &ids, GraphType::I64)).unwrap();
    context.set_input(1, value(&[1, 8], &[1.0; 8], GraphType::I64)).unwrap();
    context.compute(&|| true).unwrap();
    let rows = context.output(0).unwrap().to_f32().unwrap();
    let unit = |row: Vec<f32>| {
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter().map(|x| x / length).collect::<Vec<f32>>()
    };
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    let mean = (0..16).map(|i| rows.iter().skip(i).step_by(16).sum::<f32>() / 8.0).collect();
    assert!(near(&vector, &unit(mean)));
    let cls = build("cls").embed(&tokens, &|| true).unwrap();
    assert!(near(&cls, &unit(rows[..16].to_vec())));
    let last = build("last").embed(&tokens, &|| true).unwrap();
    assert!(near(&last, &unit(rows[7 * 16..].to_vec())));
    let error = encoder.tokens("a a a a a a a a").unwrap_err();
    assert_eq!(error.code(), "context_length_exceeded");
    let plain = TextEncoder::new(admit(&entry("encoder"), onnx::encoder().model()).unwrap());
    assert_eq!(plain.unwrap_err().code(), "graph_no_embedding");
}
