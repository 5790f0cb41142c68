//! `ruvllm doctor`: what this machine is, which code runs on it, and what it could do.

use super::args::{DoctorArgs, KernelOptions};
use super::terminal::{self, say};
use super::{Ended, Failure, setup};
use ruvllm::host::{DeviceClass, Host, InstallReport};
use ruvllm_abi::DType;
use ruvllm_native::gemm::{self, Method, ReadRates};
use ruvllm_native::{Isa, ThreadPool, pool, probe};
use serde::Serialize;
use std::fmt;
use std::time::{Duration, Instant};

/// How long each measurement takes.
const PROBE_TIME: Duration = Duration::from_millis(400);

/// Rows of activations of a long prompt.
const PROMPT_ROWS: usize = 512;

#[derive(Serialize)]
struct Diagnosis {
    processor: String,
    architecture: &'static str,
    logical_processors: usize,
    threads: usize,
    device_class: DeviceClass,
    /// What the device class decides.
    class_values: Vec<ClassValue>,
    instructions: &'static str,
    /// What `--isa` takes here.
    available: Vec<&'static str>,
    features: Vec<Feature>,
    weights: Vec<WeightPaths>,
    memory: Vec<Bandwidth>,
    reading: Vec<Reading>,
    /// Empty where the processor has no instruction for them.
    int8_products: Vec<Products>,
    sandbox: Sandbox,
}

#[derive(Serialize)]
struct Feature {
    name: &'static str,
    present: bool,
}

#[derive(Serialize)]
struct ClassValue {
    name: &'static str,
    value: String,
}

/// How weights of a type are multiplied.
#[derive(Serialize)]
struct WeightPaths {
    weights: String,
    decode: String,
    prompt: String,
}

#[derive(Serialize)]
struct Bandwidth {
    threads: usize,
    gb_per_second: f64,
    /// The places that each thread read from in turn: of 1, 2, 4 and 8 the fastest.
    streams: usize,
}

/// How fast products with one row of activations read packed weights by a pattern.
#[derive(Serialize)]
struct Reading {
    threads: usize,
    weights: String,
    pattern: &'static str,
    gb_per_second: f64,
    chosen: bool,
}

/// What bounds prompts and batches.
#[derive(Serialize)]
struct Products {
    threads: usize,
    giga_per_second: f64,
}

#[derive(Serialize)]
struct Sandbox {
    kernels_selected: usize,
    kernels_native: usize,
    ready_ms: f64,
    packs: Vec<InstallReport>,
}

pub(crate) fn main(args: &DoctorArgs) -> Result<Ended, Failure> {
    let started = Instant::now();
    let set = setup::kernel_set(&args.kernels)?.build()?;
    let ready_ms = started.elapsed().as_secs_f64() * 1e3;
    let config = set.host().config();
    let threads = args.threads.map(usize::from).or(config.threads);
    let threads = threads.unwrap_or_else(pool::default_threads);
    let isa = args.kernels.isa.unwrap_or_else(Isa::detect);
    let diagnosis = Diagnosis {
        processor: probe::processor(),
        architecture: std::env::consts::ARCH,
        logical_processors: std::thread::available_parallelism().map_or(1, usize::from),
        threads,
        device_class: config.device_class,
        class_values: config
            .class_values()
            .into_iter()
            .map(|(name, value)| ClassValue { name, value })
            .collect(),
        instructions: isa.name(),
        available: Isa::available().iter().map(|isa| isa.name()).collect(),
        features: Isa::features()
            .into_iter()
            .map(|(name, present)| Feature { name, present })
            .collect(),
        weights: gemm::weight_types().map(|dtype| paths(dtype, isa, &args.kernels)).collect(),
        memory: memory(threads),
        reading: reading(threads, isa),
        int8_products: products(threads),
        sandbox: sandbox(set.host(), set.installed(), ready_ms),
    };
    if args.json {
        terminal::json(&diagnosis, true)?;
    } else {
        say!("{}", diagnosis.to_string().trim_end());
    }
    Ok(Ended::Done)
}

fn paths(dtype: DType, isa: Isa, options: &KernelOptions) -> WeightPaths {
    let named = |rows| {
        gemm::method(dtype, isa, rows, options.bf16, !options.no_repack).map_or_else(
            || "not multiplied with".to_owned(),
            |Method { instructions, arithmetic, layout }| {
                format!("{instructions}, {arithmetic}, {layout}")
            },
        )
    };
    WeightPaths { weights: dtype.to_string(), decode: named(1), prompt: named(PROMPT_ROWS) }
}

/// What one thread reads of the memory, and what all do.
fn memory(threads: usize) -> Vec<Bandwidth> {
    let measure = |pool: ThreadPool| {
        let rate = probe::read_bandwidth(&pool, probe::STREAM_BYTES, PROBE_TIME);
        Bandwidth {
            threads: pool.threads(),
            gb_per_second: rate.bytes_per_second / 1e9,
            streams: rate.streams,
        }
    };
    one_and_all(threads).map(measure).collect()
}

/// What all threads read of weights of 4 and of 8 bits by each pattern; nothing where products read no packed weights or
/// there is no memory to measure it.
fn reading(threads: usize, isa: Isa) -> Vec<Reading> {
    let pool = ThreadPool::new(threads);
    let mut readings = Vec::new();
    for dtype in [DType::Q4_0, DType::Q8_0] {
        let Ok(rates) = ReadRates::uniform(&pool, isa, dtype) else { continue };
        let best = rates.best();
        readings.extend(rates.iter().map(|(pattern, rate)| Reading {
            threads,
            weights: dtype.to_string(),
            pattern: pattern.name(),
            gb_per_second: rate / 1e9,
            chosen: pattern == best,
        }));
    }
    readings
}

/// What one thread computes, and what all do.
fn products(threads: usize) -> Vec<Products> {
    let measure = |pool: ThreadPool| {
        let rate = probe::int8_products(&pool, PROBE_TIME)?;
        Some(Products { threads: pool.threads(), giga_per_second: rate / 1e9 })
    };
    one_and_all(threads).filter_map(measure).collect()
}

/// A pool of one thread and, where there are more, one of all.
fn one_and_all(threads: usize) -> impl Iterator<Item = ThreadPool> {
    let mut counts = vec![1, threads];
    counts.dedup();
    counts.into_iter().map(ThreadPool::new)
}

fn sandbox(host: &Host, packs: &[InstallReport], ready_ms: f64) -> Sandbox {
    // Products and attention have their paths below.
    let selected =
        host.kernels().into_iter().filter(|kernel| kernel.selected && !kernel.op.is_team());
    let (native, sandboxed): (Vec<_>, Vec<_>) =
        selected.partition(|kernel| kernel.executor == "native");
    Sandbox {
        kernels_selected: sandboxed.len(),
        kernels_native: native.len(),
        ready_ms,
        packs: packs.to_vec(),
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processor     {} ({})", self.processor, self.architecture)?;
        writeln!(
            f,
            "threads       {} used, {} logical processors",
            self.threads, self.logical_processors
        )?;
        writeln!(f, "device class  {}", self.device_class)?;
        for ClassValue { name, value } in &self.class_values {
            writeln!(f, "  {name:<19} {value}")?;
        }
        let named = |present| {
            let of = self.features.iter().filter(move |feature| feature.present == present);
            of.map(|feature| feature.name).collect::<Vec<_>>().join(" ")
        };
        writeln!(f, "instructions  {}: {}", self.instructions, named(true))?;
        if !named(false).is_empty() {
            writeln!(f, "missing here  {}", named(false))?;
        }
        writeln!(f, "--isa         {}", self.available.join(" "))?;
        for (i, Bandwidth { threads, gb_per_second, streams }) in self.memory.iter().enumerate() {
            let label = if i == 0 { "memory reads" } else { "" };
            let by = format!("{threads} thread(s), {streams} stream(s) each");
            writeln!(f, "{label:<13} {gb_per_second:.1} GB/s with {by}")?;
        }
        for (i, reading) in self.reading.iter().enumerate() {
            let Reading { weights, pattern, gb_per_second, chosen, .. } = reading;
            let label = if i == 0 { "read pattern" } else { "" };
            let mark = if *chosen { ", the fastest" } else { "" };
            writeln!(f, "{label:<13} {weights} {pattern:<6} {gb_per_second:.1} GB/s{mark}")?;
        }
        for (i, Products { threads, giga_per_second }) in self.int8_products.iter().enumerate() {
            let label = if i == 0 { "8-bit maths" } else { "" };
            writeln!(f, "{label:<13} {giga_per_second:.0} G products/s with {threads} thread(s)")?;
        }
        let Sandbox { kernels_selected, kernels_native, ready_ms, packs } = &self.sandbox;
        writeln!(
            f,
            "sandbox       {kernels_selected} kernels selected, {kernels_native} native twins, \
             ready in {ready_ms:.1} ms"
        )?;
        for pack in packs {
            let InstallReport { pack: name, version, cache, .. } = pack;
            let kept = match &cache.unusable {
                Some(why) => format!("compiled code is not kept: {why}"),
                None => format!("{} of {} from cache", cache.hits, cache.hits + cache.misses),
            };
            writeln!(f, "              {name} {version}, {kept}")?;
        }
        writeln!(f, "{:<13} {:<34} prompts", "weights", "decoding")?;
        for WeightPaths { weights, decode, prompt } in &self.weights {
            writeln!(f, "  {weights:<11} {decode:<34} {prompt}")?;
        }
        Ok(())
    }
}
