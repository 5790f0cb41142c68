//! Tokenizer behaviour on small vocabularies made here, so that it is covered without any model file.

use std::collections::HashMap;

use ruvllm_engine::gguf::Value;
use ruvllm_engine::tokenizer::{DetokenizerStream, Tokenizer, TokenizerError};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

type Meta = HashMap<String, Value>;

fn set(meta: &mut Meta, key: &str, value: Value) {
    meta.insert(key.into(), value);
}

fn text(value: &str) -> Value {
    Value::String(value.into())
}

/// Metadata of a vocabulary of `(text, score, type)`.
fn vocabulary(model: &str, tokens: &[(String, f32, i32)]) -> Meta {
    let mut meta = Meta::new();
    let array =
        |value: fn(&(String, f32, i32)) -> Value| Value::Array(tokens.iter().map(value).collect());
    set(&mut meta, "tokenizer.ggml.model", text(model));
    set(&mut meta, "tokenizer.ggml.tokens", array(|token| text(&token.0)));
    set(&mut meta, "tokenizer.ggml.scores", array(|token| Value::F32(token.1)));
    set(&mut meta, "tokenizer.ggml.token_type", array(|token| Value::I32(token.2)));
    meta
}

/// A SentencePiece vocabulary: specials, bytes, then pieces from id 259 on.
fn spm_meta() -> Meta {
    let mut tokens = vec![
        ("<unk>".to_string(), 0.0, UNKNOWN),
        ("<s>".into(), 0.0, CONTROL),
        ("</s>".into(), 0.0, CONTROL),
    ];
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
    let pieces = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "▁hell", "▁hello", "lo", "▁h"];
    tokens
        .extend(pieces.iter().enumerate().map(|(i, piece)| ((*piece).into(), -(i as f32), NORMAL)));
    tokens.push(("<tool>".into(), 0.0, USER_DEFINED));
    vocabulary("llama", &tokens)
}

const SPACE: u32 = 259;
const HELLO: u32 = 268;
const TOOL: u32 = 271;

/// A byte-level vocabulary: the alphabet of printable ASCII and a few more bytes, then merged tokens.
fn bpe_meta(pre: &str) -> (Meta, HashMap<String, u32>) {
    let mut texts: Vec<String> =
        (0x21..=0x7E_u8).map(|byte| char::from(byte).to_string()).collect();
    texts.extend(
        ["Ġ", "Ċ", "Ã", "©", "ab", "abc", "Ġab", "12", "Ã©", "<|im_start|>", "<|im_end|>", "xyz"]
            .map(Into::into),
    );
    let ids: HashMap<_, _> = texts.iter().cloned().zip(0..).collect();
    let tokens: Vec<_> = texts
        .into_iter()
        .map(|token| {
            let kind = if token.starts_with("<|") { CONTROL } else { NORMAL };
            (token, 0.0, kind)
        })
        .collect();
    let mut meta = vocabulary("gpt2", &tokens);
    // "b c" outranks nothing here: "a b" comes first, so "abc" is "ab" + "c".
    let merges = ["a b", "b c", "ab c", "Ġ ab", "1 2", "Ã ©", "q r"];
    set(&mut meta, "tokenizer.ggml.merges", Value::Array(merges.map(text).to_vec()));
    set(&mut meta, "tokenizer.ggml.pre", text(pre));
    set(&mut meta, "tokenizer.ggml.eos_token_id", Value::U32(ids["<|im_end|>"]));
    (meta, ids)
}

fn spm() -> Tokenizer {
    Tokenizer::from_gguf(&spm_meta()).unwrap()
}

#[test]
fn spm_merges_by_score_and_prefixes_a_space() {
    let tokenizer = spm();
    // "he", then "ll", outscore "lo" and keep the space from "h"; "o" joins last.
    assert_eq!(tokenizer.encode("hello", true).unwrap(), [1, HELLO]);
    assert_eq!(tokenizer.encode("ohello", true).unwrap(), [1, SPACE, 263, 266, 263]);
    assert_eq!(tokenizer.encode("", true).unwrap(), [1]);
    assert!(tokenizer.encode("", false).unwrap().is_empty());
    assert_eq!(
        tokenizer.decode(&tokenizer.encode(" hello hello", true).unwrap(), true),
        " hello hello"
    );
}

#[test]
fn spm_prefix_and_bos_follow_the_metadata() {
    let mut meta = spm_meta();
    set(&mut meta, "tokenizer.ggml.add_space_prefix", Value::Bool(false));
    set(&mut meta, "tokenizer.ggml.add_bos_token", Value::Bool(false));
    set(&mut meta, "tokenizer.ggml.add_eos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode("hell", true).unwrap(), [266, 2]);
    assert_eq!(tokenizer.decode(&[SPACE, 266], true), " hell");
}

#[test]
fn spm_falls_back_to_bytes() {
    let tokenizer = spm();
    let ids = tokenizer.encode("é", false).unwrap();
    assert_eq!(ids, [SPACE, 3 + 0xC3, 3 + 0xA9]);
    assert_eq!(tokenizer.decode(&ids, true), "é");
    assert_eq!(tokenizer.token_bytes(3 + 0xC3).as_ref(), [0xC3]);
}

#[test]
fn control_tokens_are_text_unless_parsed_and_user_defined_ones_never() {
    let tokenizer = spm();
    let parsed = tokenizer.encode_with_special("</s>he<tool>he", true, false).unwrap();
    assert_eq!(parsed, [2, SPACE, 264, TOOL, SPACE, 264]);
    let data = tokenizer.encode("</s><tool>", false).unwrap();
    assert!(!data.contains(&2));
    assert_eq!(data.last(), Some(&TOOL));
    assert_eq!(tokenizer.decode(&parsed, true), "he<tool> he");
    assert_eq!(tokenizer.decode(&parsed, false), "</s> he<tool> he");
}

#[test]
fn phi3_special_tokens_swallow_the_white_space_behind_them() {
    let mut meta = spm_meta();
    set(&mut meta, "general.name", text("Phi3 mini"));
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    let stripped = tokenizer.encode_with_special("</s> \n hell<s>  hell", true, false).unwrap();
    let kept = tokenizer.encode_with_special("<s>  hell", true, false).unwrap();
    assert_eq!(stripped[..2], [2, 267]);
    assert_eq!(stripped[2..], kept);
    assert!(kept.len() > 2);
}

#[test]
fn bpe_merges_by_rank_within_pieces() {
    let (meta, ids) = bpe_meta("gpt-2");
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    let encode = |text: &str| tokenizer.encode(text, true).unwrap();
    assert_eq!(encode("abc"), [ids["abc"]]);
    assert_eq!(encode("aabc ab"), [ids["a"], ids["abc"], ids["Ġab"]]);
    assert_eq!(encode("é\n"), [ids["Ã©"], ids["Ċ"]]);
    // A whole piece that is a token but no merge makes is not taken as one.
    assert_eq!(encode("xyz"), [ids["x"], ids["y"], ids["z"]]);
    // A merge whose result is no token falls apart again.
    assert_eq!(encode("qr"), [ids["q"], ids["r"]]);
    // 40 symbols and more go through the heap.
    assert_eq!(encode(&"ab".repeat(50)), vec![ids["ab"]; 50]);
    assert_eq!(tokenizer.decode(&encode("abc é\n"), true), "abc é\n");
}

#[test]
fn pre_tokenizers_differ_in_digits_and_whole_pieces() {
    let (meta, ids) = bpe_meta("qwen2");
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode("12", false).unwrap(), [ids["1"], ids["2"]]);
    let (meta, ids) = bpe_meta("llama-bpe");
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode("12xyz", false).unwrap(), [ids["12"], ids["xyz"]]);
    // This family adds BOS unless told otherwise; the default id is 11.
    assert_eq!(tokenizer.encode("1", true).unwrap(), [11, ids["1"]]);
}

#[test]
fn missing_pre_tokenizer_is_default_and_unknown_is_refused() {
    let (mut meta, ids) = bpe_meta("x");
    let error = Tokenizer::from_gguf(&meta).unwrap_err();
    assert_eq!(error.code(), "tokenizer_unknown_pre_tokenizer");
    assert!(
        error.to_string().contains("llama-bpe, ") && error.to_string().contains("qwen2"),
        "{error}"
    );
    meta.remove("tokenizer.ggml.pre");
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode("12", false).unwrap(), [ids["12"]]);
}

#[test]
fn ends_of_generation_are_found_by_id_and_by_text() {
    let (meta, ids) = bpe_meta("qwen2");
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert!(tokenizer.is_eog(ids["<|im_end|>"]) && !tokenizer.is_eog(ids["<|im_start|>"]));
    assert_eq!(tokenizer.eos(), Some(ids["<|im_end|>"]));
    assert_eq!(tokenizer.token_id("<|im_end|>"), tokenizer.eos());
    assert!(tokenizer.is_special(ids["<|im_start|>"]) && !tokenizer.is_special(ids["abc"]));
    let turn = tokenizer.encode_with_special("<|im_start|>ab<|im_end|>", true, false).unwrap();
    assert_eq!(turn, [ids["<|im_start|>"], ids["ab"], ids["<|im_end|>"]]);
    assert!(spm().is_eog(2));
}

#[test]
fn a_rendered_chat_gets_one_bos_and_no_eos() {
    let mut meta = spm_meta();
    set(&mut meta, "tokenizer.ggml.add_eos_token", Value::Bool(true));
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode("hello", true).unwrap(), [1, HELLO, 2]);
    assert_eq!(tokenizer.encode_chat("hello").unwrap(), [1, HELLO]);
    assert_eq!(tokenizer.encode_chat("<s>hello").unwrap(), [1, HELLO]);
    set(&mut meta, "tokenizer.ggml.add_bos_token", Value::Bool(false));
    let tokenizer = Tokenizer::from_gguf(&meta).unwrap();
    assert_eq!(tokenizer.encode_chat("hello").unwrap(), [HELLO]);
}

#[test]
fn metadata_that_does_not_fit_is_refused() {
    let code = |meta: &Meta| Tokenizer::from_gguf(meta).unwrap_err().code();
    let mut meta = spm_meta();
    set(&mut meta, "tokenizer.ggml.scores", Value::Array(vec![Value::F32(0.0)]));
    assert_eq!(code(&meta), "tokenizer_malformed");
    meta.remove("tokenizer.ggml.tokens");
    assert_eq!(code(&meta), "tokenizer_missing");
    set(&mut meta, "tokenizer.ggml.model", text("bert"));
    assert_eq!(code(&meta), "tokenizer_unsupported_model");
    meta.remove("tokenizer.ggml.model");
    assert_eq!(code(&meta), "tokenizer_missing");
    let mut meta = spm_meta();
    set(&mut meta, "tokenizer.ggml.add_bos_token", text("yes"));
    assert_eq!(code(&meta), "tokenizer_malformed");
    let (mut meta, _) = bpe_meta("chatglm-bpe");
    set(&mut meta, "tokenizer.ggml.add_bos_token", Value::Bool(true));
    let error = Tokenizer::from_gguf(&meta).unwrap().encode("a", true).unwrap_err();
    assert!(matches!(error, TokenizerError::NoSpecialToken { token: "bos" }));
}

#[test]
fn stream_never_splits_a_character() {
    let tokenizer = spm();
    let byte = |value: u32| 3 + value;
    let mut stream = DetokenizerStream::new();
    for part in [0xF0, 0x9F, 0xA6] {
        assert_eq!(stream.push(&tokenizer, byte(part)), None);
    }
    assert_eq!(stream.push(&tokenizer, byte(0x99)).as_deref(), Some("🦙"));
    // A lone continuation byte can never become a character; a cut-off one is lost only at the end.
    assert_eq!(stream.push(&tokenizer, byte(0x80)).as_deref(), Some("\u{FFFD}"));
    assert_eq!(stream.push(&tokenizer, byte(0xC3)), None);
    assert_eq!(stream.push(&tokenizer, 260).as_deref(), Some("\u{FFFD}h"));
    assert_eq!(stream.push(&tokenizer, byte(0xE4)), None);
    assert_eq!(stream.push(&tokenizer, 2), None, "control tokens are hidden");
    assert_eq!(stream.finish().as_deref(), Some("\u{FFFD}"));
    assert_eq!(stream.finish(), None);
    let mut stream = DetokenizerStream::with_special();
    assert_eq!(stream.push(&tokenizer, 2).as_deref(), Some("</s>"));
}

#[test]
fn stream_keeps_the_space_of_the_first_word() {
    let tokenizer = spm();
    assert_eq!(DetokenizerStream::new().push(&tokenizer, HELLO).as_deref(), Some(" hello"));
    assert_eq!(tokenizer.decode(&[HELLO], true), "hello");
}
