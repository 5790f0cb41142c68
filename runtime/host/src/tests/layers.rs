//! The layers of the host, as ARCHITECTURE.md lists them: each uses those before it and none behind.

use ruvllm_tests::layers::violations;
use std::path::Path;

const LAYERS: [&str; 29] = [
    // What all may use.
    "threads",
    "random",
    "process",
    "files",
    "trap",
    "ticker",
    "reaper",
    "class",
    "features",
    "op",
    "error",
    "compare",
    "graph",
    "config",
    "memory",
    "deadline",
    // What a kernel goes through.
    "team",
    "exec",
    "stats",
    "instance",
    "pack",
    "gate",
    "admit",
    "code",
    "registry",
    // The steps of its life under one name, for tests that skip one.
    "lifecycle",
    "call",
    "swap",
    "supervise",
];

#[test]
fn layers_use_those_before_them_and_none_behind() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(violations(&src, &LAYERS).unwrap(), [""; 0]);
}
