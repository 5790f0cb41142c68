//! Adapter files: GGUF and PEFT, on models of both formats, and what is no adapter of the model.
#![allow(missing_docs)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::lora::{Lora, TOLERANCE, exact, logits, write_gguf, write_safetensors};
use common::{
    Fixture, LLAMA, QWEN2, Sizes, engine, relative_error, repository, some_tokens, two_threads,
};
use ruvllm_abi::DType;
use ruvllm_engine::gguf::Value;
use ruvllm_engine::{Adapter, Engine, Model};
use ruvllm_tests::Tensor;
use safetensors::SafeTensors;

/// A family's directory, its GGUF file, and its sizes.
fn family(name: &str) -> ([PathBuf; 2], Sizes) {
    let dir = repository().join("tests/fixtures/models").join(name);
    let gguf = dir.join("model-f32.gguf");
    let config = Model::open(&gguf).unwrap().config().clone();
    let sizes = Sizes {
        architecture: if config.architecture == "llama" { "llama" } else { "qwen2" },
        dim: config.dim,
        ffn: config.ffn_dim,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        layers: config.layers.len(),
        context: config.context,
    };
    ([dir, gguf], sizes)
}

/// The model of a Hugging Face directory with the adapter in its weights.
fn merged_dir(lora: &Lora, from: &Path) -> Arc<Model> {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(from.join(name), dir.path().join(name)).unwrap();
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let whole = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = whole
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let words = view.data().as_chunks::<4>().0.iter();
            (name, view.shape().to_vec(), words.map(|&w| f32::from_le_bytes(w)).collect())
        })
        .collect();
    for factors in &lora.factors {
        let name = format!("model.layers.{}.{}.weight", factors.layer, factors.module);
        let (.., weights) = tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
        lora.add(factors, 1.0, weights);
    }
    write_safetensors(&dir.path().join("model.safetensors"), &tensors);
    Arc::new(Model::open(dir.path()).unwrap())
}

#[test]
fn both_formats_fit_models_of_both_formats() {
    for name in ["llama3", "head_dim", "qwen2"] {
        let (paths, sizes) = family(name);
        let lora = Lora::all(&sizes, 4, 5);
        let converted = match sizes.architecture {
            "llama" => lora.interleaved(sizes.head_dim),
            _ => lora.clone(),
        };
        let dir = tempfile::tempdir().unwrap();
        let (peft, gguf) = (dir.path().join("peft"), dir.path().join("converted.gguf"));
        lora.write_peft(&peft, "");
        converted.write_gguf(&gguf, sizes.architecture, DType::F32);
        let tokens: Vec<u32> = some_tokens(40);
        let expected = logits(&engine(&merged_dir(&lora, &paths[0]), exact()), None, &tokens);
        for path in &paths {
            let engine = engine(&Arc::new(Model::open(path).unwrap()), exact());
            let [peft, gguf] =
                [&peft, &gguf].map(|path| Adapter::open(&engine, path, 1.0).unwrap());
            assert_eq!(peft.fingerprint(), gguf.fingerprint(), "{}", path.display());
            assert_eq!((peft.name(), gguf.name()), ("peft", "converted"));
            let actual = logits(&engine, Some(&peft), &tokens);
            let error = relative_error(&actual, &expected);
            assert!(error < TOLERANCE, "{}: {error:e}", path.display());
        }
    }
}

#[test]
fn ranks_by_pattern_and_stabilised_scales_are_those_of_peft() {
    let ([dir, _], sizes) = family("llama2");
    let engine = engine(&Arc::new(Model::open(&dir).unwrap()), exact());
    let lora = Lora::all(&sizes, 4, 1);
    let temp = tempfile::tempdir().unwrap();
    let open = |lora: &Lora, extra: &str| {
        lora.write_peft(temp.path(), extra);
        Adapter::open(&engine, temp.path(), 1.0)
    };
    // alpha / sqrt(4) is twice alpha / 4.
    let rooted = open(&lora, r#","use_rslora":true"#).unwrap();
    let doubled = open(&Lora { alpha: 2.0 * lora.alpha, ..lora.clone() }, "").unwrap();
    assert_eq!(rooted.fingerprint(), doubled.fingerprint());

    let mixed = Lora::new(&sizes, 4, 1, &["attn_q"]);
    let pattern = r#","rank_pattern":{"q_proj":4}"#;
    let by_pattern = open(&mixed, pattern).unwrap();
    assert_eq!((by_pattern.rank(), by_pattern), (4, open(&mixed, "").unwrap()));
    let error = open(&mixed, r#","rank_pattern":{"q_proj":8}"#).unwrap_err();
    assert_eq!(error.code(), "adapter_mismatch", "{error}");

    // Alphas by pattern scale their factors alone.
    let two = Lora::new(&sizes, 4, 1, &["attn_q", "attn_v"]);
    let mut doubled = two.clone();
    for factors in doubled.factors.iter_mut().filter(|factors| factors.part == "attn_q") {
        factors.b.iter_mut().for_each(|x| *x *= 2.0);
    }
    let tokens = some_tokens(12);
    let expected = logits(&engine, Some(&open(&doubled, "").unwrap()), &tokens);
    let pattern = format!(r#","alpha_pattern":{{"self_attn.q_proj":{}}}"#, 2.0 * two.alpha);
    let by_pattern = open(&two, &pattern).unwrap();
    assert_eq!(by_pattern.alpha(), two.alpha);
    let error = relative_error(&logits(&engine, Some(&by_pattern), &tokens), &expected);
    assert!(error < TOLERANCE, "{error:e}");
    assert_ne!(by_pattern, open(&two, "").unwrap());

    mixed.write_peft(temp.path(), "");
    let config = r#"{"peft_type":"LORA","r":8,"lora_alpha":6}"#;
    std::fs::write(temp.path().join("adapter_config.json"), config).unwrap();
    let error = Adapter::open(&engine, temp.path(), 1.0).unwrap_err();
    assert_eq!(error.code(), "adapter_mismatch", "{error}");
}

/// Opens what `write` makes of a path; the error's code and text.
fn refusal(engine: &Engine, write: impl FnOnce(&Path)) -> (&'static str, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    write(&path);
    let error = Adapter::open(engine, &path, 1.0).unwrap_err();
    (error.code(), error.to_string())
}

#[test]
fn gguf_files_that_do_not_fit_are_refused() {
    let fixture = Fixture::new(&QWEN2, DType::F32);
    let engine = engine(&fixture.model(), two_threads());
    let good = Lora::all(&QWEN2, 4, 1);
    let written = |lora: &Lora| refusal(&engine, |path| lora.write_gguf(path, "qwen2", DType::F32));

    let error = Adapter::open(&engine, Path::new("no/such.gguf"), 1.0).unwrap_err();
    assert_eq!(error.code(), "file_not_found");
    let (code, text) = refusal(&engine, |path| std::fs::write(path, "PK\x03\x04").unwrap());
    assert_eq!(code, "not_an_adapter", "{text}");
    let (code, text) = refusal(&engine, |path| std::fs::write(path, fixture.bytes()).unwrap());
    assert_eq!(code, "not_an_adapter");
    assert!(text.contains("general.type"), "{text}");

    let (code, text) = refusal(&engine, |path| good.write_gguf(path, "llama", DType::F32));
    assert_eq!(code, "adapter_mismatch");
    assert!(text.contains("llama") && text.contains("qwen2"), "{text}");
    let (code, _) = refusal(&engine, |path| good.write_gguf(path, "gemma", DType::F32));
    assert_eq!(code, "adapter_unsupported");

    let (code, text) = written(&Lora::all(&Sizes { dim: 128, ..QWEN2 }, 4, 1));
    assert_eq!(code, "adapter_mismatch");
    assert!(text.contains("blk.0.attn_q.weight.lora_a"), "{text}");
    assert!(text.contains("[4, 128]") && text.contains("[4, 64]"), "{text}");
    let (code, text) = written(&Lora::all(&Sizes { layers: 3, ..QWEN2 }, 4, 1));
    assert_eq!(code, "adapter_mismatch");
    assert!(text.contains("blk.2."), "{text}");

    let mut broken = good.clone();
    broken.factors[5].a[3] = f32::NAN;
    let (code, text) = written(&broken);
    assert_eq!(code, "adapter_damaged");
    assert!(text.contains("blk.0.ffn_up"), "{text}");
    assert_eq!(written(&Lora { factors: Vec::new(), ..good.clone() }).0, "adapter_damaged");
    let (code, text) = written(&Lora { alpha: f32::NAN, ..good.clone() });
    assert_eq!(code, "adapter_damaged", "{text}");

    let with_tensors = |tensors: &[(&str, [usize; 2])], key: &str, value: Value| {
        refusal(&engine, |path| {
            let text = |text: &str| Value::String(text.to_owned());
            let metadata = [
                ("general.type", text("adapter")),
                ("general.architecture", text("qwen2")),
                ("adapter.type", text("lora")),
                ("adapter.lora.alpha", Value::F32(1.0)),
            ];
            let kept = metadata.into_iter().filter(|(k, _)| *k != key);
            let metadata: Vec<_> = kept.chain([(key, value)]).collect();
            let tensors: Vec<_> = tensors
                .iter()
                .map(|(name, shape)| {
                    let zeros = vec![0.0; shape.iter().product()];
                    ((*name).to_owned(), Tensor::new(DType::F32, shape, &zeros))
                })
                .collect();
            write_gguf(path, &metadata, &tensors);
        })
    };
    let a = ("blk.0.attn_q.weight.lora_a", [4, 64]);
    let none = || Value::U32(0);
    let (code, text) = with_tensors(&[a], "general.x", none());
    assert_eq!(code, "adapter_damaged");
    assert!(text.contains(a.0), "{text}");
    for name in ["token_embd.weight.lora_a", "blk.0.attn_norm.weight", "blk.0.attn_q.bias.lora_a"] {
        let (code, text) = with_tensors(&[a, (name, [4, 64])], "general.x", none());
        assert_eq!(code, "adapter_unsupported");
        assert!(text.contains(name), "{text}");
    }
    let kind = Value::String("control_vector".into());
    assert_eq!(with_tensors(&[a], "adapter.type", kind).0, "adapter_unsupported");
    let alora = "adapter.alora.invocation_tokens";
    assert_eq!(with_tensors(&[a], alora, none()).0, "adapter_unsupported");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter.gguf");
    good.write_gguf(&path, "qwen2", DType::F32);
    for scale in [f32::NAN, f32::INFINITY] {
        assert_eq!(Adapter::open(&engine, &path, scale).unwrap_err().code(), "invalid_option");
    }
    // Every cut is an error, none a panic.
    let bytes = std::fs::read(&path).unwrap();
    for cut in (0..bytes.len()).step_by(997) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let error = Adapter::open(&engine, &path, 1.0).unwrap_err();
        assert_eq!(error.code(), "gguf_truncated", "cut at {cut}: {error}");
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let ([dir, _], sizes) = family("qwen2");
    let engine = engine(&Arc::new(Model::open(&dir).unwrap()), two_threads());
    let lora = Lora::all(&sizes, 2, 1);
    let temp = tempfile::tempdir().unwrap();
    let (gguf, peft) = (temp.path().join("adapter.gguf"), temp.path().join("peft"));
    lora.write_gguf(&gguf, "qwen2", DType::F32);
    lora.write_peft(&peft, "");
    for (adapter, file) in [
        (&gguf, gguf.clone()),
        (&peft, peft.join("adapter_config.json")),
        (&peft, peft.join("adapter_model.safetensors")),
    ] {
        let good = std::fs::read(&file).unwrap();
        for at in (0..good.len().min(64)).chain((64..good.len().min(4000)).step_by(37)) {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = good.clone();
                damaged[at] ^= flip;
                std::fs::write(&file, damaged).unwrap();
                // Some flips are harmless: a name, a number.
                let _ = Adapter::open(&engine, adapter, 1.0);
            }
        }
        std::fs::write(&file, good).unwrap();
        Adapter::open(&engine, adapter, 1.0).unwrap();
    }
}

#[test]
fn peft_directories_that_do_not_fit_are_refused() {
    let ([dir, _], sizes) = family("qwen2");
    let engine = engine(&Arc::new(Model::open(&dir).unwrap()), two_threads());
    let good = Lora::all(&sizes, 4, 1);
    let written = |extra: &str, edit: &dyn Fn(&Path)| {
        refusal(&engine, |path| {
            good.write_peft(path, extra);
            edit(path);
        })
    };
    let (code, text) = refusal(&engine, |path| std::fs::create_dir(path).unwrap());
    assert_eq!(code, "not_an_adapter");
    assert!(text.contains("adapter_config.json"), "{text}");
    let remove =
        |path: &Path| std::fs::remove_file(path.join("adapter_model.safetensors")).unwrap();
    let (code, text) = written("", &remove);
    assert_eq!(code, "not_an_adapter");
    assert!(text.contains("adapter_model.safetensors"), "{text}");

    let (code, text) = written(r#","use_dora":true"#, &|_| ());
    assert_eq!(code, "adapter_unsupported");
    assert!(text.contains("use_dora"), "{text}");
    let cut = |path: &Path| {
        let file = path.join("adapter_model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(file, &bytes[..bytes.len() - 10]).unwrap();
    };
    assert_eq!(written("", &cut).0, "safetensors");
    for name in [
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "base_model.model.model.layers.0.mlp.experts.lora_A.weight",
    ] {
        let replace = |path: &Path| {
            let tensors = [(name.to_owned(), vec![4, 64], vec![0.0; 256])];
            write_safetensors(&path.join("adapter_model.safetensors"), &tensors);
        };
        let (code, text) = written("", &replace);
        assert_eq!(code, "adapter_unsupported");
        assert!(text.contains(name), "{text}");
    }
    let (code, text) =
        refusal(&engine, |path| Lora::all(&Sizes { ffn: 128, ..sizes }, 4, 1).write_peft(path, ""));
    assert_eq!(code, "adapter_mismatch");
    assert!(text.contains("mlp.gate_proj.lora_B.weight") && text.contains("[128, 4]"), "{text}");
}

#[test]
fn quantised_adapters_are_taken_as_they_are_stored() {
    let fixture = Fixture::new(&LLAMA, DType::F32);
    let engine = engine(&fixture.model(), exact());
    let (tokens, dir) = (some_tokens(30), tempfile::tempdir().unwrap());
    let lora = Lora::all(&LLAMA, 32, 3);
    for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::Q8_0, 1e-2), (DType::Q4_K, 0.3)] {
        let path = dir.path().join("adapter.gguf");
        lora.write_gguf(&path, "llama", dtype);
        let adapter = Adapter::open(&engine, &path, 1.0).unwrap();
        let expected = logits(&engine, Some(&lora.open(&engine, 1.0)), &tokens);
        let error = relative_error(&logits(&engine, Some(&adapter), &tokens), &expected);
        println!("{dtype:?}: {error:.1e}");
        assert!(error < tolerance, "{dtype:?}: {error:e}");
    }
}

#[test]
fn an_alpha_of_zero_stands_for_no_scaling() {
    let fixture = Fixture::new(&QWEN2, DType::F32);
    let engine = engine(&fixture.model(), exact());
    let lora = Lora::all(&QWEN2, 4, 1);
    let unscaled = Lora { alpha: 0.0, ..lora.clone() }.open(&engine, 1.0);
    let one = Lora { alpha: 4.0, ..lora }.open(&engine, 1.0);
    assert_eq!(unscaled.fingerprint(), one.fingerprint());
}

/// What the files hold is finite, and what it makes of ordinary activations is not.
#[test]
fn factors_that_leave_the_range_of_numbers_are_refused() {
    let ([dir, _], sizes) = family("qwen2");
    let engine = engine(&Arc::new(Model::open(&dir).unwrap()), two_threads());
    let good = Lora::all(&sizes, 4, 1);
    let changed = |change: &dyn Fn(&mut Lora)| {
        let mut lora = good.clone();
        change(&mut lora);
        for peft in [false, true] {
            let (code, text) = refusal(&engine, |path| match peft {
                false => lora.write_gguf(path, "qwen2", DType::F32),
                true => lora.write_peft(path, ""),
            });
            assert_eq!(code, "adapter_damaged", "{text}");
            assert!(text.contains("blk.0.ffn_up"), "{text}");
        }
    };
    changed(&|lora| lora.factors[5].a.fill(f32::MAX));
    changed(&|lora| lora.factors[5].b.fill(f32::MAX));
    changed(&|lora| lora.factors[5].a[0] = 1e12);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        changed(&|lora| lora.factors[5].b[7] = odd);
    }
    // Each alone would do; together they do not, whatever the scale makes of it afterwards.
    changed(&|lora| {
        lora.factors[5].a.fill(1e6);
        lora.factors[5].b.fill(1e6);
    });
    let (code, text) = refusal(&engine, |path| {
        Lora { alpha: 1e30, ..good.clone() }.write_gguf(path, "qwen2", DType::F32);
    });
    assert_eq!(code, "adapter_damaged", "{text}");
}

#[test]
fn a_peft_adapter_without_tensors_is_refused() {
    let ([dir, _], _) = family("qwen2");
    let engine = engine(&Arc::new(Model::open(&dir).unwrap()), two_threads());
    let none = Lora { rank: 4, alpha: 4.0, factors: Vec::new() };
    let (code, text) = refusal(&engine, |path| none.write_peft(path, ""));
    assert_eq!(code, "safetensors");
    assert!(text.contains("no tensors"), "{text}");
}
