//! One measurement, in a process of its own.

use crate::Failure;
use crate::peer::{self, Peer};
use crate::protocol::{Reply, Request, Sample, Task, Test};
use ruvllm_native::ThreadPool;
use ruvllm_native::probe::{self, ReadProbe, STREAMS};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Steps of generation before those that are measured.
const WARM_UP: usize = 4;

/// Steps of generation that are measured at a time: between them the memory is.
const STEPS_IN_TURN: usize = 4;

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
            // Each turn begins with a step that is not measured.
            Test::Generate { steps, .. } => (steps + steps.div_ceil(STEPS_IN_TURN)).max(WARM_UP),
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
                let (seconds, kernels) = self.measured(|session| session.prompt(tokens))?;
                let in_kernels = kernels.map(|kernels| kernels / (seconds * self.threads as f64));
                Ok(Sample { seconds, memory: None, in_kernels })
            }
            Test::Generate { steps, batch } => {
                self.open(batch)?;
                self.generate(0, WARM_UP)?;
                self.peer.truncate(self.depth)?;
                // Those of one token run on one thread.
                let threads = if batch > 1 { self.threads } else { 1 };
                self.in_turns(steps, threads)
            }
        }
    }

    /// Measures `steps` steps of generation, a few at a time, and what the memory gives in between.
    fn in_turns(&mut self, steps: usize, threads: usize) -> Result<Sample, Failure> {
        let mut memory = Memory::new(self.threads)?;
        let (mut seconds, mut kernels, mut at) = (0.0, Some(0.0), 0);
        for from in (0..steps).step_by(STEPS_IN_TURN) {
            let count = STEPS_IN_TURN.min(steps - from);
            // Wakes the threads, and the caches are as after any other step.
            self.generate(at, 1)?;
            let (turn, in_kernels) = self.measured(|session| session.generate(at + 1, count))?;
            seconds += turn;
            kernels = kernels.zip(in_kernels).map(|(all, turn)| all + turn);
            at += 1 + count;
            thread::sleep(QUIET);
            memory.turn();
        }
        let in_kernels = kernels.map(|kernels| kernels / (seconds * threads as f64));
        Ok(Sample { seconds, memory: Some(memory.bytes_per_second()), in_kernels })
    }

    /// The seconds that `work` says it took, and those that went into pack kernels meanwhile.
    fn measured(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<f64, Failure>,
    ) -> Result<(f64, Option<f64>), Failure> {
        let before = self.peer.in_kernels();
        let seconds = work(self)?;
        let after = self.peer.in_kernels();
        Ok((seconds, before.zip(after).map(|(before, after)| after - before)))
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

    /// `steps` steps, of which the first is the step `from` after the depth; their seconds.
    fn generate(&mut self, from: usize, steps: usize) -> Result<f64, Failure> {
        let started = Instant::now();
        for &token in &self.tokens[self.depth + from..][..steps] {
            self.peer.decode(token)?;
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// What the memory gives between steps, with the threads of a step.
struct Memory {
    pool: ThreadPool,
    probe: ReadProbe,
    turns: usize,
    /// Of all passes so far with each number of streams.
    seconds: [f64; STREAMS.len()],
}

impl Memory {
    fn new(threads: usize) -> Result<Memory, Failure> {
        let pool = ThreadPool::new(threads);
        let probe = ReadProbe::new(&pool, probe::STREAM_BYTES)
            .ok_or("there is no memory for the buffer that the memory is measured with")?;
        Ok(Memory { pool, probe, turns: 0, seconds: [0.0; STREAMS.len()] })
    }

    /// One pass with each number of streams.
    fn turn(&mut self) {
        // Wakes the threads.
        self.probe.pass(&self.pool, STREAMS[0]);
        self.turns += 1;
        for (seconds, streams) in self.seconds.iter_mut().zip(STREAMS) {
            *seconds += self.probe.pass(&self.pool, streams);
        }
    }

    /// With the number of streams that took the least time in all.
    fn bytes_per_second(&self) -> f64 {
        let least = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        (self.turns * self.probe.bytes()) as f64 / least
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
