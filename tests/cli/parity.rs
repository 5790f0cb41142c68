//! The demo model in every weight type against llama.cpp on the same files: greedy text and
//! perplexity. The expected values were written by `tests/scripts/parity_reference.py`.

use crate::demo_files::{TYPES, convert};
use crate::program::ruvllm;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tempfile::TempDir;

/// A file for each weight type, made once for all tests.
static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/tales-q8_0.gguf");
    let dir = TempDir::new().expect("a directory");
    for (name, dtype) in TYPES {
        convert(&demo, &dir.path().join(format!("{name}.gguf")), dtype).expect("converted");
    }
    dir
});

/// The demo model in a weight type.
pub(crate) fn model(format: &str) -> PathBuf {
    assert!(TYPES.iter().any(|(name, _)| *name == format), "unknown format {format}");
    FILES.path().join(format!("{format}.gguf"))
}

/// Where the text and the expected values are.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity")
}

/// The cases of a file of expected values.
pub(crate) fn expected(file: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(fixtures().join(file)).expect("a fixture");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(value["cases"].take()).expect("cases")
}

#[test]
fn greedy_text_equals_llama_cpps_in_every_weight_type() {
    let mut formats = std::collections::BTreeSet::new();
    for case in expected("greedy.json") {
        let format = case["format"].as_str().expect("a format").to_owned();
        let prompt = case["prompt"].as_str().expect("a prompt");
        let path = model(&format);
        let greedy = |tokens: u64| {
            let tokens = tokens.to_string();
            let args = ["run", "--raw", "--ignore-eos", "--temperature", "0", "-n", &tokens];
            let mut args = args.map(str::to_owned).to_vec();
            args.extend([prompt.to_owned(), "-m".to_owned(), path.display().to_string()]);
            ruvllm(&args).text().to_owned()
        };
        // The reference tool may end without printing its last token, so its text of `n` tokens
        // lies between ours of 64 and ours of `n`.
        let expected = case["text"].as_str().expect("a text");
        let n = case["n"].as_u64().expect("a number of tokens");
        assert!(n > 64);
        assert!(expected.starts_with(&greedy(64)), "{format}: {prompt}: {expected}");
        assert!(greedy(n).starts_with(expected), "{format}: {prompt}: {expected}");
        formats.insert(format);
    }
    assert_eq!(formats.len(), TYPES.len());
}

#[test]
fn perplexity_equals_llama_cpps_in_every_weight_type() {
    let text = fixtures().join("tales.txt");
    let mut failures = Vec::new();
    let cases = expected("perplexity.json");
    assert_eq!(cases.len(), TYPES.len());
    for case in cases {
        let format = case["format"].as_str().expect("a format");
        let ctx = case["context"].as_u64().expect("a context").to_string();
        let (path, text) = (model(format), text.display().to_string());
        let run = ruvllm(&[
            "perplexity",
            "--json",
            "-c",
            &ctx,
            "-f",
            &text,
            "-m",
            &path.display().to_string(),
        ]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let found: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
        let found = found["perplexity"].as_f64().expect("a perplexity");
        let wanted = case["perplexity"].as_f64().expect("a perplexity");
        let ratio = found / wanted;
        println!("{format}: {found:.4} against {wanted:.4}, {:+.3} %", 100.0 * (ratio - 1.0));
        if (ratio - 1.0).abs() > 2e-3 {
            failures.push(format!("{format}: {found} against {wanted}"));
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}
