//! The KV cache as users of sessions see it: sharing, tiers, budgets, disk, and what goes wrong.
#![allow(missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{
    Fixture, LLAMA, Sizes, best, core_pack_host, engine, native_host, relative_error, some_tokens,
    two_threads,
};
use ruvllm_abi::DType;
use ruvllm_engine::memory::PAGE;
use ruvllm_engine::{
    Engine, EngineConfig, EngineError, KvCodec, KvPolicy, MemoryReport, Model, Session, SessionKey,
    SessionOptions, StepInput, Use,
};
use ruvllm_host::{Host, HostConfig, Policy};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};

/// Tokens of a block of the default configuration.
const BLOCK: usize = 32;

/// A model of 1 KiB of f16 keys and values a token.
fn model() -> Arc<Model> {
    Fixture::new(&Sizes { context: 4096, ..LLAMA }, DType::F32).model()
}

fn small() -> EngineConfig {
    EngineConfig { batch: 64, ..two_threads() }
}

fn alone() -> SessionOptions {
    SessionOptions { scope: None, ..SessionOptions::default() }
}

/// Texts that differ from their first token on.
fn text(number: u32, tokens: usize) -> Vec<u32> {
    some_tokens(tokens).into_iter().map(|token| 3 + (token + 31 * number) % 280).collect()
}

fn continued(session: &mut Session, tokens: usize) -> Vec<Vec<f32>> {
    let step = |_| {
        let next = best(session.logits());
        session.decode(next).unwrap().to_vec()
    };
    (0..tokens).map(step).collect()
}

fn report(engine: &Engine) -> MemoryReport {
    let report = engine.memory();
    assert!(report.pool.used <= report.pool.budget, "{report:?}");
    report
}

#[test]
fn a_fork_goes_its_own_way_and_shares_what_came_before() {
    let engine = engine(&model(), small());
    let prompt = text(0, 3 * BLOCK + 7);
    let mut first = engine.session_with(&alone());
    first.prefill(&prompt).unwrap();
    let before = report(&engine).kv;
    let mut second = first.fork();
    assert_eq!(second.tokens(), first.tokens());
    assert_eq!(second.logits(), first.logits());
    assert_eq!(report(&engine).kv.blocks, before.blocks);
    assert_eq!(report(&engine).kv.shared_blocks, 4);

    second.decode(17).unwrap();
    first.decode(18).unwrap();
    let kv = report(&engine).kv;
    // Only the block that both append to is copied, and only once.
    assert_eq!((kv.copies, kv.blocks, kv.shared_blocks), (1, 5, 3));
    for (mut session, token) in [(second, 17), (first, 18)] {
        let mut fresh = engine.session_with(&alone());
        fresh.prefill(&prompt).unwrap();
        fresh.decode(token).unwrap();
        assert_eq!(session.logits(), fresh.logits());
        assert_eq!(continued(&mut session, 40), continued(&mut fresh, 40));
    }
    assert_eq!(report(&engine).kv.blocks, 0);
    assert_eq!(report(&engine).pool.kv_pages, 0);
}

#[test]
fn a_common_beginning_is_computed_once() {
    let engine = engine(&model(), small());
    let prompt = text(0, 500);
    let other = [&prompt[..400], &text(1, 100)].concat();
    let options = [alone(), SessionOptions::default(), SessionOptions::default()];
    let mut logits = Vec::new();
    for (options, tokens) in options.iter().zip([&other, &prompt, &other]) {
        let mut session = engine.session_with(options);
        logits.push(session.prefill(tokens).unwrap().to_vec());
        assert_eq!(session.tokens(), tokens);
    }
    let kv = report(&engine).kv;
    // 400 tokens are twelve blocks and a half.
    assert_eq!(kv.prefix_hit_tokens, 384);
    assert!(kv.cached_blocks >= 15, "{kv:?}");
    // Computed in other chunks, so in another order of rounding.
    assert!(relative_error(&logits[2], &logits[0]) < 1e-3);

    // All of a text that is known is found, but for the last token, whose logits are wanted.
    let mut again = engine.session();
    again.prefill(&prompt[..480]).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 384 + 448);
}

#[test]
fn scopes_share_nothing_with_each_other() {
    let engine = engine(&model(), small());
    let scoped = |name: &str| SessionOptions { scope: Some(name.into()), ..Default::default() };
    for name in ["a", "b", "c"] {
        engine.session_with(&scoped(name)).prefill(&text(0, 100)).unwrap();
        assert_eq!(report(&engine).kv.prefix_hit_tokens, 0);
    }
    engine.session_with(&scoped("b")).prefill(&text(0, 100)).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 96);
}

#[test]
fn a_swap_of_a_kernel_that_shapes_keys_makes_old_blocks_unreachable() {
    let host = core_pack_host();
    let engine = Engine::new(model(), host.clone(), small()).unwrap();
    let prompt = text(0, 200);
    let mut running = engine.session();
    running.prefill(&prompt).unwrap();
    engine.session().prefill(&prompt).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 192);

    let before = host.generation();
    assert!(host.remove("ruvllm-core-kernels"));
    assert!(host.generation() > before);
    engine.session().prefill(&prompt).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 192);
    // What was running goes on over its old blocks, and new sequences share among themselves.
    running.decode(5).unwrap();
    engine.session().prefill(&prompt).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 2 * 192);
    // What a mixture of generations computed is found by neither.
    running.prefill(&text(2, 100)).unwrap();
    drop(running);
    let mixed = [&prompt[..], &[5], &text(2, 100)].concat();
    engine.session().prefill(&mixed).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 3 * 192);
}

#[test]
fn old_blocks_stay_readable_after_a_swap_and_new_ones_take_the_new_kernel() {
    let model = model();
    let policy: KvPolicy = "f16:32+q8_0:32+q4_0".parse().unwrap();
    let config = EngineConfig { kv: policy, ..small() };
    let run = |swap: bool| {
        let host = core_pack_host();
        let engine = Engine::new(Arc::clone(&model), host.clone(), config.clone()).unwrap();
        let mut session = engine.session();
        session.prefill(&text(0, 300)).unwrap();
        let calls = |engine: &Engine, pack: bool| {
            let stats = engine.host().stats();
            let ours = stats.iter().filter(|op| {
                op.op.to_string().starts_with("kv_pack") && op.kernel.starts_with("native:") != pack
            });
            ours.map(|op| op.calls).sum::<u64>()
        };
        let before = calls(&engine, true);
        assert!(before > 0);
        if swap {
            assert!(host.remove("ruvllm-core-kernels"));
        }
        for token in text(1, 200) {
            session.decode(token).unwrap();
        }
        let native = calls(&engine, false);
        assert_eq!(native > 0, swap, "{native} blocks were packed by native kernels");
        session.logits().to_vec()
    };
    // Packed blocks are the same to the byte whoever packs them; norms and rotations are within their
    // tolerance.
    let error = relative_error(&run(true), &run(false));
    assert!(error < 1e-2, "{error:e}");
}

#[test]
fn tokens_take_smaller_codecs_as_they_age() {
    let policy: KvPolicy = "k=f16:64+q8_0:64+q4_0c,v=f16:64+q8_0:64+q4_0".parse().unwrap();
    let config = EngineConfig { kv: policy.clone(), ..small() };
    for host in [native_host(), core_pack_host()] {
        let engine = Engine::new(model(), host, config.clone()).unwrap();
        let mut session = engine.session_with(&alone());
        session.prefill(&text(0, 300)).unwrap();
        for &token in &text(1, 84) {
            session.decode(token).unwrap();
        }
        let kv = report(&engine).kv;
        // 384 tokens are 12 blocks: two exact, two of 8 bits, eight of 4; keys and values alike.
        let half =
            |codec: KvCodec, blocks: usize| codec.bits() / 8.0 * (blocks * BLOCK * 128 * 2) as f64;
        let expected = [
            0.0,
            2.0 * half(KvCodec::F16, 2),
            2.0 * half(KvCodec::Q8_0, 2),
            0.0,
            half(KvCodec::Q4_0, 8),
            half(KvCodec::Q4_0Channels, 8),
        ];
        assert_eq!(kv.bytes.map(|bytes| bytes as f64), expected, "{kv:?}");
        let bits = 8.0 * kv.total_bytes() as f64 / (384.0 * 2.0 * 2.0 * 128.0);
        assert!((bits - policy.bits_per_value(384)).abs() < 1e-9, "{bits}");
        assert!(kv.migrations > 0);
    }
}

#[test]
fn texts_do_not_depend_on_what_is_written_ahead_of_time() {
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    for policy in ["f16:32+q8_0:64+q4_0", "mix"] {
        let run = |ahead: bool| {
            let native = HostConfig { policy: Policy::NativeOnly, ..HostConfig::default() };
            let host = Host::new(native).unwrap();
            let config = EngineConfig { kv: policy.parse().unwrap(), ..small() };
            let engine = Engine::new(model(), host.clone(), config).unwrap();
            let mut session = engine.session_with(&alone());
            session.prefill(&text(0, 500)).unwrap();
            let before = report(&engine).kv.migrations_ahead;
            let mut logits = Vec::new();
            for _ in 0..250 {
                // Another generation of kernels, though of the same, takes nothing that was written for the
                // last.
                if !ahead && session.len() % BLOCK == BLOCK - 1 && !host.remove("test-kernels") {
                    host.install(pack.verify().unwrap()).unwrap();
                }
                logits.extend(continued(&mut session, 1));
            }
            let kv = report(&engine).kv;
            assert_eq!(kv.migrations_ahead > before, ahead, "{policy}: {kv:?}");
            (logits, kv.bytes, kv.migrations)
        };
        assert_eq!(run(true), run(false), "{policy}");
    }
}

#[test]
fn a_budget_for_one_sequence_holds_one_beside_what_is_written_ahead() {
    let policy: KvPolicy = "f16:256+q8_0:256+q4_0".parse().unwrap();
    let with = |memory| EngineConfig { kv: policy.clone(), memory: Some(memory), ..small() };
    let model = wide_model();
    let Err(EngineError::MemoryTooSmall { needed, .. }) =
        Engine::new(Arc::clone(&model), native_host(), with(PAGE))
    else {
        panic!("a page holds no sequence");
    };
    let engine = engine(&model, with(needed));
    let mut session = engine.session_with(&alone());
    session.prefill(&text(0, 400)).unwrap();
    for token in text(1, engine.context() - 400) {
        session.decode(token).unwrap();
        report(&engine);
    }
    let kv = report(&engine).kv;
    assert!(kv.migrations_ahead > 0, "{kv:?}");
    assert_eq!((kv.evictions, kv.recomputed_tokens), (0, 0), "{kv:?}");
}

#[test]
fn policies_differ_from_exact_storage_by_their_precision() {
    let model = model();
    let tokens = text(0, 700);
    let last = |policy: &str, batch: usize| {
        let kv = policy.parse().unwrap();
        let engine = engine(&model, EngineConfig { kv, batch, ..two_threads() });
        let mut session = engine.session();
        session.prefill(&tokens[..650]).unwrap();
        for &token in &tokens[650..] {
            session.decode(token).unwrap();
        }
        session.logits().to_vec()
    };
    let exact = last("f32", 512);
    for (policy, tolerance) in [
        ("f16", 2e-3),
        ("f16,rotate", 2e-3),
        ("q8_0", 2e-2),
        ("q8_0,rotate", 2e-2),
        ("q8_0c", 2e-2),
        ("q4_0", 0.25),
        ("q4_0c", 0.25),
        ("q4_0,rotate", 0.25),
        ("mix", 0.25),
        ("f16:32+q8_0:96+q4_0", 0.25),
    ] {
        for batch in [512, 50] {
            let error = relative_error(&last(policy, batch), &exact);
            println!("{policy} in steps of {batch}: {error:.1e}");
            assert!(error < tolerance, "{policy} in steps of {batch}: {error:e}");
        }
    }
}

#[test]
fn heads_that_are_no_power_of_two_are_rotated_in_groups() {
    let sizes = Sizes { heads: 2, kv_heads: 1, head_dim: 96, ..LLAMA };
    let model = Fixture::new(&sizes, DType::F32).model();
    let last = |policy: &str| {
        let config = EngineConfig { kv: policy.parse().unwrap(), ..small() };
        engine(&model, config).session().prefill(&text(0, 200)).unwrap().to_vec()
    };
    let exact = last("f32");
    for (policy, tolerance) in [("f32,rotate", 1e-5), ("q8_0,rotate", 2e-2), ("q4_0,rotate", 0.25)]
    {
        let error = relative_error(&last(policy), &exact);
        println!("{policy}: {error:.1e}");
        assert!(error < tolerance, "{policy}: {error:e}");
    }
}

#[test]
fn truncating_and_going_on_is_as_never_having_gone_further() {
    let model = model();
    for policy in ["f16", "q8_0", "f16:32+q4_0", "k=f16:32+q8_0c,v=f16:32+q8_0"] {
        let engine = engine(&model, EngineConfig { kv: policy.parse().unwrap(), ..small() });
        let mut session = engine.session();
        session.prefill(&text(0, 200)).unwrap();
        for len in [190, 161, 160, 100, 31, 0] {
            session.truncate(len);
            let mut fresh = engine.session_with(&alone());
            let fresh_logits = fresh.prefill(&text(0, len + 40)).unwrap().to_vec();
            let logits = session.prefill(&text(0, len + 40)[len..]).unwrap();
            let error = relative_error(logits, &fresh_logits);
            assert!(error < 1e-3, "{policy} cut at {len}: {error:e}");
            session.truncate(len);
        }
    }
}

/// Caches whose blocks change as they age.
const TIERS: [&str; 4] =
    ["f16:128+q4_0", "f16:64+q8_0:64+q4_0", "k=f16:96+q8_0c:64+q4_0c,v=f16:128+q4_0", "mix"];

/// Computes a prompt and some tokens more in two sessions, and holds the numbers of one against those of the other.
fn same(session: &mut Session, fresh: &mut Session, prompt: &[u32], what: &str) {
    let logits = session.prefill(prompt).unwrap().to_vec();
    assert_eq!(logits, fresh.prefill(prompt).unwrap(), "{what}");
    for token in text(9, 100) {
        let logits = session.decode(token).unwrap().to_vec();
        assert_eq!(logits, fresh.decode(token).unwrap(), "{what}, after {} tokens", session.len());
    }
}

#[test]
fn texts_that_part_share_their_beginning_and_read_it_as_if_each_had_computed_it() {
    let model = model();
    let common = text(0, 960);
    for policy in TIERS {
        let engine = engine(&model, EngineConfig { kv: policy.parse().unwrap(), ..small() });
        let mut running = Vec::new();
        for number in 1..6 {
            let before = report(&engine).kv.prefix_hit_tokens;
            let prompt = [&common[..], &text(number, 700)].concat();
            let (mut session, mut fresh) = (engine.session(), engine.session_with(&alone()));
            same(&mut session, &mut fresh, &prompt, &format!("{policy}, request {number}"));
            let found = report(&engine).kv.prefix_hit_tokens - before;
            // Where the first two part is seen by the second, which computes all of its text.
            let expected = if number < 3 { 0 } else { 960 };
            assert_eq!(found, expected, "{policy}, request {number}");
            // Others go on beside it.
            if number % 2 == 0 {
                running.push(session);
            }
        }
        assert_eq!(report(&engine).kv.packed_early, 0);
    }
}

#[test]
fn a_chat_goes_on_behind_a_prompt_whose_answer_is_not_repeated() {
    let model = model();
    for policy in TIERS {
        let engine = engine(&model, EngineConfig { kv: policy.parse().unwrap(), ..small() });
        let prompt = text(0, 961);
        let mut first = engine.session();
        first.prefill(&prompt).unwrap();
        for token in text(1, 700) {
            first.decode(token).unwrap();
        }
        let next = [&prompt[..], &text(2, 100)].concat();
        same(&mut engine.session(), &mut engine.session_with(&alone()), &next, policy);
        assert_eq!(report(&engine).kv.prefix_hit_tokens, 960, "{policy}");
        // The same session, cut there; and a text that has not all of the prompt.
        first.truncate(prompt.len());
        let mut fresh = engine.session_with(&alone());
        fresh.prefill(&prompt).unwrap();
        let logits = first.prefill(&text(3, 100)).unwrap();
        let error = relative_error(logits, fresh.prefill(&text(3, 100)).unwrap());
        assert!(error < 1e-3, "{policy}: {error:e}");
        let before = report(&engine).kv.prefix_hit_tokens;
        let next = [&prompt[..940], &text(2, 100)].concat();
        let logits = engine.session().prefill(&next).unwrap().to_vec();
        let error = relative_error(&logits, engine.session_with(&alone()).prefill(&next).unwrap());
        assert!(error < 1e-3, "{policy}: {error:e}");
        assert_eq!(report(&engine).kv.prefix_hit_tokens - before, 928, "{policy}");
    }
}

/// A model of 4 KiB of f16 keys and values a token.
fn wide_model() -> Arc<Model> {
    Fixture::new(&Sizes { context: 2000, kv_heads: 4, layers: 4, ..LLAMA }, DType::F32).model()
}

/// A budget for five sequences of 1,800 tokens.
fn tight() -> EngineConfig {
    EngineConfig { memory: Some(20 * PAGE), ..small() }
}

/// Continues seven resting sequences of 1,800 tokens in turn, of which the budget holds fewer.
fn under_pressure(config: EngineConfig, tolerance: f32) -> MemoryReport {
    under_pressure_on(&native_host(), config, tolerance)
}

fn under_pressure_on(host: &Host, config: EngineConfig, tolerance: f32) -> MemoryReport {
    let model = wide_model();
    let engine = |config| Engine::new(Arc::clone(&model), host.clone(), config).unwrap();
    let roomy = engine(EngineConfig { kv: config.kv.clone(), ..small() });
    let tight = engine(config);
    let run = |engine: &Engine| {
        let mut sessions: Vec<Session> = (0..7).map(|_| engine.session_with(&alone())).collect();
        for (number, session) in sessions.iter_mut().enumerate() {
            session.prefill(&text(number as u32, 1800)).unwrap();
            report(engine);
        }
        let mut logits = Vec::new();
        for _ in 0..2 {
            for session in &mut sessions {
                session.decode(9).unwrap();
                logits.push(session.logits().to_vec());
                report(engine);
            }
        }
        logits
    };
    let (expected, actual) = (run(&roomy), run(&tight));
    for (actual, expected) in actual.iter().zip(&expected) {
        assert!(relative_error(actual, expected) <= tolerance);
    }
    let report = report(&tight);
    assert_eq!(report.kv.blocks, 0, "blocks are left of sequences that are gone: {report:?}");
    report
}

#[test]
fn what_does_not_fit_is_computed_again() {
    let config = tight();
    let kv = under_pressure(config, 1e-3).kv;
    assert!(kv.evictions > 0 && kv.recomputed_tokens > 0, "{kv:?}");
    assert_eq!(kv.spills, 0);
}

#[test]
fn what_does_not_fit_is_spilled_and_comes_back_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { spill_dir: Some(dir.path().to_owned()), ..tight() };
    let kv = under_pressure(config, 0.0).kv;
    assert!(kv.spills > 0 && kv.restores > 0, "{kv:?}");
    assert_eq!((kv.recomputed_tokens, kv.evictions, kv.spilled_blocks), (0, 0, 0));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the directory was left behind");
}

#[test]
fn a_beginning_whose_blocks_are_on_disk_is_found_there() {
    let dir = tempfile::tempdir().unwrap();
    let engine =
        engine(&wide_model(), EngineConfig { spill_dir: Some(dir.path().to_owned()), ..tight() });
    let mut sessions: Vec<Session> = (0..7).map(|_| engine.session()).collect();
    for (number, session) in sessions.iter_mut().enumerate() {
        session.prefill(&text(number as u32, 1800)).unwrap();
    }
    let before = report(&engine).kv;
    assert!(before.spilled_blocks > 0, "{before:?}");
    let tokens = [&text(0, 1800)[..], &text(9, 30)].concat();
    let logits = engine.session().prefill(&tokens).unwrap().to_vec();
    let kv = report(&engine).kv;
    assert_eq!(kv.prefix_hit_tokens - before.prefix_hit_tokens, 1792);
    assert!(kv.restores > before.restores, "{kv:?}");
    let mut fresh = self::engine(&wide_model(), small()).session();
    let error = relative_error(&logits, fresh.prefill(&tokens).unwrap());
    assert!(error < 1e-3, "{error:e}");
}

#[test]
fn pressure_quantises_before_it_gives_up() {
    let config = EngineConfig { kv: "f16:2000+q8_0".parse().unwrap(), ..tight() };
    let kv = under_pressure(config, 2e-2).kv;
    assert!(kv.packed_early > 0 && kv.migrations >= kv.packed_early, "{kv:?}");
    assert_eq!((kv.recomputed_tokens, kv.evictions), (0, 0));
}

#[test]
fn pressure_changes_no_bit_of_a_deterministic_engine() {
    let host = Host::new(HostConfig { deterministic: true, ..HostConfig::default() }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for spill_dir in [Some(dir.path().to_owned()), None] {
        for kv in ["f16:1700+q8_0", "k=f16:1500+q8_0:64+q4_0c,v=f16:1600+q4_0"] {
            let kv = kv.parse().unwrap();
            let config = EngineConfig { kv, spill_dir: spill_dir.clone(), ..tight() };
            let kv = under_pressure_on(&host, config, 0.0).kv;
            assert_eq!(kv.packed_early, 0);
            let (spilled, lost) = (kv.restores > 0, kv.recomputed_tokens > 0);
            assert_eq!((spilled, lost), (spill_dir.is_some(), spill_dir.is_none()), "{kv:?}");
        }
    }
}

#[test]
fn a_directory_that_takes_no_more_blocks_costs_only_time() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { spill_dir: Some(dir.path().to_owned()), ..tight() };
    let engine = engine(&wide_model(), config);
    // Gone, as a full disk would be, while sequences run.
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    let mut sessions: Vec<Session> = (0..7).map(|_| engine.session_with(&alone())).collect();
    for (number, session) in sessions.iter_mut().enumerate() {
        session.prefill(&text(number as u32, 1800)).unwrap();
    }
    let kv = report(&engine).kv;
    assert!(kv.spill_failures > 0 && kv.evictions > 0, "{kv:?}");
    let mut fresh = self::engine(&wide_model(), small()).session();
    fresh.prefill(&text(0, 1800)).unwrap();
    let error = relative_error(sessions[0].decode(9).unwrap(), fresh.decode(9).unwrap());
    assert!(error < 1e-3, "{error:e}");
}

#[test]
fn a_spilled_block_that_is_damaged_is_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { spill_dir: Some(dir.path().to_owned()), ..tight() };
    let engine = engine(&wide_model(), config);
    let mut sessions: Vec<Session> = (0..7).map(|_| engine.session_with(&alone())).collect();
    for (number, session) in sessions.iter_mut().enumerate() {
        session.prefill(&text(number as u32, 1800)).unwrap();
    }
    let spilled = files(dir.path());
    assert!(!spilled.is_empty());
    for (number, path) in spilled.iter().enumerate() {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        match number % 3 {
            0 => bytes[middle] ^= 1,
            1 => bytes.truncate(middle),
            _ => {}
        }
        std::fs::write(path, bytes).unwrap();
    }
    let mut fresh = self::engine(&wide_model(), small()).session();
    fresh.prefill(&text(0, 1800)).unwrap();
    let error = relative_error(sessions[0].decode(9).unwrap(), fresh.decode(9).unwrap());
    assert!(error < 1e-3, "{error:e}");
    assert!(report(&engine).kv.recomputed_tokens > 0);
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_sequence_that_cannot_fit_is_refused_with_who_holds_what_and_others_go_on() {
    let config = EngineConfig { memory: Some(6 * PAGE), ctx: Some(1500), ..small() };
    let engine = engine(&model(), config);
    let weights = engine.reserve(Use::Adapter, "pirate", 1, 3 * PAGE).unwrap();
    let mut running = engine.session_with(&alone());
    let mut expected = running.prefill(&text(0, 900)).unwrap().to_vec();
    let mut greedy = engine.session_with(&alone());
    let (tokens, other) = (text(1, 1400), [1]);
    // In one step with the other, which therefore cannot be reclaimed.
    let mut parts = [StepInput::new(&mut running, &other), StepInput::new(&mut greedy, &tokens)];
    let error = engine.step(&mut parts).unwrap_err();
    assert!(matches!(&error, EngineError::MemoryExhausted { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("of adapter memory by pirate"), "{message}");
    assert!(message.contains("--memory"), "{message}");
    assert_eq!((running.len(), greedy.len()), (900, 0));
    assert_eq!(running.logits(), expected);
    drop(weights);
    expected = self::engine(&model(), small()).session().prefill(&text(0, 901)).unwrap().to_vec();
    let error = relative_error(running.decode(text(0, 901)[900]).unwrap(), &expected);
    assert!(error < 1e-3, "{error:e}");
    greedy.prefill(&tokens).unwrap();
}

#[test]
fn reservations_make_room_and_are_bounded() {
    let config = EngineConfig { memory: Some(8 * PAGE), ctx: Some(1500), ..small() };
    let engine = engine(&model(), config);
    let mut session = engine.session_with(&alone());
    session.prefill(&text(0, 1500)).unwrap();
    let held = engine.reserve(Use::Router, "router", 1, 7 * PAGE).unwrap();
    // The sequence rests, so its blocks went; it needs them all again.
    assert!(report(&engine).kv.evictions > 0);
    session.truncate(1400);
    assert_eq!(session.decode(3).unwrap_err().code(), "memory_exhausted");
    let error = engine.reserve(Use::Scratch, "more", 1, 6 * PAGE).err().unwrap();
    assert_eq!(error.code(), "memory_exhausted");
    drop(held);
    session.decode(3).unwrap();
}

#[test]
fn instances_of_kernels_come_out_of_the_budget_and_native_twins_answer_where_it_has_no_room() {
    let with = |memory| {
        let config = EngineConfig { memory: Some(memory), ..small() };
        Engine::new(model(), core_pack_host(), config)
    };
    let Err(EngineError::MemoryTooSmall { needed, .. }) = with(PAGE) else {
        panic!("a page holds no sequence");
    };
    let mut logits = Vec::new();
    for (budget, has_room) in [(needed + 4 * PAGE, true), (needed, false)] {
        let engine = with(budget).unwrap();
        let host = engine.host().clone();
        let mut session = engine.session_with(&alone());
        logits.push(session.prefill(&text(0, 100)).unwrap().to_vec());
        let MemoryReport { pool, kernels, .. } = report(&engine);
        let held = pool.holders.iter().filter(|holder| holder.kind == Use::Kernels);
        let held: Vec<_> = held.map(|holder| (holder.owner.as_str(), holder.bytes)).collect();
        assert_eq!(held, [("kernels", kernels.used)]);
        assert!(kernels.used <= kernels.limit && kernels.limit <= 8 << 20, "{kernels:?}");
        let stats = host.stats().into_iter().find(|op| op.kernel == "rmsnorm_f32").unwrap();
        assert_eq!((kernels.used > 0, stats.calls > 0), (has_room, has_room), "{kernels:?}");
        assert_eq!(stats.failures.contains_key("kernel_memory_full"), !has_room, "{stats:?}");
        assert!(!stats.quarantined);
        drop((session, engine));
        assert_eq!(host.kernel_memory().used, 0);
    }
    let error = relative_error(&logits[1], &logits[0]);
    assert!(error < 1e-3, "{error:e}");
}

fn refusal(config: EngineConfig) -> EngineError {
    Engine::new(model(), native_host(), config).err().expect("the engine was made")
}

#[test]
fn what_cannot_work_is_refused_before_any_work() {
    let tiny = EngineConfig { memory: Some(3 * PAGE), ..small() };
    let error = refusal(tiny);
    assert_eq!(error.code(), "memory_too_small");
    assert!(error.to_string().contains("one sequence of 4096 tokens"), "{error}");
    assert_eq!(refusal(EngineConfig { memory: Some(1000), ..small() }).code(), "invalid_option");
    for kv_block in [0, 8, 24, 512] {
        let error = refusal(EngineConfig { kv_block, ..small() });
        assert!(error.to_string().contains("power of two"), "{error}");
    }
    let kv: KvPolicy = "q4_0c".parse().unwrap();
    let error = refusal(EngineConfig { kv, kv_block: 16, ..small() });
    assert!(error.to_string().contains("group 32 tokens"), "{error}");
    let kv: KvPolicy = "k=f16,v=q4_0c".parse().unwrap();
    assert!(refusal(EngineConfig { kv, ..small() }).to_string().contains("by token"));

    let missing = Path::new("/nonexistent/directory").to_owned();
    let error = refusal(EngineConfig { spill_dir: Some(missing), ..small() });
    assert_eq!(error.code(), "spill_directory");
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = refusal(EngineConfig { spill_dir: Some(file.path().to_owned()), ..small() });
    assert_eq!(error.code(), "spill_directory");
}

#[test]
fn blocks_of_sixteen_tokens_compute_the_same() {
    let model = model();
    let tokens = text(0, 333);
    let with = |kv_block| {
        let engine = engine(&model, EngineConfig { kv_block, ..small() });
        engine.session().prefill_all(&tokens).unwrap()
    };
    assert_eq!(with(16), with(32));
    assert_eq!(with(64), with(32));
}

#[test]
fn a_saved_session_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session");
    let key = SessionKey::generate().unwrap();
    for policy in ["f16", "f16:32+q8_0:64+q4_0", "k=f16:32+q8_0c,v=q8_0", "f32,rotate"] {
        let config = EngineConfig { kv: policy.parse().unwrap(), ..small() };
        let engine = Engine::new(model(), core_pack_host(), config.clone()).unwrap();
        let mut session = engine.session_with(&alone());
        session.prefill(&text(0, 300)).unwrap();
        session.save(&path, &key).unwrap();
        let expected = session.decode(5).unwrap().to_vec();

        let other = Engine::new(model(), core_pack_host(), config).unwrap();
        let mut restored = other.restore_session(&path, &key, &SessionOptions::default()).unwrap();
        assert_eq!(restored.tokens(), text(0, 300));
        assert_eq!(restored.decode(5).unwrap(), expected, "{policy}");
        // The restored blocks serve others with the same beginning.
        let mut sharing = other.session();
        sharing.prefill(&text(0, 310)).unwrap();
        assert_eq!(report(&other).kv.prefix_hit_tokens, 288);
    }
}

#[test]
fn a_session_that_does_not_fit_or_is_damaged_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session");
    let key = SessionKey::generate().unwrap();
    let engine = engine(&model(), small());
    let mut session = engine.session();
    session.prefill(&text(0, 100)).unwrap();
    session.save(&path, &key).unwrap();
    let restore = |engine: &Engine, key: &SessionKey| {
        let restored = engine.restore_session(&path, key, &SessionOptions::default());
        restored.map(drop).unwrap_err()
    };
    let with = |config: EngineConfig| self::engine(&model(), config);

    let other_key = SessionKey::generate().unwrap();
    assert!(restore(&engine, &other_key).to_string().contains("another key"));
    let kv: KvPolicy = KvCodec::Q8_0.into();
    let error = restore(&with(EngineConfig { kv, ..small() }), &key);
    assert_eq!(error.code(), "session_mismatch");
    assert!(error.to_string().contains("KV policy: f16 there, q8_0 here"), "{error}");
    assert_eq!(
        restore(&with(EngineConfig { kv_block: 16, ..small() }), &key).code(),
        "session_mismatch"
    );
    assert_eq!(
        restore(&with(EngineConfig { ctx: Some(99), ..small() }), &key).code(),
        "session_mismatch"
    );
    let model = Fixture::new(&Sizes { context: 4096, ..LLAMA }, DType::Q8_0).model();
    let error = restore(&self::engine(&model, small()), &key);
    assert!(error.to_string().contains("another model"), "{error}");

    let good = std::fs::read(&path).unwrap();
    for (at, what) in [(good.len() / 2, "damaged"), (good.len() - 1, "damaged")] {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        let error = restore(&engine, &key);
        assert!(error.to_string().contains(what), "{error}");
    }
    std::fs::write(&path, &good[..good.len() - 30]).unwrap();
    assert!(restore(&engine, &key).to_string().contains("truncated"));
    // Nothing of what was refused stays.
    drop(session);
    assert_eq!(report(&engine).kv.blocks, report(&engine).kv.cached_blocks);
}

#[test]
fn ten_thousand_sessions_are_found_at_once() {
    let engine = engine(&model(), small());
    let mut parent = engine.session();
    parent.prefill(&text(0, 40)).unwrap();
    let mut sessions: Vec<Session> = (0..10_000).map(|_| parent.fork()).collect();
    // Every session has a block of its own for what it appended.
    for session in sessions.iter_mut().step_by(50) {
        session.decode(7).unwrap();
    }
    let expected = sessions[0].logits().to_vec();
    assert!(sessions.iter().step_by(50).all(|session| session.logits() == expected));
    assert_eq!(report(&engine).kv.copies, 200);
    drop((sessions, parent));
    assert_eq!(report(&engine).kv.blocks, 1);
}

fn endless(sinks: usize) -> SessionOptions {
    SessionOptions { sinks: Some(sinks), ..alone() }
}

#[test]
fn an_endless_sequence_forgets_the_middle_and_moves_up_what_follows() {
    // With one layer, keys and values of a token follow from it and its position alone, so what is left
    // must be as if only that had ever been read; but for keys that were rounded once more for every
    // time that they moved up.
    let sizes = Sizes { layers: 1, context: 256, ..LLAMA };
    // Products with 8-bit weights round activations to 8 bits too, which makes more of a small difference.
    let policies = [
        ("f32", [1e-5, 1e-5]),
        ("f16", [5e-4, 5e-2]),
        ("f16,rotate", [5e-4, 5e-2]),
        ("q8_0", [1e-2, 5e-2]),
    ];
    for (weights, dtype) in [DType::F32, DType::Q8_0].into_iter().enumerate() {
        let model = Fixture::new(&sizes, dtype).model();
        for (policy, tolerances) in policies {
            let tolerance = tolerances[weights];
            let config = EngineConfig { kv: policy.parse().unwrap(), ..small() };
            for host in [native_host(), core_pack_host()] {
                let engine = Engine::new(model.clone(), host, config.clone()).unwrap();
                let mut session = engine.session_with(&endless(4));
                session.prefill(&text(0, 250)).unwrap();
                for token in text(1, 700) {
                    session.decode(token).unwrap();
                    assert!(session.len() <= 256);
                }
                session.prefill(&text(2, 600)).unwrap();
                assert!(
                    session.evicted_range().len >= 250 + 700 + 600 - 256,
                    "{:?}",
                    session.evicted_range()
                );
                assert_eq!(session.tokens()[..32], text(0, 32));
                assert_eq!(session.tokens()[32..], text(2, 600)[632 - session.len()..]);
                let mut fresh = engine.session_with(&alone());
                let expected = fresh.prefill(session.tokens()).unwrap();
                let error = relative_error(session.logits(), expected);
                println!("{policy}: {error:.1e}");
                assert!(error < tolerance, "{policy}: {error:e}");
            }
        }
    }
}

#[test]
fn what_follows_forgotten_tokens_is_shared_with_nobody() {
    let model = Fixture::new(&Sizes { context: 256, ..LLAMA }, DType::F32).model();
    let engine = engine(&model, small());
    let mut session =
        engine.session_with(&SessionOptions { sinks: Some(4), ..SessionOptions::default() });
    session.prefill(&text(0, 400)).unwrap();
    let mut fork = session.fork();
    session.prefill(&text(1, 200)).unwrap();
    let left = session.tokens().to_vec();
    engine.session().prefill(&left).unwrap();
    // The first block is before the range.
    assert_eq!(report(&engine).kv.prefix_hit_tokens, 32);
    // A fork sees nothing of what the other forgot.
    assert_eq!(fork.tokens()[32..], text(0, 400)[400 + 32 - fork.len()..]);
    let copy = fork.fork().decode(3).unwrap().to_vec();
    assert_eq!(fork.decode(3).unwrap(), copy);

    let dir = tempfile::tempdir().unwrap();
    let (path, key) = (dir.path().join("session"), SessionKey::generate().unwrap());
    session.save(&path, &key).unwrap();
    let restored = engine.restore_session(&path, &key, &SessionOptions::default()).unwrap();
    assert_eq!((restored.evicted_range(), restored.tokens()), (session.evicted_range(), &left[..]));
    drop(restored);
    engine.session().prefill(&left).unwrap();
    assert_eq!(report(&engine).kv.prefix_hit_tokens - 32, left.len() as u64 / 32 * 32);
}

#[test]
fn a_short_block_by_channel_is_whole_after_being_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (path, key) = (dir.path().join("session"), SessionKey::generate().unwrap());
    let model = Fixture::new(&Sizes { layers: 1, context: 256, ..LLAMA }, DType::F32).model();
    let config = EngineConfig { kv: "k=q8_0c,v=q8_0".parse().unwrap(), ..small() };
    let engine = engine(&model, config);
    // The last eight tokens are of a block that was full before.
    let mut session = engine.session_with(&endless(4));
    session.prefill(&text(0, 240)).unwrap();
    session.truncate(200);
    session.save(&path, &key).unwrap();
    let mut restored = engine.restore_session(&path, &key, &endless(4)).unwrap();
    // Until what lies before that block is forgotten and it moves up.
    for token in text(1, 80) {
        session.decode(token).unwrap();
        restored.decode(token).unwrap();
    }
    assert!(restored.evicted_range().len > 0);
    assert_eq!(restored.logits(), session.logits());
}
