//! Random models of every weight type and family: one way of computing against another.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::{Fixture, LLAMA, QWEN2, Sizes, engine, relative_error, some_tokens, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::gguf::Value;
use ruvllm_engine::{EngineConfig, KvCodec, Model};

/// Activations meet block-quantised weights in 8 bits; over two layers that stays below 4 % of the
/// largest logit. Plain types differ from f32 by rounding of sums only.
#[test]
fn every_weight_type_computes_what_its_dequantised_weights_say() {
    for (dtype, tolerance) in [
        (DType::F32, 1e-4),
        (DType::F16, 1e-4),
        (DType::BF16, 1e-4),
        (DType::Q8_0, 4e-2),
        (DType::Q4_0, 4e-2),
        (DType::Q4_1, 4e-2),
        (DType::Q5_0, 4e-2),
        (DType::Q5_1, 4e-2),
        (DType::Q4_K, 4e-2),
        (DType::Q5_K, 4e-2),
        (DType::Q6_K, 4e-2),
    ] {
        let fixture = Fixture::new(&LLAMA, dtype);
        let tokens = some_tokens(12);
        let logits = |fixture: &Fixture| {
            let engine = engine(&fixture.model(), two_threads());
            let at_once = engine.session().prefill_all(&tokens).unwrap();
            let mut session = engine.session();
            session.prefill(&tokens[..11]).unwrap();
            (at_once, session.decode(tokens[11]).unwrap().to_vec())
        };
        let (at_once, decoded) = logits(&fixture);
        let (wide, wide_decoded) = logits(&fixture.dequantized());
        let error = relative_error(&at_once, &wide);
        assert!(error < tolerance, "{dtype:?}: prefill is off by {error:e}");
        let error = relative_error(&decoded, &wide_decoded);
        assert!(error < tolerance, "{dtype:?}: decode is off by {error:e}");
    }
}

/// Logits of all tokens, computed at once, in chunks of 7, and token by token.
fn three_ways(model: &Arc<Model>, config: &EngineConfig, tokens: &[u32]) -> [Vec<f32>; 3] {
    let at_once = engine(model, config.clone());
    let chunked = engine(model, EngineConfig { batch: 7, ..config.clone() });
    let mut session = at_once.session();
    let stepwise = tokens.iter().flat_map(|&t| session.decode(t).unwrap().to_vec()).collect();
    [
        at_once.session().prefill_all(tokens).unwrap(),
        chunked.session().prefill_all(tokens).unwrap(),
        stepwise,
    ]
}

#[test]
fn chunks_and_single_tokens_give_the_logits_of_the_whole_prompt() {
    let windowed = |sizes: &Sizes| {
        let mut fixture = Fixture::new(sizes, DType::F32);
        let key = format!("{}.attention.sliding_window", sizes.architecture);
        fixture.set(&key, Value::U32(9));
        fixture
    };
    let small_head = Sizes { head_dim: 24, ..QWEN2 };
    for (name, fixture) in [
        ("llama", Fixture::new(&LLAMA, DType::F32)),
        ("qwen2", Fixture::new(&QWEN2, DType::F32)),
        ("window", windowed(&LLAMA)),
        ("head of 24", Fixture::new(&small_head, DType::F32)),
    ] {
        let [whole, chunks, steps] = three_ways(&fixture.model(), &two_threads(), &some_tokens(40));
        // The order of sums differs between the shapes, nothing else.
        let error = relative_error(&chunks, &whole);
        assert!(error < 1e-4, "{name}: chunks are off by {error:e}");
        let error = relative_error(&steps, &whole);
        assert!(error < 1e-4, "{name}: steps are off by {error:e}");
    }
}

#[test]
fn a_sliding_window_changes_what_is_seen() {
    let plain = Fixture::new(&LLAMA, DType::F32);
    let mut windowed = Fixture::new(&LLAMA, DType::F32);
    windowed.set("llama.attention.sliding_window", Value::U32(4));
    let tokens = some_tokens(12);
    let logits = |fixture: &Fixture| {
        engine(&fixture.model(), two_threads()).session().prefill_all(&tokens).unwrap()
    };
    let (plain, windowed) = (logits(&plain), logits(&windowed));
    let vocab = plain.len() / tokens.len();
    assert!(relative_error(&windowed[..4 * vocab], &plain[..4 * vocab]) < 1e-5);
    assert!(relative_error(&windowed[4 * vocab..], &plain[4 * vocab..]) > 1e-3);
}

/// Stated against the f16 cache, as a fraction of the largest logit.
#[test]
fn quantised_caches_stay_close_to_f16_in_prefill_and_decode() {
    for (name, sizes) in [("llama", LLAMA), ("qwen2", QWEN2)] {
        let model = Fixture::new(&sizes, DType::F32).model();
        let with = |kv: KvCodec| EngineConfig { kv: kv.into(), ..two_threads() };
        let tokens = some_tokens(40);
        let [exact, ..] = three_ways(&model, &with(KvCodec::F16), &tokens);
        for (kv, tolerance) in [(KvCodec::Q8_0, 0.02), (KvCodec::Q4_0, 0.25)] {
            for logits in three_ways(&model, &with(kv), &tokens) {
                let error = relative_error(&logits, &exact);
                assert!(error < tolerance, "{name} with {kv}: off by {error:e}");
                assert!(error > 1e-6, "{name} with {kv}: the codec was not used");
            }
        }
    }
}

#[test]
fn going_back_in_a_sequence_forgets_what_came_after() {
    for kv in [KvCodec::F16, KvCodec::Q8_0] {
        let model = Fixture::new(&LLAMA, DType::F32).model();
        let engine = engine(&model, EngineConfig { kv: kv.into(), ..two_threads() });
        let tokens = some_tokens(20);
        let mut session = engine.session();
        session.prefill(&tokens[..10]).unwrap();
        session.prefill(&tokens[10..]).unwrap();
        session.truncate(10);
        assert_eq!((session.len(), session.tokens()), (10, &tokens[..10]));
        session.prefill(&[5, 6, 7]).unwrap();
        let again = session.logits().to_vec();

        let mut fresh = engine.session();
        fresh.prefill(&tokens[..10]).unwrap();
        assert_eq!(relative_error(fresh.prefill(&[5, 6, 7]).unwrap(), &again), 0.0);
    }
}

#[test]
fn sessions_of_an_engine_do_not_disturb_each_other_even_from_several_threads() {
    let model = Fixture::new(&QWEN2, DType::Q8_0).model();
    let engine = engine(&model, two_threads());
    let alone = |seed: usize| {
        let mut session = engine.session();
        let tokens = &some_tokens(30)[seed..];
        for &token in tokens {
            let _ = session.decode(token).unwrap();
        }
        session.logits().to_vec()
    };
    let expected: Vec<_> = (0..3).map(alone).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || alone(seed))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(together, expected);
}

#[test]
fn threads_and_long_prompts_do_not_change_the_result() {
    // Longer than a rotation table would be if it held 256 positions, and than one KV block.
    let sizes = Sizes { context: 2048, layers: 1, ..QWEN2 };
    let model = Fixture::new(&sizes, DType::F32).model();
    let tokens = some_tokens(1100);
    let last = |threads, kv: KvCodec| {
        let config = EngineConfig { threads, kv: kv.into(), ..EngineConfig::default() };
        engine(&model, config).session().prefill(&tokens).unwrap().to_vec()
    };
    for (kv, tolerance) in [(KvCodec::F16, 1e-4), (KvCodec::Q8_0, 1e-4)] {
        let error = relative_error(&last(3, kv), &last(1, kv));
        assert!(error < tolerance, "{kv}: off by {error:e}");
    }
}

#[test]
fn bytes_of_the_program_serve_as_a_model_wherever_they_lie() {
    let bytes = Fixture::new(&QWEN2, DType::F16).bytes();
    let leaked: &'static [u8] = Vec::leak([&[0u8], bytes.as_slice()].concat());
    let model = Arc::new(Model::from_static(&leaked[1..], "built-in").unwrap());
    assert_eq!((model.name(), model.weight_type()), ("built-in", "f16"));
    engine(&model, two_threads()).session().prefill(&[1, 2, 3]).unwrap();
}
