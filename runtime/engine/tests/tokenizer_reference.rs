//! Token ids against the ones that llama.cpp publishes for its texts, with as much of two vocabularies as
//! these texts can touch (`tests/scripts/vocabularies.py`).

#[path = "common/vocabulary.rs"]
mod vocabulary;

use ruvllm_engine::tokenizer::{DetokenizerStream, Tokenizer};
use vocabulary::vocabularies;

#[test]
fn ids_equal_the_published_ones() {
    for (name, vocabulary) in vocabularies() {
        let tokenizer = Tokenizer::from_gguf(&vocabulary.metadata()).unwrap();
        for (text, ids) in &vocabulary.cases {
            assert_eq!(tokenizer.encode(text, false).unwrap(), *ids, "{name}: {text:?}");
        }
        assert!(vocabulary.cases.len() > 40, "{name}: only {} cases", vocabulary.cases.len());
    }
}

#[test]
fn decoding_gives_the_text_back() {
    for (name, vocabulary) in vocabularies() {
        let tokenizer = Tokenizer::from_gguf(&vocabulary.metadata()).unwrap();
        for (text, _) in &vocabulary.cases {
            let ids = tokenizer.encode(text, true).unwrap();
            assert_eq!(tokenizer.decode(&ids, true), *text, "{name}");
            let mut stream = DetokenizerStream::new();
            let mut streamed: String =
                ids.iter().filter_map(|id| stream.push(&tokenizer, *id)).collect();
            streamed.extend(stream.finish());
            // The stream keeps the space that encoding put in front.
            assert_eq!(
                streamed.strip_prefix(' ').filter(|_| streamed != *text).unwrap_or(&streamed),
                text
            );
        }
    }
}

#[test]
fn long_runs_take_linear_time() {
    for (name, vocabulary) in vocabularies() {
        let tokenizer = Tokenizer::from_gguf(&vocabulary.metadata()).unwrap();
        let start = std::time::Instant::now();
        for unit in ["a", " ", "\n", "1", "é", "!", " a1"] {
            let text = unit.repeat(100_000);
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, true), text, "{name}: {unit:?}");
        }
        // About 1.2 MB; a quadratic step would take minutes even in a release build.
        assert!(start.elapsed().as_secs() < 60, "{name}: {:?}", start.elapsed());
    }
}
