//! Under `deterministic`, the bits of a sequence's logits depend on its tokens alone: not on how its prompt is
//! cut, on what is computed beside it, on the number of threads or on where its blocks come from.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::lora::Lora;
use common::requests::{Answer, ask, greedy};
use common::{Fixture, LLAMA, QWEN2, Sizes, repository, some_tokens};
use ruvllm_abi::DType;
use ruvllm_engine::scheduler::{Request, Scheduler, SchedulerConfig};
use ruvllm_engine::{
    Engine, EngineConfig, GenerateOptions, Isa, KvPolicy, Model, SamplingOptions, Session,
    SessionKey, SessionOptions, StepInput,
};
use ruvllm_host::{Host, HostConfig};
use ruvllm_native::gemm::weight_types;
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};

fn host(isa: Isa) -> Host {
    Host::new(HostConfig { deterministic: true, isa, ..HostConfig::default() }).unwrap()
}

fn engine(model: &Arc<Model>, host: &Host, isa: Isa, threads: usize, kv: &str) -> Engine {
    let kv: KvPolicy = kv.parse().unwrap();
    let config = EngineConfig { threads, kv, isa: Some(isa), ..EngineConfig::default() };
    Engine::new(Arc::clone(model), host.clone(), config).unwrap()
}

/// The logits after each of the tokens from `from` on, as bits.
type Bits = Vec<Vec<u32>>;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The prompt in one step.
fn at_once(engine: &Engine, tokens: &[u32]) -> Bits {
    let mut rows = Vec::new();
    let mut session = engine.session();
    let mut parts = [StepInput { from: 0, ..StepInput::new(&mut session, tokens) }];
    engine.step_with(&mut parts, &mut |_, _, logits| rows.push(bits(logits))).unwrap();
    rows
}

/// The prompt in steps of `size` tokens, each beside the steps of other sequences.
fn in_chunks(engine: &Engine, tokens: &[u32], size: usize, others: usize) -> Bits {
    let mut rows = Vec::new();
    let mut session = engine.session();
    let mut beside: Vec<Session> = (0..others).map(|_| engine.session()).collect();
    for (step, chunk) in tokens.chunks(size).enumerate() {
        let other = [5 + step as u32 % 50, 9, 11];
        let mut parts = vec![StepInput { from: 0, ..StepInput::new(&mut session, chunk) }];
        for (i, session) in beside.iter_mut().enumerate() {
            parts.push(StepInput::new(session, &other[..1 + (step + i) % 3]));
        }
        parts.rotate_right(others / 2);
        let own = others / 2;
        let mut each = |part: usize, _: usize, logits: &[f32]| {
            if part == own {
                rows.push(bits(logits));
            }
        };
        engine.step_with(&mut parts, &mut each).unwrap();
    }
    rows
}

#[track_caller]
fn same(got: &[Vec<u32>], want: &[Vec<u32>], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (token, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(got == want, "{what}: the logits after token {token} differ");
    }
}

/// Holds every way to compute `tokens` against the first.
#[track_caller]
fn check(model: &Arc<Model>, host: &Host, isa: Isa, kv: &str, tokens: &[u32], name: &str) {
    let want = at_once(&engine(model, host, isa, 1, kv), tokens);
    for threads in [1, 3] {
        let engine = engine(model, host, isa, threads, kv);
        let at = format!("{name}, {isa}, KV {kv}, {threads} threads");
        same(&at_once(&engine, tokens), &want, &format!("{at}, at once"));
        for (size, others) in [(1, 0), (7, 2), (32, 1), (50, 0), (1, 5)] {
            let what = format!("{at}, chunks of {size} beside {others}");
            same(&in_chunks(&engine, tokens, size, others), &want, &what);
        }
        // What these have left behind is found.
        let mut session = engine.session();
        let last = session.prefill(tokens).unwrap();
        same(&[bits(last)], &want[want.len() - 1..], &format!("{at}, after a hit"));
    }
}

/// A model whose prompts have several blocks and no whole number of them.
fn model(sizes: &Sizes, dtype: DType) -> Arc<Model> {
    Fixture::new(sizes, dtype).model()
}

#[test]
fn every_type_of_weights_on_every_instruction_set() {
    let tokens = some_tokens(67);
    for &isa in Isa::available() {
        let host = host(isa);
        for dtype in weight_types() {
            check(&model(&LLAMA, dtype), &host, isa, "f16", &tokens, dtype.name());
        }
    }
}

#[test]
fn every_cache() {
    let tokens = some_tokens(205);
    let hosts: Vec<(Isa, Host)> = Isa::available().iter().map(|isa| (*isa, host(*isa))).collect();
    let model = model(&LLAMA, DType::Q4_K);
    for kv in [
        "f32",
        "f16",
        "q8_0",
        "q8_0c",
        "q4_0",
        "f32,rotate",
        "f16,rotate",
        "q8_0,rotate",
        "q4_0c",
        "f16:1+q4_0",
        "f16:32+q8_0:32+q4_0",
        "k=f16:32+q8_0c:64+q4_0c,v=f16:32+q8_0",
        "f16:40+q8_0:90+q4_0,rotate",
        "k=f16:64+q4_0c,v=q8_0:32+q4_0",
    ] {
        for (isa, host) in &hosts {
            check(&model, host, *isa, kv, &tokens, "q4_k");
        }
    }
    let isa = Isa::detect();
    let host = host(isa);
    let long = Sizes { context: 4096, ..LLAMA };
    check(&self::model(&long, DType::Q8_0), &host, isa, "mix", &some_tokens(900), "long");
}

#[test]
fn windows_other_heads_and_long_contexts() {
    let isa = Isa::detect();
    let host = host(isa);
    check(&model(&QWEN2, DType::Q8_0), &host, isa, "f16", &some_tokens(70), "qwen2");
    let odd = Sizes { heads: 6, kv_heads: 2, context: 4096, ..LLAMA };
    check(&model(&odd, DType::Q4_0), &host, isa, "f16", &some_tokens(1200), "three heads a group");
    let mut windowed = Fixture::new(&LLAMA, DType::Q8_0);
    let window = ruvllm_engine::gguf::Value::U32(41);
    windowed.set("llama.attention.sliding_window", window);
    check(&windowed.model(), &host, isa, "f16", &some_tokens(150), "a window of 41");
}

#[test]
fn sandboxed_kernels_too() {
    let isa = Isa::detect();
    let host = host(isa);
    let dist = repository().join("kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default()).unwrap();
    host.install(pack.verify(&TrustPolicy::builtin(), None).unwrap()).unwrap();
    check(&model(&LLAMA, DType::Q4_0), &host, isa, "q8_0", &some_tokens(83), "sandboxed");
}

/// Seeded texts of a scheduler, some with an adapter, one by one and all at once.
#[test]
fn seeded_requests_do_not_depend_on_those_beside_them() {
    let isa = Isa::detect();
    let engine = engine(&model(&LLAMA, DType::Q4_0), &host(isa), isa, 2, "q8_0");
    let adapter = Lora::new(&LLAMA, 4, 1, &["attn_q", "ffn_down"]).open(&engine, 1.0);
    let start = || Scheduler::start(engine.clone(), SchedulerConfig::default()).unwrap();
    let request = |number: usize| {
        let sampling = SamplingOptions {
            temperature: 1.0,
            seed: Some(number as u64),
            ..SamplingOptions::default()
        };
        let prompt = some_tokens(20 + 7 * number)[number..].to_vec();
        let request = Request::new(prompt, GenerateOptions { sampling, ..greedy(64) });
        // Of a scope of its own, so that no prompt is found computed.
        let adapter = number.is_multiple_of(3).then(|| adapter.clone());
        Request { session: SessionOptions { scope: None, adapter, ..request.session }, ..request }
    };
    let one_by_one: Vec<Vec<u32>> = {
        let scheduler = start();
        (0..12).map(|number| ask(&scheduler, request(number)).tokens()).collect()
    };
    let scheduler = start();
    let answers: Vec<Answer> = (0..12).map(|number| ask(&scheduler, request(number))).collect();
    for (number, (answer, alone)) in answers.into_iter().zip(&one_by_one).enumerate() {
        assert_eq!(alone.len(), 64);
        assert!(answer.tokens() == *alone, "request {number} has another text beside others");
    }
}

#[cfg(feature = "encryption")]
#[test]
fn a_saved_session_that_was_not_deterministic_is_computed_anew_and_no_other_shares_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, key) = (dir.path().join("session"), SessionKey::generate().unwrap());
    let (tokens, model, isa) = (some_tokens(100), model(&LLAMA, DType::Q4_0), Isa::detect());
    let (strict, loose) = (host(isa), Host::new(HostConfig::default()).unwrap());
    let save = |host: &Host| {
        let mut session = engine(&model, host, isa, 2, "f16").session();
        session.prefill(&tokens).unwrap();
        session.save(&path, &key).unwrap();
    };
    let options = SessionOptions::default();

    save(&loose);
    let other = engine(&model, &strict, isa, 1, "f16");
    let mut restored = other.restore_session(&path, &key, &options).unwrap();
    assert_eq!(restored.tokens(), tokens);
    assert_eq!(other.memory().kv.prefix_hit_tokens, 0);
    let want = at_once(&engine(&model, &strict, isa, 1, "f16"), &[&tokens[..], &[5]].concat());
    same(&[bits(restored.decode(5).unwrap())], &want[100..], "restored");

    save(&strict);
    let other = engine(&model, &loose, isa, 1, "f16");
    let restored = other.restore_session(&path, &key, &options).unwrap();
    assert_eq!(restored.tokens(), tokens);
    other.session().prefill(&tokens).unwrap();
    assert_eq!(other.memory().kv.prefix_hit_tokens, 0);
}
