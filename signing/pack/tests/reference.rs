//! The reference in the repository is what the program says of itself.

use std::path::Path;
use std::process::Command;

fn output(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ruvllm-pack")).args(args).output();
    let output = output.expect("the tool runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn shells_and_man_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = output(&["completions", shell]);
        for part in ["keygen", "keyring", "target-dir"] {
            assert!(script.contains(part), "{shell}: no {part}");
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("man1");
    output(&["man", place.to_str().expect("UTF-8")]);
    for page in ["ruvllm-pack.1", "ruvllm-pack-build.1", "ruvllm-pack-trust-add.1"] {
        assert!(place.join(page).is_file(), "no {page}");
    }
}

#[test]
fn the_reference_is_not_stale() {
    let now = output(&["reference"]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("REFERENCE.md");
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        kept == now,
        "stale: run `cargo run -p ruvllm-pack -- reference > signing/pack/REFERENCE.md`"
    );
}
