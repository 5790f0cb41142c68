//! What the machine gives, measured: the bound that figures of decoding are held against.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::ThreadPool;
use crate::pool::MAX_THREADS;

/// The smallest buffer whose reads come from memory on any processor of today.
pub const STREAM_BYTES: usize = 512 << 20;

/// How fast the threads of `pool` together read memory, in bytes per second: each reads its own
/// contiguous share of a buffer of `bytes`, from start to end, for at least `time`. The best pass
/// counts. Decoding a token reads every weight once, so it takes at least the size of the weights
/// divided by this.
pub fn read_bandwidth(pool: &ThreadPool, bytes: usize, time: Duration) -> f64 {
    let threads = pool.threads().min(MAX_THREADS);
    let words = (bytes / size_of::<u64>()).max(threads * LANES) / (threads * LANES) * LANES;
    // Written, so that each page is memory of its own, by the thread that will read it.
    let shares: Vec<Mutex<Vec<u64>>> = (0..threads).map(|_| Mutex::default()).collect();
    let share = |tid: usize| shares[tid].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    pool.run(&|tid| *share(tid) = vec![tid as u64 + 1; words]);
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || started.elapsed() < time {
        let pass = Instant::now();
        pool.run(&|tid| {
            black_box(sum(&share(tid)));
        });
        best = best.min(pass.elapsed().as_secs_f64());
    }
    (threads * words * size_of::<u64>()) as f64 / best
}

/// Words that are added side by side: enough independent sums for any vector width.
const LANES: usize = 64;

fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; LANES];
    for line in words.as_chunks::<LANES>().0 {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_is_read() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for bytes in [0, 1, 4096, 1 << 20] {
                let rate = read_bandwidth(&pool, bytes, Duration::ZERO);
                assert!(rate.is_finite() && rate > 0.0, "{threads} {bytes} {rate}");
            }
        }
    }
}
