//! Graphs in processes of their own. This program is its own helper, so it has no test harness: it prints what
//! one would.
#![forbid(unsafe_code)]

#[cfg(feature = "encoder")]
#[path = "graph/tiny.rs"]
mod tiny;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ruvllm_graph::{IsolatedProvider, graph_process};
use ruvllm_host::graph::{Graph, GraphError, GraphProvider, GraphValue};
use ruvllm_host::process::{HelperProcess, answer_requests};
use ruvllm_manifest::{Dim, GraphEntry, GraphType, GraphValues};
use ruvllm_tests::onnx::{self, Message};
use serde_json::{Value, json};

fn entry(inputs: Value, outputs: Value, memory: u64, millis: u64) -> GraphEntry {
    let values = |all: &Value| -> Value {
        let one = |tensor: &Value| {
            let count: u64 =
                tensor["shape"].as_array().unwrap().iter().filter_map(Value::as_u64).product();
            json!({"name": tensor["name"], "shape": tensor["shape"], "values": vec![0; count as usize]})
        };
        all.as_array().unwrap().iter().map(one).collect()
    };
    let checks = json!([{"inputs": values(&inputs), "outputs": values(&outputs)}]);
    let entry = json!({
        "id": "g", "name": "g", "format": "onnx", "path": "g.onnx", "size": 1,
        "hash": format!("sha256:{}", "0".repeat(64)), "inputs": inputs, "outputs": outputs, "extents": {},
        "resource_limits": {"max_memory_bytes": memory, "max_millis": millis},
        "tolerance": {"rel": 0, "abs": 0}, "checks": checks,
    });
    GraphEntry::parse(entry.to_string().as_bytes()).unwrap()
}

fn compute(
    graph: &dyn Graph,
    inputs: &[GraphValues],
    ty: GraphType,
) -> Result<GraphValue, GraphError> {
    let mut context = graph.context()?;
    for (i, values) in inputs.iter().enumerate() {
        context.set_input(i, GraphValue::of(values, ty).unwrap())?;
    }
    context.compute(&|| true)?;
    context.output(0).cloned()
}

fn a_graph_computes_as_in_this_process() {
    let entry = entry(
        json!([{"name": "x", "dtype": "f32", "shape": [1, 8]}]),
        json!([{"name": "y", "dtype": "f32", "shape": [1, 4]}]),
        256 << 20,
        5000,
    );
    let graph = IsolatedProvider::this_program(1).load(&entry, &mlp()).unwrap();
    let input = GraphValues { name: "x".into(), shape: vec![1, 8], values: vec![0.25; 8] };
    let isolated = compute(&*graph, std::slice::from_ref(&input), GraphType::F32).unwrap();
    let here = ruvllm_graph::OnnxProvider.load(&entry, &mlp()).unwrap();
    assert_eq!(isolated, compute(&*here, &[input], GraphType::F32).unwrap());
}

fn mlp() -> Vec<u8> {
    onnx::mlp().model()
}

fn a_graph_that_the_process_refuses_is_refused_with_its_reason() {
    let entry = entry(
        json!([{"name": "x", "dtype": "f32", "shape": [1, 8]}]),
        json!([{"name": "y", "dtype": "f32", "shape": [1, 4]}]),
        256 << 20,
        5000,
    );
    let mut graph = onnx::mlp();
    graph.nodes.push(onnx::node("RandomNormal", &[], &["r"], &[]));
    let error = IsolatedProvider::this_program(1).load(&entry, &graph.model()).unwrap_err();
    assert!(error.to_string().contains("onnx_random"), "{error}");
}

/// One node that takes far longer than it may: nothing looks at the clock within it.
fn a_node_that_takes_too_long_is_stopped_and_the_next_call_has_a_new_process() {
    let size = 3000;
    let graph = onnx::Graph {
        nodes: vec![
            onnx::node("Expand", &["x", "shape"], &["e"], &[]),
            onnx::node("MatMul", &["e", "e"], &["m"], &[]),
            onnx::node("ReduceSum", &["m"], &["y"], &[onnx::int("keepdims", 0)]),
        ],
        weights: vec![onnx::integers("shape", &[2], &[size, size])],
        inputs: vec![onnx::port("x", onnx::FLOAT, &["1", "1"])],
        outputs: vec![onnx::port("y", onnx::FLOAT, &[])],
    };
    let entry = entry(
        json!([{"name": "x", "dtype": "f32", "shape": [1, 1]}]),
        json!([{"name": "y", "dtype": "f32", "shape": []}]),
        1 << 30,
        1,
    );
    let graph = IsolatedProvider::this_program(1).load(&entry, &graph.model()).unwrap();
    for _ in 0..2 {
        let input = GraphValues { name: "x".into(), shape: vec![1, 1], values: vec![1.0] };
        let start = Instant::now();
        let error = compute(&*graph, &[input], GraphType::F32).unwrap_err();
        assert_eq!(error, GraphError::Time { millis: 1 });
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
}

/// Whoever waits for an answer may go while a single node computes; the graph is there again for the next one.
fn a_computation_that_nobody_waits_for_ends_and_the_graph_computes_again() {
    let graph = onnx::Graph {
        nodes: vec![
            onnx::node("MatMul", &["a", "b"], &["e"], &[]),
            onnx::node("MatMul", &["e", "e"], &["m"], &[]),
            onnx::node("ReduceSum", &["m"], &["y"], &[onnx::int("keepdims", 0)]),
        ],
        inputs: vec![
            onnx::port("a", onnx::FLOAT, &["n", "1"]),
            onnx::port("b", onnx::FLOAT, &["1", "n"]),
        ],
        outputs: vec![onnx::port("y", onnx::FLOAT, &[])],
        ..onnx::Graph::default()
    };
    let mut entry = entry(
        json!([
            {"name": "a", "dtype": "f32", "shape": [1, 1]},
            {"name": "b", "dtype": "f32", "shape": [1, 1]},
        ]),
        json!([{"name": "y", "dtype": "f32", "shape": []}]),
        2 << 30,
        60_000,
    );
    for (input, place) in entry.inputs.iter_mut().zip([0, 1]) {
        input.shape[place] = Dim::Symbol("n".to_owned());
    }
    entry.extents.insert("n".to_owned(), 6000);
    let graph = IsolatedProvider::this_program(1).load(&entry, &graph.model()).unwrap();
    let cube = |n: u32, waited_for: &dyn Fn() -> bool| {
        let mut context = graph.context().unwrap();
        for (index, shape) in [[n, 1], [1, n]].into_iter().enumerate() {
            let values = vec![1.0; n as usize];
            let values = GraphValues { name: String::new(), shape: shape.into(), values };
            let ones = GraphValue::of(&values, GraphType::F32).unwrap();
            context.set_input(index, ones).unwrap();
        }
        context.compute(waited_for)?;
        context.output(0).map(GraphValue::numbers)
    };
    assert_eq!(cube(4, &|| true), Ok(vec![64.0]));
    let begun = Instant::now();
    let error = cube(6000, &|| begun.elapsed() < Duration::from_millis(100)).unwrap_err();
    assert_eq!(error, GraphError::Cancelled);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(cube(3, &|| true), Ok(vec![27.0]));
}

/// What it makes is told by its input alone.
fn memory_is_bounded_whatever_the_graph_asks_for() {
    let entry = entry(
        json!([{"name": "n", "dtype": "i64", "shape": []}]),
        json!([{"name": "y", "dtype": "f32", "shape": []}]),
        64 << 20,
        5000,
    );
    let graph = onnx::sum_below().model();
    let graph = IsolatedProvider::this_program(1).load(&entry, &graph).unwrap();
    let below = |n: f64| {
        let input = GraphValues { name: "n".into(), shape: vec![], values: vec![n] };
        compute(&*graph, &[input], GraphType::I64).map(|y| y.numbers())
    };
    assert_eq!(below(4.0), Ok(vec![6.0]));
    for n in [16_777_216.0, 1e12] {
        let error = below(n).unwrap_err();
        assert!(matches!(error, GraphError::Memory { .. }), "{n}: {error}");
    }
    assert_eq!(below(4.0), Ok(vec![6.0]));
}

/// Tensors of 4 MiB, each of which fits, and all of which are needed until the end.
fn tensors_that_live_at_once_are_bounded_together() {
    let graph = onnx::alive_at_once(40, 1 << 18).model();
    let computed = |memory: u64| {
        let entry = entry(
            json!([{"name": "x", "dtype": "f32", "shape": [1, 4]}]),
            json!([{"name": "y", "dtype": "f32", "shape": []}]),
            memory,
            10_000,
        );
        let input = GraphValues { name: "x".into(), shape: vec![1, 4], values: vec![0.0; 4] };
        let graph = IsolatedProvider::this_program(1).load(&entry, &graph).unwrap();
        compute(&*graph, &[input], GraphType::F32).map(|y| y.numbers())
    };
    let enough = computed(256 << 20).unwrap();
    assert!(enough[0].abs() < 1e-6, "{enough:?}");
    assert_eq!(computed(20 << 20), Err(GraphError::Memory { bytes: 20 << 20 }));
}

/// Constants are computed when a graph is loaded: here one of 1 GiB.
fn memory_that_loading_takes_is_bounded_and_named_as_what_is_missing() {
    let entry = entry(
        json!([{"name": "x", "dtype": "f32", "shape": [1, 4]}]),
        json!([{"name": "y", "dtype": "f32", "shape": [1, 4]}]),
        64 << 20,
        5000,
    );
    let graph = onnx::Graph {
        nodes: vec![
            onnx::node("Mul", &["p", "q"], &["s"], &[]),
            onnx::node("ConstantOfShape", &["s"], &["c"], &[]),
            onnx::node("ReduceSum", &["c"], &["r"], &[onnx::int("keepdims", 0)]),
            onnx::node("Add", &["x", "r"], &["y"], &[]),
        ],
        weights: vec![onnx::integers("p", &[1], &[1 << 15]), onnx::integers("q", &[1], &[1 << 13])],
        inputs: vec![onnx::port("x", onnx::FLOAT, &["1", "4"])],
        outputs: vec![onnx::port("y", onnx::FLOAT, &["1", "4"])],
    };
    let error = IsolatedProvider::this_program(1).load(&entry, &graph.model()).unwrap_err();
    assert_eq!(error, GraphError::Memory { bytes: 64 << 20 });
}

/// An output of the `1 << 18` elements that the manifest allows.
fn wide() -> (GraphEntry, Vec<u8>) {
    let graph = onnx::Graph {
        nodes: vec![onnx::node("Relu", &["x"], &["y"], &[])],
        inputs: vec![onnx::port("x", onnx::FLOAT, &["n"])],
        outputs: vec![onnx::port("y", onnx::FLOAT, &["n"])],
        ..onnx::Graph::default()
    };
    let mut entry = entry(
        json!([{"name": "x", "dtype": "f32", "shape": [1]}]),
        json!([{"name": "y", "dtype": "f32", "shape": [1]}]),
        256 << 20,
        5000,
    );
    for tensor in entry.inputs.iter_mut().chain(&mut entry.outputs) {
        tensor.shape[0] = Dim::Symbol("n".to_owned());
    }
    entry.extents.insert("n".to_owned(), 1 << 18);
    (entry, graph.model())
}

/// Bytes of the output of [`wide`], where it may have so many.
fn output_bytes(graph: &dyn Graph, most: usize) -> Result<usize, GraphError> {
    let x = GraphValue::new(GraphType::F32, vec![1 << 18], vec![0; 1 << 20]).unwrap();
    let mut context = graph.context()?;
    context.set_input(0, x)?;
    context.compute_within(most, &|| true)?;
    Ok(context.output(0)?.bytes().len())
}

fn outputs_are_no_larger_than_whoever_asks_takes_them() {
    let (entry, graph) = wide();
    let here = ruvllm_graph::OnnxProvider.load(&entry, &graph).unwrap();
    let isolated = IsolatedProvider::this_program(1).load(&entry, &graph).unwrap();
    for graph in [here, isolated] {
        for most in [0, 1000, (1 << 20) - 1] {
            assert_eq!(output_bytes(&*graph, most), Err(GraphError::TooLarge { bytes: most }));
        }
        for most in [1 << 20, usize::MAX] {
            assert_eq!(output_bytes(&*graph, most), Ok(1 << 20));
        }
    }
}

/// The argument on which this program answers whatever it is asked with the output of [`wide`].
const BOASTER: &str = "boaster";

fn boaster() -> ExitCode {
    answer_requests(|_| {
        Ok(|_: &[u8]| {
            let mut answer = vec![GraphType::F32 as u8, 1];
            answer.extend((1u64 << 18).to_le_bytes());
            answer.resize(answer.len() + (1 << 20), 0);
            Ok(answer)
        })
    })
}

fn a_process_that_answers_more_than_it_may_is_not_read_to_the_end() {
    let (entry, graph) = wide();
    let process = HelperProcess::this_program(BOASTER);
    let graph = IsolatedProvider::new(process).load(&entry, &graph).unwrap();
    assert_eq!(output_bytes(&*graph, 1 << 20), Ok(1 << 20));
    // Whatever was read would be refused for its size; this process is ended before that.
    let error = output_bytes(&*graph, 100_000).unwrap_err();
    assert!(matches!(error, GraphError::Memory { .. }), "{error}");
}

/// A model of this runtime's own, whose engine and threads are the process's.
#[cfg(feature = "encoder")]
fn a_gguf_model_computes_in_a_process() {
    let tiny = tiny::Tiny::new(ruvllm_abi::DType::Q8_0);
    let graph = IsolatedProvider::this_program(1).load(&tiny.entry(), &tiny.file()).unwrap();
    let values = vec![1.0, 44.0, 258.0];
    let input = GraphValues { name: "input_ids".into(), shape: vec![1, 3], values };
    let got = compute(&*graph, &[input], GraphType::I64).unwrap().numbers();
    let want = tiny.mean(&[1, 44, 258]);
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
}

/// Bytes that no writer would write, straight to the provider.
fn files_that_are_broken_are_refused() {
    let entry = entry(
        json!([{"name": "x", "dtype": "f32", "shape": [1, 8]}]),
        json!([{"name": "y", "dtype": "f32", "shape": [1, 4]}]),
        256 << 20,
        5000,
    );
    for bytes in [Vec::new(), Message::new().number(1, 8).into_bytes(), vec![0xff; 1000]] {
        let error = IsolatedProvider::this_program(1).load(&entry, &bytes).unwrap_err();
        assert_eq!(error.code(), "graph_refused", "{error}");
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let first = args.next().unwrap_or_default();
    if first == IsolatedProvider::COMMAND {
        return graph_process();
    }
    if first == BOASTER {
        return boaster();
    }
    let tests: &[(&str, fn())] = &[
        ("a_graph_computes_as_in_this_process", a_graph_computes_as_in_this_process),
        (
            "a_graph_that_the_process_refuses_is_refused_with_its_reason",
            a_graph_that_the_process_refuses_is_refused_with_its_reason,
        ),
        (
            "a_node_that_takes_too_long_is_stopped_and_the_next_call_has_a_new_process",
            a_node_that_takes_too_long_is_stopped_and_the_next_call_has_a_new_process,
        ),
        (
            "a_computation_that_nobody_waits_for_ends_and_the_graph_computes_again",
            a_computation_that_nobody_waits_for_ends_and_the_graph_computes_again,
        ),
        (
            "memory_is_bounded_whatever_the_graph_asks_for",
            memory_is_bounded_whatever_the_graph_asks_for,
        ),
        (
            "tensors_that_live_at_once_are_bounded_together",
            tensors_that_live_at_once_are_bounded_together,
        ),
        (
            "memory_that_loading_takes_is_bounded_and_named_as_what_is_missing",
            memory_that_loading_takes_is_bounded_and_named_as_what_is_missing,
        ),
        (
            "outputs_are_no_larger_than_whoever_asks_takes_them",
            outputs_are_no_larger_than_whoever_asks_takes_them,
        ),
        (
            "a_process_that_answers_more_than_it_may_is_not_read_to_the_end",
            a_process_that_answers_more_than_it_may_is_not_read_to_the_end,
        ),
        ("files_that_are_broken_are_refused", files_that_are_broken_are_refused),
        #[cfg(feature = "encoder")]
        ("a_gguf_model_computes_in_a_process", a_gguf_model_computes_in_a_process),
    ];
    let wanted = |name: &str| first.is_empty() || first.starts_with('-') || name.contains(&first);
    let chosen: Vec<_> = tests.iter().filter(|(name, _)| wanted(name)).collect();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let outcome = match std::panic::catch_unwind(test) {
            Ok(()) => "ok",
            Err(_) => "FAILED",
        };
        failed += usize::from(outcome != "ok");
        println!("test {name} ... {outcome}");
    }
    let (outcome, passed) = (if failed == 0 { "ok" } else { "FAILED" }, chosen.len() - failed);
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
    ExitCode::from(u8::from(failed > 0))
}
