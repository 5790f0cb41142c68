//! The first step on a generation against a later one.
//!
//! The built-in model: its steps take a hundredth of a large model's, and instances cost nearly as
//! much. `ruvllm-load swap` measures a server, with any model.

use criterion::{Criterion, criterion_group, criterion_main};
use ruvllm::{Runtime, Session, SessionOptions};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Tokens before those that are measured.
const DEPTH: usize = 32;

/// How long steps go on before the next publication, so that nothing is left of the generation before:
/// what goes back to kernels that are still there would find their instances.
const SETTLES: Duration = Duration::from_millis(30);

fn sessions(runtime: &Runtime, count: usize) -> Vec<Session> {
    let options = SessionOptions { scope: None, ..SessionOptions::default() };
    let begin = |number: usize| {
        let mut session = runtime.engine().session_with(&options);
        let tokens: Vec<u32> =
            (0..DEPTH).map(|i| (300 + (97 * i + 31 * number) % 1700) as u32).collect();
        session.prefill(&tokens).expect("it computes");
        session
    };
    (0..count).map(begin).collect()
}

/// A step of all sessions, and what it takes; they stay as they were.
fn step(runtime: &Runtime, sessions: &mut [Session]) -> Duration {
    let begin = Instant::now();
    let next = sessions.iter_mut().map(|session| (session, 5));
    runtime.engine().decode_batch(next).expect("it computes");
    let took = begin.elapsed();
    for session in sessions {
        session.truncate(DEPTH);
    }
    took
}

/// What `n` runs take if each takes what the median one does. Threads that publish and that compute are
/// more than the cores may be, and a step that loses its core for a slice of time says nothing of others.
fn median(n: u64, mut run: impl FnMut() -> Duration) -> Duration {
    let mut took: Vec<Duration> = (0..n).map(|_| run()).collect();
    took.sort_unstable();
    took[took.len() / 2].mul_f64(n as f64)
}

fn crossing(c: &mut Criterion) {
    let runtime = Runtime::builder().build().expect("the built-in model");
    let host = runtime.host();
    for streams in [1, 8] {
        let mut group = c.benchmark_group(format!("a step of {streams}"));
        group.sample_size(10).measurement_time(Duration::from_secs(10));
        let mut sessions = sessions(&runtime, streams);
        // Both are taken after publications, so that whatever else these bring about meets both.
        for (name, before) in [("first of a generation", 0), ("third of a generation", 2)] {
            let mut crossing = |publish: &mpsc::Sender<()>| {
                let begin = Instant::now();
                while begin.elapsed() < SETTLES {
                    step(&runtime, &mut sessions);
                }
                let generation = host.generation();
                publish.send(()).expect("it listens");
                while host.generation() == generation {
                    step(&runtime, &mut sessions);
                }
                for _ in 0..before {
                    step(&runtime, &mut sessions);
                }
                step(&runtime, &mut sessions)
            };
            group.bench_function(name, |b| {
                b.iter_custom(|n| {
                    // As in a server, another thread publishes while steps go on.
                    let (publish, asked) = mpsc::channel::<()>();
                    std::thread::scope(|scope| {
                        scope.spawn(move || {
                            for () in asked {
                                // Now the native twins, now the packs: each was there before the other.
                                host.roll_back(host.generation() - 1).expect("it is kept");
                            }
                        });
                        let took = median(n, || crossing(&publish));
                        drop(publish);
                        took
                    })
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, crossing);
criterion_main!(benches);
