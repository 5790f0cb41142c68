//! `bench`: every kernel of a pack against its native twin, both called through the host.

use std::fmt;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_abi::Op;
use ruvllm_host::{
    Host, HostConfig, OpCall, OpKey, OpSlot, Operand, Policy, RegistrySnapshot, Resident, Words,
    Worker,
};
use ruvllm_native::Isa;
use ruvllm_signing::escape_untrusted;
use serde::Serialize;

use crate::cases::{Case, Subject};
use crate::oracle_test::{Trial, known};
use crate::{Report, ToolError};

/// Rounds in which the two sides take turns, so that both see the same machine.
const ROUNDS: u32 = 15;

/// Figures of every kernel.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The pack.
    pub pack: String,
    /// What the native side uses.
    pub isa: String,
    /// One line for each kernel and shape.
    pub lines: Vec<BenchLine>,
    /// Kernels of custom operations, which have no twin.
    pub skipped: Vec<String>,
}

/// One kernel at one shape; medians over rounds.
#[derive(Clone, Debug, Serialize)]
pub struct BenchLine {
    /// The kernel's id.
    pub kernel: String,
    /// Its extents.
    pub shape: String,
    /// Microseconds of a call in the sandbox.
    pub wasm_us: f64,
    /// Microseconds of a call of the native twin.
    pub native_us: f64,
    /// The first over the second.
    pub ratio: f64,
}

impl Report for BenchReport {}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, native on {}", escape_untrusted(&self.pack), self.isa)?;
        writeln!(f, "{:<16} {:>9} {:>9} {:>6}  shape", "kernel", "wasm us", "native us", "ratio")?;
        for line in &self.lines {
            let kernel = escape_untrusted(&line.kernel);
            let BenchLine { wasm_us, native_us, ratio, shape, .. } = line;
            writeln!(f, "{kernel:<16} {wasm_us:>9.3} {native_us:>9.3} {ratio:>6.2}  {shape}")?;
        }
        for kernel in &self.skipped {
            writeln!(f, "{}: custom operation, no native twin", escape_untrusted(kernel))?;
        }
        Ok(())
    }
}

/// Times every kernel of a pack, `budget_ms` milliseconds on each side of each line.
///
/// # Errors
/// [`ToolError::Pack`], [`ToolError::Manifest`] and [`ToolError::Host`] where the pack is not
/// admitted; [`ToolError::Module`] where a kernel fails while it is timed.
pub fn bench(directory: &Path, budget_ms: u64) -> Result<BenchReport, ToolError> {
    let trial = Trial::open(directory)?;
    let config =
        HostConfig { policy: Policy::NativeOnly, cross_check_every: 0, ..HostConfig::default() };
    let native = Host::new(config)?;
    let mut sides = [Side::new(&trial.host)?, Side::new(&native)?];
    let mut report = BenchReport {
        pack: format!("{} {}", trial.manifest.name, trial.manifest.version),
        isa: Isa::detect().name().to_owned(),
        lines: Vec::new(),
        skipped: Vec::new(),
    };
    for entry in &trial.manifest.kernels {
        let Some((op, key)) = known(entry) else {
            report.skipped.push(entry.id.clone());
            continue;
        };
        let subject = Subject { op, inputs: &key.inputs, output: key.output };
        for case in subject.bench_cases() {
            let failed = |message| ToolError::Module { kernel: entry.id.clone(), message };
            let [wasm_us, native_us] =
                compare(&mut sides, op, &key, &case, budget_ms).map_err(failed)?;
            report.lines.push(BenchLine {
                kernel: entry.id.clone(),
                shape: case.what.split_once(", ").map_or("", |(_, shape)| shape).to_owned(),
                wasm_us,
                native_us,
                ratio: wasm_us / native_us,
            });
        }
    }
    Ok(report)
}

/// A host with its worker.
struct Side {
    snapshot: std::sync::Arc<RegistrySnapshot>,
    worker: Worker,
}

impl Side {
    fn new(host: &Host) -> Result<Side, ToolError> {
        Ok(Side { snapshot: host.snapshot(), worker: host.worker()? })
    }

    fn slot(&self, key: &OpKey) -> Result<OpSlot, String> {
        self.snapshot.slot(key).ok_or_else(|| format!("the host has no kernel for {key}"))
    }

    /// Seconds of one call, over `calls` of them.
    fn time(
        &mut self,
        slot: OpSlot,
        call: &OpCall<'_>,
        out: &mut [u8],
        calls: u32,
    ) -> Result<f64, String> {
        let started = Instant::now();
        for _ in 0..calls {
            self.worker
                .call(&self.snapshot, slot, black_box(call), black_box(out))
                .map_err(|error| error.to_string())?;
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(calls))
    }
}

/// Median microseconds of a call on each side.
fn compare(
    sides: &mut [Side; 2],
    op: Op,
    key: &OpKey,
    case: &Case,
    budget_ms: u64,
) -> Result<[f64; 2], String> {
    let constant = Resident::from_bytes(case.bytes(1));
    let b = match op {
        Op::Rope | Op::RmsNorm | Op::LoraApply => constant.all(),
        Op::SwiGlu => Operand::Bytes(case.bytes(1)),
        Op::KvPack | Op::KvUnpack => Operand::None,
    };
    let words = Words::new(&case.words).ok_or("too many words")?;
    let call = OpCall { a: Operand::Bytes(case.bytes(0)), b, words };
    let size = key.output.bytes_for(case.elems).ok_or("the output has no size")?;
    let mut out = vec![0; size];

    let round = Duration::from_millis(budget_ms).as_secs_f64() / f64::from(ROUNDS);
    let slots = [sides[0].slot(key)?, sides[1].slot(key)?];
    let mut calls = [0; 2];
    for (i, side) in sides.iter_mut().enumerate() {
        side.time(slots[i], &call, &mut out, 100)?;
        let once = side.time(slots[i], &call, &mut out, 100)?;
        calls[i] = (round / once.max(1e-9)).clamp(1.0, 1e7) as u32;
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (i, side) in sides.iter_mut().enumerate() {
            times[i].push(side.time(slots[i], &call, &mut out, calls[i])?);
        }
    }
    Ok(times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * 1e6
    }))
}
