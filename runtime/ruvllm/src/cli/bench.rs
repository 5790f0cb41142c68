//! `ruvllm bench`: prompt processing and generation in tokens per second.

use super::args::{BenchArgs, TableFormat};
use super::terminal::{self, say};
use super::{Ended, Failure, setup};
use ruvllm::Runtime;
use ruvllm::engine::{BenchOptions, BenchRow, bench};
use ruvllm::signing::Timestamp;
use ruvllm_native::probe;
use serde::Serialize;
use std::time::SystemTime;

/// A measurement, under the field names of llama-bench where it has them.
#[derive(Serialize)]
struct Row {
    build_commit: &'static str,
    build_number: u32,
    cpu_info: String,
    backends: &'static str,
    model_filename: String,
    /// The adapter's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<String>,
    #[serde(flatten)]
    measured: BenchRow,
    n_ubatch: usize,
    test_time: String,
    /// Whether signed kernels or their native twins ran.
    kernels: &'static str,
    /// The native kernels' instruction set.
    isa: &'static str,
    /// The part of the time that was spent in the kernels that the registry selects, from 0 to 1.
    kernel_share: f64,
}

pub(crate) fn main(args: &BenchArgs) -> Result<Ended, Failure> {
    let mut options = args.model.clone();
    let tokens = args.n_depth.saturating_add(args.n_prompt.max(args.n_gen));
    options.ctx = Some(options.ctx.unwrap_or(tokens));
    let runtime = setup::runtime(&options)?;
    let prompt = Test { n_prompt: args.n_prompt, n_gen: 0, n_parallel: 1 };
    let generation = args.parallel.iter().map(|&n| usize::from(n));
    let generation =
        generation.map(|n_parallel| Test { n_prompt: 0, n_gen: args.n_gen, n_parallel });
    let mut rows = Vec::new();
    for test in std::iter::once(prompt).chain(generation).filter(|t| t.n_prompt + t.n_gen > 0) {
        rows.push(measure(&runtime, args, test)?);
    }
    setup::report_incidents(&runtime);
    match args.output {
        TableFormat::Json => terminal::json(&rows, true)?,
        TableFormat::Md => print_table(&rows),
    }
    Ok(Ended::Done)
}

/// One row of the table to be.
struct Test {
    n_prompt: usize,
    n_gen: usize,
    n_parallel: usize,
}

fn measure(runtime: &Runtime, args: &BenchArgs, test: Test) -> Result<Row, Failure> {
    let engine = runtime.engine();
    let Test { n_prompt, n_gen, n_parallel } = test;
    let (n_depth, reps) = (args.n_depth, usize::from(args.repetitions));
    let test_time = Timestamp::from(SystemTime::now()).to_string();
    let options = BenchOptions { n_prompt, n_gen, n_depth, n_parallel, reps, warmup: true };
    let measured = bench(engine, runtime.adapter(), &options)?;
    let total: u64 = measured.samples_ns.iter().sum();
    // Rows of a prompt or of several sequences are shared out over the threads; the kernels of one
    // generated token run on one.
    let threads = if n_prompt > 0 || n_parallel > 1 { measured.n_threads } else { 1 };
    Ok(Row {
        build_commit: env!("CARGO_PKG_VERSION"),
        build_number: 0,
        cpu_info: probe::processor(),
        backends: "CPU",
        model_filename: runtime.model_name().to_owned(),
        adapter: runtime.adapter().map(|adapter| adapter.name().to_owned()),
        n_ubatch: measured.n_batch,
        test_time,
        kernels: args.model.kernels.kernels.name(),
        isa: engine.isa().name(),
        kernel_share: measured.kernel_ns as f64 / (total.max(1) as f64 * threads as f64),
        measured,
    })
}

fn print_table(rows: &[Row]) {
    say!("| model | size | params | threads | kernels | isa | test | t/s | in kernels |");
    say!("|---|---:|---:|---:|---|---|---|---:|---:|");
    for row in rows {
        let m = &row.measured;
        let adapter = row.adapter.as_ref().map(|name| format!(" + {name}")).unwrap_or_default();
        say!(
            "| {}{adapter} | {:.2} MiB | {:.2} M | {} | {} | {} | {} | {:.2} ± {:.2} | {:.2} % |",
            m.model_type,
            m.model_size as f64 / f64::from(1 << 20),
            m.model_n_params as f64 * 1e-6,
            m.n_threads,
            row.kernels,
            row.isa,
            m.test(),
            m.avg_ts,
            m.stddev_ts,
            row.kernel_share * 100.0
        );
    }
}
