//! The engines in turn, round after round.

use crate::machine::{self, Machine};
use crate::model::ModelFile;
use crate::protocol::{COMMAND, Engine, Reply, Request, Sample, Task, Test};
use crate::table::Report;
use crate::{Failure, Options};
use ruvllm_native::{Isa, pool};
use serde::Serialize;
use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tokens of the prompt whose first token is waited for.
pub(crate) const FIRST_PROMPT: usize = 16;

/// A model by the name that tables give it.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) file: Result<ModelFile, String>,
}

/// All that was measured, in the order in which it was.
#[derive(Default, Serialize)]
pub(crate) struct Results {
    pub(crate) speed: Vec<Speed>,
    pub(crate) first_token: Vec<FirstToken>,
    /// Seconds from the start of `ruvllm run` to its first text.
    pub(crate) first_text: Vec<f64>,
}

/// One test of one engine in one round.
#[derive(Serialize)]
pub(crate) struct Speed {
    round: u16,
    pub(crate) model: String,
    pub(crate) depth: usize,
    pub(crate) engine: Engine,
    pub(crate) test: Test,
    pub(crate) result: Result<Sample, String>,
}

/// One start of one engine.
#[derive(Serialize)]
pub(crate) struct FirstToken {
    round: u16,
    pub(crate) model: String,
    pub(crate) engine: Engine,
    pub(crate) result: Result<Started, String>,
}

/// How a start went.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Started {
    /// From the start of the process to the first token.
    pub(crate) seconds: f64,
    /// The most memory that the process held at once, in bytes.
    pub(crate) peak_memory: Option<u64>,
}

/// Measures everything that `options` ask for and prints the tables.
pub(crate) fn main(options: &Options) -> Result<(), Failure> {
    let isa = instructions(options)?;
    let threads = options.threads.map_or_else(pool::default_threads, usize::from);
    let subjects: Vec<Subject> = options.model.iter().map(|path| subject(path)).collect();
    let tests = tests(options);
    let mut results = Results::default();
    let turns = Turns { options, threads, isa, tests: &tests };
    for round in 0..options.rounds {
        eprintln!("round {} of {}", round + 1, options.rounds);
        for subject in &subjects {
            for &depth in &options.depth {
                turns.speed(round, subject, depth, &mut results);
            }
            turns.first_token(round, subject, &mut results);
        }
        if let Some(program) = &options.ruvllm {
            if round == 0 {
                // It leaves its compiled kernels where the next ones find them.
                first_text(program)?;
            }
            results.first_text.push(first_text(program)?);
        }
    }
    let machine = Machine::new(threads, isa);
    print!(
        "{}",
        Report { options, machine: &machine, subjects: &subjects, tests, results: &results }
    );
    if let Some(path) = &options.json {
        let all = serde_json::json!({ "machine": machine, "options": options, "results": results });
        let named = |error| format!("{}: {error}", path.display());
        let file = BufWriter::new(File::create(path).map_err(named)?);
        serde_json::to_writer_pretty(file, &all)?;
    }
    Ok(())
}

/// What ruvllm keeps to, which llama.cpp was built for where it runs.
fn instructions(options: &Options) -> Result<Isa, Failure> {
    let isa = match &options.isa {
        None => Isa::detect(),
        Some(name) => Isa::named(name).filter(|isa| isa.is_available()).ok_or_else(|| {
            format!("this processor has not got {name}; `ruvllm doctor` lists what it has")
        })?,
    };
    if options.engines.contains(&Engine::LlamaCpp) {
        machine::same_instructions(isa)?;
    }
    Ok(isa)
}

fn subject(path: &Path) -> Subject {
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Subject { name, file: ModelFile::read(path) }
}

fn tests(options: &Options) -> Vec<Test> {
    let prompt = Test::Prompt { tokens: options.prompt };
    let generate = options
        .batch
        .iter()
        .map(|&batch| Test::Generate { steps: options.generate, batch: batch.into() });
    std::iter::once(prompt).chain(generate).filter(|test| test.tokens() > 0).collect()
}

/// What the rounds have in common.
struct Turns<'a> {
    options: &'a Options,
    threads: usize,
    isa: Isa,
    tests: &'a [Test],
}

impl Turns<'_> {
    /// Every engine's tests at one depth.
    fn speed(&self, round: u16, subject: &Subject, depth: usize, results: &mut Results) {
        if self.tests.is_empty() {
            return;
        }
        for engine in self.engines(round) {
            // What failed as a whole fails again; the first reason is enough.
            let earlier = results.speed.iter().filter(|s| s.round < round);
            let mut earlier = earlier
                .filter(|s| s.model == subject.name && s.engine == engine && s.depth == depth)
                .peekable();
            if earlier.peek().is_some() && earlier.all(|s| s.result.is_err()) {
                continue;
            }
            let task = Task::Speed { depth, tests: self.tests.to_vec() };
            let outcomes = match self.ask(engine, subject, task) {
                Ok((Reply::Speed(outcomes), _)) => outcomes,
                Ok((reply, _)) => vec![Err(reason(reply)); self.tests.len()],
                Err(error) => vec![Err(error); self.tests.len()],
            };
            for (&test, result) in self.tests.iter().zip(outcomes) {
                eprintln!("  {} {}", subject.name, line(engine, depth, test, &result));
                let model = subject.name.clone();
                results.speed.push(Speed { round, model, depth, engine, test, result });
            }
        }
    }

    /// Every engine's first token.
    fn first_token(&self, round: u16, subject: &Subject, results: &mut Results) {
        for engine in self.engines(round).filter(|engine| !engine.is_twin()) {
            let task = Task::FirstToken { prompt: FIRST_PROMPT };
            let result = match self.ask(engine, subject, task) {
                Ok((Reply::FirstToken { peak_memory }, elapsed)) => {
                    Ok(Started { seconds: elapsed.as_secs_f64(), peak_memory })
                }
                Ok((reply, _)) => Err(reason(reply)),
                Err(error) => Err(error),
            };
            let model = subject.name.clone();
            results.first_token.push(FirstToken { round, model, engine, result });
        }
    }

    /// The engines in the order of a round.
    fn engines(&self, round: u16) -> impl Iterator<Item = Engine> + use<> {
        let mut engines = self.options.engines.clone();
        if !round.is_multiple_of(2) {
            engines.reverse();
        }
        engines.into_iter()
    }

    /// Starts a child and waits for its reply, whose time is counted from the child's start.
    fn ask(
        &self,
        engine: Engine,
        subject: &Subject,
        task: Task,
    ) -> Result<(Reply, Duration), String> {
        let file = subject.file.as_ref().map_err(String::clone)?;
        let request = Request {
            engine,
            model: file.path.clone(),
            vocab: file.vocab,
            threads: self.threads,
            isa: self.isa.name().to_owned(),
            kv: self.options.kv,
            task,
        };
        run_child(&request).map_err(|error| error.to_string())
    }
}

fn run_child(request: &Request) -> Result<(Reply, Duration), Failure> {
    let mut command = Command::new(env::current_exe()?);
    command
        .arg(COMMAND)
        .arg(serde_json::to_string(request)?)
        // candle takes the number of its threads from here.
        .env("RAYON_NUM_THREADS", request.threads.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let started = Instant::now();
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let elapsed = started.elapsed();
    let status = child.wait()?;
    if line.is_empty() {
        return Err(format!("its process ended with {status}").into());
    }
    Ok((serde_json::from_str(&line)?, elapsed))
}

fn reason(reply: Reply) -> String {
    match reply {
        Reply::Failed(reason) => reason,
        Reply::Speed(_) | Reply::FirstToken { .. } => "it answered another question".to_owned(),
    }
}

fn line(engine: Engine, depth: usize, test: Test, result: &Result<Sample, String>) -> String {
    let outcome = match result {
        Ok(sample) => format!("{:.1} tokens/s", test.tokens() as f64 / sample.seconds),
        Err(error) => format!("not supported: {error}"),
    };
    format!("{} @ d{depth}, {}: {outcome}", test.name(), engine.name())
}

/// Seconds from the start of `ruvllm run` to the first byte of its text.
fn first_text(program: &Path) -> Result<f64, Failure> {
    let named = |error| format!("{}: {error}", program.display());
    let mut command = Command::new(program);
    command.args(["run", "--tokens", "16", "--ignore-eos", "--seed", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn().map_err(named)?;
    let mut text = Vec::new();
    let mut elapsed = None;
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_exact(&mut [0]).map_err(named)?;
        elapsed = Some(started.elapsed().as_secs_f64());
        stdout.read_to_end(&mut text)?;
    }
    let status = child.wait()?;
    elapsed
        .filter(|_| status.success())
        .ok_or_else(|| format!("{} run ended with {status}", program.display()).into())
}
