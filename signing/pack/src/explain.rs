//! `explain`: would this host admit a pack? Every gate that it passes on the way in, and its verdict.
//!
//! A gate that refuses hides those behind it from a host. Here the pack then goes on as if it had
//! been trusted, so that its author sees everything at once. Kernels run only after their modules
//! have passed the gate, in the sandbox, and graphs in processes with limits, as on any host.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ruvllm_host::graph::GraphAdmission;
use ruvllm_host::{DeviceClass, Host, HostConfig, HostError, Refusal};
use ruvllm_manifest::{MANIFEST_FILE, Manifest, Violation, WASI_NN};
use ruvllm_signing::{PackError, PackLock, escape_untrusted};
use serde::Serialize;

use crate::error::NO_GRAPHS;
use crate::sign::VerifyOptions;
use crate::trial::TriedGraphs;
use crate::{Report, ToolError, trial};

/// The host's code for a kernel that computes graphs, where nothing admits any.
const GRAPHS_UNAVAILABLE: &str = "graphs_unavailable";

/// Each gate with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainReport {
    /// Name and version of the pack, where they could be read.
    pub pack: String,
    /// Whether this host would admit it. `None` where nothing speaks against it but not all was tried: it holds
    /// graphs, and this build computes none.
    pub admitted: Option<bool>,
    /// The gates of the pack as a whole, in the order in which a host asks them.
    pub gates: Vec<GateReport>,
    /// The gates of each kernel.
    pub kernels: Vec<KernelGates>,
    /// The gates of each graph.
    pub graphs: Vec<GraphGates>,
}

/// The gates of one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelGates {
    /// Its id.
    pub kernel: String,
    /// The gates.
    pub gates: Vec<GateReport>,
}

/// The gates of one graph.
#[derive(Clone, Debug, Serialize)]
pub struct GraphGates {
    /// Its id.
    pub graph: String,
    /// The gates.
    pub gates: Vec<GateReport>,
}

/// One gate.
#[derive(Clone, Debug, Serialize)]
pub struct GateReport {
    /// What it asks.
    pub gate: Gate,
    /// What it says.
    pub verdict: GateVerdict,
    /// Why: a stable code, where, and a sentence.
    pub findings: Vec<Finding>,
}

/// Why a gate does not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable code.
    pub code: String,
    /// Where it was found.
    pub location: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// What stands between a pack and the registry, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// The files can be read: no links, no devices, nothing too large.
    Read,
    /// Enough publishers of the policy have signed the manifest.
    Signatures,
    /// Their trust is valid today.
    Validity,
    /// They may sign packs of this name.
    Scope,
    /// The manifest keeps its rules.
    Manifest,
    /// No newer version of the pack has been active, where a directory of floors was named.
    Floor,
    /// Every listed file is there with its length and hash, and no other.
    Files,
    /// The lock file pins this very pack, where one was named.
    Lock,
    /// Versions, ABI, executor and limits suit this host.
    Compatibility,
    /// The structure of the module.
    Module,
    /// The compiler takes it.
    Compile,
    /// The structure of a graph's file, and the runtime for graphs takes it.
    Graph,
    /// It computes the right numbers on this machine, within its limits, and has manners.
    Numbers,
}

/// What a gate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GateVerdict {
    /// Nothing speaks against it.
    Passed,
    /// Refused, for the findings.
    Refused,
    /// Nobody asked, because of another gate.
    NotReached,
    /// Nobody asked, for want of the directory or the file that says what is accepted.
    NotAsked,
    /// The kernel is left out: it was made for another executor.
    LeftOut,
}

use GateVerdict::{LeftOut, NotAsked, NotReached, Passed, Refused};

impl Gate {
    const OF_PACK: [Gate; 9] = [
        Gate::Read,
        Gate::Signatures,
        Gate::Validity,
        Gate::Scope,
        Gate::Manifest,
        Gate::Floor,
        Gate::Files,
        Gate::Lock,
        Gate::Compatibility,
    ];
    const OF_KERNEL: [Gate; 4] = [Gate::Compatibility, Gate::Module, Gate::Compile, Gate::Numbers];
    const OF_GRAPH: [Gate; 3] = [Gate::Compatibility, Gate::Graph, Gate::Numbers];

    fn name(self) -> &'static str {
        match self {
            Gate::Read => "read",
            Gate::Signatures => "signatures",
            Gate::Validity => "validity",
            Gate::Scope => "scope",
            Gate::Manifest => "manifest",
            Gate::Floor => "floor",
            Gate::Files => "files",
            Gate::Lock => "lock",
            Gate::Compatibility => "compatibility",
            Gate::Module => "module",
            Gate::Compile => "compile",
            Gate::Graph => "graph",
            Gate::Numbers => "numbers",
        }
    }

    /// The gate that a violation of the verification belongs to.
    fn of_violation(code: &str) -> Gate {
        match code {
            "publisher_not_yet_valid" | "publisher_expired" | "clock_unknown" => Gate::Validity,
            "publisher_out_of_scope"
            | "native_not_granted"
            | "threads_not_granted"
            | "wasi_nn_not_granted" => Gate::Scope,
            "version_below_floor" => Gate::Floor,
            "manifest_missing" | "threshold_not_met" | "key_revoked" => Gate::Signatures,
            code if code.starts_with("signature") || code.starts_with("envelope") => {
                Gate::Signatures
            }
            code if code.starts_with("file_") => Gate::Files,
            _ => Gate::Manifest,
        }
    }

    /// The gate that a refusal of the host belongs to.
    fn of_refusal(refusal: &Refusal) -> Gate {
        let module = ["module_", "export_", "memory_", "table_"];
        match refusal.code {
            _ if refusal.kernel.is_empty() => Gate::Compatibility,
            "kernel_shape" | "tolerance_too_loose" | "limit_over_cap" => Gate::Compatibility,
            "executor_unsupported"
            | "executor_too_old"
            | "feature_unsupported"
            | "threads_unsupported" => Gate::Compatibility,
            "feature_undeclared" => Gate::Module,
            "kernel_compile" | "compile_limit" | "compile_timeout" | "compiler_unavailable" => {
                Gate::Compile
            }
            code if module.iter().any(|prefix| code.starts_with(prefix)) => Gate::Module,
            _ => Gate::Numbers,
        }
    }

    /// The gate that a refusal of a graph belongs to.
    fn of_graph_refusal(refusal: &Refusal) -> Gate {
        match refusal.code {
            "tolerance_too_loose" | "limit_over_cap" => Gate::Compatibility,
            "graph_io_mismatch" | "graph_refused" => Gate::Graph,
            code if code.starts_with("onnx_") => Gate::Graph,
            _ => Gate::Numbers,
        }
    }
}

impl Report for ExplainReport {
    fn passed(&self) -> bool {
        self.admitted == Some(true)
    }
}

impl fmt::Display for ExplainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.admitted {
            Some(true) => "would be admitted",
            Some(false) => "would be REFUSED",
            None => "cannot be tried to the end",
        };
        writeln!(f, "{} {verdict} here", escape_untrusted(&self.pack))?;
        self.gates.iter().try_for_each(|gate| gate.fmt(f))?;
        let kernels = self.kernels.iter().map(|kernel| (&kernel.kernel, &kernel.gates));
        let graphs = self.graphs.iter().map(|graph| (&graph.graph, &graph.gates));
        for (id, gates) in kernels.chain(graphs) {
            writeln!(f, "{}", escape_untrusted(id))?;
            gates.iter().try_for_each(|gate| gate.fmt(f))?;
        }
        Ok(())
    }
}

impl fmt::Display for GateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Passed => "passed",
            Refused => "REFUSED",
            NotReached => "not reached",
            NotAsked => "not asked",
            LeftOut => "left out",
        };
        writeln!(f, "  {:<14} {verdict}", self.gate.name())?;
        for Finding { code, location, message } in &self.findings {
            let at = if location.is_empty() { String::new() } else { format!("{location}: ") };
            writeln!(f, "    {} [{code}]", escape_untrusted(&format!("{at}{message}")))?;
        }
        Ok(())
    }
}

/// Takes a pack through every gate of a host of this device class in its default configuration.
///
/// # Errors
/// What the policy, the floors and the lock file can be refused for, [`ToolError::Io`], and
/// [`HostError::Executor`] where there is no sandbox here. A pack that is refused, even one that
/// cannot be read, is a report.
pub fn explain(
    options: &VerifyOptions,
    class: DeviceClass,
    directory: &Path,
) -> Result<ExplainReport, ToolError> {
    let policy = options.read_policy()?;
    let floors = options.floors()?;
    let lock = options.lock.as_deref().map(PackLock::read).transpose()?;
    let mut gates = Gates::new();
    if floors.is_none() {
        gates.set(Gate::Floor, NotAsked);
    }
    if lock.is_none() {
        gates.set(Gate::Lock, NotAsked);
    }
    let pack = match trial::read(directory) {
        Ok(pack) => pack,
        Err(ToolError::Pack(PackError::Rejected(found))) => {
            found.iter().for_each(|violation| gates.refuse(Gate::Read, violation));
            gates.not_reached_after(Gate::Read);
            return Ok(gates.report("the pack".to_owned(), Vec::new(), Vec::new()));
        }
        Err(other) => return Err(other),
    };
    let files: Vec<(String, Vec<u8>)> =
        pack.files().map(|(path, bytes)| (path.to_owned(), bytes.to_vec())).collect();
    let manifest = Manifest::parse(pack.file(MANIFEST_FILE).unwrap_or_default());
    let title = match &manifest {
        Ok(manifest) => format!("{} {}", manifest.name, manifest.version),
        Err(_) => "the pack".to_owned(),
    };
    if let (Some(floors), Ok(manifest)) = (&floors, &manifest) {
        match floors.objection(&manifest.name, &manifest.version) {
            Ok(violation) => violation.iter().for_each(|found| gates.refuse(Gate::Floor, found)),
            Err(damaged @ PackError::FloorDamaged { .. }) => {
                gates.add(Gate::Floor, damaged.code(), "", &damaged.to_string());
            }
            Err(other) => return Err(other.into()),
        }
    }
    match pack.verify_with(&policy, None, options.clock()) {
        Ok(_) => {}
        Err(PackError::Rejected(found)) => {
            for violation in &found {
                gates.refuse(Gate::of_violation(violation.code), violation);
            }
            if gates.refused(Gate::Signatures) && !gates.refused(Gate::Validity) {
                gates.set(Gate::Validity, NotReached);
            }
            if gates.refused(Gate::Signatures) || gates.refused(Gate::Validity) {
                gates.set(Gate::Scope, NotReached);
            }
        }
        Err(other) => return Err(other.into()),
    }
    // What the signatures kept a host from looking at.
    let trusted = match trial::trusted(files) {
        Ok(pack) => pack,
        Err(ToolError::Pack(PackError::Rejected(found))) => {
            for violation in &found {
                gates.refuse(Gate::of_violation(violation.code), violation);
            }
            gates.not_reached_after(Gate::Files);
            if manifest.is_err() {
                gates.not_reached_after(Gate::Manifest);
            }
            return Ok(gates.report(title, Vec::new(), Vec::new()));
        }
        Err(other) => return Err(other),
    };
    match lock.map(|lock| lock.check(&trusted)) {
        None | Some(Ok(())) => {}
        Some(Err(PackError::Rejected(found))) => {
            found.iter().for_each(|violation| gates.refuse(Gate::Lock, violation));
        }
        Some(Err(other)) => return Err(other.into()),
    }
    let ids: Vec<String> = trusted.manifest().kernels.iter().map(|k| k.id.clone()).collect();
    let graph_ids: Vec<String> = trusted.manifest().graphs.iter().map(|g| g.id.clone()).collect();
    let tried = TriedGraphs::of(&trusted).map(Arc::new);
    let graphs = tried.clone().map(|graphs| graphs as Arc<dyn GraphAdmission>);
    let outcome = Host::new(HostConfig { graphs, ..class.config() })?.install(trusted);
    let (mut refusals, left_out) = match outcome {
        Ok(report) => (Vec::new(), report.skipped),
        Err(HostError::Refused { refusals, .. }) => (refusals, Vec::new()),
        Err(other) => return Err(other.into()),
    };
    for refusal in refusals.iter().filter(|refusal| refusal.kernel.is_empty()) {
        gates.add(Gate::Compatibility, refusal.code, "", &refusal.message);
    }
    // A host compiles no kernel of a pack before the graphs that one of them computes are admitted.
    // One of a build that computes none lacks the feature, which is no fault of a kernel that needs it.
    let by_graphs = |refusal: &Refusal| match refusal.code {
        GRAPHS_UNAVAILABLE => true,
        "feature_unsupported" => tried.is_none() && refusal.message.contains(WASI_NN),
        _ => graph_ids.contains(&refusal.kernel),
    };
    let before = refusals.len();
    refusals.retain(|refusal| !by_graphs(refusal));
    let without_graphs = refusals.len() < before;
    let kernel = |id| of_kernel(id, &refusals, &left_out, without_graphs);
    let kernels = ids.into_iter().map(kernel).collect();
    let tried = tried.as_ref().map(|tried| &tried.refusals[..]);
    let graphs = graph_ids.iter().map(|id| of_graph(id, tried)).collect();
    Ok(gates.report(title, kernels, graphs))
}

/// The gates of one graph, from what speaks against those that were tried, if any were.
fn of_graph(graph: &str, tried: Option<&[Refusal]>) -> GraphGates {
    let finding = |code: &str, message: &str| Finding {
        code: code.to_owned(),
        location: String::new(),
        message: message.to_owned(),
    };
    let graph = graph.to_owned();
    let Some(tried) = tried else {
        let findings = vec![finding(GRAPHS_UNAVAILABLE, NO_GRAPHS)];
        let gates = vec![GateReport { gate: Gate::Numbers, verdict: NotAsked, findings }];
        return GraphGates { graph, gates };
    };
    let own = || tried.iter().filter(|refusal| refusal.kernel == graph);
    let computed = own().all(|refusal| Gate::of_graph_refusal(refusal) == Gate::Numbers);
    let gates = Gate::OF_GRAPH.map(|gate| {
        let here = own().filter(|refusal| Gate::of_graph_refusal(refusal) == gate);
        let findings: Vec<Finding> =
            here.map(|refusal| finding(refusal.code, &refusal.message)).collect();
        let verdict = match gate {
            _ if !findings.is_empty() => Refused,
            Gate::Numbers if !computed => NotReached,
            _ => Passed,
        };
        GateReport { gate, verdict, findings }
    });
    GraphGates { graph, gates: gates.into() }
}

/// The gates of one kernel, from what the host said, which may have asked no further for want of graphs.
fn of_kernel(
    kernel: String,
    refusals: &[Refusal],
    left_out: &[(String, Vec<String>)],
    without_graphs: bool,
) -> KernelGates {
    if let Some((_, reasons)) = left_out.iter().find(|(id, _)| *id == kernel) {
        let finding = |reason: &String| Finding {
            code: "left_out".to_owned(),
            location: String::new(),
            message: reason.clone(),
        };
        let findings = reasons.iter().map(finding).collect();
        let gate = GateReport { gate: Gate::Compatibility, verdict: LeftOut, findings };
        return KernelGates { kernel, gates: vec![gate] };
    }
    let any = |gates: &[Gate], of: Option<&str>| {
        refusals
            .iter()
            .filter(|refusal| of.is_none_or(|id| refusal.kernel == id))
            .any(|refusal| gates.contains(&Gate::of_refusal(refusal)))
    };
    let pack_refused = refusals.iter().any(|refusal| refusal.kernel.is_empty());
    // A host compiles nothing of a pack before all of its modules have passed.
    let uncompiled = without_graphs || any(&[Gate::Compatibility, Gate::Module], None);
    let compiled = !any(&[Gate::Compile], Some(&kernel));
    let verdict = |gate: Gate| match gate {
        _ if any(&[gate], Some(&kernel)) => Refused,
        Gate::Compatibility | Gate::Module if pack_refused => NotReached,
        Gate::Compile | Gate::Numbers if uncompiled => NotReached,
        Gate::Numbers if !compiled => NotReached,
        _ => Passed,
    };
    let findings = |gate: Gate| {
        let own = refusals.iter().filter(|refusal| refusal.kernel == kernel);
        own.filter(|refusal| Gate::of_refusal(refusal) == gate)
            .map(|refusal| Finding {
                code: refusal.code.to_owned(),
                location: String::new(),
                message: refusal.message.clone(),
            })
            .collect()
    };
    let gates = Gate::OF_KERNEL.map(|gate| GateReport {
        gate,
        verdict: verdict(gate),
        findings: findings(gate),
    });
    KernelGates { gates: gates.into(), kernel }
}

/// The gates of a pack, passed until something says otherwise.
struct Gates(Vec<GateReport>);

impl Gates {
    fn new() -> Gates {
        let gate = |gate| GateReport { gate, verdict: Passed, findings: Vec::new() };
        Gates(Gate::OF_PACK.map(gate).into())
    }

    fn at(&mut self, gate: Gate) -> Option<&mut GateReport> {
        self.0.iter_mut().find(|report| report.gate == gate)
    }

    fn add(&mut self, gate: Gate, code: &str, location: &str, message: &str) {
        let finding = Finding {
            code: code.to_owned(),
            location: location.to_owned(),
            message: message.to_owned(),
        };
        if let Some(report) = self.at(gate) {
            report.verdict = Refused;
            if !report.findings.contains(&finding) {
                report.findings.push(finding);
            }
        }
    }

    fn refuse(&mut self, gate: Gate, violation: &Violation) {
        self.add(gate, violation.code, &violation.location, &violation.message);
    }

    fn refused(&self, gate: Gate) -> bool {
        self.0.iter().any(|report| report.gate == gate && report.verdict == Refused)
    }

    fn set(&mut self, gate: Gate, verdict: GateVerdict) {
        if let Some(report) = self.at(gate) {
            report.verdict = verdict;
        }
    }

    fn not_reached_after(&mut self, gate: Gate) {
        let after = self.0.iter_mut().skip_while(|report| report.gate != gate).skip(1);
        after
            .filter(|report| report.verdict == Passed)
            .for_each(|report| report.verdict = NotReached);
    }

    fn report(
        self,
        pack: String,
        kernels: Vec<KernelGates>,
        graphs: Vec<GraphGates>,
    ) -> ExplainReport {
        let of_graphs = || graphs.iter().flat_map(|graph| &graph.gates);
        let all = self.0.iter().chain(kernels.iter().flat_map(|kernel| &kernel.gates));
        let refused = all.chain(of_graphs()).any(|gate| gate.verdict == Refused);
        let empty = kernels.is_empty() && graphs.is_empty();
        let untried = of_graphs().any(|gate| gate.verdict == NotAsked);
        let admitted = (refused || empty || !untried).then_some(!refused && !empty);
        ExplainReport { pack, admitted, gates: self.0, kernels, graphs }
    }
}
