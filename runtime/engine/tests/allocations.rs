//! Decoding and choosing take nothing from the heap once they are warm.
#![allow(missing_docs)]

mod common;

use std::alloc::System;
use std::ops::Range;

use common::lora::Lora;
use common::{Fixture, LLAMA, core_pack_host_with, two_threads};
use ruvllm_abi::DType;
use ruvllm_engine::{
    Engine, EngineConfig, Sampler, SamplingOptions, Session, SessionOptions, TokenMask,
};
use ruvllm_host::HostConfig;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

// One test alone in its program: what others allocate would count.
#[test]
fn a_decoded_token_allocates_nothing() {
    let model = Fixture::new(&LLAMA, DType::Q8_0).model();
    for policy in ["f16", "q8_0", "f16:32+q8_0:32+q4_0"] {
        let config = EngineConfig { kv: policy.parse().unwrap(), ..two_threads() };
        // What is checked now and then has buffers that grow with the cache.
        let host = HostConfig { cross_check_every: 0, ..HostConfig::default() };
        let engine = Engine::new(model.clone(), core_pack_host_with(host), config).unwrap();
        let mut session = engine.session();
        session.prefill(&common::some_tokens(100)).unwrap();
        // Everything that blocks go through has happened once.
        for token in 3..103 {
            session.decode(token).unwrap();
        }
        let region = Region::new(ALLOCATOR);
        for token in 3..203 {
            session.decode(token).unwrap();
        }
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{policy}: {change:?}");

        let mut sessions: [Session; 4] = std::array::from_fn(|_| engine.session());
        for (i, session) in sessions.iter_mut().enumerate() {
            session.prefill(&common::some_tokens(60 + 20 * i)).unwrap();
        }
        let decode = |sessions: &mut [Session], tokens: Range<u32>| {
            for token in tokens {
                let tokens = [token, token + 1, token + 2, token + 3];
                engine.decode_batch(sessions.iter_mut().zip(tokens)).unwrap();
            }
        };
        decode(&mut sessions, 3..153);
        let region = Region::new(ALLOCATOR);
        decode(&mut sessions, 3..153);
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{policy}, 4: {change:?}");

        // Two adapters, beside sequences of one and none.
        let adapters = [1, 2].map(|seed| Lora::all(&LLAMA, 8, seed).open(&engine, 1.0));
        let [a, b] = &adapters;
        let mut sessions = [Some(a), Some(a), None, Some(b)].map(|adapter| {
            let adapter = adapter.cloned();
            engine.session_with(&SessionOptions { adapter, ..SessionOptions::default() })
        });
        for (i, session) in sessions.iter_mut().enumerate() {
            session.prefill(&common::some_tokens(60 + 20 * i)).unwrap();
        }
        decode(&mut sessions, 3..153);
        let region = Region::new(ALLOCATOR);
        decode(&mut sessions, 3..103);
        for token in 3..53 {
            sessions[0].decode(token).unwrap();
        }
        let change = region.change();
        assert_eq!(
            (change.allocations, change.reallocations),
            (0, 0),
            "{policy}, LoRA: {change:?}"
        );
    }
    choosing_allocates_nothing_either();
}

fn choosing_allocates_nothing_either() {
    let vocab = 5000;
    let logits = common::random(1, vocab, 4.0);
    let history = common::some_tokens(500);
    let mut mask = TokenMask::none(vocab);
    for options in [SamplingOptions::greedy(), SamplingOptions::default()] {
        let mut sampler = Sampler::new(SamplingOptions {
            repeat_penalty: 1.1,
            presence_penalty: 0.5,
            frequency_penalty: 0.5,
            logit_bias: vec![(7, 1.0)],
            ..options
        })
        .unwrap();
        sampler.sample(&logits, &history).unwrap();
        let region = Region::new(ALLOCATOR);
        for _ in 0..50 {
            mask.clear();
            mask.allow(7);
            mask.allow(8);
            sampler.sample_masked(&logits, &history, Some(&mask)).unwrap();
            sampler.sample(&logits, &history).unwrap();
        }
        let change = region.change();
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
    }
}
