//! Steps over several sequences against the same sequences computed alone, and steps that fail.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::requests::tales;
use common::{
    Fixture, LLAMA, QWEN2, best, core_pack_host, engine, families, native_host, relative_error,
    repository, some_tokens, two_threads,
};
use ruvllm_abi::DType;
use ruvllm_engine::gguf::Value;
use ruvllm_engine::{
    Engine, EngineConfig, EngineError, KvCodec, KvPolicy, Model, ProbeText, Session,
    SessionOptions, StepInput,
};
use ruvllm_host::{HealthLimits, Host, HostConfig};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, but_for, rmsnorm_f32};

/// A prompt, and how many tokens follow it.
struct Request {
    prompt: Vec<u32>,
    tokens: usize,
}

/// Six prompts of 1 to 46 tokens.
fn random_prompts(vocab: usize) -> Vec<Vec<u32>> {
    let prompt = |i: u32| {
        let tokens = some_tokens(1 + 9 * i as usize).into_iter();
        tokens.map(|token| (token + 7 * i) % vocab as u32).collect()
    };
    (0..6).map(prompt).collect()
}

/// Texts of 10 to 26 tokens.
fn requests(prompts: Vec<Vec<u32>>) -> Vec<Request> {
    let request = |(i, prompt)| Request { prompt, tokens: 26 - 4 * (i % 5) };
    prompts.into_iter().enumerate().map(request).collect()
}

/// The logits that each token of a greedy text is chosen from.
type Trace = Vec<Vec<f32>>;

fn text(trace: &Trace) -> Vec<u32> {
    trace.iter().map(|logits| best(logits)).collect()
}

fn alone(engine: &Engine, request: &Request) -> Trace {
    let mut session = engine.session();
    let mut trace = vec![session.prefill(&request.prompt).unwrap().to_vec()];
    while trace.len() < request.tokens {
        let next = best(trace.last().unwrap());
        trace.push(session.decode(next).unwrap().to_vec());
    }
    trace
}

/// All requests in common steps. One joins every other step and leaves when its text is done; its
/// prompt is computed in chunks of 20 tokens, beside the decoding of the others.
fn together(engine: &Engine, requests: &[Request]) -> Vec<Trace> {
    let mut sessions: Vec<Session> = requests.iter().map(|_| engine.session()).collect();
    let mut traces: Vec<Trace> = requests.iter().map(|_| Vec::new()).collect();
    for step in 0.. {
        let next: Vec<(Vec<u32>, bool)> = (requests.iter().zip(&sessions).zip(&traces))
            .enumerate()
            .map(|(i, ((request, session), trace))| {
                if step < 2 * i || trace.len() == request.tokens {
                    return (Vec::new(), false);
                }
                let Some(logits) = trace.last() else {
                    let rest = &request.prompt[session.len()..];
                    let chunk = &rest[..rest.len().min(20)];
                    return (chunk.to_vec(), chunk.len() == rest.len());
                };
                (vec![best(logits)], true)
            })
            .collect();
        let mut inputs: Vec<StepInput<'_>> = (sessions.iter_mut().zip(&next))
            .filter(|(_, (tokens, _))| !tokens.is_empty())
            .map(|(session, (tokens, wanted))| match wanted {
                true => StepInput::new(session, tokens),
                false => StepInput { from: tokens.len(), ..StepInput::new(session, tokens) },
            })
            .collect();
        if inputs.is_empty() {
            break;
        }
        engine.step(&mut inputs).unwrap();
        for ((session, trace), (_, wanted)) in sessions.iter().zip(&mut traces).zip(&next) {
            if *wanted {
                trace.push(session.logits().to_vec());
            }
        }
    }
    traces
}

/// Holds common steps against single ones: the same text, and logits within `tolerance` of the
/// largest.
fn check(name: &str, engine: &Engine, prompts: &[Vec<u32>], tolerance: f32) {
    let requests = requests(prompts.to_vec());
    let traces = together(engine, &requests);
    for (i, (request, trace)) in requests.iter().zip(&traces).enumerate() {
        let expected = alone(engine, request);
        let at = format!("{name}, {}, {} threads", engine.config().kv, engine.config().threads);
        let error = expected.iter().zip(trace).map(|(e, t)| relative_error(t, e));
        let error = error.fold(0f32, f32::max);
        println!("{at}: sequence {i} is off by {error:.1e}");
        assert_eq!(text(trace), text(&expected), "{at}: sequence {i}");
        assert!(error < tolerance, "{at}: sequence {i} is off by {error:e}");
    }
}

fn engines<'a>(model: &'a Arc<Model>, host: &'a Host) -> impl Iterator<Item = Engine> + 'a {
    let kinds = [KvCodec::F16, KvCodec::Q8_0].into_iter().flat_map(|kv| [(kv, 1), (kv, 2)]);
    kinds.filter(|&(kv, _)| KvPolicy::from(kv).check(model.config(), 32).is_ok()).map(
        move |(kv, threads)| {
            let config = EngineConfig { threads, kv: kv.into(), ..EngineConfig::default() };
            Engine::new(Arc::clone(model), host.clone(), config).unwrap()
        },
    )
}

/// Sums of another order move logits by rounding, and with it now and then the last bit of a cached
/// number.
const TOLERANCE: f32 = 1e-3;

/// With weights in blocks, that of 8-bit activations too: as far as 8 bits are from f32.
const BLOCKS_TOLERANCE: f32 = 4e-2;

#[test]
fn sequences_of_every_family_read_the_same_in_common_steps() {
    for host in [native_host(), core_pack_host()] {
        for family in families() {
            let model = Arc::new(Model::open(&family.join("model-f32.gguf")).unwrap());
            let name = family.file_name().unwrap().to_string_lossy().into_owned();
            for engine in engines(&model, &host) {
                check(&name, &engine, &random_prompts(model.vocab()), TOLERANCE);
            }
        }
    }
}

#[test]
fn tales_read_the_same_in_common_steps() {
    // So many that products of all rows take another way than those of one.
    let (model, prompts) = tales(6, 11);
    assert_eq!(prompts.len(), 18);
    for host in [native_host(), core_pack_host()] {
        for engine in engines(&model, &host) {
            check("tales", &engine, &prompts, BLOCKS_TOLERANCE);
        }
    }
}

#[test]
fn a_sliding_window_ends_where_each_sequence_is() {
    let mut fixture = Fixture::new(&LLAMA, DType::F32);
    fixture.set("llama.attention.sliding_window", Value::U32(9));
    let model = fixture.model();
    for engine in engines(&model, &native_host()) {
        check("a window of 9", &engine, &random_prompts(model.vocab()), TOLERANCE);
    }
}

#[test]
fn every_wanted_row_goes_to_its_part() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let engine = engine(&model, two_threads());
    let tokens = some_tokens(90);
    let mut sessions: Vec<Session> = (0..4).map(|_| engine.session()).collect();
    sessions[1].prefill(&tokens[..3]).unwrap();
    let before = sessions[1].logits().to_vec();
    let [a, b, c, d] = &mut sessions[..] else { unreachable!() };
    // More rows than are computed at a time, cut within inputs.
    let mut inputs = [
        StepInput { from: 2, ..StepInput::new(a, &tokens[..40]) },
        StepInput { from: usize::MAX, ..StepInput::new(b, &tokens[3..10]) },
        StepInput { from: 0, ..StepInput::new(c, &tokens[..1]) },
        StepInput { from: 11, ..StepInput::new(d, &tokens[40..]) },
    ];
    let mut rows = Vec::new();
    engine
        .step_with(&mut inputs, &mut |input, token, logits| {
            rows.push((input, token, logits.to_vec()))
        })
        .unwrap();
    let order: Vec<_> = rows.iter().map(|(input, token, _)| (*input, *token)).collect();
    let expected: Vec<_> = (2..40)
        .map(|token| (0, token))
        .chain([(2, 0)])
        .chain((11..50).map(|token| (3, token)))
        .collect();
    assert_eq!(order, expected);
    for (input, tokens) in [(0, &tokens[..40]), (2, &tokens[..1]), (3, &tokens[40..])] {
        let all = engine.session().prefill_all(tokens).unwrap();
        for (_, token, logits) in rows.iter().filter(|row| row.0 == input) {
            let error = relative_error(logits, &all[token * logits.len()..][..logits.len()]);
            assert!(error < 1e-4, "token {token} of input {input} is off by {error:e}");
        }
        let last = &rows.iter().rfind(|row| row.0 == input).unwrap().2;
        assert_eq!((sessions[input].logits(), sessions[input].tokens()), (&last[..], tokens));
    }
    assert_eq!((sessions[1].logits(), sessions[1].tokens()), (&before[..], &tokens[..10]));
}

#[test]
fn a_part_that_cannot_be_computed_is_named_and_nothing_is_computed() {
    let model = Fixture::new(&QWEN2, DType::F32).model();
    let config = EngineConfig { ctx: Some(8), ..two_threads() };
    let (engine, other) = (engine(&model, config.clone()), engine(&model, config));
    let mut sessions: Vec<Session> = (0..3).map(|_| engine.session()).collect();
    for session in &mut sessions {
        session.prefill(&some_tokens(6)).unwrap();
    }
    let before = sessions[0].logits().to_vec();
    let mut foreign = other.session();
    for (tokens, code) in [
        (&[] as &[u32], "prompt_empty"),
        (&[1, 2, 3], "prompt_too_long"),
        (&[99_999], "token_out_of_range"),
        (&[5], "foreign_session"),
    ] {
        let [a, b, c] = &mut sessions[..] else { unreachable!() };
        let b = if code == "foreign_session" { &mut foreign } else { b };
        let mut inputs =
            [StepInput::new(a, &[7, 8]), StepInput::new(b, tokens), StepInput::new(c, &[9; 9])];
        let error = engine.step(&mut inputs).unwrap_err();
        assert_eq!(error.code(), code);
        assert!(matches!(error, EngineError::StepInput { input: 1, .. }), "{error}");
        assert!(error.to_string().starts_with("input 1 of the step: "), "{error}");
        assert!(foreign.is_empty());
        for session in &sessions {
            assert_eq!((session.len(), session.tokens()), (6, &some_tokens(6)[..]));
            assert_eq!(session.logits(), before);
        }
    }
    let error = engine.decode_batch(sessions.iter_mut().zip([1, 2, 99_999])).unwrap_err();
    assert!(matches!(error, EngineError::StepInput { input: 2, .. }), "{error}");
    engine.decode_batch(sessions.iter_mut().zip([1, 2, 3])).unwrap();
    assert!(sessions.iter().zip([1, 2, 3]).all(|(s, token)| s.tokens()[6..] == [token]));
    engine.step(&mut []).unwrap();
}

/// A strict host whose RMSNorm traps once an instance has answered `good` calls.
fn trapping(good: u32) -> Host {
    let module = Module {
        fields: "(global $calls (mut i32) (i32.const 0))".into(),
        prologue: format!(
            "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
             (if (i32.gt_u (global.get $calls) (i32.const {good})) (then unreachable))"
        ),
        ..Module::default()
    };
    let config = HostConfig { strict: true, quarantine_after: u32::MAX, ..HostConfig::default() };
    let host = Host::new(config).unwrap();
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build();
    host.install(pack.verify().unwrap()).unwrap();
    host
}

/// Decodes 70 tokens in each of three sequences, each step until it succeeds; the logits at the end
/// and the number of failures.
fn decode_in_spite_of_failures(host: Host) -> (Vec<Vec<f32>>, usize) {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let config = EngineConfig { threads: 1, ..EngineConfig::default() };
    let engine = Engine::new(model, host, config).unwrap();
    let mut sessions: Vec<Session> = (0..3).map(|_| engine.session()).collect();
    let mut failures = 0;
    for (step, &token) in some_tokens(70).iter().enumerate() {
        while let Err(error) =
            engine.decode_batch(sessions.iter_mut().zip([token, token + 1, token + 2]))
        {
            assert_eq!(error.code(), "kernel_trap", "{error}");
            assert!(sessions.iter().all(|s| s.len() == step && s.tokens().len() == step));
            failures += 1;
        }
    }
    (sessions.iter().map(|session| session.logits().to_vec()).collect(), failures)
}

#[test]
fn a_step_that_fails_half_way_leaves_no_trace_in_any_sequence() {
    let (expected, failures) = decode_in_spite_of_failures(trapping(u32::MAX));
    assert_eq!(failures, 0);
    // A step asks five times: before attention and feed-forward of two layers, and for the logits.
    for good in [302, 304] {
        let (logits, failures) = decode_in_spite_of_failures(trapping(good));
        assert_eq!(failures, 1, "{good}");
        assert_eq!(logits, expected, "{good}");
    }
}

#[test]
fn steps_go_to_and_fro_while_a_generation_is_on_trial_and_it_drains_after() {
    let host = Host::new(HostConfig::default()).unwrap();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let config = EngineConfig { threads: 1, ..EngineConfig::default() };
    let engine = Engine::new(model, host.clone(), config).unwrap();
    let mut session = engine.session();
    let mut twin = engine.session();
    session.prefill(&some_tokens(8)).unwrap();
    twin.prefill(&some_tokens(8)).unwrap();
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    let staged = host.stage(pack.verify().unwrap()).unwrap();
    assert!(staged.rehearsed > 0, "the shapes of the prompt");
    for &token in &some_tokens(20) {
        twin.decode(token).unwrap();
    }
    let canary = host.start_canary(staged.id, 0.5).unwrap().generation;
    for &token in &some_tokens(20) {
        session.decode(token).unwrap();
    }
    // Whole steps: each asks five times.
    let stats = host.stats();
    let calls = stats.iter().find(|op| op.kernel == "rmsnorm_f32").unwrap().calls;
    assert_eq!(calls, 10 * 5);
    assert!(relative_error(session.logits(), twin.logits()) < 1e-3);
    host.end_canary().unwrap();
    session.decode(1).unwrap();
    assert!(host.generations().iter().all(|generation| generation.generation != canary));
}

#[test]
fn a_probe_text_is_told_by_the_active_generation_whatever_is_on_trial() {
    let path = repository().join("runtime/ruvllm/demo/tales-q8_0.gguf");
    let model = Arc::new(Model::open(&path).unwrap());
    let host = native_host();
    let engine = Engine::new(Arc::clone(&model), host.clone(), two_threads()).unwrap();
    let text = "Once upon a time there was a little girl who lived by the sea. ".repeat(30);
    let probe = ProbeText::new(&model, &text).unwrap();
    let loss = probe.loss(&engine, None).unwrap();
    let tokens = &model.tokenizer().encode(&text, true).unwrap()[..ProbeText::MOST];
    let last = tokens.len() - 1;
    // In steps as short as the probe's, so that nothing is rounded in another way.
    let mut session = engine.session();
    let steps = tokens[..last].chunks(32).map(|step| session.prefill_all(step).unwrap());
    let all: Vec<f32> = steps.flatten().collect();
    let losses = all.chunks(model.vocab()).zip(&tokens[1..]).map(|(logits, &token)| {
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        sum.ln() - f64::from(logits[token as usize])
    });
    let expected = losses.sum::<f64>() / last as f64;
    assert!((loss - expected).abs() < 1e-5, "{loss} instead of {expected}");

    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    let staged = host.stage(pack.verify().unwrap()).unwrap();
    host.start_canary(staged.id, 1.0).unwrap();
    let calls = || host.stats().iter().find(|op| op.kernel == "rmsnorm_f32").unwrap().calls;
    assert_eq!(probe.loss(&engine, None).unwrap(), loss);
    assert_eq!(calls(), 0);
    engine.session().prefill(&tokens[..8]).unwrap();
    assert!(calls() > 0);
    host.promote_canary().unwrap();
    let before = calls();
    let margin = HealthLimits::default().loss_margin;
    assert!((probe.loss(&engine, None).unwrap() - loss).abs() < margin);
    assert!(calls() > before);

    let short = ProbeText::new(&model, "Once upon a time").unwrap_err();
    assert_eq!(short.code(), "probe_too_short");
}

#[test]
fn no_call_of_a_kernel_holds_rows_of_two_scopes() {
    // Traps where a call has two rows of the model's size.
    let module = but_for(
        LLAMA.dim as u32,
        "(if (i32.gt_u (i32.load offset=0 (i32.load offset=32 (local.get $desc))) (i32.const 1))
            (then (unreachable)))",
    );
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build();
    let host = Host::new(HostConfig { strict: true, ..HostConfig::default() }).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let engine = Engine::new(model, host, EngineConfig::default()).unwrap();
    let session = |scope: Option<&str>| {
        let scope = scope.map(str::to_owned);
        engine.session_with(&SessionOptions { scope, ..SessionOptions::default() })
    };
    let decode = |mut sessions: [Session; 2]| {
        engine.decode_batch(sessions.iter_mut().zip([5, 6])).map_err(|error| error.code())
    };
    assert_eq!(decode([session(Some("one")), session(Some("other"))]), Ok(()));
    // Sessions that share nothing are scopes of their own.
    assert_eq!(decode([session(None), session(None)]), Ok(()));
    assert_eq!(decode([session(Some("one")), session(Some("one"))]), Err("kernel_trap"));
}

#[test]
fn a_step_whose_numbers_are_not_finite_is_an_error() {
    for number in ["nan", "inf"] {
        let module = Module {
            epilogue: format!(
                "(if (i32.eq (local.get $dim) (i32.const {}))
                    (then (f32.store (local.get $out) (f32.const {number}))))",
                LLAMA.dim
            ),
            ..Module::default()
        };
        let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build();
        // Nothing is checked but what comes out.
        let config = HostConfig { cross_check_every: 0, ..HostConfig::default() };
        let host = Host::new(config).unwrap();
        host.install(pack.verify().unwrap()).unwrap();
        let model = Fixture::new(&LLAMA, DType::F32).model();
        let engine = Engine::new(model, host, EngineConfig::default()).unwrap();
        let mut session = engine.session();
        let error = session.prefill(&some_tokens(5)).map(drop).unwrap_err();
        assert_eq!(error.code(), "non_finite_logits");
        let mut hidden = vec![0.0; LLAMA.dim];
        let tokens = some_tokens(5);
        let hidden = Some(&mut hidden[..]);
        let input = StepInput { session: &mut session, tokens: &tokens, from: 0, hidden };
        let error = engine.step(&mut [input]).unwrap_err();
        assert_eq!(error.code(), "non_finite_logits");
        assert_eq!(session.len(), 0, "nothing is left of it");
    }
}

#[test]
fn who_makes_a_steps_numbers_infinite_is_found_in_the_next() {
    // The first run of an instance is right, which is checked.
    let module = Module {
        fields: "(global $calls (mut i32) (i32.const 0))".to_owned(),
        epilogue: format!(
            "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
             (if (i32.and (i32.gt_u (global.get $calls) (i32.const 1))
                    (i32.eq (local.get $dim) (i32.const {})))
                (then (f32.store (local.get $out) (f32.const inf))))",
            LLAMA.dim
        ),
        ..Module::default()
    };
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build();
    let host = Host::new(HostConfig { cross_check_every: u32::MAX, ..HostConfig::default() });
    let host = host.unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let config = EngineConfig { threads: 1, ..EngineConfig::default() };
    let engine = Engine::new(model, host.clone(), config).unwrap();
    let quarantined = || host.stats().iter().any(|stats| stats.quarantined);
    for step in 0..8 {
        let failed = engine.session().prefill(&some_tokens(1)).is_err();
        assert_eq!(failed, !quarantined(), "step {step}");
        if !failed {
            return;
        }
    }
    panic!("nobody was blamed");
}
