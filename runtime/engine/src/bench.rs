//! Measuring speed: prompt processing (`pp`) and generation (`tg`), as the field's tools do.
//!
//! Token ids are random but always the same; sampling is not part of the measured time. Each
//! measurement is repeated after a warm-up, and mean and sample standard deviation are of the
//! repetitions.

use std::time::Instant;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use ruvllm_abi::team::TeamOp;
use serde::Serialize;

use crate::adapter::Adapter;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::{Session, SessionOptions};

/// What to measure: `n_prompt` tokens at once, then `n_gen` tokens one by one, `reps` times, each
/// after `n_depth` tokens that are there already; all of it in each of `n_parallel` sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchOptions {
    /// Tokens of the prompt; 0 leaves it out.
    pub n_prompt: usize,
    /// Tokens generated; 0 leaves it out.
    pub n_gen: usize,
    /// Tokens in the cache before; computing them is not measured.
    pub n_depth: usize,
    /// Sequences that are computed together, each decoding step holding a token of every one.
    pub n_parallel: usize,
    /// Repetitions.
    pub reps: usize,
    /// Whether to compute once before measuring.
    pub warmup: bool,
}

/// A measurement, under the field names that the reference tool's JSON has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRow {
    /// Name of the model.
    pub model_name: String,
    /// Family and element type, such as `llama q8_0`.
    pub model_type: String,
    /// Bytes of the weights.
    pub model_size: usize,
    /// Number of weights.
    pub model_n_params: usize,
    /// Tokens of a prompt that are computed at once.
    pub n_batch: usize,
    /// Threads.
    pub n_threads: usize,
    /// Element type of cached keys.
    pub type_k: String,
    /// Element type of cached values.
    pub type_v: String,
    /// Tokens of the prompt, of each sequence.
    pub n_prompt: usize,
    /// Tokens generated, in each sequence.
    pub n_gen: usize,
    /// Tokens that were in the cache before.
    pub n_depth: usize,
    /// Sequences that were computed together.
    pub n_parallel: usize,
    /// Mean time of a repetition in nanoseconds.
    pub avg_ns: u64,
    /// Its standard deviation.
    pub stddev_ns: u64,
    /// Mean tokens per second, of all sequences together.
    pub avg_ts: f64,
    /// Their standard deviation.
    pub stddev_ts: f64,
    /// Time of each repetition in nanoseconds.
    pub samples_ns: Vec<u64>,
    /// Tokens per second of each repetition.
    pub samples_ts: Vec<f64>,
    /// Time in the kernels that the registry selects, and in quantising what they give to matrix
    /// products, in all repetitions and on all threads, without team operations such as these products: of calls that
    /// move less than 4 KiB an estimate from every 64th, of all others as measured.
    pub kernel_ns: u64,
}

impl BenchRow {
    /// The test's usual name: `pp512`, `tg128`, or both, `x8` where there were several sequences,
    /// and `@ d4096` where there was a depth.
    pub fn test(&self) -> String {
        let mut test = match (self.n_prompt, self.n_gen) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, generated) => format!("tg{generated}"),
            (prompt, generated) => format!("pp{prompt}+tg{generated}"),
        };
        if self.n_parallel > 1 {
            test += &format!(" x{}", self.n_parallel);
        }
        if self.n_depth > 0 {
            test += &format!(" @ d{}", self.n_depth);
        }
        test
    }
}

/// Measures one row, of sequences with an adapter or without. A row that has both parts times them
/// together.
///
/// # Errors
/// [`EngineError::InvalidOption`], [`EngineError::PromptTooLong`] where the engine's context does
/// not hold the tokens, and what computing can give.
pub fn bench(
    engine: &Engine,
    adapter: Option<&Adapter>,
    options: &BenchOptions,
) -> Result<BenchRow, EngineError> {
    let BenchOptions { n_prompt, n_gen, n_depth, n_parallel, reps, warmup } = *options;
    for (option, value) in [("n", n_prompt + n_gen), ("parallel", n_parallel), ("reps", reps)] {
        if value == 0 {
            let reason = "there is nothing to measure";
            return Err(EngineError::InvalidOption { option, value: value.to_string(), reason });
        }
    }
    let length = n_depth + n_prompt + n_gen;
    let tokens = random_tokens(engine.model().vocab(), n_parallel * length);
    // What is measured must not be found in the prefix cache.
    let session =
        SessionOptions { scope: None, adapter: adapter.cloned(), ..SessionOptions::default() };
    let mut sequences = Vec::with_capacity(n_parallel);
    for tokens in tokens.chunks_exact(length) {
        let (depth, tokens) = tokens.split_at(n_depth);
        let (prompt, generated) = tokens.split_at(n_prompt);
        let mut session = engine.session_with(&session);
        if !depth.is_empty() {
            session.prefill(depth)?;
        }
        sequences.push(Sequence { depth: session.fork(), session, prompt, generated });
    }
    if warmup {
        run(engine, &mut sequences, n_gen.min(1))?;
    }
    let (mut samples_ns, mut kernel_ns) = (Vec::with_capacity(reps), 0);
    let in_kernels = || -> u64 {
        let stats = engine.host().stats();
        let of_kernels = stats.iter().filter(|of| TeamOp::from_name(&of.op.op).is_none());
        of_kernels.map(|of| of.nanos).sum()
    };
    for _ in 0..reps {
        let before = in_kernels();
        let start = Instant::now();
        run(engine, &mut sequences, n_gen)?;
        samples_ns.push(start.elapsed().as_nanos().min(u64::MAX.into()) as u64);
        kernel_ns += in_kernels() - before;
    }
    let computed = (n_parallel * (n_prompt + n_gen)) as f64;
    let times: Vec<f64> = samples_ns.iter().map(|&ns| ns as f64).collect();
    let samples_ts: Vec<f64> = times.iter().map(|ns| computed * 1e9 / ns).collect();
    let (avg_ns, stddev_ns) = mean_and_deviation(&times);
    let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
    let (model, kv) = (engine.model(), &engine.config().kv);
    Ok(BenchRow {
        model_name: model.name().to_owned(),
        model_type: format!("{} {}", model.config().architecture, model.weight_type()),
        model_size: model.size_bytes(),
        model_n_params: model.parameters(),
        n_batch: engine.config().batch,
        n_threads: engine.config().threads,
        type_k: kv.keys.to_string(),
        type_v: kv.values.to_string(),
        n_prompt,
        n_gen,
        n_depth,
        n_parallel,
        avg_ns: avg_ns as u64,
        stddev_ns: stddev_ns as u64,
        avg_ts,
        stddev_ts,
        samples_ns,
        samples_ts,
        kernel_ns,
    })
}

/// A sequence to measure with.
struct Sequence<'a> {
    /// What comes before each measurement. Its blocks do not age with what is measured.
    depth: Session,
    session: Session,
    prompt: &'a [u32],
    generated: &'a [u32],
}

/// Computes, after what comes before, the prompts and then `n_gen` tokens of each sequence.
fn run(engine: &Engine, sequences: &mut [Sequence<'_>], n_gen: usize) -> Result<(), EngineError> {
    for Sequence { depth, session, prompt, .. } in sequences.iter_mut() {
        *session = depth.fork();
        if !prompt.is_empty() {
            session.prefill(prompt)?;
        }
    }
    for i in 0..n_gen {
        if let [Sequence { session, generated, .. }] = &mut *sequences {
            session.decode(generated[i])?;
        } else {
            engine.decode_batch(sequences.iter_mut().map(|s| (&mut s.session, s.generated[i])))?;
        }
    }
    Ok(())
}

fn random_tokens(vocab: usize, n: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    (0..n).map(|_| (rng.next_u64() % vocab.max(1) as u64) as u32).collect()
}

/// Mean and sample standard deviation; one sample has deviation 0.
pub fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n.max(1.0);
    let squares: f64 = samples.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0, 6.0]), (4.0, 2.0));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
    }

    #[test]
    fn the_tokens_are_the_same_each_time_and_in_the_vocabulary() {
        assert_eq!(random_tokens(100, 50), random_tokens(100, 50));
        assert!(random_tokens(100, 50).iter().all(|&t| t < 100));
    }
}
