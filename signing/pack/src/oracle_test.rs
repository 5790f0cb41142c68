//! `test`: every kernel of a pack, in the host's sandbox, against the f64 oracle.
//!
//! The pack first goes through admission like any other, on calls that are drawn from a seed. Each kernel
//! of a known operation then makes the same calls by name, before the same judge, so that a host that
//! draws the same seed on the same processor says the same of it. Beyond what a host asks, every kernel
//! goes through its author's golden files and to the limit of its memory. Kernels of custom operations
//! have no oracle: their golden files say what is right, and odd calls must not make them trap. Graphs compute
//! their checks, as on a host.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use ruvllm_abi::contract::{ParamType, Variant};
use ruvllm_abi::{DType, Op};
use ruvllm_host::{CallError, Host, OpKey, ParamValue, Tensor, judge_of};
use ruvllm_manifest::{KernelEntry, MANIFEST_FILE, Manifest, similar};
use ruvllm_native::judge::{self, Case, Verdict};
use ruvllm_native::random::Random;
use ruvllm_signing::escape_untrusted;
use serde::Serialize;

use crate::lines::Lines;
use crate::stress::{self, AtLimit, Target};
use crate::trial::Which;
use crate::{Report, ToolError, golden, trial};

/// The most failures of one kernel that are told apart.
const SHOWN_FAILURES: usize = 5;

/// What the tests found.
#[derive(Clone, Debug, Serialize)]
pub struct TestReport {
    /// The pack.
    pub pack: String,
    /// What the calls were drawn from.
    pub seed: u64,
    /// Its kernels.
    pub kernels: Vec<TestedKernel>,
    /// Its graphs, each of which gave what its checks expect: id, and how many these are.
    pub graphs: Vec<(String, usize)>,
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
    /// Those of them that no host makes: golden files, what goes to the limit of memory, and odd calls of a custom
    /// operation. A host that draws the same calls refuses the pack where others failed.
    pub failed_beyond_hosts: usize,
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
    /// Calls for gradients among `cases`; none where the kernel has no `kernel_backward`.
    pub backward: usize,
    /// The largest error of a gradient as a share of what is allowed; absent where there is none.
    pub worst_gradient: Option<f64>,
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
        writeln!(f, "{}: admitted (seed {})", escape_untrusted(&self.pack), self.seed)?;
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
            if let Some(worst) = kernel.worst_gradient {
                write!(f, ", {} of gradients {:.1} %", kernel.backward, worst * 100.0)?;
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
        for (id, checks) in &self.graphs {
            writeln!(f, "  {:<20} ok     {checks:>4} checks", escape_untrusted(id))?;
        }
        let beyond = |kernel: &TestedKernel| kernel.failed == kernel.failed_beyond_hosts;
        match self.passed() || !self.kernels.iter().all(beyond) {
            true => Ok(()),
            false => {
                writeln!(f, "No host makes the calls that failed, so that hosts admit this pack.")
            }
        }
    }
}

/// An admitted pack that need not be signed.
pub(crate) struct Trial {
    pub(crate) host: Host,
    pub(crate) manifest: Manifest,
    pub(crate) lines: Lines,
}

impl Trial {
    /// Admits a pack on calls that are drawn from the seed, or from one that cannot be predicted.
    pub(crate) fn open(directory: &Path, seed: Option<u64>) -> Result<Trial, ToolError> {
        Self::open_with(directory, seed, Which::All)
    }

    /// As [`Trial::open`], on a host that has and asks these kernels.
    pub(crate) fn open_with(
        directory: &Path,
        seed: Option<u64>,
        which: Which,
    ) -> Result<Trial, ToolError> {
        let pack = trial::read(directory)?;
        let manifest = Manifest::parse(pack.file(MANIFEST_FILE).unwrap_or_default())?;
        let files = pack.files().map(|(path, bytes)| (path.to_owned(), bytes.to_vec()));
        let lines = Lines::of_directory(directory, &manifest, |path| pack.file(path));
        Ok(Trial { host: trial::admit(files, seed, &lines, which)?, manifest, lines })
    }
}

/// An operation of the catalogue and one of its variants.
type Known = (Op, &'static Variant);

/// Operation and element types of a kernel.
pub(crate) fn key_of(entry: &KernelEntry) -> OpKey {
    let inputs: Vec<DType> = entry.inputs.iter().map(|tensor| tensor.dtype).collect();
    // Every kernel has one output: the manifest's rules see to that.
    let output = entry.outputs.first().map_or(DType::F32, |tensor| tensor.dtype);
    OpKey::new(entry.op.clone(), inputs, output)
}

/// Tests every kernel of a pack.
///
/// Golden files are looked for in the directory that is given, a pack crate. Without a seed the calls are
/// drawn from one that cannot be predicted, as those of a host are.
///
/// # Errors
/// [`ToolError::Pack`], [`ToolError::Manifest`] and [`ToolError::Host`] where the pack is not
/// admitted, [`ToolError::NoGraphs`] where this build cannot tell, [`ToolError::Golden`] where a
/// golden file cannot be used. Wrong results are part of the report.
pub fn test(directory: &Path, seed: Option<u64>) -> Result<TestReport, ToolError> {
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    let trial = Trial::open(directory, Some(seed))?;
    let snapshot = trial.host.snapshot();
    let manifest = &trial.manifest;
    let mut kernels = Vec::new();
    for entry in &manifest.kernels {
        // One for each: instances that have grown to the limit of their memory go with it.
        let mut worker = trial.host.worker()?;
        let mut target = Target::of(&trial, &mut worker, &snapshot, entry);
        let mut tested = TestedKernel::new(entry);
        for golden in golden::read(directory, entry)? {
            tested.golden += 1;
            let params: Vec<_> = golden.params.iter().map(|(n, v)| (n.as_str(), *v)).collect();
            let outcome = target.call(&golden.inputs, &params).map_err(|error| error.to_string());
            tested.took(&golden.name, outcome.and_then(|output| golden.check(&output)));
        }
        let mut by_hosts = 0;
        match key_of(entry).known() {
            Some(known) => {
                let before = tested.failed;
                against_oracle(&mut target, known, seed, &mut tested);
                by_hosts = tested.failed - before;
            }
            None => {
                let manners = stress::manners(&mut target);
                tested.cases += manners.calls;
                manners.failures.into_iter().for_each(|what| tested.fail(what));
                if let Some(first) = manners.first_declined {
                    let (some, all) = (manners.declined, manners.calls);
                    let note = format!("it declined {some} of {all} odd calls; the first {first}");
                    tested.notes.push(note);
                }
                if let Some(op) = similar(&entry.op, Op::ALL.iter().map(|op| op.name())) {
                    let custom = &entry.op;
                    tested.notes.push(format!("no model calls `{custom}`: did you mean `{op}`?"));
                }
                if tested.golden == 0 {
                    tested.notes.push(format!("no golden/{}/*.json says what is right", entry.id));
                }
            }
        }
        at_the_limit(&mut target, seed, &mut tested);
        tested.failed_beyond_hosts = tested.failed - by_hosts;
        kernels.push(tested);
    }
    let pack = format!("{} {}", manifest.name, manifest.version);
    let graphs = manifest.graphs.iter().map(|graph| (graph.id.clone(), graph.checks.len()));
    Ok(TestReport { pack, seed, kernels, graphs: graphs.collect() })
}

impl TestedKernel {
    fn new(entry: &KernelEntry) -> TestedKernel {
        TestedKernel {
            id: entry.id.clone(),
            cases: 0,
            golden: 0,
            failed: 0,
            failed_beyond_hosts: 0,
            has_oracle: key_of(entry).known().is_some(),
            largest_call: None,
            notes: Vec::new(),
            worst: None,
            backward: 0,
            worst_gradient: None,
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

/// Calls a kernel as admission did with this seed, and asks the judge that admission asks.
fn against_oracle(target: &mut Target<'_>, known: Known, seed: u64, tested: &mut TestedKernel) {
    let (op, variant) = known;
    let mut random = Random::new(seed);
    let cases = match judge::cases(op, variant, judge::ROOM, &mut random) {
        Ok(cases) => cases,
        Err(error) => return tested.fail(error.to_string()),
    };
    let judge = judge_of(known, target.entry.tolerance);
    if target.entry.backward {
        match judge::backward_cases(op, variant, judge::ROOM, &mut random) {
            Ok(cases) => against_gradients(target, known, cases, &mut random, tested),
            Err(error) => tested.fail(error.to_string()),
        }
    } else if !op.contract().gradients_of(variant.inputs, variant.output).is_empty() {
        let note = "it has no kernel_backward: the native twin gives its gradients";
        tested.notes.push(note.to_owned());
    }
    for case in cases {
        let judged = call(target, known, &case).and_then(|output| {
            judge.check(case.called(), output.bytes()).map_err(|wrong| wrong.to_string())
        });
        if let Ok(Verdict::Right(Some(share))) = judged {
            tested.worst = Some(tested.worst.unwrap_or(0.0).max(share));
        }
        tested.took(&case.what, judged.map(|_| ()));
    }
}

/// Asks a kernel for gradients as admission did with this seed, and holds them against the oracle; those of one
/// more case also against differences of the operation itself.
fn against_gradients(
    target: &mut Target<'_>,
    known: Known,
    mut cases: Vec<Case>,
    random: &mut Random,
    tested: &mut TestedKernel,
) {
    let (op, variant) = known;
    let judge = judge_of(known, target.entry.tolerance);
    let smooth = judge::differentiable_case(op, variant, &judge::sample(op), random);
    let last = smooth.is_some().then_some(cases.len());
    cases.extend(smooth);
    for (i, case) in cases.into_iter().enumerate() {
        let judged = backward(target, known, &case).and_then(|gradients| {
            let bytes = |i: usize| gradients.get(i).map_or(&[][..], Tensor::bytes);
            let (called, gradients) = (case.called(), [bytes(0), bytes(1)]);
            let wrong = |wrong: judge::Wrong| wrong.to_string();
            let dy = &case.gradient;
            if Some(i) == last {
                judge.check_differences(called, dy, gradients, random).map_err(wrong)?;
            }
            judge.check_gradients(called, dy, gradients).map_err(wrong)
        });
        if let Ok(Verdict::Right(Some(share))) = judged {
            tested.worst_gradient = Some(tested.worst_gradient.unwrap_or(0.0).max(share));
        }
        tested.backward += 1;
        tested.took(&case.what, judged.map(|_| ()));
    }
}

/// Calls `kernel_backward` by the names that the manifest has.
fn backward(target: &mut Target<'_>, known: Known, case: &Case) -> Result<Vec<Tensor>, String> {
    let (inputs, params) = (tensors(known, case), named(target.entry, &case.words));
    let gradient = Tensor::new(known.1.output, case.output_shape(known.0), case.gradient.clone());
    let gradient = gradient.ok_or("the gradient of the output has no size")?;
    target.backward(&inputs, &params, &gradient).map_err(|error| error.to_string())
}

/// Calls a kernel of a known operation by the names that its manifest has.
fn call(target: &mut Target<'_>, known: Known, case: &Case) -> Result<Tensor, String> {
    attempt(target, known, case).map_err(|error| error.to_string())
}

fn attempt(target: &mut Target<'_>, known: Known, case: &Case) -> Result<Tensor, CallError> {
    let entry = target.entry;
    target.call(&tensors(known, case), &named(entry, &case.words))
}

/// The inputs of a case.
fn tensors((op, variant): Known, case: &Case) -> Vec<Tensor> {
    let bytes = [&case.a, &case.b].into_iter().zip(variant.inputs).enumerate();
    // A case has the sizes of its shapes.
    bytes
        .filter_map(|(i, (bytes, dtype))| {
            Tensor::new(*dtype, case.input_shape(op, i), bytes.clone())
        })
        .collect()
}

/// Every extent and parameter by the name that the manifest of the kernel has for it.
fn named<'e>(entry: &'e KernelEntry, words: &[u32]) -> Vec<(&'e str, ParamValue)> {
    let symbols = entry.symbols();
    let (extents, values) = words.split_at(symbols.len().min(words.len()));
    let extents = symbols.into_iter().zip(extents).map(|(name, n)| (name, ParamValue::U32(*n)));
    let params = entry.params.iter().zip(values).map(|((name, spec), word)| {
        let value = match spec.ty {
            ParamType::F32 => ParamValue::F32(f32::from_bits(*word)),
            ParamType::U32 => ParamValue::U32(*word),
            ParamType::I32 => ParamValue::I32(word.cast_signed()),
        };
        (name.as_str(), value)
    });
    extents.chain(params).collect()
}

/// The largest call that the kernel's memory holds must come out right; one above is refused.
fn at_the_limit(target: &mut Target<'_>, seed: u64, tested: &mut TestedKernel) {
    const WHAT: &str = "at the limit of memory";
    tested.cases += 1;
    let (n, bytes) = match stress::find_limit(target) {
        Ok(AtLimit::Fits { n, bytes }) => (n, bytes),
        Ok(AtLimit::Fixed) => return,
        Err(what) => return tested.fail(format!("{WHAT}: {what}")),
    };
    let case = key_of(target.entry).known().and_then(|known| {
        let (op, variant) = known;
        Some((known, judge::long_case(op, variant, n, &mut Random::new(seed))?))
    });
    let outcome = match &case {
        Some((known, case)) => attempt(target, *known, case),
        None => stress::call_at_limit(target, n),
    };
    match outcome {
        Ok(output) => {
            let judged = match &case {
                Some((known, case)) => judge_of(*known, target.entry.tolerance)
                    .with_slack(judge::LONG_ROWS)
                    .check(case.called(), output.bytes())
                    .map_or_else(|wrong| Err(wrong.to_string()), |_| Ok(())),
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
