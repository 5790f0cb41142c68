//! The layers of the engine, as ARCHITECTURE.md lists them: each uses those before it and none behind.

use std::path::Path;

use ruvllm_tests::layers::violations;

const LAYERS: [&str; 32] = [
    "error",
    "files",
    "tensors",
    "storage",
    "gguf",
    "hf",
    "config",
    "tokenizer",
    "chat",
    "sealed",
    "memory",
    "weights",
    "model",
    "adapter",
    "rope",
    "kv_policy",
    "kernels",
    "kv",
    "decoder",
    "engine",
    "open_adapter",
    "session",
    "step",
    "bench",
    "perplexity",
    "probe",
    "constraint",
    "logprobs",
    "sampler",
    "generate",
    "text",
    "scheduler",
];

#[test]
fn layers_use_those_before_them_and_none_behind() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(violations(&src, &LAYERS).unwrap(), [""; 0]);
}
