//! Logits of every family against those of the reference implementation (Hugging Face
//! transformers, f32), from both file formats. Tolerances are fractions of the largest magnitude
//! among a model's expected logits: 1e-4 with an f32 KV cache; 5e-3 with an f16 one, whose rounding
//! of keys and values the reference does not have.
#![allow(missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{core_pack_host, families, native_host, relative_error, repository};
use ruvllm_engine::{Engine, EngineConfig, KvCodec, Model};
use ruvllm_host::Host;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

const TOLERANCES: [(KvCodec, f32); 2] = [(KvCodec::F32, 1e-4), (KvCodec::F16, 5e-3)];

/// Input ids `[n]` and logits `[n, vocab]`.
fn expected(family: &Path) -> (Vec<u32>, Vec<f32>) {
    let bytes = std::fs::read(family.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> {
        let view = file.tensor(name).unwrap();
        view.data().as_chunks::<4>().0.to_vec()
    };
    (
        words("input_ids").into_iter().map(u32::from_le_bytes).collect(),
        words("logits").into_iter().map(f32::from_le_bytes).collect(),
    )
}

fn engine(model: &Arc<Model>, host: &Host, kv: KvCodec) -> Engine {
    let config = EngineConfig { threads: 2, kv: kv.into(), ..EngineConfig::default() };
    Engine::new(Arc::clone(model), host.clone(), config).unwrap()
}

fn check_engine(name: &str, engine: &Engine, ids: &[u32], expected: &[f32], tolerance: f32) {
    let kv = &engine.config().kv;
    let at_once = engine.session().prefill_all(ids).unwrap();
    let error = relative_error(&at_once, expected);
    println!("{name} with {kv}: {error:.1e}");
    assert!(error < tolerance, "{name} with {kv}: prefill is off by {error:e}");

    let mut session = engine.session();
    let stepwise: Vec<f32> =
        ids.iter().flat_map(|&id| session.decode(id).unwrap().to_vec()).collect();
    let error = relative_error(&stepwise, expected);
    assert!(error < tolerance, "{name} with {kv}: decode is off by {error:e}");
}

fn check(host: &Host) {
    for family in families() {
        let (ids, logits) = expected(&family);
        for path in [family.clone(), family.join("model-f32.gguf")] {
            let name = path.strip_prefix(repository()).unwrap_or(&path).display().to_string();
            let model = Arc::new(Model::open(&path).unwrap_or_else(|e| panic!("{name}: {e}")));
            for (kv, tolerance) in TOLERANCES {
                check_engine(&name, &engine(&model, host, kv), &ids, &logits, tolerance);
            }
        }
    }
}

#[test]
fn native_kernels_give_the_reference_logits_for_every_family() {
    check(&native_host());
}

/// Writes a copy of a family's directory with its weights in two shards of 16-bit numbers.
fn halve(family: &Path, dtype: Dtype, into: &Path) {
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(family.join(name), into.join(name)).unwrap();
    }
    let bytes = std::fs::read(family.join("model.safetensors")).unwrap();
    let whole = SafeTensors::deserialize(&bytes).unwrap();
    let round = |word: &[u8; 4]| {
        let x = f32::from_le_bytes(*word);
        let bits = match dtype {
            Dtype::BF16 => half::bf16::from_f32(x).to_bits(),
            _ => half::f16::from_f32(x).to_bits(),
        };
        bits.to_le_bytes()
    };
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = whole
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let rounded = view.data().as_chunks::<4>().0.iter().flat_map(round).collect();
            (name, view.shape().to_vec(), rounded)
        })
        .collect();
    let mut weight_map = serde_json::Map::new();
    for (i, shard) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let file = format!("model-{:05}-of-00002.safetensors", i + 1);
        let views = shard.iter().map(|(name, shape, bytes)| {
            weight_map.insert(name.clone(), file.clone().into());
            (name, TensorView::new(dtype, shape.clone(), bytes).unwrap())
        });
        std::fs::write(into.join(&file), safetensors::serialize(views, None).unwrap()).unwrap();
    }
    let index = serde_json::json!({ "weight_map": weight_map }).to_string();
    std::fs::write(into.join("model.safetensors.index.json"), index).unwrap();
}

/// Rounding the weights to 8 or 11 significant bits moves logits by up to 5 % of the largest.
#[test]
fn shards_of_sixteen_bit_weights_load_like_one_file() {
    for family in families() {
        let (ids, logits) = expected(&family);
        for (dtype, name) in [(Dtype::BF16, "bf16"), (Dtype::F16, "f16")] {
            let dir = tempfile::tempdir().unwrap();
            halve(&family, dtype, dir.path());
            let model = Arc::new(Model::open(dir.path()).unwrap());
            assert_eq!(model.weight_type(), name);
            let engine = engine(&model, &native_host(), KvCodec::F32);
            check_engine(&format!("{} in {name}", family.display()), &engine, &ids, &logits, 5e-2);
        }
    }
}

#[test]
fn the_core_pack_gives_the_reference_logits_for_every_family() {
    let host = core_pack_host();
    check(&host);
    let served: Vec<String> = host
        .stats()
        .into_iter()
        // Packs bring no team operations.
        .filter(|stats| stats.calls > 0 && !stats.op.is_team())
        .map(|stats| {
            assert_eq!(stats.fallbacks, 0, "{}: {}", stats.op, stats.kernel);
            format!("{} by {}", stats.op.op, stats.pack)
        })
        .collect();
    assert!(served.iter().all(|s| !s.ends_with("by native")), "{served:?}");
    for op in ["rmsnorm", "rope", "swiglu"] {
        assert!(served.iter().any(|s| s.starts_with(op)), "{op} did not run: {served:?}");
    }
}
