//! Token ids against the vocabularies and expected ids that llama.cpp publishes.
//!
//! The vocabulary files are too large to keep here; they are read from the `shared/vocab` folder beside the
//! workspace where it exists, and the tests say so and pass where it does not.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Content;
use ruvllm_engine::tokenizer::{DetokenizerStream, Tokenizer};

fn vocabularies() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vocab");
    let Ok(entries) = std::fs::read_dir(&dir) else {
        println!("skipped: no vocabularies at {}", dir.display());
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    paths
}

fn load(path: &Path) -> Tokenizer {
    let content = Content::read(&mut BufReader::new(File::open(path).unwrap())).unwrap();
    Tokenizer::from_gguf(&content.metadata).unwrap()
}

fn beside(path: &Path, suffix: &str) -> String {
    std::fs::read_to_string(format!("{}.{suffix}", path.display())).unwrap()
}

/// The input cases of a vocabulary, one of them empty.
fn cases(path: &Path) -> Vec<String> {
    beside(path, "inp").split("\n__ggml_vocab_test__\n").map(Into::into).collect()
}

#[test]
fn ids_equal_the_published_ones() {
    for path in vocabularies() {
        let tokenizer = load(&path);
        let expected = beside(&path, "out");
        let mut compared = 0;
        for (case, line) in cases(&path).iter().zip(expected.lines()) {
            let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(case, false).unwrap(), ids, "{}: {case:?}", path.display());
            compared += 1;
        }
        assert!(compared > 40, "{}: only {compared} cases", path.display());
    }
}

#[test]
fn decoding_gives_the_text_back() {
    for path in vocabularies() {
        let tokenizer = load(&path);
        for case in cases(&path) {
            let ids = tokenizer.encode(&case, true).unwrap();
            assert_eq!(tokenizer.decode(&ids, true), case, "{}", path.display());
            let mut stream = DetokenizerStream::new();
            let mut streamed: String =
                ids.iter().filter_map(|id| stream.push(&tokenizer, *id)).collect();
            streamed.extend(stream.finish());
            // The stream keeps the space that encoding put in front.
            assert_eq!(
                streamed.strip_prefix(' ').filter(|_| streamed != case).unwrap_or(&streamed),
                case
            );
        }
    }
}

#[test]
fn long_runs_take_linear_time() {
    for path in vocabularies() {
        let tokenizer = load(&path);
        let start = std::time::Instant::now();
        for unit in ["a", " ", "\n", "1", "é", "!", " a1"] {
            let text = unit.repeat(100_000);
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, true), text, "{}: {unit:?}", path.display());
        }
        // About 1.2 MB; a quadratic step would take minutes even in a release build.
        assert!(start.elapsed().as_secs() < 60, "{}: {:?}", path.display(), start.elapsed());
    }
}
