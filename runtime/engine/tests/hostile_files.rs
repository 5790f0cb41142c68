//! Files of models that are made to end the process or to take its time and memory. Each is refused with an
//! error, or does what it says at a cost that follows its size.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Fixture, QWEN2};
use ruvllm_abi::DType;
use ruvllm_engine::gguf::Value as Gguf;
use ruvllm_engine::tokenizer::{Tokenizer, TokenizerError};
use ruvllm_engine::{EngineError, Model};
use serde_json::{Value, json};

/// Far above what any of these files takes here, far below what they took.
const SOON: Duration = Duration::from_secs(5);

/// A byte-level BPE of a few tokens.
fn tokenizer_json() -> Value {
    json!({
        "added_tokens": [added(8, "<s>")],
        "normalizer": null,
        "pre_tokenizer": byte_level(),
        "post_processor": null,
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ã": 4, "©": 5, "<": 6, "|": 7},
            "merges": [["a", "b"]]}
    })
}

fn added(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn template(single: Value, ids: &[u32]) -> Value {
    json!({"type": "TemplateProcessing", "single": single, "pair": [],
        "special_tokens": {"s": {"id": "s", "ids": ids, "tokens": vec!["<s>"; ids.len()]}}})
}

/// What becomes of a directory with this `tokenizer.json`.
fn open(json: &str) -> Result<Tokenizer, TokenizerError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json).unwrap();
    Tokenizer::from_hf_dir(dir.path())
}

/// Asserts that the good file with `value` at the path `at` is refused soon, by a message with `part`.
fn refused(at: &str, value: Value, part: &str) {
    let mut json = tokenizer_json();
    *json.pointer_mut(at).unwrap_or_else(|| panic!("nothing at {at}")) = value;
    let start = Instant::now();
    let error = match open(&json.to_string()) {
        Err(error) => error,
        Ok(_) => panic!("accepted: {at} that should be refused for {part}"),
    };
    assert!(start.elapsed() < SOON, "{at}, {part}: {:?}", start.elapsed());
    assert_eq!(error.code(), "tokenizer_hugging_face");
    assert!(error.to_string().contains(part), "no {part:?} in: {error}");
}

#[test]
fn components_that_no_supported_family_uses_are_refused_by_name() {
    let blob = json!({"type": "Precompiled", "precompiled_charsmap": "////fwAAAAA="});
    refused("/normalizer", blob.clone(), "Precompiled");
    refused("/normalizer", json!({"type": "Sequence", "normalizers": [blob]}), "Precompiled");
    for (at, kind) in [
        ("/normalizer", "Strip"),
        ("/pre_tokenizer", "FixedLength"),
        ("/pre_tokenizer", "UnicodeScripts"),
        ("/post_processor", "RobertaProcessing"),
        ("/decoder", "CTC"),
        ("/model", "Unigram"),
    ] {
        refused(at, json!({"type": kind, "vocab": {}, "merges": []}), kind);
    }
}

#[test]
fn normalisers_and_decoders_that_multiply_a_text_are_refused() {
    refused("/normalizer", replace("", "a"), "empty text");
    refused("/decoder", replace("", "a"), "empty text");
    let doubling = vec![replace("a", "aa"); 40];
    let many = |kind: &str, list: &str, parts: &[Value]| json!({"type": kind, list: parts});
    refused("/normalizer", many("Sequence", "normalizers", &doubling), "components");
    refused("/normalizer", many("Sequence", "normalizers", &doubling[..5]), "times as long");
    refused("/decoder", many("Sequence", "decoders", &doubling[..5]), "times as long");
    refused("/normalizer", replace("a", &"b".repeat(1 << 20)), "times as long");
    refused("/normalizer", json!({"type": "Prepend", "prepend": "b".repeat(100)}), "times as long");
    refused(
        "/pre_tokenizer",
        many("Sequence", "pretokenizers", &vec![byte_level(); 12]),
        "more than one",
    );
    let regex = json!({"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""});
    refused("/normalizer", regex, "pattern");
    // Hidden one in the other, they are found all the same.
    let nested = doubling
        .into_iter()
        .reduce(|inner, outer| many("Sequence", "normalizers", &[inner, outer]));
    refused("/normalizer", nested.unwrap(), "components");
}

#[test]
fn patterns_that_could_take_more_than_linear_time_are_refused() {
    for pattern in [r"(a+)+$", r"(\w*)*\1", r"[^z]*z|.", r"(?:a?){5000}a{5000}", ""] {
        refused("/pre_tokenizer", split(pattern), "Split");
    }
    let empty =
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": true});
    refused("/pre_tokenizer", empty, "Split");
    let many = json!({"type": "Sequence", "pretokenizers": vec![split(r"\p{N}"); 10_000]});
    refused("/pre_tokenizer", many, "components");
}

#[test]
fn models_on_which_the_library_would_panic_are_refused() {
    let model = |extra: Value| {
        let mut model =
            json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]});
        model.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        model
    };
    refused(
        "/model",
        model(json!({"continuing_subword_prefix": "##"})),
        "continuing_subword_prefix",
    );
    refused("/model", model(json!({"end_of_word_suffix": "</w>"})), "end_of_word_suffix");
    refused("/model", model(json!({"dropout": 0.5})), "dropout");
    refused("/model", model(json!({"unk_token": "<unk>"})), "<unk>");
    refused("/model", model(json!({"merges": [["a", "c"]]})), "\"c\"");
    // Both halves are tokens; what they make is none, and longer than any.
    refused("/model", model(json!({"merges": [["ab", "ab"]]})), "abab");
    refused("/model", model(json!({"merges": ["ab"]})), "two tokens");
    refused("/model", model(json!({"merges": [["a", "b", "c"]]})), "length 3");
    refused("/model", model(json!({"vocab": {"a": 0, "b": 1, "ab": 1}})), "both");
    refused("/model", model(json!({"vocab": {"a": -1}})), "u32");
    refused("/model/vocab", json!({"a": 0, "b": 1, "ab": 3, ("x".repeat(5000)): 4}), "bytes");
    refused("/decoder", json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}), "Strip");
}

#[test]
fn templates_that_add_more_than_a_few_tokens_or_name_none_are_refused() {
    let (a, b) = (
        json!({"Sequence": {"id": "A", "type_id": 0}}),
        json!({"Sequence": {"id": "B", "type_id": 0}}),
    );
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let ten_thousand = vec![8; 10_000];
    let pieces = [vec![special("s"); 10_000], vec![a.clone()]].concat();
    refused("/post_processor", template(json!(pieces), &ten_thousand), "template");
    refused("/post_processor", template(json!([a, special("t")]), &[8]), "piece");
    refused("/post_processor", template(json!([a, special("s")]), &[4_000_000_000]), "4000000000");
    refused("/post_processor", template(json!([a, b]), &[8]), "piece");
    refused("/post_processor", template(json!([a, a]), &[8]), "once");
    refused("/post_processor", template(json!([]), &[8]), "once");
    let two = vec![template(json!([a]), &[8]); 2];
    refused("/post_processor", json!({"type": "Sequence", "processors": two}), "more than one");
}

#[test]
fn added_tokens_that_contradict_the_vocabulary_or_the_text_are_refused() {
    refused("/added_tokens", json!([added(u32::MAX, "<x>")]), "4294967295");
    refused("/added_tokens", json!([added(9, "<x>")]), "id 9");
    refused("/added_tokens", json!([added(3, "<x>")]), "both");
    refused("/added_tokens", json!([added(8, "a")]), "id 8");
    refused("/added_tokens", json!([added(8, "")]), "id 8");
    refused("/added_tokens", json!([added(8, &"x".repeat(5000))]), "bytes");
    for flag in ["single_word", "lstrip", "rstrip"] {
        let mut token = added(8, "<x>");
        token[flag] = json!(true);
        refused("/added_tokens", json!([token]), flag);
    }
}

#[test]
fn nesting_and_size_are_bounded() {
    let deep = |n: usize| {
        let (open, close) = (r#"{"type":"Sequence","normalizers":["#.repeat(n), "]}".repeat(n));
        format!(
            r#"{{"normalizer":{open}{close},"model":{{"type":"BPE","vocab":{{}},"merges":[]}}}}"#
        )
    };
    assert!(open(&deep(3)).is_ok());
    for depth in [200, 100_000] {
        assert!(open(&deep(depth)).unwrap_err().to_string().contains("recursion limit"));
    }
    let brackets = "[".repeat(1 << 20);
    assert!(open(&format!(r#"{{"version":{brackets}"#)).is_err());

    let dir = tempfile::tempdir().unwrap();
    let sparse = |name: &str| {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(1 << 40).unwrap()
    };
    sparse("tokenizer.json");
    let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err();
    assert_eq!(error.code(), "tokenizer_io");
    assert!(error.to_string().contains("more than"), "{error}");
    for name in ["tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer_json().to_string()).unwrap();
        sparse(name);
        assert_eq!(
            Tokenizer::from_hf_dir(dir.path()).unwrap_err().code(),
            "tokenizer_io",
            "{name}"
        );
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
}

/// Every family's components, as their files have them.
#[test]
fn tokenizers_of_supported_families_are_read() {
    let space = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]});
    let llama2 = json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>"), added(1, "<s>")],
        "normalizer": space,
        "pre_tokenizer": null,
        "post_processor": template(json!([{"SpecialToken": {"id": "s", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}]), &[1]),
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "vocab": {"<unk>": 0, "<s>": 1, "<0xC3>": 2, "<0xA9>": 3, "▁": 4, "a": 5, "▁a": 6},
            "merges": ["▁ a"]}
    });
    let tokenizer = open(&llama2.to_string()).unwrap();
    assert_eq!(tokenizer.encode("a aé", true).unwrap(), [1, 6, 6, 2, 3]);
    assert_eq!(tokenizer.decode(&[1, 6, 6, 2, 3], true), "a aé");
    assert_eq!(&*tokenizer.token_bytes(3), [0xa9]);

    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let mut bytes = byte_level();
    bytes["use_regex"] = json!(false);
    let smollm = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, byte_level()]});
    let around = template(
        json!([{"SpecialToken": {"id": "s", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]),
        &[8],
    );
    for (pre_tokenizer, post_processor, before) in [
        (
            json!({"type": "Sequence", "pretokenizers": [split(llama3), bytes]}),
            json!({"type": "Sequence", "processors": [byte_level(), around]}),
            &[8][..],
        ),
        (
            json!({"type": "Sequence", "pretokenizers": [split(&llama3.replace("{1,3}", "")), bytes]}),
            byte_level(),
            &[],
        ),
        (smollm, Value::Null, &[]),
    ] {
        let mut json = tokenizer_json();
        json["normalizer"] = json!({"type": "NFC"});
        json["pre_tokenizer"] = pre_tokenizer;
        json["post_processor"] = post_processor;
        let tokenizer = open(&json.to_string()).unwrap();
        assert_eq!(
            tokenizer.encode("ab abe\u{301}", true).unwrap()[before.len()..],
            [3, 2, 3, 4, 5][..4 + 1]
        );
        assert!(tokenizer.encode("ab", true).unwrap().starts_with(before));
    }
}

#[test]
fn long_added_and_unknown_tokens_are_refused() {
    let mut json = tokenizer_json();
    json["added_tokens"] = json!([added(8, "<x>"), added(9, &format!("{}b", "a".repeat(4000)))]);
    assert!(open(&json.to_string()).unwrap_err().to_string().contains("added token 9"));
    // Short in the file, long once it is normalised.
    let mut json = tokenizer_json();
    let mut token = added(8, &"a".repeat(100));
    token["normalized"] = json!(true);
    json["normalizer"] = replace("a", &"a".repeat(16));
    json["added_tokens"] = json!([token]);
    assert!(open(&json.to_string()).unwrap_err().to_string().contains("added token 8"));
    let mut json = tokenizer_json();
    let unknown = "u".repeat(100);
    json["model"]["vocab"][&unknown] = json!(8);
    json["model"]["unk_token"] = json!(unknown);
    json["added_tokens"] = json!([]);
    assert!(open(&json.to_string()).unwrap_err().to_string().contains("`unk_token`"));
}

/// What is accepted of a damaged file can be used.
#[test]
fn flipped_bytes_never_panic() {
    let mut json = tokenizer_json();
    json["normalizer"] =
        json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, replace("a", "bb")]});
    json["pre_tokenizer"] =
        json!({"type": "Sequence", "pretokenizers": [split(r"\p{N}"), byte_level()]});
    json["post_processor"] = template(json!([{"Sequence": {"id": "A", "type_id": 0}}]), &[8]);
    let good = json.to_string().into_bytes();
    let mut accepted = 0;
    for at in (0..good.len()).step_by(3) {
        for flip in [0x01, 0x10] {
            let mut damaged = good.clone();
            damaged[at] ^= flip;
            let json = String::from_utf8_lossy(&damaged);
            let Ok(tokenizer) = open(&json) else { continue };
            accepted += 1;
            let ids = tokenizer.encode_with_special("ab <s> 12 é", true, true);
            tokenizer.decode(&ids.unwrap_or_default(), false);
        }
    }
    assert!(accepted > 50, "{accepted}");
}

/// Long texts take no longer than a text may, with all that an accepted file can have in it.
#[test]
fn an_accepted_tokenizer_takes_linear_time() {
    let mut json = tokenizer_json();
    let tokens: Vec<Value> = (0..2000).map(|i| added(8 + i, &format!("<{i}>"))).collect();
    json["added_tokens"] = json!(tokens);
    let start = Instant::now();
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [
        replace("b", "bbb"), {"type": "Prepend", "prepend": "a"}]});
    let tokenizer = open(&json.to_string()).unwrap();
    let mut text = String::new();
    for i in 0..40_000 {
        let _ = write!(text, "ab <{}>\u{301}", i % 2000);
    }
    for text in [
        &text,
        &"a".repeat(500_000),
        &"b".repeat(500_000),
        &" ".repeat(500_000),
        &"aB1 \n".repeat(100_000),
    ] {
        let ids = tokenizer.encode_with_special(text, true, true).unwrap();
        assert!(ids.len() <= 16 * text.len());
        tokenizer.decode(&ids, false);
    }
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

/// A GGUF file's tokenizer with these tokens, `kind` being their type.
fn gguf(texts: impl Iterator<Item = String>, kind: i32) -> Result<Tokenizer, TokenizerError> {
    let base = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let texts: Vec<Gguf> = base.chain(texts).map(Gguf::String).collect();
    let types = (0..texts.len()).map(|i| Gguf::I32(if i < 3 { 3 } else { kind })).collect();
    Tokenizer::from_gguf(&std::collections::HashMap::from([
        ("tokenizer.ggml.model".to_owned(), Gguf::String("llama".into())),
        ("tokenizer.ggml.tokens".to_owned(), Gguf::Array(texts)),
        ("tokenizer.ggml.token_type".to_owned(), Gguf::Array(types)),
    ]))
}

const USER_DEFINED: i32 = 4;
const NORMAL: i32 = 1;

#[test]
fn many_special_tokens_cost_no_more_than_few() {
    let start = Instant::now();
    let letter = |i: u32| char::from_u32(0x4e00 + i).unwrap();
    let tokenizer = gguf((0..1700).map(|i| letter(i).to_string()), USER_DEFINED).unwrap();
    let text: String = (0..400_000).map(|i| letter(i % 1700)).collect();
    assert_eq!(tokenizer.encode(&text, false).unwrap().len(), 400_000);

    // Runs of every length, in a text in which each begins everywhere and most are in the way of another.
    let tokenizer = gguf((1..=230).map(|n| "a".repeat(n)), USER_DEFINED).unwrap();
    let tokens = tokenizer.encode(&"a".repeat(100_000), false).unwrap();
    assert_eq!(tokens.len(), 100_000_usize.div_ceil(230));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());

    let error = gguf(["x".repeat(257)].into_iter(), USER_DEFINED).unwrap_err();
    assert!(error.to_string().contains("special token 3"), "{error}");
    let error = gguf(["x".repeat(4097)].into_iter(), NORMAL).unwrap_err();
    assert!(error.to_string().contains("token 3"), "{error}");
}

/// Texts of 16 letters that a hash of rotations, exclusive ors and multiplications without a key takes for one.
fn colliding(n: usize) -> Vec<String> {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |state: u64, word: u64| (state.rotate_left(5) ^ word).wrapping_mul(K);
    let ascii = |word: u64| word.to_le_bytes().iter().all(|byte| (1..0x80).contains(byte));
    // The length goes first, then two words; the second makes up for the first.
    let start = mix(0, 16);
    let target = 0x0123_4567_89ab_cdef;
    let mut texts = Vec::with_capacity(n);
    for i in 0u64.. {
        let digits = format!("{i:08}");
        let first = u64::from_le_bytes(digits.as_bytes()[..8].try_into().unwrap());
        let second = mix(start, first).rotate_left(5) ^ target;
        if ascii(second) {
            texts.push([digits.as_bytes(), &second.to_le_bytes()].concat());
        }
        if texts.len() == n {
            break;
        }
    }
    texts.into_iter().map(|text| String::from_utf8(text).unwrap()).collect()
}

#[test]
fn tokens_cannot_be_chosen_so_that_all_lookups_collide() {
    let texts = colliding(60_000);
    let start = Instant::now();
    gguf(texts.into_iter(), NORMAL).unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn tensors_that_share_the_bytes_of_a_file_are_refused() {
    let fixture = Fixture::new(&QWEN2, DType::F32);
    let mut bytes = fixture.bytes();
    // All tensors begin where the first one does, and the file ends with the largest.
    let mut table_end = 0;
    for (name, tensor) in &fixture.tensors {
        let entry = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
        let at = bytes.windows(entry.len()).position(|window| window == entry).unwrap();
        // Behind the name: the number of dimensions, these, the type, the offset.
        let offset = at + entry.len() + 4 + 8 * tensor.shape.len() + 4;
        bytes[offset..offset + 8].fill(0);
        table_end = table_end.max(offset + 8);
    }
    let largest = fixture.tensors.values().map(|tensor| tensor.bytes.len()).max();
    bytes.truncate(table_end.next_multiple_of(32) + largest.unwrap());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let error = refusal(&path);
    assert_eq!(error.code(), "gguf_malformed");
    assert!(error.to_string().contains("shares its bytes"), "{error}");
}

fn fixture(name: &str) -> std::path::PathBuf {
    common::repository().join("tests/fixtures/models").join(name)
}

/// A copy of a model directory.
fn copied(dir: &Path) {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture("qwen2").join(name), dir.join(name)).unwrap();
    }
}

fn refusal(path: &Path) -> EngineError {
    let start = Instant::now();
    let Err(error) = Model::open(path) else { panic!("{} was accepted", path.display()) };
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    error
}

#[test]
fn shards_that_are_one_file_or_none_of_weights_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    copied(dir.path());
    std::fs::rename(dir.path().join("model.safetensors"), dir.path().join("a.safetensors"))
        .unwrap();
    std::fs::copy(dir.path().join("a.safetensors"), dir.path().join("b.safetensors")).unwrap();
    let index = json!({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}});
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let error = refusal(dir.path());
    assert_eq!(error.code(), "safetensors");
    assert!(error.to_string().contains("another file"), "{error}");

    let empty = [&2u64.to_le_bytes()[..], b"{}"].concat();
    std::fs::write(dir.path().join("a.safetensors"), empty).unwrap();
    assert!(refusal(dir.path()).to_string().contains("no tensors"));
}

#[cfg(unix)]
mod special_files {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn fifo(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    /// Everything that a model directory can have, each as a FIFO and as a link to a device.
    #[test]
    fn only_regular_files_of_a_model_are_read() {
        for name in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "chat_template.jinja",
        ] {
            let dir = tempfile::tempdir().unwrap();
            copied(dir.path());
            let path = dir.path().join(name);
            let _ = std::fs::remove_file(&path);
            fifo(&path);
            let error = refusal(dir.path()).to_string();
            assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
            std::fs::remove_file(&path).unwrap();
            symlink("/dev/zero", &path).unwrap();
            let error = refusal(dir.path()).to_string();
            assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        copied(dir.path());
        std::fs::remove_file(dir.path().join("model.safetensors")).unwrap();
        fifo(&dir.path().join("model.safetensors.index.json"));
        assert!(refusal(dir.path()).to_string().contains("not a regular file"));

        let path = dir.path().join("model.gguf");
        fifo(&path);
        assert!(refusal(&path).to_string().contains("not a regular file"));
        assert!(refusal(Path::new("/dev/zero")).to_string().contains("not a regular file"));
    }

    /// As stores of models have them.
    #[test]
    fn links_to_regular_files_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            symlink(fixture("qwen2").join(name), dir.path().join(name)).unwrap();
        }
        Model::open(dir.path()).unwrap();
    }
}
