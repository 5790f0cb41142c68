//! What the machine gives, measured: the bounds that figures are held against. Reading memory bounds the
//! decoding of one sequence, 8-bit products bound prompts and batches.

mod products;

use std::hint::black_box;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use crate::ThreadPool;
use crate::prefetch::prefetch;

/// The processor's name, or the architecture where the system does not tell.
pub fn processor() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The smallest buffer whose reads come from memory on any processor of today.
pub const STREAM_BYTES: usize = 512 << 20;

/// How fast memory is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadBandwidth {
    /// Bytes per second of all threads together.
    pub bytes_per_second: f64,
    /// The distant places that each thread read from in turn.
    pub streams: usize,
}

/// The numbers of streams that are tried.
pub const STREAMS: [usize; 4] = [1, 2, 4, 8];

/// Memory to be read, by which threads, and how often it is timed is up to the caller: beside the work that
/// it is held against where the machine is shared, because its speed changes within tens of milliseconds.
pub struct ReadProbe {
    buffer: MmapMut,
    /// Words of each thread.
    share: usize,
}

impl ReadProbe {
    /// A buffer of `bytes` or a little more, a contiguous share of it for each thread of `pool`, which
    /// writes it. `None` where the system has no memory for it.
    pub fn new(pool: &ThreadPool, bytes: usize) -> Option<ReadProbe> {
        let most = STREAMS[STREAMS.len() - 1];
        let share = bytes / size_of::<u64>() / pool.threads();
        let share = share.next_multiple_of(most * LINES * LINE).max(1);
        let mut buffer = MmapMut::map_anon(share * pool.threads() * size_of::<u64>()).ok()?;
        // As large a page as weights get, so that no more of the reads wait for a translation.
        #[cfg(target_os = "linux")]
        let _ = buffer.advise(memmap2::Advice::HugePage);
        // Written, so that each page is memory of its own, by the thread that will read it.
        let words = bytemuck::cast_slice_mut::<u8, u64>(&mut buffer);
        pool.for_chunks(words, share, &|tid, share| share.fill(tid as u64 + 1));
        Some(ReadProbe { buffer, share })
    }

    /// What a pass reads.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Reads everything once, each thread of `pool` its share as so many streams; the seconds it took. `pool`
    /// has as many threads as the one that the buffer was made with.
    pub fn pass(&self, pool: &ThreadPool, streams: usize) -> f64 {
        let words = bytemuck::cast_slice::<u8, u64>(&self.buffer);
        seconds(pool, &|tid| {
            for share in words.chunks(self.share).skip(tid).step_by(pool.threads()) {
                black_box(sum(share, streams));
            }
        })
    }
}

/// How fast the threads of `pool` together read memory: each reads its own contiguous share of a buffer of
/// `bytes`, as one stream from start to end, as two, four and eight, for at least `time` in all. The best
/// pass counts. Decoding a token reads every weight once, so it takes at least the size of the weights
/// divided by this. 0 bytes where the system has no memory for the buffer.
pub fn read_bandwidth(pool: &ThreadPool, bytes: usize, time: Duration) -> ReadBandwidth {
    let Some(probe) = ReadProbe::new(pool, bytes) else {
        return ReadBandwidth { bytes_per_second: 0.0, streams: 1 };
    };
    let rate = |streams: usize| {
        let best = best_of(time / STREAMS.len() as u32, || probe.pass(pool, streams));
        ReadBandwidth { bytes_per_second: probe.bytes() as f64 / best, streams }
    };
    let faster = |a: ReadBandwidth, b: ReadBandwidth| {
        if b.bytes_per_second > a.bytes_per_second { b } else { a }
    };
    STREAMS[1..].iter().fold(rate(1), |best, streams| faster(best, rate(*streams)))
}

/// How many products of two 8-bit numbers the threads of `pool` together add up per second, with the
/// instruction that matrix products use for quantised weights of many rows, out of registers. The best
/// of the passes during `time` counts. `None` where the processor has no such instruction.
///
/// A prompt takes a product for every weight and token, so its tokens per second are at most this
/// divided by the number of weights.
pub fn int8_products(pool: &ThreadPool, time: Duration) -> Option<f64> {
    /// Some milliseconds: far more than it takes to enter a region of the pool.
    const ROUNDS: usize = 1 << 20;
    let body = products::Loop::detect()?;
    let best = best_of(time, || seconds(pool, &|_| body.run(ROUNDS)));
    Some((pool.threads() * body.products * ROUNDS) as f64 / best)
}

/// The seconds of a pass of all threads.
fn seconds(pool: &ThreadPool, pass: &(dyn Fn(usize) + Sync)) -> f64 {
    let begun = Instant::now();
    pool.run(pass);
    begun.elapsed().as_secs_f64()
}

/// The seconds of the fastest pass of those that begin within `time`, at least one.
fn best_of(time: Duration, mut pass: impl FnMut() -> f64) -> f64 {
    let (started, mut best) = (Instant::now(), f64::INFINITY);
    while best.is_infinite() || started.elapsed() < time {
        best = best.min(pass());
    }
    best
}

/// Words that are added side by side: enough independent sums for any vector width, few enough for the
/// registers of every processor.
const SUMS: usize = 16;

/// Words of a cache line.
const LINE: usize = 64 / size_of::<u64>();

/// Cache lines that are asked for at a time.
const LINES: usize = 8;

/// How far ahead of the sums memory is asked for, in words: further than processors look ahead by
/// themselves, as the products do that are held against this.
const AHEAD: usize = 2048 / size_of::<u64>();

/// The sum of all words, of which as many parts as there are streams are read side by side.
fn sum(words: &[u64], streams: usize) -> u64 {
    let mut sums = [0u64; SUMS];
    let groups = words.as_chunks::<{ LINES * LINE }>().0;
    let each = groups.len() / streams;
    for i in 0..each {
        for lines in groups[i..].iter().step_by(each).take(streams) {
            for at in (0..lines.len()).step_by(LINE) {
                prefetch(lines.as_ptr().wrapping_add(AHEAD + at));
            }
            for words in lines.as_chunks::<SUMS>().0 {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum = sum.wrapping_add(*word);
                }
            }
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_once_whatever_the_streams() {
        let words: Vec<u64> = (0..8 * 3 * (LINES * LINE) as u64).collect();
        for streams in STREAMS {
            assert_eq!(sum(&words, streams), words.iter().sum(), "{streams}");
        }
    }

    #[test]
    fn products_are_counted_where_there_are_instructions_for_them() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            match int8_products(&pool, Duration::ZERO) {
                // Not even an emulated processor adds up as few, and none as many.
                Some(rate) => assert!((1e6..1e15).contains(&rate), "{threads} {rate}"),
                None => assert!(products::Loop::detect().is_none()),
            }
        }
    }

    #[test]
    fn any_size_is_read() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for bytes in [0, 1, 4096, 1 << 20] {
                let rate = read_bandwidth(&pool, bytes, Duration::ZERO).bytes_per_second;
                assert!(rate.is_finite() && rate > 0.0, "{threads} {bytes} {rate}");
            }
        }
    }
}
