//! Encoders of texts from packs, beside the model.

use crate::program::ruvllm;
use crate::serving::Serving;
use ruvllm_tests::graphs::{sentences, tokenizer};
use ruvllm_tests::{PackBuilder, TestPack, onnx};
use serde_json::Value;
use std::path::Path;

fn pack(change: impl FnOnce(&mut Value), graph: onnx::Graph) -> TestPack {
    let mut entry = sentences("mean");
    change(&mut entry);
    let entry = ruvllm_manifest::GraphEntry::parse(entry.to_string().as_bytes()).unwrap();
    PackBuilder::new().graph(entry, graph.model(), tokenizer().into_bytes()).build()
}

fn options(pack: &TestPack, state: &Path) -> [String; 8] {
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let model = format!("sentences={}", path(&pack.path()));
    [
        "--kernels",
        "native",
        "--trust",
        &path(&pack.policy_file()),
        "--state-dir",
        &path(state),
        "--embedding-model",
        &model,
    ]
    .map(str::to_owned)
}

#[test]
fn an_encoder_of_a_pack_answers_under_its_own_name() {
    let state = tempfile::tempdir().unwrap();
    let pack = pack(|_| (), onnx::encoder());
    let options = options(&pack, state.path());
    let server = Serving::start(&options.each_ref().map(String::as_str));
    let ask = |text: &str| {
        let body = format!(r#"{{"model": "sentences", "input": "{text}"}}"#);
        let answer = server.post("/v1/embeddings", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let vector = body["data"][0]["embedding"].as_array().unwrap();
        vector.iter().map(|x| x.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let (fox, again, sea) = (ask("The fox runs."), ask("the FOX runs."), ask("a ship, the sea"));
    assert_eq!((fox.len(), &fox), (16, &again));
    let cosine: f64 = fox.iter().zip(&sea).map(|(a, b)| a * b).sum();
    assert!(cosine < 0.999, "{cosine}");
}

#[test]
fn what_is_not_admitted_is_not_served() {
    let state = tempfile::tempdir().unwrap();
    let refused = |pack: &TestPack, parts: &[&str]| {
        let options = options(pack, state.path());
        let line: Vec<&str> = ["serve", "--listen", "127.0.0.1:0"]
            .into_iter()
            .chain(options.iter().map(String::as_str))
            .collect();
        ruvllm(&line).refused(parts);
    };
    let wrong =
        pack(|entry| entry["checks"][0]["outputs"][0]["values"][0] = 5.0.into(), onnx::encoder());
    refused(&wrong, &["--embedding-model sentences=", "graph_mismatch"]);
    let mut graph = onnx::encoder();
    graph.nodes.push(onnx::node("Relu", &["nobody"], &["n"], &[]));
    refused(&pack(|_| (), graph), &["onnx_missing_weight"]);
    let unsigned = pack(|_| (), onnx::encoder());
    std::fs::remove_file(unsigned.path().join("kernels.json.sig")).unwrap();
    refused(&unsigned, &["signature_missing"]);
}
