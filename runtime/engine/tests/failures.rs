//! Files and requests that cannot work: each has its own code, none panics.
#![allow(missing_docs)]

mod common;

use std::path::Path;

use common::{Fixture, LLAMA, QWEN2, Sizes, engine, native_host, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::gguf::Value;
use ruvllm_engine::{Engine, EngineConfig, KvCodec, Model, open_tokenizer};

fn small() -> Fixture {
    Fixture::new(&Sizes { layers: 1, ..QWEN2 }, DType::F32)
}

fn open(bytes: &[u8]) -> Result<Model, (&'static str, String)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Model::open(&path).map_err(|e| (e.code(), e.to_string()))
}

fn refusal(bytes: &[u8]) -> (&'static str, String) {
    match open(bytes) {
        Ok(_) => panic!("the file was accepted"),
        Err(error) => error,
    }
}

/// Bytes up to the first tensor's data.
fn header_len(fixture: &Fixture) -> usize {
    let bytes = fixture.bytes();
    let data: usize = fixture.tensors.values().map(|t| t.bytes.len().next_multiple_of(32)).sum();
    bytes.len() - data
}

#[test]
fn a_missing_file_and_a_directory_without_a_model_are_named() {
    let Err(error) = Model::open(Path::new("no/such/model.gguf")) else { panic!("opened") };
    assert_eq!(error.code(), "file_not_found");
    assert!(error.to_string().contains("no/such/model.gguf"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let Err(error) = Model::open(dir.path()) else { panic!("opened") };
    assert_eq!(error.code(), "not_a_model");
}

#[test]
fn a_truncated_file_names_the_tensor_and_the_missing_bytes() {
    let bytes = small().bytes();
    let (code, text) = refusal(&bytes[..bytes.len() - 1000]);
    assert_eq!(code, "gguf_truncated");
    assert!(text.contains("tensor `token_embd.weight`") && text.contains("1000"), "{text}");
}

#[test]
fn every_cut_gives_an_error_and_no_panic() {
    let fixture = small();
    let bytes = fixture.bytes();
    let header = header_len(&fixture);
    let cuts =
        (0..200).chain((200..header).step_by(211)).chain((header..bytes.len()).step_by(9973));
    for cut in cuts {
        let (code, text) = refusal(&bytes[..cut]);
        assert_eq!(code, "gguf_truncated", "cut at {cut}: {text}");
    }
}

#[test]
fn flipped_bytes_in_the_header_never_panic() {
    let fixture = small();
    let bytes = fixture.bytes();
    let header = header_len(&fixture);
    // All of the fixed part and a sample of the rest; some flips are harmless (a name, a score).
    for at in (0..64).chain((64..header).step_by(61)) {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let _ = open(&damaged);
        }
    }
}

#[test]
fn hostile_headers_are_refused() {
    let good = small().bytes();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        refusal(&bytes).0
    };
    assert_eq!(with(0, b"GGML"), "not_a_model");
    assert_eq!(with(0, b"FUGG"), "gguf_version");
    assert_eq!(with(4, &1u32.to_le_bytes()), "gguf_version");
    assert_eq!(with(4, &3u32.to_be_bytes()), "gguf_version");
    assert_eq!(with(8, &u64::MAX.to_le_bytes()), "gguf_truncated");
    assert_eq!(with(16, &u64::MAX.to_le_bytes()), "gguf_truncated");
    assert_eq!(refusal(b"").0, "gguf_truncated");
    assert_eq!(refusal(b"PK\x03\x04").0, "not_a_model");

    for alignment in [0, 24, 1 << 30] {
        let mut fixture = small();
        fixture.set("general.alignment", Value::U32(alignment));
        let (code, text) = fixture.refusal();
        assert_eq!(code, "gguf_malformed", "{text}");
    }

    // Names that differ in the zeros at their end are one name. Found by fuzzing.
    let mut fixture = small();
    fixture.set("general.alignment\0\0", Value::U32(0));
    let (code, text) = fixture.refusal();
    assert_eq!(code, "gguf_malformed", "{text}");
    let mut fixture = small();
    fixture.set("general.alignment", Value::U32(32));
    fixture.set("general.alignment\0", Value::U32(32));
    assert!(fixture.refusal().1.contains("occurs twice"));
}

#[test]
fn metadata_that_is_missing_or_wrong_is_named() {
    let mut fixture = small();
    fixture.metadata.remove("general.architecture");
    assert_eq!(fixture.refusal().0, "config_missing");

    let mut fixture = small();
    fixture.set("general.architecture", Value::String("mamba".into()));
    let (code, text) = fixture.refusal();
    assert_eq!(code, "architecture_unknown");
    assert!(text.contains("mamba") && text.contains("llama"), "{text}");

    let mut fixture = small();
    fixture.set("qwen2.expert_count", Value::U32(8));
    assert_eq!(fixture.refusal().0, "architecture_unknown");

    for key in ["embedding_length", "block_count", "attention.head_count", "context_length"] {
        let key = format!("qwen2.{key}");
        let mut fixture = small();
        fixture.metadata.remove(&key);
        let (code, text) = fixture.refusal();
        assert_eq!(code, "config_missing");
        assert!(text.contains(&key), "{text}");
        fixture.set(&key, Value::U32(0));
        assert_eq!(fixture.refusal().0, "config_invalid", "{key}");
        fixture.set(&key, Value::U32(u32::MAX));
        assert_eq!(fixture.refusal().0, "config_invalid", "{key}");
    }

    for (key, value) in [
        ("attention.head_count_kv", Value::U32(3)),
        ("attention.value_length", Value::U32(16)),
        ("attention.key_length", Value::String("wide".into())),
        ("rope.dimension_count", Value::U32(31)),
        ("rope.scaling.type", Value::String("longrope".into())),
        ("rope.freq_base", Value::F32(f32::NAN)),
        ("attention.layer_norm_rms_epsilon", Value::F32(-1.0)),
    ] {
        let mut fixture = small();
        fixture.set(&format!("qwen2.{key}"), value);
        let (code, text) = fixture.refusal();
        assert_eq!(code, "config_invalid", "{key}: {text}");
    }
}

#[test]
fn tensors_that_are_missing_misshaped_or_of_another_type_are_named() {
    let mut fixture = small();
    fixture.tensors.remove("blk.0.attn_k.bias");
    let (code, text) = fixture.refusal();
    assert_eq!(code, "tensor_missing");
    assert!(text.contains("blk.0.attn_k.bias"), "{text}");

    let mut fixture = small();
    fixture.matrix("blk.0.ffn_up.weight", 96, 32, DType::F32, 0.1);
    let (code, text) = fixture.refusal();
    assert_eq!(code, "tensor_shape");
    assert!(text.contains("blk.0.ffn_up.weight") && text.contains("[96, 64]"), "{text}");

    let mut fixture = small();
    fixture.vector("token_embd.weight", 64, 0.0);
    assert_eq!(fixture.refusal().0, "tensor_shape");

    // Dimensions whose product overflows, save that one of them is 0. Found by fuzzing.
    let fixture = small();
    let mut bytes = fixture.bytes();
    let name = b"blk.0.ffn_gate.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len();
    bytes[at + 4..][..8].copy_from_slice(&0u64.to_le_bytes());
    bytes[at + 12..][..8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
    let (code, text) = refusal(&bytes);
    assert_eq!(code, "gguf_malformed", "{text}");
    assert!(text.contains("impossible shape"), "{text}");

    // A type that only other programs know: patched into the table of tensors.
    let fixture = small();
    let mut bytes = fixture.bytes();
    let name = b"blk.0.ffn_gate.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len();
    for (number, type_name) in [
        (20u32, "type IQ4_NL,"),
        (40, "type NVFP4,"),
        (41, "type Q1_0,"),
        (999, "type number 999,"),
    ] {
        bytes[at + 4 + 16..][..4].copy_from_slice(&number.to_le_bytes());
        let (code, text) = refusal(&bytes);
        assert_eq!(code, "tensor_type");
        assert!(text.contains("blk.0.ffn_gate.weight") && text.contains(type_name), "{text}");
    }
}

#[test]
fn a_tokenizer_needs_neither_tensors_nor_a_known_architecture() {
    let mut fixture = small();
    fixture.set("general.architecture", Value::String("mamba".into()));
    let bytes = fixture.bytes();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    std::fs::write(&path, &bytes[..header_len(&fixture)]).unwrap();
    let tokenizer = open_tokenizer(&path).unwrap();
    assert_eq!(tokenizer.encode("the cat", true).unwrap().first(), Some(&1));
    std::fs::write(&path, &bytes[..100]).unwrap();
    let Err(error) = open_tokenizer(&path) else { panic!("opened") };
    assert_eq!(error.code(), "gguf_truncated");
}

#[test]
fn requests_that_cannot_be_met_are_refused_before_any_work() {
    let model = small().model();
    let engine = engine(&model, EngineConfig { ctx: Some(8), ..two_threads() });
    let mut session = engine.session();
    session.prefill(&[1, 2, 3]).unwrap();
    let error = session.prefill(&[1; 6]).unwrap_err();
    assert_eq!(error.code(), "prompt_too_long");
    assert!(error.to_string().contains('6') && error.to_string().contains('8'), "{error}");
    assert_eq!(session.len(), 3);
    assert_eq!(session.prefill(&[]).unwrap_err().code(), "prompt_empty");
    assert_eq!(session.prefill(&[99_999]).unwrap_err().code(), "token_out_of_range");
    assert_eq!(session.decode(99_999).unwrap_err().code(), "token_out_of_range");
    assert_eq!(session.len(), 3);
    session.prefill(&[4; 5]).unwrap();
    assert_eq!(session.decode(1).unwrap_err().code(), "prompt_too_long");

    let odd_heads = Fixture::new(&Sizes { head_dim: 24, ..LLAMA }, DType::F32).model();
    let config = EngineConfig { kv: KvCodec::Q8_0.into(), ..two_threads() };
    let Err(error) = Engine::new(odd_heads, native_host(), config) else { panic!("accepted") };
    assert_eq!(error.code(), "kv_head_dim");
    let config = EngineConfig { threads: 0, ..two_threads() };
    let Err(error) = Engine::new(model, native_host(), config) else { panic!("accepted") };
    assert_eq!(error.code(), "invalid_option");
}
