//! The reference in the repository is what the program says of itself.

use std::path::Path;
use std::process::Command;

#[test]
fn the_reference_is_not_stale() {
    let output = Command::new(env!("CARGO_BIN_EXE_ruvllm-pack")).arg("reference").output();
    let now = String::from_utf8(output.expect("the tool runs").stdout).expect("text");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("REFERENCE.md");
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        kept == now,
        "stale: run `cargo run -p ruvllm-pack -- reference > signing/pack/REFERENCE.md`"
    );
}
