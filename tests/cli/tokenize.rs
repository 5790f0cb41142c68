//! `ruvllm tokenize` against the ids of the field's reference.

use crate::program::ruvllm_with_input;
use std::path::Path;

const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

#[test]
fn shared_vocabularies_give_the_reference_ids() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vocab");
    if !dir.is_dir() {
        eprintln!("skipped: no vocabularies beside the checkout");
        return;
    }
    for name in ["llama-spm", "qwen2"] {
        let file = |end: &str| dir.join(format!("ggml-vocab-{name}.gguf{end}"));
        let input = std::fs::read_to_string(file(".inp")).unwrap();
        let output = std::fs::read_to_string(file(".out")).unwrap();
        let expected: Vec<String> = output
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let model = file("");
        // One process per case is what a user does; a sample of them keeps the test short.
        for (text, ids) in input.split(SEPARATOR).zip(&expected).step_by(5) {
            let run =
                ruvllm_with_input(&["tokenize".as_ref(), "-m".as_ref(), model.as_os_str()], text);
            assert_eq!(run.text(), ids, "{name}: {text:?}");
        }
    }
}

#[test]
fn bos_is_added_only_when_asked_for() {
    let without = ruvllm_with_input(&["tokenize"], "The little fox");
    let with = ruvllm_with_input(&["tokenize", "--bos"], "The little fox");
    assert!(with.text().ends_with(without.text()));
    assert_eq!(
        with.text().split_whitespace().count(),
        without.text().split_whitespace().count() + 1
    );
}
