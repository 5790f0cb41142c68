//! Graphs from outside: what the walk refuses, and what computes against another runtime's outputs.
#![forbid(unsafe_code)]

#[cfg(all(feature = "onnx", feature = "encoder"))]
mod computing;
#[cfg(feature = "encoder")]
mod gguf;
mod hostile;
#[cfg(all(feature = "onnx", feature = "wasi-nn"))]
mod kernels;
#[cfg(feature = "encoder")]
mod tiny;

use ruvllm_graph::onnx::walk;
use ruvllm_manifest::GraphEntry;
use ruvllm_tests::graphs::{MEMORY, entry, fixtures};
use ruvllm_tests::onnx;
use serde_json::Value;

/// The graphs of the fixtures, by name.
fn graphs() -> [(&'static str, Vec<u8>); 3] {
    [
        ("mlp", onnx::mlp().model()),
        ("convolution", onnx::convolution().model()),
        ("encoder", onnx::encoder().model()),
    ]
}

pub(crate) fn parsed(entry: &Value) -> GraphEntry {
    GraphEntry::parse(entry.to_string().as_bytes()).unwrap()
}

#[test]
fn the_fixtures_are_what_the_writer_writes_and_pass_the_walk() {
    for (name, bytes) in graphs() {
        let stored = std::fs::read(fixtures().join(format!("{name}.onnx"))).unwrap();
        assert!(stored == bytes, "{name}: run the test `write_the_graphs` and graph_reference.py");
        let facts = walk(&bytes, MEMORY).unwrap();
        assert_eq!(facts.disagreements(&parsed(&entry(name))), []);
    }
}

#[test]
#[ignore = "writes the fixtures"]
fn write_the_graphs() {
    for (name, bytes) in graphs() {
        std::fs::write(fixtures().join(format!("{name}.onnx")), bytes).unwrap();
    }
}
