//! `ruvllm tokenize` against the ids of the field's reference.

#[path = "../../runtime/engine/tests/common/vocabulary.rs"]
mod vocabulary;

use crate::program::ruvllm_with_input;
use ruvllm_engine::gguf;
use vocabulary::vocabularies;

#[test]
fn vocabularies_give_the_reference_ids() {
    let dir = tempfile::tempdir().unwrap();
    for (name, vocabulary) in vocabularies() {
        let path = dir.path().join(name);
        let metadata = vocabulary.metadata();
        let metadata = metadata.iter().map(|(key, value)| (key.as_str(), value));
        gguf::write(&mut std::fs::File::create(&path).unwrap(), metadata, &[]).unwrap();
        // One process per case is what a user does; a sample of them keeps the test short.
        for (text, ids) in vocabulary.cases.iter().step_by(5) {
            let run =
                ruvllm_with_input(&["tokenize".as_ref(), "-m".as_ref(), path.as_os_str()], text);
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            assert_eq!(run.text(), ids.join(" "), "{name}: {text:?}");
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
