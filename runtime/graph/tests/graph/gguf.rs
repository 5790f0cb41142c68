//! Language models of this runtime's own as graphs, against means that are computed by hand.

use ruvllm_abi::DType;
use ruvllm_graph::{GatedGraph, GgufProvider, GraphCaps};
use ruvllm_host::graph::{Graph, GraphError, GraphProvider, GraphValue};
use ruvllm_manifest::{Dim, GraphType, Tolerance};
use ruvllm_tests::PackBuilder;

use crate::tiny::{Tiny, WIDTH};

fn ids(tokens: &[u32]) -> GraphValue {
    let bytes = tokens.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
    GraphValue::new(GraphType::I64, vec![1, tokens.len()], bytes).unwrap()
}

fn mean(graph: &dyn Graph, tokens: &[u32]) -> Result<Vec<f64>, GraphError> {
    let mut context = graph.context()?;
    context.set_input(0, ids(tokens))?;
    context.compute(&|| true)?;
    let output = context.output(0)?;
    assert_eq!(output.shape(), [1, WIDTH]);
    Ok(output.numbers())
}

#[test]
fn a_model_in_any_type_of_weights_is_admitted_and_gives_the_mean_of_its_hidden_states() {
    for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q4_0] {
        let tiny = Tiny::new(dtype);
        let pack = PackBuilder::new().graph(tiny.entry(), tiny.file(), Vec::new());
        let pack = pack.build().verify().unwrap();
        let gated = GatedGraph::pass(&pack, "tiny", &GraphCaps::default()).unwrap();
        let admitted = gated.admit(&GgufProvider).unwrap_or_else(|e| panic!("{dtype}: {e}"));
        for tokens in [&[5][..], &[1, 70, 70, 200, 33, 2]] {
            let (got, want) = (mean(admitted.graph(), tokens).unwrap(), tiny.mean(tokens));
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(off < 1e-5, "{dtype}: off by {off}");
        }
    }
}

#[test]
fn a_model_that_gives_another_mean_is_not_admitted() {
    let tiny = Tiny::new(DType::F32);
    let mut entry = tiny.entry();
    entry.checks[0].outputs[0].values[3] += 0.01;
    let pack = PackBuilder::new().graph(entry, tiny.file(), Vec::new()).build();
    let pack = pack.verify().unwrap();
    let gated = GatedGraph::pass(&pack, "tiny", &GraphCaps::default()).unwrap();
    assert_eq!(gated.admit(&GgufProvider).unwrap_err().code(), "graph_mismatch");
}

/// Its quantised blocks have a scale that follows from one large number of thirty-two.
#[test]
fn a_quantised_model_with_a_few_large_numbers_is_held_to_the_largest_and_to_its_vector() {
    let outlier = 5;
    let large = |i| if i == outlier { 600.0 } else { 1.0 };
    let tiny = Tiny::with(DType::Q8_0, large);
    let tokens = [1, 100, 7, 258];
    let exact = Tiny::with(DType::F32, large).mean(&tokens);
    let admitted = |expected: &[f64], rel: f64| {
        let mut entry = tiny.entry();
        entry.tolerance = Tolerance { rel, abs: 1e-4 };
        entry.checks[0].outputs[0].values = expected.to_vec();
        let pack = PackBuilder::new().graph(entry, tiny.file(), Vec::new()).build();
        let pack = pack.verify().unwrap();
        let gated = GatedGraph::pass(&pack, "tiny", &GraphCaps::default()).unwrap();
        gated.admit(&GgufProvider).map(|_| ()).map_err(|error| error.to_string())
    };
    // What its quantisation is off by: more than a tenth of an element in many places, little of the vector.
    let off = tiny
        .mean(&tokens)
        .iter()
        .zip(&exact)
        .filter(|(y, e)| (*y - *e).abs() > 1e-4 + 0.1 * e.abs())
        .count();
    assert!(off > 3, "{off}");
    admitted(&exact, 0.1).unwrap();
    // A single element, farther off than the largest one's share.
    let mut one = exact.clone();
    one[9] += 0.3 * exact[outlier].abs();
    let error = admitted(&one, 0.1).unwrap_err();
    assert!(error.contains("at element 9") && error.contains("graph_mismatch"), "{error}");
    // Every element within the largest one's share, and another vector.
    let share = 0.09 * exact[outlier].abs();
    let other: Vec<f64> =
        exact.iter().enumerate().map(|(i, e)| if i == outlier { *e } else { e + share }).collect();
    let error = admitted(&other, 0.1).unwrap_err();
    assert!(error.contains("away from what is expected"), "{error}");
}

#[test]
fn what_is_no_such_model_and_what_it_does_not_take_are_errors() {
    let tiny = Tiny::new(DType::F32);
    let file = tiny.file();
    let refused = |entry, bytes: &[u8]| GgufProvider.load(&entry, bytes).unwrap_err().code();
    assert_eq!(refused(tiny.entry(), &file[..file.len() / 2]), "graph_refused");
    assert_eq!(refused(tiny.entry(), b"GGUF"), "graph_refused");
    let mut wide = tiny.entry();
    wide.outputs[0].shape[1] = Dim::Fixed(2 * WIDTH as u32);
    assert_eq!(refused(wide, &file), "graph_refused");
    let mut named = tiny.entry();
    named.inputs[0].name = "tokens".to_owned();
    assert_eq!(refused(named, &file), "graph_refused");
    let mut small = tiny.entry();
    small.resource_limits.max_memory_bytes = file.len() as u64;
    assert_eq!(refused(small, &file), "graph_refused");
    let graph = GgufProvider.load(&tiny.entry(), &file).unwrap();
    let error = mean(&*graph, &[3, 259]).unwrap_err();
    assert!(error.to_string().contains("token ids are from 0 to 258"), "{error}");
    let error = mean(&*graph, &[3; 17]).unwrap_err();
    assert_eq!(error.code(), "graph_input", "{error}");
    let mut context = graph.context().unwrap();
    context.set_input(0, ids(&[3; 16])).unwrap();
    // It may be done before anybody is asked.
    let done = context.compute(&|| false);
    assert!(matches!(done, Ok(()) | Err(GraphError::Cancelled)), "{done:?}");
}
