//! LoRA adapters against models whose weights they are merged into, and in every mixture of sessions.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use common::lora::{Lora, PARTS, TOLERANCE, exact, logits, with};
use common::{
    Fixture, LLAMA, QWEN2, Sizes, best, core_pack_host, engine, native_host, relative_error,
    some_tokens, two_threads,
};
use ruvllm_abi::DType;
use ruvllm_engine::memory::PAGE;
use ruvllm_engine::{
    Adapter, Engine, EngineConfig, EngineError, KvCodec, Session, SessionKey, SessionOptions,
    StepInput, Use,
};
use ruvllm_host::{Host, HostConfig};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, lora_apply_f32};

#[test]
fn an_adapter_computes_what_merged_weights_do() {
    let tokens = some_tokens(60);
    for sizes in [LLAMA, QWEN2] {
        let fixture = Fixture::new(&sizes, DType::F32);
        let model = fixture.model();
        let engines = [native_host(), core_pack_host()]
            .map(|host| Engine::new(Arc::clone(&model), host, exact()).unwrap());
        let plain = engines.each_ref().map(|engine| logits(engine, None, &tokens));
        // All at once, in ranks that kernels treat apart, then each projection alone.
        let alone = PARTS.iter().map(|(part, _)| Lora::new(&sizes, 4, 2, &[part]));
        let loras = [1, 8, 19].map(|rank| Lora::all(&sizes, rank, 1)).into_iter().chain(alone);
        for (lora, scale) in loras.zip([1.0, -0.5, 2.0].into_iter().cycle()) {
            let of: Vec<_> = lora.factors.iter().map(|f| f.part).collect();
            let merged = engine(&lora.merged(&fixture, scale), exact());
            let expected = logits(&merged, None, &tokens);
            for (engine, plain) in engines.iter().zip(&plain) {
                let adapter = lora.open(engine, scale);
                assert_eq!((adapter.rank(), adapter.scale()), (lora.rank, scale));
                let error = relative_error(&logits(engine, Some(&adapter), &tokens), &expected);
                println!("{} {of:?} of rank {}: {error:.1e}", sizes.architecture, lora.rank);
                assert!(error < TOLERANCE, "{of:?}: {error:e}");
                assert!(relative_error(plain, &expected) > 1e-3, "{of:?} changes nothing");
            }
        }
        // Nothing is left behind in sessions without one.
        for (engine, plain) in engines.iter().zip(&plain) {
            assert_eq!(logits(engine, None, &tokens), *plain);
        }
    }
}

/// Sums of another order; in keys and values of 16 bits now and then the last of them.
const MIXED_TOLERANCE: f32 = 1e-3;

#[test]
fn sessions_of_different_adapters_and_none_share_steps() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    for host in [native_host(), core_pack_host()] {
        let engine = Engine::new(Arc::clone(&model), host, two_threads()).unwrap();
        let a = Lora::all(&LLAMA, 8, 1).open(&engine, 1.0);
        let b = Lora::new(&LLAMA, 3, 2, &["attn_v", "ffn_down"]).open(&engine, 1.0);
        let adapters = [Some(&a), Some(&a), None, Some(&b), None, Some(&a), Some(&b)];
        let prompts: Vec<Vec<u32>> =
            (0..adapters.len()).map(|i| some_tokens(50)[i..20 + 4 * i].to_vec()).collect();
        let session = |adapter: Option<&Adapter>| {
            engine.session_with(&SessionOptions {
                scope: None,
                adapter: adapter.cloned(),
                ..SessionOptions::default()
            })
        };
        let mut sessions: Vec<Session> = adapters.iter().map(|a| session(*a)).collect();
        let mut alone: Vec<Session> = adapters.iter().map(|a| session(*a)).collect();
        let check = |sessions: &[Session], alone: &[Session]| {
            for (i, (together, alone)) in sessions.iter().zip(alone).enumerate() {
                let error = relative_error(together.logits(), alone.logits());
                assert!(error < MIXED_TOLERANCE, "session {i} is off by {error:e}");
            }
        };
        // Prompts, of which the last layer computes one row, several, or none.
        let from = |i: usize, len: usize| [len - 1, 0, len - 3, len][i % 4];
        let mut inputs: Vec<StepInput<'_>> = (sessions.iter_mut().zip(&prompts).enumerate())
            .map(|(i, (session, tokens))| StepInput {
                session,
                tokens,
                from: from(i, tokens.len()),
                hidden: None,
            })
            .collect();
        let mut rows = vec![Vec::new(); prompts.len()];
        engine
            .step_with(&mut inputs, &mut |input, _, row| rows[input].extend_from_slice(row))
            .unwrap();
        for (i, (session, tokens)) in alone.iter_mut().zip(&prompts).enumerate() {
            let mut expected = Vec::new();
            let from = from(i, tokens.len());
            session.evaluate(tokens, from, &mut |_, row| expected.extend_from_slice(row)).unwrap();
            assert_eq!(rows[i].len(), expected.len());
            if !expected.is_empty() {
                let error = relative_error(&rows[i], &expected);
                assert!(error < MIXED_TOLERANCE, "prompt {i} is off by {error:e}");
            }
        }
        for token in 20..40 {
            engine.decode_batch(sessions.iter_mut().map(|session| (session, token))).unwrap();
            alone.iter_mut().for_each(|session| drop(session.decode(token).unwrap().to_vec()));
            check(&sessions, &alone);
        }
        // The mixture was one: adapters change what follows.
        let error = relative_error(sessions[0].logits(), sessions[2].logits());
        assert!(error > 1e-2, "{error:e}");
    }
}

#[test]
fn blocks_are_shared_within_an_adapter_and_never_across() {
    let host = core_pack_host();
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let engine = Engine::new(model, host.clone(), two_threads()).unwrap();
    let lora = Lora::all(&LLAMA, 4, 1);
    let (first, other) = (lora.open(&engine, 1.0), Lora::all(&LLAMA, 4, 2).open(&engine, 1.0));
    // 192 tokens are six blocks; the last token is always computed.
    let tokens = some_tokens(193);
    let found = |options: &SessionOptions| {
        let before = engine.memory().kv.prefix_hit_tokens;
        engine.session_with(options).prefill(&tokens).unwrap();
        engine.memory().kv.prefix_hit_tokens - before
    };
    assert_eq!(found(&SessionOptions::default()), 0);
    assert_eq!(found(&with(&first)), 0);
    assert_eq!(found(&with(&other)), 0);
    assert_eq!(found(&with(&first)), 192);
    assert_eq!(found(&SessionOptions::default()), 192);
    assert_eq!(found(&SessionOptions { scope: Some("a".into()), ..with(&first) }), 0);

    // The same file again is the same generation; another scale, or one number, is another.
    let again = lora.open(&engine, 1.0);
    assert_eq!(again, first);
    assert_eq!(found(&with(&again)), 192);
    let scaled = lora.open(&engine, 0.5);
    let mut changed = lora;
    changed.factors[3].b[7] += 0.01;
    let changed = changed.open(&engine, 1.0);
    for generation in [&scaled, &changed] {
        assert_ne!(generation.fingerprint(), first.fingerprint());
        assert_eq!(found(&with(generation)), 0);
    }

    // A swap of the kernel makes blocks of adapters unreachable, and only those.
    let pack = PackBuilder::new().kernel("lora_apply_f32", lora_apply_f32(&Module::default()));
    host.install(pack.build().verify().unwrap()).unwrap();
    assert_eq!(found(&SessionOptions::default()), 192);
    assert_eq!(found(&with(&first)), 0);
    assert_eq!(found(&with(&first)), 192);
}

#[test]
fn what_was_evicted_is_computed_again_with_the_same_adapter() {
    // 4 KiB of keys and values a token, and a budget for five of seven sequences.
    let sizes = Sizes { context: 2000, kv_heads: 4, layers: 4, ..LLAMA };
    let model = Fixture::new(&sizes, DType::F32).model();
    let config = EngineConfig { batch: 64, ..two_threads() };
    let tight = engine(&model, EngineConfig { memory: Some(20 * PAGE), ..config.clone() });
    let adapter = Lora::all(&sizes, 4, 1).open(&tight, 1.0);
    let mut sessions: Vec<Session> = (0..7).map(|_| tight.session_with(&with(&adapter))).collect();
    let text = |i: usize| some_tokens(1800).into_iter().map(move |t| 3 + (t + 31 * i as u32) % 280);
    for (i, session) in sessions.iter_mut().enumerate() {
        session.prefill(&text(i).collect::<Vec<_>>()).unwrap();
    }
    let roomy = engine(&model, config);
    // The least recently used.
    for (i, session) in sessions.iter_mut().enumerate().take(2) {
        let mut fresh = roomy.session_with(&with(&adapter));
        fresh.prefill(&text(i).collect::<Vec<_>>()).unwrap();
        let error = relative_error(session.decode(9).unwrap(), fresh.decode(9).unwrap());
        assert!(error < MIXED_TOLERANCE, "session {i}: {error:e}");
    }
    let kv = tight.memory().kv;
    assert!(kv.recomputed_tokens > 0, "{kv:?}");
}

#[test]
fn forks_and_truncated_sessions_keep_the_adapter() {
    let engine = engine(&Fixture::new(&LLAMA, DType::F32).model(), two_threads());
    let adapter = Lora::all(&LLAMA, 4, 1).open(&engine, 1.0);
    let tokens = some_tokens(80);
    let mut session = engine.session_with(&with(&adapter));
    session.prefill(&tokens).unwrap();
    let expected = session.decode(7).unwrap().to_vec();
    session.truncate(80);
    let mut fork = session.fork();
    assert_eq!(fork.adapter(), Some(&adapter));
    assert_eq!(session.decode(7).unwrap(), expected);
    assert_eq!(fork.decode(7).unwrap(), expected);
}

#[test]
fn an_adapter_counts_against_the_memory_while_it_lives() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let engine = engine(&model, EngineConfig { memory: Some(10 * PAGE), ..two_threads() });
    let held = || {
        let holders = engine.memory().pool.holders;
        holders.iter().filter(|h| h.kind == Use::Adapter).map(|h| h.bytes).sum::<usize>()
    };
    let adapter = Lora::all(&LLAMA, 8, 1).open(&engine, 1.0);
    // Per layer the extents of seven projections, times rank and four bytes.
    let (dim, kv, ffn) = (256, 128, 512);
    let extents = 2 * (dim + dim) + 2 * (dim + kv) + 3 * (dim + ffn);
    assert_eq!(adapter.bytes(), 2 * extents * 8 * 4);
    assert_eq!(held(), adapter.bytes());
    let session = engine.session_with(&with(&adapter));
    drop(adapter);
    assert!(held() > 0, "a session needs it still");
    drop(session);
    assert_eq!(held(), 0);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.gguf");
    Lora::all(&LLAMA, 800, 1).write_gguf(&path, "llama", DType::F32);
    let error = Adapter::open(&engine, &path, 1.0).unwrap_err();
    assert_eq!(error.code(), "memory_exhausted", "{error}");
    assert_eq!(held(), 0);
}

#[test]
fn an_adapter_of_another_model_is_refused_before_any_work() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let (engine, other) = (
        engine(&model, two_threads()),
        engine(&Fixture::new(&LLAMA, DType::F32).model(), two_threads()),
    );
    let adapter = Lora::all(&LLAMA, 4, 1).open(&other, 1.0);
    let (mut good, mut bad) = (engine.session(), engine.session_with(&with(&adapter)));
    assert_eq!(bad.prefill(&[1, 2]).unwrap_err().code(), "foreign_adapter");
    let error = engine
        .step(&mut [StepInput::new(&mut good, &[1]), StepInput::new(&mut bad, &[1])])
        .unwrap_err();
    assert!(matches!(error, EngineError::StepInput { input: 1, .. }), "{error}");
    assert!(good.is_empty() && bad.is_empty());
    // Engines that share the model share its adapters.
    let twin = other.with_kv(KvCodec::F32.into()).unwrap();
    twin.session_with(&with(&adapter)).prefill(&[1, 2]).unwrap();
}

#[test]
fn a_saved_session_goes_on_with_its_adapter_and_no_other() {
    let engine = engine(&Fixture::new(&LLAMA, DType::F32).model(), two_threads());
    let lora = Lora::all(&LLAMA, 4, 1);
    let (adapter, other) = (lora.open(&engine, 1.0), lora.open(&engine, 0.5));
    let dir = tempfile::tempdir().unwrap();
    let (path, key) = (dir.path().join("session"), SessionKey::generate().unwrap());
    let mut session = engine.session_with(&with(&adapter));
    session.prefill(&some_tokens(100)).unwrap();
    session.save(&path, &key).unwrap();
    let expected = session.decode(5).unwrap().to_vec();

    let restore = |options: &SessionOptions| engine.restore_session(&path, &key, options);
    // Opened anew, as another process would.
    let mut restored = restore(&with(&lora.open(&engine, 1.0))).unwrap();
    assert_eq!(restored.tokens(), some_tokens(100));
    assert_eq!(restored.decode(5).unwrap(), expected);
    for options in [SessionOptions::default(), with(&other)] {
        let error = restore(&options).err().unwrap();
        assert_eq!(error.code(), "session_mismatch");
        assert!(error.to_string().contains("adapter"), "{error}");
    }
    engine.session().save(&path, &key).unwrap();
    let error = restore(&with(&adapter)).err().unwrap();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn a_kernel_that_traps_is_answered_for_by_its_native_twin() {
    let model = Fixture::new(&LLAMA, DType::F32).model();
    let text = |host: Host| {
        let config = EngineConfig { threads: 1, ..EngineConfig::default() };
        let engine = Engine::new(Arc::clone(&model), host, config).unwrap();
        let adapter = Lora::all(&LLAMA, 8, 1).open(&engine, 1.0);
        let mut session = engine.session_with(&with(&adapter));
        let mut all = session.prefill(&some_tokens(20)).unwrap().to_vec();
        for _ in 0..40 {
            let next = best(session.logits());
            all.extend_from_slice(session.decode(next).unwrap());
        }
        all
    };
    // Later than any admission, in the middle of a text: a step asks fourteen times.
    let module = Module {
        fields: "(global $calls (mut i32) (i32.const 0))".into(),
        prologue: "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
             (if (i32.gt_u (global.get $calls) (i32.const 300)) (then unreachable))"
            .into(),
        ..Module::default()
    };
    let host = Host::new(HostConfig::default()).unwrap();
    let pack = PackBuilder::new().kernel("lora_apply_f32", lora_apply_f32(&module)).build();
    host.install(pack.verify().unwrap()).unwrap();
    let error = relative_error(&text(host.clone()), &text(native_host()));
    assert!(error < MIXED_TOLERANCE, "{error:e}");
    let stats = host.stats();
    let ours = stats.iter().find(|op| op.pack == "test-kernels").unwrap();
    assert!(ours.calls >= 300 && ours.fallbacks > 0, "{ours:?}");
}
