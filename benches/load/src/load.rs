//! Requests in parallel, one after another in each stream.

use crate::client::{Answer, Client};
use crate::prompts::Prompts;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the streams ask for, and how eagerly.
#[derive(clap::Args, Clone)]
pub(crate) struct Pace {
    /// Requests of each stream that count.
    #[arg(long, global = true, value_name = "COUNT", default_value_t = 4, value_parser = at_least_one())]
    pub(crate) requests: usize,
    /// Requests of each stream before those. A stream always sends the same prompt, so the server may
    /// have it in its cache then.
    #[arg(long, global = true, value_name = "COUNT", default_value_t = 1)]
    pub(crate) warm_up: usize,
    /// Tokens of each answer.
    #[arg(short = 'n', long, global = true, default_value_t = 64, value_parser = at_least_one())]
    pub(crate) tokens: usize,
    /// Milliseconds that a stream waits between an answer and its next request.
    #[arg(long, global = true, value_name = "MS", default_value_t = 0)]
    pub(crate) think: u64,
    /// Requests that arrive in a second, all streams together, at random times; without it a stream
    /// sends the next as soon as it may.
    #[arg(long, global = true, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
}

fn at_least_one() -> impl clap::builder::TypedValueParser<Value = usize> {
    clap::builder::RangedU64ValueParser::<usize>::new().range(1..)
}

/// The times at which requests arrive.
struct Arrivals {
    rate: Option<f64>,
    next: Mutex<(Instant, StdRng)>,
}

impl Arrivals {
    fn new(rate: Option<f64>) -> Arrivals {
        Arrivals { rate, next: Mutex::new((Instant::now(), StdRng::seed_from_u64(0))) }
    }

    /// Begins anew from this moment.
    fn begin(&self) {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).0 = Instant::now();
    }

    /// Waits until the next request is due.
    fn wait(&self) {
        let Some(rate) = self.rate else { return };
        let due = {
            let (next, random) = &mut *self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let due = *next;
            // Exponential gaps are those of arrivals that know nothing of each other.
            let gap = -random.random_range(f64::MIN_POSITIVE..1.0).ln() / rate;
            *next += Duration::from_secs_f64(gap);
            due
        };
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// Runs so many streams until each has had its requests; gives the answers that count.
pub(crate) fn closed(
    client: &Client,
    prompts: &Prompts,
    pace: &Pace,
    streams: usize,
) -> Vec<Answer> {
    let ready = Barrier::new(streams);
    let arrivals = Arrivals::new(pace.rate);
    let stream = |number: usize| {
        let client = client.again();
        let prompt = prompts.number(number as u64);
        let ask = || client.complete(&prompt, pace.tokens, usize::MAX);
        (0..pace.warm_up).for_each(|_| drop(ask()));
        if ready.wait().is_leader() {
            arrivals.begin();
        }
        let next = |n: usize| {
            if n > 0 {
                thread::sleep(Duration::from_millis(pace.think));
            }
            arrivals.wait();
            ask()
        };
        (0..pace.requests).map(next).collect::<Vec<_>>()
    };
    parallel(streams, &stream).into_iter().flatten().collect()
}

/// Does `work` for each number on a thread of its own.
fn parallel<T: Send>(count: usize, work: &(impl Fn(usize) -> T + Sync)) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || work(n))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Does `work` for each number, some at a time, each of these with a connection of its own.
pub(crate) fn spread<T: Send>(
    client: &Client,
    count: usize,
    streams: usize,
    work: &(impl Fn(&Client, usize) -> T + Sync),
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let stream = |_| {
        let client = client.again();
        let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)));
        let numbers = numbers.take_while(|&n| n < count);
        numbers.map(|n| (n, work(&client, n))).collect::<Vec<_>>()
    };
    let mut done: Vec<(usize, T)> = parallel(streams, &stream).into_iter().flatten().collect();
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, value)| value).collect()
}

/// Keeps streams going while `work` does something else; each of its numbers is a request.
pub(crate) fn during<T: Send>(
    client: &Client,
    streams: usize,
    ask: &(impl Fn(&Client, u64) -> Answer + Sync),
    work: impl FnOnce() -> T,
) -> (T, Vec<Answer>) {
    let (next, answers, done) = (AtomicU64::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let value = thread::scope(|scope| {
        for _ in 0..streams {
            scope.spawn(|| {
                let client = client.again();
                while done.load(Relaxed) == 0 {
                    let answer = ask(&client, next.fetch_add(1, Relaxed));
                    if answer.error.is_some() {
                        // A server that refuses is not to be flooded.
                        thread::sleep(Duration::from_millis(100));
                    }
                    answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                }
            });
        }
        let value = work();
        done.store(1, Relaxed);
        value
    });
    (value, answers.into_inner().unwrap_or_else(PoisonError::into_inner))
}
