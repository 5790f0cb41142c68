//! What a prompt of 2,000 tokens costs that was read before, against computing it: found in the prefix
//! cache, restored from a file, forked. A token beside 10,000 resting sessions, against alone. And a token
//! that fills a block, whereupon older blocks get smaller codecs, against one that does not.
//!
//! The built-in model with its context stretched; larger models only widen the gap, since computing
//! grows with the weights and the rest with the cache.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ruvllm::{
    KvCodec, KvPolicy, RopeExtension, RopeMethod, Runtime, Session, SessionKey, SessionOptions,
};
use std::time::{Duration, Instant};

const PROMPT: usize = 2000;

fn runtime(kv: impl Into<KvPolicy>) -> Runtime {
    let extension = RopeExtension { method: RopeMethod::Yarn, factor: None };
    let builder = Runtime::builder().context(2560).rope_scaling(extension).kv(kv);
    builder.build().expect("the built-in model")
}

fn prompt() -> Vec<u32> {
    (0..PROMPT as u32).map(|i| 300 + (i * 97 + i * i * 13) % 1000).collect()
}

fn alone(runtime: &Runtime) -> Session {
    let options = SessionOptions { scope: None, ..SessionOptions::default() };
    runtime.engine().session_with(&options)
}

fn first_logits(session: &mut Session, tokens: &[u32]) -> f32 {
    session.prefill(tokens).expect("it computes")[0]
}

fn reading_again(c: &mut Criterion) {
    let mut group = c.benchmark_group("2000 tokens to first logits");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let runtime = runtime(KvCodec::F16);
    let tokens = prompt();
    group.bench_function("computed", |b| {
        b.iter(|| first_logits(&mut alone(&runtime), &tokens));
    });
    first_logits(&mut runtime.session(), &tokens);
    group.bench_function("found in the prefix cache", |b| {
        b.iter(|| first_logits(&mut runtime.session(), &tokens));
    });
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("session");
    let key = SessionKey::generate().expect("randomness");
    let mut parent = alone(&runtime);
    first_logits(&mut parent, &tokens[..PROMPT - 1]);
    parent.save(&path, &key).expect("a file");
    group.bench_function("restored from a file", |b| {
        b.iter(|| {
            let mut session = runtime.restore_session(&path, &key).expect("the file");
            first_logits(&mut session, &tokens[PROMPT - 1..])
        });
    });
    group.bench_function("forked", |b| {
        b.iter(|| first_logits(&mut parent.fork(), &tokens[PROMPT - 1..]));
    });
    group.finish();
}

fn among_many(c: &mut Criterion) {
    let mut group = c.benchmark_group("a token after 200");
    let runtime = runtime(KvCodec::F16);
    let tokens = &prompt()[..200];
    let mut parent = alone(&runtime);
    first_logits(&mut parent, tokens);
    let mut decode = |name: &str| {
        group.bench_function(name, |b| {
            b.iter_batched_ref(
                || parent.fork(),
                |session| session.decode(5).expect("it computes")[0],
                BatchSize::SmallInput,
            );
        });
    };
    decode("alone");
    // Each has read something of its own.
    let resting: Vec<Session> = (0..10_000u32)
        .map(|i| {
            let mut session = alone(&runtime);
            first_logits(&mut session, &[300 + i % 1000, 300 + i / 1000]);
            session
        })
        .collect();
    decode("beside 10000 resting sessions");
    drop(resting);
    group.finish();
}

fn growing_old(c: &mut Criterion) {
    let mut group = c.benchmark_group("a token of the mix");
    group.sample_size(10).warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(500));
    let runtime = runtime(KvPolicy::mix());
    let block = runtime.engine().config().kv_block;
    let mut session = alone(&runtime);
    for (name, fills) in [("that fills a block", true), ("that does not", false)] {
        group.bench_function(name, |b| {
            b.iter_custom(|count| {
                let (mut timed, mut took) = (0, Duration::ZERO);
                while timed < count {
                    if session.is_empty() || session.len() == runtime.engine().context() {
                        session = alone(&runtime);
                        first_logits(&mut session, &prompt()[..700]);
                    }
                    let start = Instant::now();
                    session.decode(5).expect("it computes");
                    if session.len().is_multiple_of(block) == fills {
                        took += start.elapsed();
                        timed += 1;
                    }
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, reading_again, among_many, growing_old);
criterion_main!(benches);
