//! Hugging Face directories: `tokenizer.json` and the files around it.

use std::path::Path;

use ruvllm_engine::tokenizer::{DetokenizerStream, Tokenizer};
use serde_json::json;

fn write(dir: &Path, name: &str, value: &serde_json::Value) {
    std::fs::write(dir.join(name), value.to_string()).unwrap();
}

/// A byte-level BPE of a few tokens with two control tokens.
fn tokenizer_json() -> serde_json::Value {
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(8, "<bos>"), added(9, "<|im_end|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [8], "tokens": ["<bos>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ã": 4, "©": 5, "<": 6, "|": 7},
            "merges": [["a", "b"]]}
    })
}

#[test]
fn directory_is_read_with_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, "tokenizer.json", &tokenizer_json());
    let config = json!({"bos_token": {"content": "<bos>"}, "eos_token": "<|im_end|>",
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]});
    write(dir, "tokenizer_config.json", &config);
    write(dir, "generation_config.json", &json!({"eos_token_id": [9, 3]}));
    let tokenizer = Tokenizer::from_hf_dir(dir).unwrap();

    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(8), Some(9)));
    assert!(tokenizer.is_eog(9) && tokenizer.is_eog(3) && !tokenizer.is_eog(8));
    assert!(tokenizer.is_special(8) && !tokenizer.is_special(0));
    assert_eq!((tokenizer.vocab_size(), tokenizer.token_id("ab")), (10, Some(3)));
    // The truncation of the file does not apply.
    assert_eq!(tokenizer.encode("ab abé", true).unwrap(), [8, 3, 2, 3, 4, 5]);
    assert_eq!(tokenizer.encode_with_special("ab<|im_end|>", true, false).unwrap(), [3, 9]);
    assert!(!tokenizer.encode("ab<|im_end|>", false).unwrap().contains(&9));
    assert_eq!(tokenizer.decode(&[8, 3, 2, 3, 4, 5], true), "ab abé");
    assert_eq!(tokenizer.decode(&[8, 3], false), "<bos>ab");

    let mut stream = DetokenizerStream::new();
    let pieces: Vec<_> = [8, 2, 3, 4, 5].map(|id| stream.push(&tokenizer, id)).into();
    assert_eq!(pieces, [None, Some(" ".into()), Some("ab".into()), None, Some("é".into())]);

    let templates = |tokenizer: &Tokenizer| {
        [tokenizer.chat_template(), tokenizer.tool_template()].map(|text| text.map(str::to_owned))
    };
    assert_eq!(templates(&tokenizer), [Some("D".into()), Some("T".into())]);
    // Files take the place of the configuration's templates, of both.
    std::fs::write(dir.join("chat_template.jinja"), "J").unwrap();
    assert_eq!(templates(&Tokenizer::from_hf_dir(dir).unwrap()), [Some("J".into()), None]);
    std::fs::create_dir(dir.join("additional_chat_templates")).unwrap();
    std::fs::write(dir.join("additional_chat_templates/tool_use.jinja"), "U").unwrap();
    let tokenizer = Tokenizer::from_hf_dir(dir).unwrap();
    assert_eq!(templates(&tokenizer), [Some("J".into()), Some("U".into())]);
}

#[test]
fn an_end_of_sequence_may_stand_in_any_of_the_configurations() {
    let opened = |name: &str, ends: serde_json::Value| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "tokenizer.json", &tokenizer_json());
        if !name.is_empty() {
            write(dir.path(), name, &ends);
        }
        Tokenizer::from_hf_dir(dir.path()).unwrap()
    };
    assert!(!opened("", json!(null)).is_eog(3));
    for name in ["config.json", "generation_config.json"] {
        assert!(opened(name, json!({"eos_token_id": 3})).is_eog(3), "{name}");
        let several = opened(name, json!({"eos_token_id": [2, 3]}));
        assert!(several.is_eog(2) && several.is_eog(3), "{name}");
        for odd in [json!({"eos_token_id": null}), json!({"eos_token_id": -1}), json!([3])] {
            assert!(!opened(name, odd).is_eog(3), "{name}");
        }
    }
    assert!(opened("tokenizer_config.json", json!({"eos_token": "ab"})).is_eog(3));
}

#[test]
fn a_rendered_chat_gets_no_token_that_its_template_did_not_write() {
    let mut file = tokenizer_json();
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    file["post_processor"]["single"] =
        json!([special("<bos>"), {"Sequence": {"id": "A", "type_id": 0}}, special("<|im_end|>")]);
    file["post_processor"]["special_tokens"]["<|im_end|>"] =
        json!({"id": "<|im_end|>", "ids": [9], "tokens": ["<|im_end|>"]});
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &file);
    write(dir.path(), "tokenizer_config.json", &json!({"bos_token": "<bos>"}));
    let tokenizer = Tokenizer::from_hf_dir(dir.path()).unwrap();
    // A text of its own is put between both, a conversation is what the template says.
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [8, 3, 9]);
    assert_eq!(tokenizer.encode_chat("ab").unwrap(), [3]);
    assert_eq!(tokenizer.encode_chat("<bos>ab<|im_end|>a").unwrap(), [8, 3, 9, 0]);
}

/// A vocabulary of words and parts of words.
fn words_json(kind: &str, decoder: serde_json::Value) -> serde_json::Value {
    let mut file = tokenizer_json();
    file["pre_tokenizer"] = json!({"type": "Whitespace"});
    file["post_processor"] = json!(null);
    file["decoder"] = decoder;
    file["model"] = json!({"type": kind, "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "super": 1, "##th": 2, "cat": 3, ".": 4,
        "##s": 5, "the": 6, "'": 7}});
    file
}

/// As the reference writes them, whether all at once or as they come.
#[test]
fn words_and_their_parts_are_joined_as_the_decoder_says() {
    let opened = |file: &serde_json::Value| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "tokenizer.json", file);
        Tokenizer::from_hf_dir(dir.path()).unwrap()
    };
    let streamed = |tokenizer: &Tokenizer, tokens: &[u32]| {
        let mut stream = DetokenizerStream::new();
        let mut text: String =
            tokens.iter().filter_map(|token| stream.push(tokenizer, *token)).collect();
        text.extend(stream.finish());
        text
    };
    let joins = |cleanup: bool| json!({"type": "WordPiece", "prefix": "##", "cleanup": cleanup});
    for (kind, decoder, decoded) in [
        ("WordPiece", joins(true), "superth cats."),
        ("WordPiece", joins(false), "superth cats ."),
        ("WordPiece", json!(null), "super ##th cat ##s ."),
    ] {
        let tokenizer = opened(&words_json(kind, decoder));
        let tokens = tokenizer.encode("superth cats.", true).unwrap();
        assert_eq!(tokens, [1, 2, 3, 5, 4]);
        assert_eq!(tokenizer.decode(&tokens, true), decoded);
        // A stream goes on behind a text, so its first word has a space in front.
        assert_eq!(streamed(&tokenizer, &tokens), format!(" {decoded}"));
        assert_eq!(tokenizer.encode("superb", true).unwrap(), [0]);
        assert!(!streamed(&tokenizer, &[3, 9, 2]).contains("im_end"));
    }
    let tokenizer = opened(&words_json("WordLevel", json!(null)));
    let tokens = tokenizer.encode("the cat superth", true).unwrap();
    assert_eq!(tokens, [6, 3, 0]);
    assert_eq!(tokenizer.decode(&tokens, true), "the cat [UNK]");
    assert_eq!(streamed(&tokenizer, &tokens), " the cat [UNK]");

    let mut file = words_json("WordLevel", json!(null));
    file["model"]["unk_token"] = json!("<unk>");
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &file);
    let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err();
    assert!(error.to_string().contains("`unk_token`"), "{error}");
}

/// The tokens are those of `transformers` 5.24 for the same files.
#[test]
fn a_prefix_space_is_there_as_the_configuration_says() {
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let bytes = |add: bool| json!({"type": "ByteLevel", "add_prefix_space": add, "trim_offsets": true, "use_regex": true});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let both = json!({"type": "Sequence", "normalizers": [prepend, replace]});
    let digits = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, bytes(false)]});
    let spelled = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    // The three are what `ab`, `</s>ab` and ` ab` become.
    type Case<'a> =
        (&'a str, Option<bool>, &'a str, serde_json::Value, serde_json::Value, [&'a [u32]; 3]);
    let none = || json!(null);
    let cases: [Case<'_>; 11] = [
        (
            "LlamaTokenizer",
            Some(false),
            "llama",
            metaspace("first"),
            none(),
            [&[3], &[9, 3], &[4, 3]],
        ),
        (
            "LlamaTokenizerFast",
            Some(false),
            "llama",
            none(),
            both.clone(),
            [&[3], &[9, 3], &[4, 3]],
        ),
        (
            "LlamaTokenizer",
            Some(true),
            "llama",
            metaspace("never"),
            none(),
            [&[4, 3], &[9, 3], &[4, 3]],
        ),
        ("LlamaTokenizer", Some(true), "llama", none(), replace, [&[4, 3], &[9, 3], &[4, 3]]),
        ("LlamaTokenizer", Some(true), "llama", bytes(false), none(), [&[3], &[9, 3], &[2, 3]]),
        (
            "GPT2Tokenizer",
            Some(true),
            "llama",
            digits.clone(),
            none(),
            [&[2, 3], &[9, 2, 3], &[2, 3]],
        ),
        ("GPT2TokenizerFast", Some(false), "llama", bytes(true), none(), [&[3], &[9, 3], &[2, 3]]),
        ("", Some(true), "qwen2", digits, none(), [&[2, 3], &[9, 2, 3], &[2, 3]]),
        // Not stated, of an unknown class, or of models whose files name the wrong one.
        ("LlamaTokenizer", None, "llama", metaspace("first"), none(), [&[4, 3], &[9, 3], &[4, 3]]),
        (
            "PreTrainedTokenizerFast",
            Some(true),
            "llama",
            bytes(false),
            none(),
            [&[3], &[9, 3], &[2, 3]],
        ),
        (
            "LlamaTokenizer",
            Some(false),
            "mistral",
            metaspace("first"),
            none(),
            [&[4, 3], &[9, 3], &[4, 3]],
        ),
    ];
    for (i, (class, add, model_type, steps, normalizer, expected)) in cases.into_iter().enumerate()
    {
        let mut file = tokenizer_json();
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        file["added_tokens"] = json!([special(8, "<s>"), special(9, "</s>")]);
        file["decoder"] = if normalizer.is_null() { json!(null) } else { spelled.clone() };
        (file["pre_tokenizer"], file["normalizer"]) = (steps, normalizer);
        file["post_processor"] = json!(null);
        file["model"]["vocab"] =
            json!({"a": 0, "b": 1, "Ġ": 2, "ab": 3, "▁": 4, "c": 5, "<": 6, "|": 7});
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "tokenizer.json", &file);
        let config = json!({"tokenizer_class": class, "add_prefix_space": add});
        write(dir.path(), "tokenizer_config.json", &config);
        write(dir.path(), "config.json", &json!({"model_type": model_type}));
        let tokenizer = Tokenizer::from_hf_dir(dir.path()).unwrap();
        for (text, expected) in ["ab", "</s>ab", " ab"].into_iter().zip(expected) {
            let tokens = tokenizer.encode_with_special(text, true, false).unwrap();
            assert_eq!(tokens, expected, "case {i}, {text:?}");
        }
    }
}

#[test]
fn missing_and_broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_hf_dir(dir.path()).unwrap_err();
    assert_eq!(error.code(), "tokenizer_missing");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert_eq!(Tokenizer::from_hf_dir(dir.path()).unwrap_err().code(), "tokenizer_hugging_face");
    write(dir.path(), "tokenizer.json", &tokenizer_json());
    std::fs::write(dir.path().join("tokenizer_config.json"), "[").unwrap();
    assert_eq!(Tokenizer::from_hf_dir(dir.path()).unwrap_err().code(), "tokenizer_malformed");
}
