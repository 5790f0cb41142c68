//! Contexts beyond the trained one: angles against those of Hugging Face transformers, as written by
//! `tests/scripts/rope_reference.py`, and what may be asked for.
#![allow(missing_docs)]

mod common;

use common::{
    Fixture, LLAMA, engine, native_host, relative_error, repository, some_tokens, two_threads,
};
use ruvllm_abi::DType;
use ruvllm_engine::config::{self, RopeScaling, Yarn};
use ruvllm_engine::gguf::Value;
use ruvllm_engine::rope::Rotation;
use ruvllm_engine::{Engine, EngineConfig, EngineError, RopeExtension, RopeMethod};

const METHODS: [RopeMethod; 4] =
    [RopeMethod::Linear, RopeMethod::Ntk, RopeMethod::Yarn, RopeMethod::Llama3];

/// Both sides compute in f64, in another order.
const TOLERANCE: f64 = 1e-13;

#[test]
fn angles_equal_those_of_transformers() {
    let path = repository().join("tests/fixtures/rope/reference.json");
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(cases.len() >= 13);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let length = case["length"].as_u64().unwrap() as usize;
        let config = config::from_hf(&case["config"].to_string(), name).unwrap();
        let rotation = Rotation::new(&config.rope, length);
        let expected: Vec<f64> = serde_json::from_value(case["frequencies"].clone()).unwrap();
        assert_eq!(rotation.frequencies.len(), expected.len(), "{name}");
        for (i, (ours, theirs)) in rotation.frequencies.iter().zip(&expected).enumerate() {
            let error = (ours / theirs - 1.0).abs();
            assert!(error < TOLERANCE, "{name}: pair {i} is {ours:e}, not {theirs:e}");
        }
        let factor = case["attention_factor"].as_f64().unwrap();
        assert!((rotation.magnitude / factor - 1.0).abs() < TOLERANCE, "{name}: {factor}");
    }
}

fn extension(method: RopeMethod, factor: Option<f64>) -> RopeExtension {
    RopeExtension { method, factor }
}

/// The angles of a model with a trained context of 512, base 10,000 and heads of 64.
fn extended(ctx: Option<usize>, extension: &RopeExtension) -> (usize, Rotation) {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    Rotation::for_context(model.config(), ctx, Some(extension)).unwrap()
}

#[test]
fn an_extension_does_to_each_frequency_what_its_formula_says() {
    let base = |i: usize| 10_000f64.powf(-(i as f64) / 32.0);
    let turns = |i: usize| 512.0 * base(i) / std::f64::consts::TAU;
    let ramp = |x: f64, low: f64, high: f64| ((x - low) / (high - low)).clamp(0.0, 1.0);
    // Pairs that turn 32 times and once in the trained context.
    let (fast, slow) = (3.0, 16.0);
    assert!(turns(3) > 32.0 && turns(4) < 32.0 && turns(15) > 1.0 && turns(16) < 1.0);
    for (method, expected) in [
        (RopeMethod::Linear, Box::new(|i| base(i) / 4.0) as Box<dyn Fn(usize) -> f64>),
        (
            RopeMethod::Ntk,
            Box::new(|i| (10_000.0 * 4f64.powf(64.0 / 62.0)).powf(-(i as f64) / 32.0)),
        ),
        (
            RopeMethod::Yarn,
            Box::new(|i| {
                let divided = ramp(i as f64, fast, slow);
                base(i) * (1.0 - divided) + base(i) / 4.0 * divided
            }),
        ),
        (
            RopeMethod::Llama3,
            Box::new(|i| {
                let kept = ramp(turns(i), 1.0, 4.0);
                base(i) * kept + base(i) / 4.0 * (1.0 - kept)
            }),
        ),
    ] {
        let (context, rotation) = extended(Some(2048), &extension(method, None));
        assert_eq!(context, 2048);
        for (i, ours) in rotation.frequencies.iter().enumerate() {
            let error = (ours / expected(i) - 1.0).abs();
            assert!(error < TOLERANCE, "{method:?}: pair {i} is {ours:e}, not {:e}", expected(i));
        }
        let magnitude = if method == RopeMethod::Yarn { 0.1 * 4f64.ln() + 1.0 } else { 1.0 };
        assert!((rotation.magnitude - magnitude).abs() < TOLERANCE, "{method:?}");
    }
}

#[test]
fn context_and_factor_follow_from_each_other() {
    for method in METHODS {
        let plain = Rotation { frequencies: Vec::new(), magnitude: 1.0 };
        let (context, none) = extended(None, &extension(method, None));
        assert_eq!((context, none.magnitude), (512, plain.magnitude));
        // A context within the trained one needs no stretching.
        assert_eq!(extended(Some(100), &extension(method, None)), (100, none.clone()));
        let (context, four) = extended(None, &extension(method, Some(4.0)));
        assert_eq!(context, 2048);
        assert_ne!(four, none);
        assert_eq!(extended(Some(2048), &extension(method, None)).1, four);
        // A factor that is asked for is taken whatever the context.
        assert_eq!(extended(Some(100), &extension(method, Some(4.0))).1, four);
    }
}

#[test]
fn what_cannot_be_asked_for_is_refused_before_any_work() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let refused = |ctx, rope_scaling| -> EngineError {
        let config = EngineConfig { ctx, rope_scaling, ..two_threads() };
        Engine::new(std::sync::Arc::clone(&model), native_host(), config).err().unwrap()
    };
    let error = refused(Some(513), None);
    assert_eq!(error.code(), "context_out_of_range");
    for part in ["513", "512", "--rope-scaling", "--rope-factor"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(refused(Some(0), None).code(), "context_out_of_range");
    let yarn = |factor| Some(extension(RopeMethod::Yarn, factor));
    for (ctx, factor) in [
        (Some(1025), Some(2.0)),
        (Some(1024), Some(0.5)),
        (None, Some(0.0)),
        (None, Some(f64::NAN)),
        (None, Some(f64::INFINITY)),
        (Some(0), None),
        (Some((1 << 30) + 1), None),
    ] {
        let error = refused(ctx, yarn(factor));
        assert_eq!(error.code(), "invalid_option", "{ctx:?} {factor:?}: {error}");
    }
}

#[test]
fn a_models_own_scaling_stays_under_an_extension() {
    let text = |scaling: &str| {
        format!(
            r#"{{"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,
            "num_attention_heads":4,"max_position_embeddings":2048,"rope_scaling":{scaling}}}"#
        )
    };
    let config = |scaling: &str| config::from_hf(&text(scaling), "config.json").unwrap();
    let linear = extension(RopeMethod::Linear, Some(3.0));
    let (context, both) =
        Rotation::for_context(&config(r#"{"type":"linear","factor":2}"#), None, Some(&linear))
            .unwrap();
    let whole = Rotation::new(&config(r#"{"type":"linear","factor":6}"#).rope, 6144);
    assert_eq!(context, 6144);
    for (ours, expected) in both.frequencies.iter().zip(&whole.frequencies) {
        assert!((ours / expected - 1.0).abs() < TOLERANCE);
    }
}

/// The reference turns the keys of a sequence by its length at the time, so up to the trained context not
/// at all, and what it does beyond depends on how a sequence came to its length.
#[test]
fn dynamic_scaling_stretches_nothing_up_to_the_trained_context_and_ends_there() {
    let config = |scaling: &str| {
        let text = format!(
            r#"{{"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,
            "num_attention_heads":4,"max_position_embeddings":512{scaling}}}"#
        );
        config::from_hf(&text, "config.json").unwrap()
    };
    let plain = config("");
    let dynamic = config(r#","rope_scaling":{"type":"dynamic","factor":2}"#);
    for ctx in [None, Some(100), Some(512)] {
        let own = Rotation::for_context(&dynamic, ctx, None).unwrap();
        assert_eq!(own, Rotation::for_context(&plain, ctx, None).unwrap());
    }
    for ctx in [513, 1024, 4096] {
        let error = Rotation::for_context(&dynamic, Some(ctx), None).unwrap_err();
        assert_eq!(error.code(), "dynamic_rope");
        for part in ["`dynamic`", "512", "--rope-scaling ntk"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    // A fixed stretch is that of a model without scaling of its own.
    let ntk = extension(RopeMethod::Ntk, None);
    let fixed = Rotation::for_context(&dynamic, Some(1024), Some(&ntk)).unwrap();
    assert_eq!(fixed, Rotation::for_context(&plain, Some(1024), Some(&ntk)).unwrap());
}

#[test]
fn gguf_metadata_says_the_same_as_a_config_json() {
    let rope = |entries: &[(&str, Value)]| {
        let mut fixture = Fixture::new(&LLAMA, DType::F32);
        for (key, value) in entries {
            fixture.set(&format!("llama.rope.scaling.{key}"), value.clone());
        }
        let model = fixture.model();
        (model.config().context, model.config().rope.scaling.clone())
    };
    let named = |name: &str| ("type", Value::String(name.to_owned()));
    let factor = ("factor", Value::F32(4.0));
    let original = ("original_context_length", Value::U32(128));
    let yarn = |scaling: (usize, RopeScaling)| match scaling {
        (context, RopeScaling::Yarn(yarn)) => (context, yarn),
        other => panic!("{other:?}"),
    };

    assert_eq!(rope(&[named("none"), factor.clone()]), (512, RopeScaling::None));
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(rope(&[named("linear"), factor.clone()]), (512, linear));
    // The context of the file is that before stretching where nothing else is stated.
    let (context, plain) = yarn(rope(&[named("yarn"), factor.clone()]));
    assert_eq!((context, plain), (2048, Yarn::new(4.0, 512.0)));
    let base = [named("yarn"), factor, original];
    assert_eq!(yarn(rope(&base)), (512, Yarn::new(4.0, 128.0)));
    let with = |more: &[(&str, Value)]| yarn(rope(&[&base[..], more].concat())).1;
    let betas = with(&[("yarn_beta_fast", Value::F32(16.0)), ("yarn_beta_slow", Value::F32(2.0))]);
    assert_eq!(betas, Yarn { beta_fast: 16.0, beta_slow: 2.0, ..Yarn::new(4.0, 128.0) });
    // Values that mean "not set".
    let unset = [
        ("yarn_ext_factor", Value::F32(-1.0)),
        ("yarn_attn_factor", Value::F32(1.0)),
        ("yarn_log_multiplier", Value::F32(0.0)),
        ("attn_factor", Value::F32(1.0)),
    ];
    assert_eq!(with(&unset), Yarn::new(4.0, 128.0));
    assert_eq!(with(&[("yarn_attn_factor", Value::F32(1.5))]).attention_factor, 1.5);
    let weighted = with(&[("yarn_log_multiplier", Value::F32(1.0))]);
    assert_eq!(weighted.attention_factor, 1.0);

    let mut fixture = Fixture::new(&LLAMA, DType::F32);
    fixture.set("llama.rope.scaling.type", Value::String("yarn".to_owned()));
    assert_eq!(fixture.refusal().0, "config_missing");
    fixture.set("llama.rope.scaling.factor", Value::F32(4.0));
    fixture.set("llama.rope.scaling.yarn_ext_factor", Value::F32(0.5));
    assert_eq!(fixture.refusal().0, "config_invalid");
}

#[test]
fn an_engine_computes_beyond_the_trained_context_and_in_any_chunks() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let tokens = some_tokens(700);
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for method in METHODS {
        let config = EngineConfig {
            ctx: Some(700),
            rope_scaling: Some(extension(method, None)),
            ..two_threads()
        };
        let whole = engine(&model, config.clone());
        assert_eq!(whole.context(), 700);
        let logits = whole.session().prefill(&tokens).unwrap().to_vec();
        let chunked = engine(&model, EngineConfig { batch: 97, ..config });
        let error = relative_error(chunked.session().prefill(&tokens).unwrap(), &logits);
        assert!(error < 1e-4, "{method:?}: chunks are off by {error:e}");
        assert!(!seen.contains(&logits), "{method:?} computes what another one did");
        seen.push(logits);
    }
}
