//! One measurement, in a process of its own.

use crate::Failure;
use crate::peer::{self, Peer};
use crate::protocol::{Reply, Request, Sample, Task, Test};
use ruvllm_native::{ThreadPool, probe};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Steps of generation before those that are measured.
const WARM_UP: usize = 4;

/// How long each reading of the memory takes.
const PROBE_TIME: Duration = Duration::from_millis(300);

/// After which threads that spin for work, of whichever engine, have gone to sleep.
const QUIET: Duration = Duration::from_millis(50);

/// Measures what `request` asks for and writes the reply.
pub(crate) fn main(request: &str) -> Result<(), Failure> {
    let request: Request = serde_json::from_str(request)?;
    let mut peer = load(&request);
    let reply = match &mut peer {
        Ok(peer) => measure(peer.as_mut(), &request),
        Err(error) => Ok(Reply::Failed(error.to_string())),
    };
    let reply = reply.unwrap_or_else(|error| Reply::Failed(error.to_string()));
    println!("{}", serde_json::to_string(&reply)?);
    // Only then is the model taken down, for which nobody waits.
    drop(peer);
    Ok(())
}

fn load(request: &Request) -> Result<Box<dyn Peer>, Failure> {
    // Not every engine says which file is missing.
    fs::File::open(&request.model)
        .map_err(|error| format!("{}: {error}", request.model.display()))?;
    peer::load(request)
}

fn measure(peer: &mut dyn Peer, request: &Request) -> Result<Reply, Failure> {
    match &request.task {
        Task::Speed { depth, tests } => {
            let mut bench = PeerSession::new(peer, request, *depth, tests);
            Ok(Reply::Speed(
                tests.iter().map(|&test| bench.run(test).map_err(|e| e.to_string())).collect(),
            ))
        }
        Task::FirstToken { prompt } => {
            peer.open(1, *prompt)?;
            peer.prefill(&tokens(*prompt, request.vocab))?;
            Ok(Reply::FirstToken { peak_memory: peak_memory() })
        }
    }
}

/// An engine, and the sequences that it has open.
struct PeerSession<'a> {
    peer: &'a mut dyn Peer,
    threads: usize,
    depth: usize,
    /// Tokens that the longest test has in a sequence.
    context: usize,
    /// As many as the longest test needs.
    tokens: Vec<u32>,
    /// How many sequences are open, all with `depth` tokens and perhaps more.
    open: Option<usize>,
}

impl<'a> PeerSession<'a> {
    fn new(
        peer: &'a mut dyn Peer,
        request: &Request,
        depth: usize,
        tests: &[Test],
    ) -> PeerSession<'a> {
        let longest = tests.iter().map(|test| match *test {
            Test::Prompt { tokens } => tokens,
            Test::Generate { steps, .. } => steps.max(WARM_UP),
        });
        let context = depth + longest.max().unwrap_or(0);
        let tokens = tokens(context, request.vocab);
        PeerSession { peer, threads: request.threads, depth, context, tokens, open: None }
    }

    fn run(&mut self, test: Test) -> Result<Sample, Failure> {
        match test {
            Test::Prompt { tokens } => {
                self.open(1)?;
                // As long as the one that counts: buffers grow to its size.
                self.prompt(tokens)?;
                self.peer.truncate(self.depth)?;
                thread::sleep(QUIET);
                let kernels = self.peer.in_kernels();
                let seconds = self.prompt(tokens)?;
                let in_kernels = self.part_in_kernels(kernels, seconds, self.threads);
                Ok(Sample { seconds, memory: None, in_kernels })
            }
            Test::Generate { steps, batch } => {
                self.open(batch)?;
                self.generate(WARM_UP)?;
                self.peer.truncate(self.depth)?;
                let before = self.memory();
                let kernels = self.peer.in_kernels();
                let seconds = self.generate(steps)?;
                // Those of one token run on one thread.
                let threads = if batch > 1 { self.threads } else { 1 };
                let in_kernels = self.part_in_kernels(kernels, seconds, threads);
                Ok(Sample { seconds, memory: Some([before, self.memory()]), in_kernels })
            }
        }
    }

    /// Sees to `sequences` sequences with `depth` tokens each.
    fn open(&mut self, sequences: usize) -> Result<(), Failure> {
        if self.open == Some(sequences) {
            return self.peer.truncate(self.depth);
        }
        self.open = None;
        self.peer.open(sequences, self.context)?;
        if self.depth > 0 {
            self.peer.prefill(&self.tokens[..self.depth])?;
        }
        self.open = Some(sequences);
        Ok(())
    }

    fn prompt(&mut self, tokens: usize) -> Result<f64, Failure> {
        let started = Instant::now();
        self.peer.prefill(&self.tokens[self.depth..][..tokens])?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn generate(&mut self, steps: usize) -> Result<f64, Failure> {
        let started = Instant::now();
        for &token in &self.tokens[self.depth..][..steps] {
            self.peer.decode(token)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }

    /// The part of `seconds` of so many threads that went into pack kernels since `before`.
    fn part_in_kernels(&self, before: Option<f64>, seconds: f64, threads: usize) -> Option<f64> {
        Some((self.peer.in_kernels()? - before?) / (seconds * threads as f64))
    }

    fn memory(&self) -> f64 {
        thread::sleep(QUIET);
        probe::read_bandwidth(&ThreadPool::new(self.threads), probe::STREAM_BYTES, PROBE_TIME)
            .bytes_per_second
    }
}

/// `n` token ids below `vocab`, always the same.
fn tokens(n: usize, vocab: u32) -> Vec<u32> {
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((state >> 32) * u64::from(vocab)) >> 32) as u32
    };
    (0..n).map(|_| next()).collect()
}

/// The most memory that this process held at once, mapped files among it, in bytes.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_below_the_vocabulary() {
        let ids = tokens(1000, 7);
        assert!(ids.iter().all(|&id| id < 7));
        assert!((0..7).all(|id| ids.contains(&id)));
    }
}
