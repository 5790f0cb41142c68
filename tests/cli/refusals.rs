//! What goes wrong outside of kernels: each has its own message and exit code 1.

use crate::program::ruvllm;
use std::path::{Path, PathBuf};

fn demo_model() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/tales-q8_0.gguf")).unwrap()
}

fn run_model(path: &Path) -> crate::program::Run {
    ruvllm(&["run".as_ref(), "-n".as_ref(), "1".as_ref(), "-m".as_ref(), path.as_os_str()])
}

/// Writes the demo model with every occurrence of `from` replaced by the equally long `to`.
fn altered(dir: &Path, from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len());
    let mut bytes = demo_model();
    let mut found = 0;
    for at in 0..bytes.len() - from.len() {
        if &bytes[at..at + from.len()] == from.as_bytes() {
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{from} is in the model");
    let path = dir.join("altered.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_missing_file() {
    run_model(Path::new("no/such/model.gguf")).refused(&["no/such/model.gguf", "no such file"]);
}

#[test]
fn a_file_that_is_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    std::fs::write(&path, "not a model").unwrap();
    run_model(&path).refused(&["notes.txt", "GGUF"]);
}

#[test]
fn a_truncated_gguf_wherever_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = demo_model();
    let path = dir.path().join("short.gguf");
    for keep in [4, 23, 1000, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..keep]).unwrap();
        run_model(&path).refused(&["short.gguf", "truncated"]);
    }
}

#[test]
fn an_unknown_architecture() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = demo_model();
    // The value of general.architecture: the only "llama" that is preceded by its own length.
    let needle = [&5u64.to_le_bytes()[..], b"llama"].concat();
    let at = bytes.windows(needle.len()).position(|w| w == needle).unwrap();
    bytes[at + 8..at + 13].copy_from_slice(b"zebra");
    let path = dir.path().join("zebra.gguf");
    std::fs::write(&path, bytes).unwrap();
    run_model(&path).refused(&["zebra", "not supported"]);
}

#[test]
fn a_missing_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = altered(dir.path(), "blk.1.attn_q.weight", "blk.1.attn_x.weight");
    run_model(&path).refused(&["blk.1.attn_q.weight", "missing"]);
}

#[test]
fn a_tensor_of_wrong_shape() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = demo_model();
    // After a tensor's name come its number of dimensions (u32) and the dimensions (u64 each).
    let name = b"blk.0.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 8;
    let rows = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    bytes[at..at + 8].copy_from_slice(&(rows - 32).to_le_bytes());
    let path = dir.path().join("shape.gguf");
    std::fs::write(&path, bytes).unwrap();
    run_model(&path).refused(&["blk.0.ffn_up.weight", "shape"]);
}

#[test]
fn a_tensor_of_unsupported_type() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = demo_model();
    // The type (u32) follows two dimensions; 10 is Q2_K.
    let name = b"blk.0.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    bytes[at..at + 4].copy_from_slice(&10u32.to_le_bytes());
    let path = dir.path().join("type.gguf");
    std::fs::write(&path, bytes).unwrap();
    run_model(&path).refused(&["blk.0.ffn_up.weight", "type"]);
}

#[test]
fn a_prompt_longer_than_the_context() {
    let prompt = "The fox ran home. ".repeat(200);
    ruvllm(&["run", "-c", "64", "--raw", &prompt]).refused(&["64", "context"]);
}

#[test]
fn a_context_longer_than_the_models() {
    ruvllm(&["run", "-c", "1000000"]).refused(&["1000000", "context"]);
}

#[test]
fn a_trust_policy_that_cannot_be_read() {
    ruvllm(&["run", "--trust", "no-policy.toml"]).refused(&["no-policy.toml"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.toml");
    std::fs::write(&path, "publishers = 3").unwrap();
    ruvllm(&["run", "--trust", path.to_str().unwrap()]).refused(&["policy.toml", "line 1"]);
}

#[test]
fn a_pack_that_is_not_there() {
    ruvllm(&["run", "--pack", "no-such-pack"]).refused(&["no-such-pack"]);
}

#[test]
fn usage_errors_have_their_own_code() {
    assert_eq!(ruvllm(&["run", "--kv", "q3"]).code, Some(2));
    assert_eq!(ruvllm(&["fly"]).code, Some(2));
}
