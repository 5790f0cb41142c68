//! `bench`: every kernel of a pack against the one that is in use without it, and against its native twin,
//! all called through the host.
//!
//! In use is the kernel of the core pack that every program brings along. A live server that is given the
//! pack times both on its own calls, and takes the pack back where its kernel is too slow. Variants of a
//! kernel are timed one by one; those that a live server would not ask here cannot make it take the pack back.
//!
//! There are two hosts of native twins: one uses the widest vectors of the processor, the other vectors
//! of 128 bits, which is all that WebAssembly has. The first ratio is what the sandbox costs a user, the
//! second what it costs a kernel.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_abi::Op;
use ruvllm_host::{
    CallError, HealthLimits, Host, HostConfig, OpCall, OpKey, OpSlot, Operand, Policy,
    RegistrySnapshot, Resident, Scope, Verdict, Words, Worker,
};
use ruvllm_manifest::KernelEntry;
use ruvllm_native::Isa;
use ruvllm_native::judge::{self, Case};
use ruvllm_native::random::Random;
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack, escape_untrusted};
use serde::Serialize;

use crate::build::refresh_manifest;
use crate::figures::Figures;
use crate::oracle_test::{Trial, key_of};
use crate::scaffold::is_pack_crate;
use crate::trial::Which;
use crate::{Report, ToolError, stress};

/// Rounds in which the sides take turns, so that all see the same machine. They are so many that a turn takes about
/// a millisecond: another process that takes the processor away for some of them is in few of the turns, and not
/// in their median, as it is not in a live server's, which is one over single calls.
const ROUNDS: u32 = 201;

/// Figures of every kernel.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The pack.
    pub pack: String,
    /// What the native side uses.
    pub isa: String,
    /// What the native side with vectors of 128 bits uses; absent where there are no others.
    pub isa_128: Option<String>,
    /// One line for each kernel and shape.
    pub lines: Vec<BenchLine>,
    /// How many times as long as the kernel in use one may take before a live server takes it back.
    pub latency_limit: f64,
    /// Whether the manifest holds the figures now.
    pub written: bool,
    /// Whether a signature over an earlier manifest was removed for that.
    pub signature_removed: bool,
}

/// One kernel at one shape; medians over rounds. What an operation of the catalogue has no twin
/// for is absent.
#[derive(Clone, Debug, Serialize)]
pub struct BenchLine {
    /// The kernel's id.
    pub kernel: String,
    /// Its extents.
    pub shape: String,
    /// Microseconds of a call in the sandbox.
    pub wasm_us: f64,
    /// Why a live server would ask another kernel of the pack here; absent where it would ask this one.
    pub stands_back: Option<String>,
    /// The kernel of the core pack that is in use without this one.
    pub in_use: Option<String>,
    /// Microseconds of a call of that kernel.
    pub in_use_us: Option<f64>,
    /// Sandbox over the kernel in use.
    pub ratio_in_use: Option<f64>,
    /// Microseconds of a call of the native twin.
    pub native_us: Option<f64>,
    /// Microseconds of a call of the native twin with vectors of 128 bits.
    pub native_128_us: Option<f64>,
    /// Sandbox over native.
    pub ratio: Option<f64>,
    /// Sandbox over native with vectors of 128 bits.
    pub ratio_128: Option<f64>,
}

impl Report for BenchReport {}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, native on {}", escape_untrusted(&self.pack), self.isa)?;
        match &self.isa_128 {
            Some(isa) => writeln!(f, " and, with vectors of 128 bits, {isa}")?,
            None => writeln!(f)?,
        }
        writeln!(
            f,
            "{:<16} {:>9} {:>9} {:>6} {:>9} {:>6} {:>9} {:>6}  shape",
            "kernel", "wasm us", "in use", "ratio", "native us", "ratio", "128-bit", "ratio"
        )?;
        for line in &self.lines {
            let kernel = escape_untrusted(&line.kernel);
            let cell = |x: Option<f64>, digits: usize| match x {
                Some(x) => format!("{x:.digits$}"),
                None => "-".to_owned(),
            };
            writeln!(
                f,
                "{kernel:<16} {:>9.3} {:>9} {:>6} {:>9} {:>6} {:>9} {:>6}  {}",
                line.wasm_us,
                cell(line.in_use_us, 3),
                cell(line.ratio_in_use, 2),
                cell(line.native_us, 3),
                cell(line.ratio, 2),
                cell(line.native_128_us, 3),
                cell(line.ratio_128, 2),
                line.shape
            )?;
        }
        self.standing_back(f)?;
        self.live_server(f)?;
        if self.written {
            writeln!(
                f,
                "note: the manifest holds these figures now, and benchmarks.toml keeps them"
            )?;
        }
        if self.signature_removed {
            writeln!(f, "note: the manifest changed, so its signature is gone: sign it again")?;
        }
        Ok(())
    }
}

impl BenchReport {
    /// Names the kernels that a live server would not ask here, by what speaks against them.
    fn standing_back(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in &self.lines {
            let Some(why) = &line.stands_back else { continue };
            let kernels = by_reason.entry(why).or_default();
            if kernels.last() != Some(&line.kernel.as_str()) {
                kernels.push(&line.kernel);
            }
        }
        for (why, kernels) in by_reason {
            let kernels: Vec<_> = kernels.into_iter().map(escape_untrusted).collect();
            let (why, kernels) = (escape_untrusted(why), kernels.join(", "));
            writeln!(f, "note: a live server would not ask here, because {why}: {kernels}")?;
        }
        Ok(())
    }

    /// Says whether a live server would keep the pack, as far as speed goes.
    fn live_server(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = self.latency_limit;
        let asked = || self.lines.iter().filter(|line| line.stands_back.is_none());
        let compared = || asked().filter_map(|line| Some((line, line.ratio_in_use?)));
        if compared().next().is_none() {
            return Ok(());
        }
        let mut slow = compared().filter(|(_, ratio)| *ratio > limit).peekable();
        if slow.peek().is_none() {
            return writeln!(
                f,
                "a live server would not take it back for its speed: up to {limit} times as long as the \
                 kernel in use is allowed"
            );
        }
        writeln!(
            f,
            "a live server would TAKE IT BACK for its speed, {limit} times as long is allowed, once it has \
             timed {} calls:",
            HealthLimits::default().latency_calls
        )?;
        for (line, ratio) in slow {
            let kernel = escape_untrusted(&line.kernel);
            let in_use = line.in_use.as_deref().unwrap_or_default();
            writeln!(f, "  {kernel} takes {ratio:.2} times as long as {in_use} ({})", line.shape)?;
        }
        Ok(())
    }
}

/// Times every kernel of a pack, `budget_ms` milliseconds on each side of each line. With `write`
/// the figures go into `benchmarks.toml` of the pack crate and into its manifest.
///
/// # Errors
/// [`ToolError::Pack`], [`ToolError::Manifest`] and [`ToolError::Host`] where the pack is not
/// admitted; [`ToolError::Module`] where a kernel fails while it is timed; [`ToolError::Spec`] where
/// figures are to be written and the directory is no pack crate.
pub fn bench(directory: &Path, budget_ms: u64, write: bool) -> Result<BenchReport, ToolError> {
    if write && !is_pack_crate(directory) {
        let message = "--write needs the pack crate: the directory with pack.toml".to_owned();
        return Err(ToolError::Spec { path: directory.to_owned(), message });
    }
    let mut hosts = hosts_that_ask_each(directory)?;
    let manifest = hosts[0].trial.manifest.clone();
    let native = |isa| -> Result<Side, ToolError> {
        let policy = Policy::NativeOnly;
        let config = HostConfig { policy, isa, cross_check_every: 0, ..HostConfig::default() };
        Side::new(&Host::new(config)?)
    };
    let isa_128 = Isa::narrow();
    let keys: Vec<OpKey> = manifest.kernels.iter().map(key_of).collect();
    let core = core_host(&keys)?;
    let mut in_use = Side::new(&core)?;
    let mut twins = vec![native(Isa::detect())?];
    if let Some(isa) = isa_128 {
        twins.push(native(isa)?);
    }
    let mut report = BenchReport {
        pack: format!("{} {}", manifest.name, manifest.version),
        isa: Isa::detect().name().to_owned(),
        isa_128: isa_128.map(|isa| isa.name().to_owned()),
        lines: Vec::new(),
        latency_limit: HealthLimits::default().latency_ratio,
        written: false,
        signature_removed: false,
    };
    for entry in &manifest.kernels {
        let failed = |message| ToolError::Module { kernel: entry.id.clone(), message };
        let stands_back = hosts[0].why_not(entry);
        let Some(asking) = hosts.iter_mut().find(|host| host.why_not(entry).is_none()) else {
            return Err(failed("no host here asks it".to_owned()));
        };
        let AskingHost { trial, side } = asking;
        for workload in workloads(entry) {
            let mut sides = vec![&mut *side];
            if workload.has_twin {
                sides.push(&mut in_use);
                sides.extend(&mut twins);
            }
            let times = workload.time(&mut sides, budget_ms);
            let times = times.map_err(|error| trial.lines.name(&entry.id, error).to_string());
            let times = times.map_err(failed)?;
            let wasm_us = times[0];
            let [in_use_us, native_us, native_128_us] =
                [1, 2, 3].map(|side| times.get(side).copied());
            report.lines.push(BenchLine {
                kernel: entry.id.clone(),
                shape: workload.case.shape.clone(),
                wasm_us,
                stands_back: stands_back.clone(),
                in_use: core.explain(&workload.key).selected.filter(|_| workload.has_twin),
                in_use_us,
                ratio_in_use: in_use_us.map(|us| wasm_us / us),
                native_us,
                native_128_us,
                ratio: native_us.map(|us| wasm_us / us),
                ratio_128: native_128_us.map(|us| wasm_us / us),
            });
        }
    }
    if write {
        let mut figures = Figures::read(directory)?;
        for line in &report.lines {
            let shape = line.shape.replace(", ", "_").replace(' ', "_");
            figures.set(&line.kernel, &shape, line.wasm_us);
        }
        figures.write(directory)?;
        report.signature_removed = refresh_manifest(directory)?;
        report.written = true;
    }
    Ok(report)
}

/// A host that has a pack, and asks one kernel of each of its operations.
struct AskingHost {
    trial: Trial,
    side: Side,
}

impl AskingHost {
    fn open(directory: &Path, which: Which) -> Result<AskingHost, ToolError> {
        let trial = Trial::open_with(directory, None, which)?;
        let side = Side::new(&trial.host)?;
        Ok(AskingHost { trial, side })
    }

    /// Why a kernel of the pack is not the one that is asked; `None` where it is.
    fn why_not(&self, entry: &KernelEntry) -> Option<String> {
        let pack = self.trial.manifest.name.as_str();
        let candidates = self.trial.host.explain(&key_of(entry)).candidates;
        let mut own = candidates.iter().filter(|other| other.pack == pack);
        match own.find(|other| other.kernel == entry.id) {
            Some(own) if own.verdict == Verdict::Selected => None,
            Some(own) if own.verdict == Verdict::Rejected => Some(own.reasons.join("; ")),
            _ => {
                let first = candidates.iter().find(|other| other.verdict == Verdict::Selected);
                Some(match first {
                    Some(first) => format!("{} is asked before it", first.kernel),
                    None => "nothing here can run it".to_owned(),
                })
            }
        }
    }
}

/// Hosts of which each kernel of the pack is asked by one. The first asks those that a live server does.
///
/// # Errors
/// As of [`bench`]; [`ToolError::Module`] for a kernel that this machine cannot run.
fn hosts_that_ask_each(directory: &Path) -> Result<Vec<AskingHost>, ToolError> {
    let mut hosts = vec![AskingHost::open(directory, Which::Live)?];
    loop {
        let manifest = &hosts[0].trial.manifest;
        let is_asked = |entry: &KernelEntry| hosts.iter().any(|host| host.why_not(entry).is_none());
        let mut next: BTreeMap<String, &KernelEntry> = BTreeMap::new();
        for entry in manifest.kernels.iter().filter(|entry| !is_asked(entry)) {
            next.entry(key_of(entry).to_string()).or_insert(entry);
        }
        if next.is_empty() {
            return Ok(hosts);
        }
        let name = |entry: &KernelEntry| format!("{}/{}", manifest.name, entry.id);
        let names = next.iter().map(|(key, entry)| (key.clone(), name(entry))).collect();
        let host = AskingHost::open(directory, Which::Asked(names))?;
        // Each turn has to leave fewer.
        let left = next.values().find_map(|entry| Some((entry.id.clone(), host.why_not(entry)?)));
        if let Some((kernel, message)) = left {
            return Err(ToolError::Module { kernel, message });
        }
        hosts.push(host);
    }
}

/// The files of the core pack, as they were signed.
static CORE_PACK: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/core_pack.rs"));

/// A host as a program begins with it, with the core pack's kernels of these operations.
fn core_host(keys: &[OpKey]) -> Result<Host, ToolError> {
    let files = CORE_PACK.iter().map(|&(name, bytes)| (name.to_owned(), Cow::Borrowed(bytes)));
    let pack = UnverifiedPack::from_files(files, &PackLimits::default())?;
    let pack = pack.verify(&TrustPolicy::builtin(), None)?;
    let host = Host::new(HostConfig { cross_check_every: 0, ..HostConfig::default() })?;
    host.install_embedded(pack, Some(keys))?;
    Ok(host)
}

/// Extents of calls that are timed beside the catalogue's, which are those of one token and a large model: of a
/// prompt, and of small models, whose calls show what each costs whatever its size.
const BESIDE: [(Op, &[u32]); 4] = [
    (Op::Rope, &[1, 512, 1, 128, 64]),
    (Op::Rope, &[1, 1, 3, 64, 32]),
    (Op::RmsNorm, &[1, 192]),
    (Op::SwiGlu, &[1, 512]),
];

/// One line's calls: the same for every side.
struct Workload {
    /// Whether the operation is of the catalogue.
    has_twin: bool,
    key: OpKey,
    case: Case,
    /// The second input, where it is a constant of a model.
    constant: Option<Resident>,
    words: Words,
    scope: Scope,
}

fn workloads(entry: &KernelEntry) -> Vec<Workload> {
    let key = key_of(entry);
    let known = key.known();
    let cases = match known {
        Some((op, variant)) => {
            let random = &mut Random::new(0xbe4c);
            let mut cases = judge::bench_cases(op, variant, random);
            let params = cases.first().map(|case| case.words.clone()).unwrap_or_default();
            for (_, extents) in BESIDE.iter().filter(|(of, _)| *of == op) {
                let params = params.get(extents.len()..).unwrap_or_default();
                let words = [extents, params].concat();
                cases.extend(judge::live_case(op, variant, &words, random));
            }
            cases
        }
        None => stress::custom_case(entry, 4096).into_iter().collect(),
    };
    let workload = |case: Case| {
        let constant = known.is_some_and(|(op, _)| judge::has_constant(op));
        let constant = constant.then(|| Resident::from_bytes(&case.b));
        let words = Words::new(&case.words)?;
        let (has_twin, key, scope) = (known.is_some(), key.clone(), Scope::unique());
        Some(Workload { has_twin, key, case, constant, words, scope })
    };
    cases.into_iter().filter_map(workload).collect()
}

impl Workload {
    fn call(&self) -> OpCall<'_> {
        let second = match &self.constant {
            Some(constant) => constant.all(),
            None if self.key.inputs.len() > 1 => Operand::Bytes(&self.case.b),
            None => Operand::None,
        };
        let first = match self.key.inputs.first() {
            Some(_) => Operand::Bytes(&self.case.a),
            None => Operand::None,
        };
        OpCall::new(first, second, self.words).within(self.scope)
    }

    /// Median microseconds of a call on each side.
    fn time(&self, sides: &mut [&mut Side], budget_ms: u64) -> Result<Vec<f64>, CallError> {
        let (call, mut out) = (self.call(), vec![0; self.case.output]);
        let slots: Vec<OpSlot> =
            sides.iter().map(|side| side.slot(&self.key)).collect::<Result<_, _>>()?;
        take_turns(sides.len(), budget_ms, |i, calls| {
            sides[i].time(slots[i], &call, &mut out, calls)
        })
    }
}

/// Times several sides in turns: `time` gives the seconds of one call, over a number of calls. The
/// result is microseconds, the median over all rounds.
fn take_turns(
    sides: usize,
    budget_ms: u64,
    mut time: impl FnMut(usize, u32) -> Result<f64, CallError>,
) -> Result<Vec<f64>, CallError> {
    let round = Duration::from_millis(budget_ms).as_secs_f64() / f64::from(ROUNDS);
    let mut calls = Vec::new();
    for i in 0..sides {
        time(i, 100)?;
        calls.push((round / time(i, 100)?.max(1e-9)).clamp(1.0, 1e7) as u32);
    }
    let mut times = vec![Vec::new(); sides];
    for _ in 0..ROUNDS {
        for i in 0..sides {
            times[i].push(time(i, calls[i])?);
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * 1e6
    };
    Ok(times.into_iter().map(median).collect())
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

    fn slot(&self, key: &OpKey) -> Result<OpSlot, CallError> {
        let detail = "this host has none".to_owned();
        self.snapshot.slot(key).ok_or(CallError::Unknown { name: key.to_string(), detail })
    }

    /// Seconds of one call, over `calls` of them.
    fn time(
        &mut self,
        slot: OpSlot,
        call: &OpCall<'_>,
        out: &mut [u8],
        calls: u32,
    ) -> Result<f64, CallError> {
        let started = Instant::now();
        for _ in 0..calls {
            self.worker.call(&self.snapshot, slot, black_box(call), black_box(&mut *out))?;
        }
        Ok(started.elapsed().as_secs_f64() / f64::from(calls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_manifest::WamrPlatform;
    use ruvllm_tests::PackBuilder;
    use ruvllm_tests::wat::{Module, rmsnorm_f32};

    #[test]
    fn the_last_lines_say_whether_a_live_server_would_take_the_pack_back() {
        let said_of = |stands_back: Option<&str>, ratios: &[f64]| {
            let line = |ratio: &f64| BenchLine {
                kernel: "rmsnorm_f32".to_owned(),
                shape: "rows 1, dim 192".to_owned(),
                wasm_us: *ratio,
                stands_back: stands_back.map(str::to_owned),
                in_use: Some("rmsnorm_f32".to_owned()),
                in_use_us: Some(1.0),
                ratio_in_use: Some(*ratio),
                native_us: None,
                native_128_us: None,
                ratio: None,
                ratio_128: None,
            };
            let report = BenchReport {
                pack: "mine 0.1.0".to_owned(),
                isa: "scalar".to_owned(),
                isa_128: None,
                lines: ratios.iter().map(line).collect(),
                latency_limit: HealthLimits::default().latency_ratio,
                written: false,
                signature_removed: false,
            };
            report.to_string()
        };
        let said = |ratios: &[f64]| said_of(None, ratios);
        let kept = said(&[0.7, 1.5]);
        assert!(kept.contains("would not take it back") && !kept.contains("TAKE"), "{kept}");
        let taken = said(&[0.7, 1.51]);
        assert!(taken.contains("would TAKE IT BACK for its speed, 1.5 times"), "{taken}");
        assert!(
            taken.contains(
                "  rmsnorm_f32 takes 1.51 times as long as rmsnorm_f32 (rows 1, dim 192)"
            ),
            "{taken}"
        );
        // Of an operation of its own nothing is in use.
        assert!(!said(&[]).contains("live server"));
        // What a live server does not ask cannot be too slow for it, and no sentence about it is said of nothing.
        let back = said_of(Some("there is a faster one"), &[9.0, 9.0]);
        let why =
            "note: a live server would not ask here, because there is a faster one: rmsnorm_f32\n";
        assert_eq!(back.matches(why).count(), 1, "{back}");
        assert!(!back.contains("TAKE") && !back.contains("take it back"), "{back}");
    }

    #[test]
    fn each_variant_of_a_kernel_is_timed_itself() {
        // About ten times what the kernel itself takes.
        let slow = Module {
            fields: "(global $left (mut i32) (i32.const 0))".to_owned(),
            prologue: "(global.set $left (i32.const 60000))
                (loop $more
                    (global.set $left (i32.sub (global.get $left) (i32.const 1)))
                    (br_if $more (global.get $left)))"
                .to_owned(),
            ..Module::default()
        };
        let model = PackBuilder::new().kernel("rmsnorm_f32", Vec::new()).build();
        let pack = |ids: [&str; 2]| {
            let entry = |id: &str, slow: bool| {
                let mut entry = model.manifest().kernels[0].clone();
                entry.id = id.to_owned();
                entry.path = format!("{id}.wasm").parse().unwrap();
                // Beside a kernel that says nothing of WAMR, this one is its variant for executors without vectors.
                let min_version = semver::Version::new(1, 0, 0);
                let platform = WamrPlatform { min_version, aot_available: true };
                entry.platforms.wamr = slow.then_some(platform);
                entry
            };
            let modules = ids.map(|id| {
                let is_slow = id == "slow";
                let module = if is_slow { slow.clone() } else { Module::default() };
                (entry(id, is_slow), rmsnorm_f32(&module))
            });
            let add = |pack: PackBuilder, (entry, module)| pack.entry(entry, module);
            modules.into_iter().fold(PackBuilder::new(), add).build()
        };
        for ids in [["quick", "slow"], ["slow", "quick"]] {
            let pack = pack(ids);
            let report = bench(&pack.path(), 20, false).unwrap();
            let lines = |id: &'static str| report.lines.iter().filter(move |l| l.kernel == id);
            assert_eq!(lines("quick").count() + lines("slow").count(), report.lines.len());
            for (quick, slow) in lines("quick").zip(lines("slow")) {
                assert_eq!(quick.shape, slow.shape);
                assert!(slow.wasm_us > quick.wasm_us + 5.0, "{slow:?} {quick:?}");
                assert!(slow.ratio_in_use > quick.ratio_in_use, "{slow:?} {quick:?}");
                assert_eq!(quick.stands_back, None);
                let why = slow.stands_back.as_deref().unwrap();
                assert!(why.contains("for executors without"), "{why}");
            }
            let shown = report.to_string();
            assert!(!shown.contains("slow takes"), "{shown}");
            assert_eq!(shown.matches("without: slow\n").count(), 1, "{shown}");
        }
    }
}
