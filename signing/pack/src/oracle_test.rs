//! `test`: every kernel of a pack, in the host's sandbox, against the f64 oracle.
//!
//! The pack first goes through admission like any other. Then each kernel of a known operation goes
//! through more shapes and numbers than admission takes the time for, and every kernel through its
//! author's golden files and to the limit of its memory. Kernels of custom operations have no
//! oracle: their golden files say what is right, and odd calls must not make them trap.

use std::fmt;
use std::path::Path;

use ruvllm_abi::{DType, Op};
use ruvllm_host::{Host, OpKey, Tensor, host_tolerance};
use ruvllm_manifest::{KernelEntry, MANIFEST_FILE, Manifest, Tolerance};
use ruvllm_native::{Isa, oracle, twin};
use ruvllm_signing::escape_untrusted;
use serde::Serialize;

use crate::cases::{Case, Kind, Subject};
use crate::stress::{self, AtLimit, Target};
use crate::{Report, ToolError, golden, trial};

/// How much further from the oracle a sum over all of a kernel's memory may be.
const LONG_ROWS: f64 = 16.0;

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
    /// Golden files among them.
    pub golden: usize,
    /// Calls that went wrong.
    pub failed: usize,
    /// Whether an oracle knows its operation.
    pub has_oracle: bool,
    /// Bytes of the tensors of the largest call that its memory holds; absent where its calls are
    /// all of one size or it did not finish one.
    pub largest_call: Option<u64>,
    /// What an author should know although it is no failure.
    pub notes: Vec<String>,
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
            write!(f, "  {id:<20} {verdict:<6} {:>4} calls", kernel.cases)?;
            match kernel.worst {
                Some(worst) => {
                    write!(f, ", worst error {:.1} % of what is allowed", worst * 100.0)?
                }
                None if kernel.has_oracle => write!(f, ", bytes exact")?,
                None => write!(f, ", custom operation without an oracle")?,
            }
            if kernel.golden > 0 {
                write!(f, ", {} golden", kernel.golden)?;
            }
            if let Some(bytes) = kernel.largest_call {
                write!(f, ", up to {:.1} MiB", bytes as f64 / f64::from(1 << 20))?;
            }
            writeln!(f)?;
            for note in &kernel.notes {
                writeln!(f, "    note: {}", escape_untrusted(note))?;
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
        let pack = trial::read(directory)?;
        let manifest = Manifest::parse(pack.file(MANIFEST_FILE).unwrap_or_default())?;
        let files = pack.files().map(|(path, bytes)| (path.to_owned(), bytes.to_vec()));
        Ok(Trial { host: trial::admit(files)?, manifest })
    }
}

/// Operation and element types of a kernel, if the host knows them.
pub(crate) fn known(entry: &KernelEntry) -> Option<(Op, OpKey)> {
    let key = key_of(entry);
    let (op, _) = key.known()?;
    Some((op, key))
}

/// Operation and element types of a kernel.
pub(crate) fn key_of(entry: &KernelEntry) -> OpKey {
    let inputs: Vec<DType> = entry.inputs.iter().map(|tensor| tensor.dtype).collect();
    // Every kernel has one output: the manifest's rules see to that.
    let output = entry.outputs.first().map_or(DType::F32, |tensor| tensor.dtype);
    OpKey::new(entry.op.clone(), inputs, output)
}

/// Tests every kernel of a pack.
///
/// Golden files are looked for in the directory that is given, a pack crate.
///
/// # Errors
/// [`ToolError::Pack`], [`ToolError::Manifest`] and [`ToolError::Host`] where the pack is not
/// admitted, [`ToolError::Golden`] where a golden file cannot be used. Wrong results are part of
/// the report.
pub fn test(directory: &Path) -> Result<TestReport, ToolError> {
    let trial = Trial::open(directory)?;
    let snapshot = trial.host.snapshot();
    let manifest = &trial.manifest;
    let mut kernels = Vec::new();
    for entry in &manifest.kernels {
        // One for each: instances that have grown to the limit of their memory go with it.
        let mut worker = trial.host.worker()?;
        let name = format!("{}/{}", manifest.name, entry.id);
        let mut target = Target { worker: &mut worker, snapshot: &snapshot, entry, name };
        let mut tested = TestedKernel::new(entry);
        for golden in golden::read(directory, entry)? {
            tested.golden += 1;
            let params: Vec<_> = golden.params.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            let outcome = target.call(&golden.inputs, &params).map_err(|error| error.to_string());
            tested.took(&golden.name, outcome.and_then(|output| golden.check(&output)));
        }
        match known(entry) {
            Some((op, key)) => against_oracle(&mut target, op, &key, &mut tested),
            None => {
                let manners = stress::manners(&mut target);
                tested.cases += manners.calls;
                manners.failures.into_iter().for_each(|what| tested.fail(what));
                if manners.declined > 0 {
                    let (some, all) = (manners.declined, manners.calls);
                    tested.notes.push(format!("it declined {some} of {all} odd calls"));
                }
                if tested.golden == 0 {
                    tested.notes.push(format!("no golden/{}/*.json says what is right", entry.id));
                }
            }
        }
        at_the_limit(&mut target, &mut tested);
        kernels.push(tested);
    }
    Ok(TestReport { pack: format!("{} {}", manifest.name, manifest.version), kernels })
}

impl TestedKernel {
    fn new(entry: &KernelEntry) -> TestedKernel {
        TestedKernel {
            id: entry.id.clone(),
            cases: 0,
            golden: 0,
            failed: 0,
            has_oracle: known(entry).is_some(),
            largest_call: None,
            notes: Vec::new(),
            worst: None,
            failures: Vec::new(),
        }
    }

    fn fail(&mut self, what: String) {
        self.failed += 1;
        if self.failures.len() < SHOWN_FAILURES {
            self.failures.push(what);
        }
    }

    /// Books a call.
    fn took(&mut self, case: &str, outcome: Result<(), String>) {
        self.cases += 1;
        if let Err(what) = outcome {
            self.fail(format!("{case}: {what}"));
        }
    }
}

fn against_oracle(target: &mut Target<'_>, op: Op, key: &OpKey, tested: &mut TestedKernel) {
    let subject = Subject { op, inputs: &key.inputs, output: key.output };
    for case in subject.test_cases() {
        let params = case.params(target.entry);
        let outcome = target.call(&case.inputs, &params).map_err(|error| error.to_string());
        let judged = outcome.and_then(|output| judge(op, key, &case, &output, 1.0));
        if let Ok(Some(share)) = judged {
            tested.worst = Some(tested.worst.unwrap_or(0.0).max(share));
        }
        tested.took(&case.what, judged.map(|_| ()));
    }
}

/// The largest call that the kernel's memory holds must come out right; one above is refused.
fn at_the_limit(target: &mut Target<'_>, tested: &mut TestedKernel) {
    const WHAT: &str = "at the limit of memory";
    tested.cases += 1;
    let (n, bytes) = match stress::find_limit(target) {
        Ok(AtLimit::Fits { n, bytes }) => (n, bytes),
        Ok(AtLimit::Fixed) => return,
        Err(what) => return tested.fail(format!("{WHAT}: {what}")),
    };
    let case = known(target.entry).and_then(|(op, key)| {
        let case = Subject { op, inputs: &key.inputs, output: key.output }.long_case(n)?;
        Some((op, key, case))
    });
    let outcome = match &case {
        Some((_, _, case)) => target.call(&case.inputs, &case.params(target.entry)),
        None => stress::call_at_limit(target, n),
    };
    match outcome {
        Ok(output) => {
            let judged = match &case {
                Some((op, key, case)) => judge(*op, key, case, &output, LONG_ROWS).map(|_| ()),
                None => Ok(()),
            };
            tested.largest_call = Some(bytes);
            tested.took(WHAT, judged);
        }
        Err(error) if stress::is_deadline(&error) => {
            tested.cases += 1;
            let what = "its memory holds larger calls than max_epoch_ticks gives it time for";
            tested.notes.push(what.to_owned());
        }
        Err(error) => tested.took(WHAT, Err(error.to_string())),
    }
}

/// Compares an output with the oracle, which it may be `slack` times further from than the host
/// allows. `Some`: the largest error as a share of what is allowed.
fn judge(
    op: Op,
    key: &OpKey,
    case: &Case,
    output: &Tensor,
    slack: f64,
) -> Result<Option<f64>, String> {
    let (bytes, got) = (output.bytes(), output.to_f32());
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
            let allowed = (abs * scale + rel * want.abs()) * slack + floor;
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
