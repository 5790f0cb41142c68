//! `test`: every kernel of a pack, in the host's sandbox, against the f64 oracle.
//!
//! The pack first goes through admission like any other, then each kernel of a known operation
//! through more shapes and numbers than admission takes the time for. Kernels of custom operations
//! have no oracle: for those, admission's check of their manners is all there is.

use std::fmt;
use std::path::Path;

use ruvllm_abi::{DType, Op};
use ruvllm_host::{Host, OpKey, Worker, host_tolerance};
use ruvllm_manifest::{KernelEntry, MANIFEST_FILE, Manifest, Tolerance};
use ruvllm_native::{Isa, oracle, twin};
use ruvllm_signing::{PackLimits, UnverifiedPack, escape_untrusted};
use serde::Serialize;

use crate::cases::{Case, Kind, Subject};
use crate::sign::pack_directory;
use crate::{Report, ToolError, trial};

/// The most failures of one kernel that are told apart.
const SHOWN_FAILURES: usize = 5;

/// What the tests found.
#[derive(Clone, Debug, Serialize)]
pub struct TestReport {
    /// The pack.
    pub pack: String,
    /// Its kernels.
    pub kernels: Vec<TestedKernel>,
}

/// What the tests of one kernel found.
#[derive(Clone, Debug, Serialize)]
pub struct TestedKernel {
    /// Its id.
    pub id: String,
    /// Calls that were made.
    pub cases: usize,
    /// Calls that went wrong.
    pub failed: usize,
    /// The largest error as a share of what is allowed; absent where bytes must be exact or there
    /// is no oracle.
    pub worst: Option<f64>,
    /// The first few failures.
    pub failures: Vec<String>,
}

impl Report for TestReport {
    fn passed(&self) -> bool {
        self.kernels.iter().all(|kernel| kernel.failed == 0)
    }
}

impl fmt::Display for TestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: admitted", escape_untrusted(&self.pack))?;
        for kernel in &self.kernels {
            let verdict = if kernel.failed == 0 { "ok" } else { "FAILED" };
            let id = escape_untrusted(&kernel.id);
            write!(f, "  {id:<20} {verdict:<6} {:>4} cases", kernel.cases)?;
            match kernel.worst {
                Some(worst) => {
                    writeln!(f, ", worst error {:.1} % of what is allowed", worst * 100.0)?
                }
                None if kernel.cases == 0 => writeln!(f, ", custom operation without an oracle")?,
                None => writeln!(f, ", bytes exact")?,
            }
            for failure in &kernel.failures {
                writeln!(f, "    {}", escape_untrusted(failure))?;
            }
        }
        Ok(())
    }
}

/// An admitted pack that need not be signed.
pub(crate) struct Trial {
    pub(crate) host: Host,
    pub(crate) manifest: Manifest,
}

impl Trial {
    pub(crate) fn open(directory: &Path) -> Result<Trial, ToolError> {
        let pack = UnverifiedPack::read_dir(&pack_directory(directory), &PackLimits::default())?;
        let manifest = Manifest::parse(pack.file(MANIFEST_FILE).unwrap_or_default())?;
        let files = pack.files().map(|(path, bytes)| (path.to_owned(), bytes.to_vec()));
        Ok(Trial { host: trial::admit(files)?, manifest })
    }
}

/// Operation and element types of a kernel, if the host knows them.
pub(crate) fn known(entry: &KernelEntry) -> Option<(Op, OpKey)> {
    let inputs: Vec<DType> = entry.inputs.iter().map(|tensor| tensor.dtype).collect();
    let output = entry.outputs.first()?.dtype;
    let key = OpKey::new(entry.op.clone(), inputs, output);
    let (op, _) = key.known()?;
    Some((op, key))
}

/// Tests every kernel of a pack.
///
/// # Errors
/// [`ToolError::Pack`], [`ToolError::Manifest`] and [`ToolError::Host`] where the pack is not
/// admitted. Wrong results are part of the report.
pub fn test(directory: &Path) -> Result<TestReport, ToolError> {
    let trial = Trial::open(directory)?;
    let mut worker = trial.host.worker()?;
    let manifest = &trial.manifest;
    let kernels = manifest.kernels.iter().map(|entry| test_kernel(&trial, &mut worker, entry));
    let kernels = kernels.collect();
    Ok(TestReport { pack: format!("{} {}", manifest.name, manifest.version), kernels })
}

fn test_kernel(trial: &Trial, worker: &mut Worker, entry: &KernelEntry) -> TestedKernel {
    let mut tested = TestedKernel {
        id: entry.id.clone(),
        cases: 0,
        failed: 0,
        worst: None,
        failures: Vec::new(),
    };
    let Some((op, key)) = known(entry) else { return tested };
    let subject = Subject { op, inputs: &key.inputs, output: key.output };
    let name = format!("{}/{}", trial.manifest.name, entry.id);
    let snapshot = trial.host.snapshot();
    for case in subject.test_cases() {
        tested.cases += 1;
        let outcome = worker
            .call_generic(&snapshot, &name, &case.inputs, &case.params(entry))
            .map_err(|error| error.to_string())
            .and_then(|outputs| {
                let output = outputs.into_iter().next().ok_or("no output")?;
                judge(op, &key, &case, output.bytes(), &output.to_f32())
            });
        match outcome {
            Ok(Some(share)) => tested.worst = Some(tested.worst.unwrap_or(0.0).max(share)),
            Ok(None) => {}
            Err(what) => {
                tested.failed += 1;
                if tested.failures.len() < SHOWN_FAILURES {
                    tested.failures.push(format!("{}: {what}", case.what));
                }
            }
        }
    }
    tested
}

/// Compares an output with the oracle. `Some`: the largest error as a share of what is allowed.
fn judge(
    op: Op,
    key: &OpKey,
    case: &Case,
    bytes: &[u8],
    got: &[f32],
) -> Result<Option<f64>, String> {
    if case.kind == Kind::NonFinite {
        return Ok(None);
    }
    let (a, b) = (case.bytes(0), case.bytes(1));
    let Some(tolerance) = host_tolerance(op, key.output) else {
        let mut want = vec![0; bytes.len()];
        twin::run(Isa::Scalar, op, &key.inputs, key.output, a, b, &case.words, &mut want)
            .map_err(|error| error.to_string())?;
        return match first_difference(key.output, bytes, &want) {
            None => Ok(None),
            Some(at) => Err(format!("byte {at} is {}, the format says {}", bytes[at], want[at])),
        };
    };
    let want = oracle::run(op, &key.inputs, key.output, a, b, &case.words)
        .map_err(|error| error.to_string())?;
    let group = match key.output.layout().elems {
        1 => case.row.max(1),
        block => block,
    };
    let floor = smallest_step(key.output) * case.roundings(op);
    let mut worst = 0f64;
    for (g, (got, want)) in got.chunks(group).zip(want.chunks(group)).enumerate() {
        let scale = want.iter().filter(|w| w.is_finite()).fold(0f64, |max, w| max.max(w.abs()));
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            if !want.is_finite() || want.abs() > largest(key.output) {
                continue;
            }
            let Tolerance { rel, abs } = tolerance;
            let allowed = abs * scale + rel * want.abs() + floor;
            let share = (f64::from(*got) - want).abs() / allowed;
            // A NaN must not pass for a small error.
            if share.is_nan() || share > 1.0 {
                let at = g * group + i;
                return Err(format!("element {at} is {got:e} instead of {want:e}"));
            }
            worst = worst.max(share);
        }
    }
    Ok(Some(worst))
}

/// The first byte that differs, but for the quants of blocks whose scale is zero: they mean nothing.
fn first_difference(dtype: DType, got: &[u8], want: &[u8]) -> Option<usize> {
    let size = dtype.layout().bytes;
    for (i, (got, want)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
        let scale_is_zero = want.first() == Some(&0) && want.get(1).is_some_and(|b| b & 0x7f == 0);
        let compared = if scale_is_zero { 2 } else { size };
        let differs = |(g, w): (&u8, &u8)| g != w;
        if let Some(at) = got.iter().zip(want).take(compared).position(differs) {
            return Some(i * size + at);
        }
    }
    None
}

/// What rounding to the format costs where relative error means nothing, as the host counts it.
fn smallest_step(dtype: DType) -> f64 {
    let half = 2f64.powi(-24);
    match dtype {
        DType::Q8_0 => 128.0 * half,
        DType::Q4_0 => 8.0 * half,
        DType::F16 => half,
        _ => 16.0 * 2f64.powi(-149),
    }
}

fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65_504.0,
        DType::Q8_0 => 65_504.0 * 127.0,
        DType::Q4_0 => 65_504.0 * 8.0,
        _ => f64::from(f32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quants_of_a_block_without_scale_are_not_compared() {
        let zero = [[0u8, 0x80].as_slice(), &[7; 16]].concat();
        let other = [[0u8, 0x80].as_slice(), &[8; 16]].concat();
        assert_eq!(first_difference(DType::Q4_0, &other, &zero), None);
        let scaled = [[1u8, 0x30].as_slice(), &[7; 16]].concat();
        let off = [[1u8, 0x30].as_slice(), &[8; 16]].concat();
        assert_eq!(first_difference(DType::Q4_0, &off, &scaled), Some(2));
        assert_eq!(first_difference(DType::Q4_0, &scaled, &zero), Some(0));
    }
}
