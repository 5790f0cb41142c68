//! The gates before compilation: versions, features and limits of the manifest, then each module.

pub(crate) mod executor;
mod memory;
pub(crate) mod module;
mod variants;

use crate::compare::host_tolerance;
use crate::error::Refusal;
use crate::exec::{KernelSpec, Offer};
use crate::graph::PackGraphs;
use crate::op::plan::CallPlan;
use crate::{HostConfig, OpKey, exec};
use executor::{Decision, is_platform};
use module::Declared;
use ruvllm_abi::ABI_VERSION;
use ruvllm_manifest::{
    Compatibility, ExecutorGate, ExecutorKind, KernelEntry, LimitCaps, Manifest, RuntimeGates,
    Tolerance, Violation, WASI_NN, check_compatibility,
};
use ruvllm_signing::VerifiedPack;
use variants::{Variant, is_superseded};

/// A kernel of a verified pack whose manifest entry and module passed the gates. Only [`pass`] makes
/// one, and it holds the very bytes that it looked at.
///
/// ```compile_fail,E0451
/// use ruvllm_host::lifecycle::GatedKernel;
///
/// fn change_the_module<'a>(gated: GatedKernel<'a>, module: &'a [u8]) -> GatedKernel<'a> {
///     GatedKernel { module, ..gated }
/// }
/// ```
///
/// Nor is there one without a pack to take it from: the step before is [`VerifiedPack`].
///
/// ```
/// use ruvllm_host::{HostConfig, lifecycle::pass_gates};
///
/// fn pass(pack: &ruvllm_signing::VerifiedPack, config: &HostConfig) {
///     let _ = pass_gates(pack, config, &[], 0, None);
/// }
/// ```
///
/// ```compile_fail,E0308
/// use ruvllm_host::{HostConfig, lifecycle::pass_gates};
///
/// fn pass(pack: &ruvllm_signing::UnverifiedPack, config: &HostConfig) {
///     let _ = pass_gates(pack, config, &[], 0, None);
/// }
/// ```
#[deny(clippy::field_scoped_visibility_modifiers)]
pub struct GatedKernel<'a> {
    id: String,
    hash: String,
    key: OpKey,
    plan: CallPlan,
    spec: KernelSpec,
    defaults: Vec<u32>,
    features: Vec<String>,
    author: Option<Tolerance>,
    decision: Decision,
    module: &'a [u8],
}

/// What the documentation of [`GatedKernel`] tries in vain compiles where its fields are seen.
#[cfg(test)]
#[expect(dead_code, reason = "only compiled")]
fn change_the_module<'a>(gated: GatedKernel<'a>, module: &'a [u8]) -> GatedKernel<'a> {
    GatedKernel { module, ..gated }
}

impl GatedKernel<'_> {
    /// Its id in the pack.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Of the module, as the manifest has it.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// What it computes.
    pub(crate) fn key(&self) -> &OpKey {
        &self.key
    }

    pub(crate) fn plan(&self) -> &CallPlan {
        &self.plan
    }

    pub(crate) fn spec(&self) -> &KernelSpec {
        &self.spec
    }

    /// The words of the params at their defaults.
    pub(crate) fn defaults(&self) -> &[u32] {
        &self.defaults
    }

    /// Features of the executor that its manifest entry declares.
    pub(crate) fn features(&self) -> &[String] {
        &self.features
    }

    /// Whether it computes graphs of its pack.
    pub(crate) fn computes_graphs(&self) -> bool {
        self.features.iter().any(|feature| feature == WASI_NN)
    }

    /// The author's own tolerance.
    pub(crate) fn author(&self) -> Option<Tolerance> {
        self.author
    }

    /// What runs it.
    pub(crate) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The bytes of its module.
    pub(crate) fn module(&self) -> &[u8] {
        self.module
    }
}

/// What the gates made of a pack.
pub struct Gated<'a> {
    /// Those that passed.
    pub kernels: Vec<GatedKernel<'a>>,
    /// Kernels that are in order but were made for another executor or another mode, or are called by
    /// nobody.
    pub skipped: Vec<Skipped>,
}

/// A kernel that is not used here, and why.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// Its id in the pack.
    pub kernel: String,
    /// What it computes.
    pub key: OpKey,
    /// What would have run it.
    pub executor: ExecutorKind,
    /// A sentence each.
    pub reasons: Vec<String>,
}

/// What this host offers to packs where that executor runs them.
fn runtime_gates(config: &HostConfig, executor: &ExecutorGate) -> RuntimeGates {
    RuntimeGates {
        runtime_version: config.runtime_version.clone(),
        abi_version: ABI_VERSION,
        executor: executor.clone(),
        caps: LimitCaps {
            max_memory_pages: config.limits.memory_pages,
            max_epoch_ticks: config.limits.epoch_ticks,
            max_table_elements: config.limits.table_elements,
            max_threads: config.device_class.kernel_threads(),
        },
    }
}

/// What stands against a pack on an executor, given the features that its modules use.
fn compare(
    manifest: &Manifest,
    config: &HostConfig,
    gate: &ExecutorGate,
    used: &[Vec<String>],
) -> Compatibility {
    let mut found = check_compatibility(manifest, &runtime_gates(config, gate));
    if gate.kind == ExecutorKind::Wamr {
        for (violations, used) in found.kernels.iter_mut().zip(used) {
            let missing = used.iter().filter(|name| !gate.features.contains(name));
            violations.extend(missing.map(|name| {
                let what = format!("the module uses `{name}`, which this WAMR does not have");
                Violation::new("feature_unsupported", "", what)
            }));
        }
    }
    found
}

/// The features that the modules of kernels for WAMR use, where that is there. A manifest says what a kernel needs
/// of Wasmtime; of WAMR's features it says nothing, since builds differ.
fn used_features(pack: &VerifiedPack, config: &HostConfig, offers: &[Offer]) -> Vec<Vec<String>> {
    let is_wamr = |offer: &Offer| offer.executor == ExecutorKind::Wamr && offer.gate.is_ok();
    let is_offered = offers.iter().any(is_wamr);
    let used = |entry: &KernelEntry| {
        let module = pack.kernel_bytes(&entry.id);
        let module = module.filter(|_| is_offered && entry.platforms.wamr.is_some());
        let used = module.map(|module| module::used_features(module, &config.limits));
        used.unwrap_or_default().into_iter().map(str::to_owned).collect()
    };
    pack.manifest().kernels.iter().map(used).collect()
}

/// Takes a pack, whose instances may take `memory` bytes together, through all gates, on executors that make
/// these offers. No kernel is compiled, or loaded as machine code, before every one has passed. Where `called`
/// has all operations that will ever be called, kernels of others are left out.
///
/// # Errors
/// Everything that speaks against the pack.
pub fn pass<'a>(
    pack: &'a VerifiedPack,
    config: &HostConfig,
    offers: &[Offer],
    memory: usize,
    called: Option<&[OpKey]>,
) -> Result<Gated<'a>, Vec<Refusal>> {
    let manifest = pack.manifest();
    let used = used_features(pack, config, offers);
    let offered: Vec<(ExecutorKind, Result<Compatibility, String>)> = offers
        .iter()
        .map(|Offer { executor, gate }| match gate {
            Ok(gate) => (*executor, Ok(compare(manifest, config, gate, &used))),
            Err(why) => (*executor, Err(why.clone())),
        })
        .collect();
    let refusal = |kernel: &str, v: &Violation| Refusal::new(kernel, v.code, plain(v));
    // What concerns the whole pack is the same whatever runs it.
    let Some(compatibility) = offered.iter().find_map(|(_, found)| found.as_ref().ok()) else {
        let what = "there is no executor that could run it".to_owned();
        return Err(vec![Refusal::new("", "executor_unavailable", what)]);
    };
    let mut refusals: Vec<Refusal> =
        compatibility.pack.iter().map(|violation| refusal("", violation)).collect();
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let entries: Vec<Variant<'_, '_>> = manifest
        .kernels
        .iter()
        .zip(used)
        .enumerate()
        .map(|(i, (entry, used))| {
            let (decision, violations) = executor::decide(config, &offered, i);
            let features = match decision.executor {
                ExecutorKind::Wasmtime => {
                    entry.platforms.wasmtime.as_ref().map_or(Vec::new(), |p| p.features.clone())
                }
                ExecutorKind::Wamr => used,
            };
            let (key, module) = (key_of(entry), pack.kernel_bytes(&entry.id));
            let lack = module.and_then(|module| memory::lack(entry, &key, module, config));
            Variant { entry, key, module, decision, violations, features, lack }
        })
        .collect();
    let (mut kernels, mut skipped, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    let mut lacking = false;
    let skip = |entry: &Variant<'_, '_>, reasons| Skipped {
        kernel: entry.entry.id.clone(),
        key: entry.key.clone(),
        executor: entry.decision.executor,
        reasons,
    };
    for entry in &entries {
        let id = &entry.entry.id;
        let found: Vec<Refusal> = entry.violations.iter().map(|v| refusal(id, v)).collect();
        if !found.is_empty() && found.iter().all(|refusal| is_platform(refusal.code)) {
            let reasons = found.iter().map(|refusal| refusal.message.clone()).collect();
            skipped.push(skip(entry, reasons));
            skips.extend(found);
            continue;
        }
        if let Some(lack) = entry.lack.as_ref().filter(|_| found.is_empty()) {
            skipped.push(skip(entry, vec![lack.clone()]));
            lacking = true;
            continue;
        }
        let may_stand_back = !config.all_variants && found.is_empty();
        let uncalled = called.is_some_and(|called| !called.contains(&entry.key));
        let uncalled = uncalled.then_some("no model that is loaded here calls this operation");
        let back = is_superseded(entry, &entries, manifest, config);
        let reason = back.or(uncalled.map(str::to_owned));
        if let Some(reason) = reason.filter(|_| may_stand_back) {
            skipped.push(skip(entry, vec![reason]));
            continue;
        }
        refusals.extend(found);
        match kernel(entry, config) {
            Ok(gated) => kernels.push(gated),
            Err(found) => refusals.extend(found),
        }
    }
    // One that lacks memory was made for this host: its pack is not refused for variants of it that were not.
    if kernels.is_empty() && !lacking {
        refusals.extend(skips);
    }
    let begin = kernels.iter().map(|kernel: &GatedKernel<'_>| module::begins_with(kernel.module));
    let needed = begin.fold(0, usize::saturating_add);
    if needed > memory {
        let what = format!(
            "one instance of each of its kernels takes {needed} bytes of memory; a pack may have \
             {memory} here: link for a smaller memory, which the host grows where calls need it, or \
             give more with --memory"
        );
        refusals.push(Refusal::new("", "pack_memory_over_limit", what));
    }
    if refusals.is_empty() { Ok(Gated { kernels, skipped }) } else { Err(refusals) }
}

fn key_of(entry: &KernelEntry) -> OpKey {
    let inputs: Vec<_> = entry.inputs.iter().map(|tensor| tensor.dtype).collect();
    let output = entry.outputs.first().map_or(ruvllm_abi::DType::U8, |tensor| tensor.dtype);
    OpKey::new(entry.op.clone(), inputs, output)
}

fn kernel<'a>(
    kernel: &Variant<'a, '_>,
    config: &HostConfig,
) -> Result<GatedKernel<'a>, Vec<Refusal>> {
    let Variant { entry, key, module, decision, features, .. } = kernel;
    let mut found = Vec::new();
    let mut refuse = |code, what: String| found.push(Refusal::new(&entry.id, code, what));
    let plan = CallPlan::of_entry(entry);
    if entry.outputs.len() != 1 || !plan.fits_abi() {
        refuse(
            "kernel_shape",
            "the descriptor has room for two inputs, one output and 24 words of params".to_owned(),
        );
    }
    match key.known() {
        Some((op, _)) => {
            if let Some(author) = entry.tolerance {
                let host = host_tolerance(op, key.output);
                let (rel, abs) = host.map_or((0.0, 0.0), |host| (host.rel, host.abs));
                if author.rel > rel || author.abs > abs {
                    let what = format!(
                        "the tolerance rel {:e}, abs {:e} is looser than this host's rel {rel:e}, \
                         abs {abs:e} for {key}",
                        author.rel, author.abs
                    );
                    refuse("tolerance_too_loose", what);
                }
            }
        }
        None if key.is_team() => {
            let what = format!(
                "{} is computed by all threads of a step together, which no executor of packs offers here",
                key.op
            );
            refuse("team_operation", what);
        }
        None if entry.known_op().is_some() => {
            refuse("kernel_shape", format!("{key} is not a variant that the ABI defines"));
        }
        None => {}
    }
    if entry.threads > 1 && entry.asks_for_graphs() {
        refuse("kernel_shape", "a kernel has threads or computes graphs, not both".to_owned());
    }
    let limits = &entry.resource_limits;
    let most = config.instance_memory.map_or(u32::MAX, |bytes| (bytes / exec::WASM_PAGE) as u32);
    let spec = KernelSpec {
        entry_point: entry.entry_point.clone(),
        backward: entry.backward,
        threads: entry.threads,
        memory_pages: limits.max_memory_pages.min(most),
        table_elements: limits.max_table_elements,
        ticks: limits.max_epoch_ticks.min(config.call_ticks()),
        // They are admitted when everything has passed the gates.
        graphs: PackGraphs::default(),
    };
    let defaults: Vec<u32> =
        plan.params.iter().map(|p| p.default.map_or(0, |v| v.to_word())).collect();
    match module {
        Some(module) => {
            let declared = Declared {
                entry_point: &entry.entry_point,
                backward: Some(entry.backward),
                threads: entry.threads > 1,
                memory_pages: entry.resource_limits.max_memory_pages,
                table_elements: entry.resource_limits.max_table_elements,
                features,
                graphs: cfg!(feature = "wasi-nn")
                    && decision.executor == ExecutorKind::Wasmtime
                    && entry.asks_for_graphs(),
            };
            for (code, what) in module::check(module, &declared, &config.limits) {
                refuse(code, what);
            }
        }
        None => refuse("module_missing", "the pack has no module for this kernel".to_owned()),
    }
    let mut decision = decision.clone();
    if entry.threads > 1 {
        let entered = entry.threads.min(config.kernel_threads());
        let asked = match entered < entry.threads {
            true => format!("{entered} of the {} threads that it asks for,", entry.threads),
            false => format!("up to {entered} threads"),
        };
        decision.reason += &format!(", with {asked} over one memory");
    }
    match module {
        Some(module) if found.is_empty() => Ok(GatedKernel {
            id: entry.id.clone(),
            hash: entry.hash.to_string(),
            key: key.clone(),
            plan,
            spec,
            defaults,
            features: features.clone(),
            author: entry.tolerance,
            decision,
            module,
        }),
        _ => Err(found),
    }
}

/// Location and message; the code travels on its own.
fn plain(violation: &Violation) -> String {
    if violation.location.is_empty() {
        violation.message.clone()
    } else {
        format!("{}: {}", violation.location, violation.message)
    }
}
