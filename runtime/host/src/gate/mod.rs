//! The gates before compilation: versions, features and limits of the manifest, then each module.

pub(crate) mod executor;
pub(crate) mod module;

use crate::compare::host_tolerance;
use crate::error::Refusal;
use crate::exec::KernelSpec;
use crate::op::plan::CallPlan;
use crate::{HostConfig, OpKey, exec};
use executor::Decision;
use module::{Declared, RELAXED_SIMD};
use ruvllm_abi::ABI_VERSION;
use ruvllm_manifest::{
    ExecutorGate, ExecutorKind, KernelEntry, LimitCaps, Manifest, RuntimeGates, Tolerance,
    Violation, check_compatibility,
};
use ruvllm_signing::VerifiedPack;

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
/// ```compile_fail,E0308
/// use ruvllm_host::{HostConfig, lifecycle::pass_gates};
///
/// fn skip_verification(pack: &ruvllm_signing::UnverifiedPack, config: &HostConfig) {
///     let _ = pass_gates(pack, config, 0, None);
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
    /// A sentence each.
    pub reasons: Vec<String>,
}

/// The executors of this build, with their versions and features.
fn executors() -> [ExecutorGate; 1] {
    [ExecutorGate {
        kind: ExecutorKind::Wasmtime,
        version: exec::VERSION,
        features: module::kernel_features().map(str::to_owned).collect(),
    }]
}

/// What this host offers to packs where that executor runs them.
fn runtime_gates(config: &HostConfig, executor: ExecutorGate) -> RuntimeGates {
    RuntimeGates {
        runtime_version: config.runtime_version.clone(),
        abi_version: ABI_VERSION,
        executor,
        caps: LimitCaps {
            max_memory_pages: config.limits.memory_pages,
            max_epoch_ticks: config.limits.epoch_ticks,
            max_table_elements: config.limits.table_elements,
        },
    }
}

/// Takes a pack, whose instances may take `memory` bytes together, through all gates. No kernel is
/// compiled, or loaded as machine code, before every one has passed. Where `called` has all operations
/// that will ever be called, kernels of others are left out.
///
/// # Errors
/// Everything that speaks against the pack.
pub fn pass<'a>(
    pack: &'a VerifiedPack,
    config: &HostConfig,
    memory: usize,
    called: Option<&[OpKey]>,
) -> Result<Gated<'a>, Vec<Refusal>> {
    let manifest = pack.manifest();
    let built = executors().map(|executor| {
        let kind = executor.kind;
        (kind, check_compatibility(manifest, &runtime_gates(config, executor)))
    });
    let refusal = |kernel: &str, v: &Violation| Refusal::new(kernel, v.code, plain(v));
    // What concerns the whole pack is the same whatever runs it.
    let [(_, compatibility), ..] = &built;
    let mut refusals: Vec<Refusal> =
        compatibility.pack.iter().map(|violation| refusal("", violation)).collect();
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let decide = |kernel| executor::decide(config.device_class, &built, kernel);
    let decisions: Vec<_> = (0..manifest.kernels.len()).map(decide).collect();
    let variants = Variants::new(manifest, &decisions, config.deterministic);
    let (mut kernels, mut skipped, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    for (entry, (decision, violations)) in manifest.kernels.iter().zip(&decisions) {
        let found: Vec<Refusal> = violations.iter().map(|v| refusal(&entry.id, v)).collect();
        if !found.is_empty() && found.iter().all(|refusal| is_platform(refusal.code)) {
            let reasons = found.iter().map(|refusal| refusal.message.clone()).collect();
            skipped.push(Skipped { kernel: entry.id.clone(), key: key_of(entry), reasons });
            skips.extend(found);
            continue;
        }
        let stands_back = !config.all_variants && found.is_empty();
        let uncalled = called.is_some_and(|called| !called.contains(&key_of(entry)));
        let uncalled = uncalled.then_some("no model that is loaded here calls this operation");
        if let Some(reason) = variants.stands_back(entry).or(uncalled).filter(|_| stands_back) {
            let reasons = vec![reason.to_owned()];
            skipped.push(Skipped { kernel: entry.id.clone(), key: key_of(entry), reasons });
            continue;
        }
        if let Some(most) = config.instance_memory.filter(|_| found.is_empty())
            && let Some(module) = pack.kernel_bytes(&entry.id)
            && module::begins_with(module) > most
        {
            let what = format!(
                "it begins with {} bytes of memory; the device class {} gives an instance {most}",
                module::begins_with(module),
                config.device_class
            );
            skipped.push(Skipped {
                kernel: entry.id.clone(),
                key: key_of(entry),
                reasons: vec![what],
            });
            continue;
        }
        refusals.extend(found);
        match kernel(entry, pack.kernel_bytes(&entry.id), config, decision) {
            Ok(gated) => kernels.push(gated),
            Err(found) => refusals.extend(found),
        }
    }
    if kernels.is_empty() {
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

/// Which kernels of a pack stand back behind variants of theirs: of kernels of one operation that
/// differ in relaxed SIMD, those without it are for deterministic hosts and those with it for all
/// others. One that the pack names as a fallback stays.
struct Variants<'a> {
    manifest: &'a Manifest,
    deterministic: bool,
    /// Operations that a kernel which suits the mode answers.
    answered: Vec<OpKey>,
}

impl<'a> Variants<'a> {
    fn new(
        manifest: &'a Manifest,
        decisions: &[(Decision, &[Violation])],
        deterministic: bool,
    ) -> Self {
        let mut variants = Self { manifest, deterministic, answered: Vec::new() };
        let kernels = manifest.kernels.iter().zip(decisions);
        let sound = kernels.filter(|(_, (_, found))| found.is_empty());
        variants.answered = sound
            .filter(|(entry, _)| variants.suits(entry))
            .map(|(entry, _)| key_of(entry))
            .collect();
        variants
    }

    fn suits(&self, entry: &KernelEntry) -> bool {
        let wasmtime = entry.platforms.wasmtime.as_ref();
        let relaxed = wasmtime.is_some_and(|w| w.features.iter().any(|f| f == RELAXED_SIMD));
        relaxed != self.deterministic
    }

    /// Why a kernel stands back, if it does.
    fn stands_back(&self, entry: &KernelEntry) -> Option<&'static str> {
        if self.suits(entry) || !self.answered.contains(&key_of(entry)) {
            return None;
        }
        if self.deterministic {
            return Some(
                "it uses relaxed SIMD, whose results depend on the processor; the pack has a \
                 variant without",
            );
        }
        let named = self.manifest.fallbacks.values().any(|fallback| *fallback == entry.id);
        (!named).then_some(
            "the pack has a faster variant with relaxed SIMD; this one is for deterministic mode",
        )
    }
}

/// Whether a violation means another platform rather than something wrong.
fn is_platform(code: &str) -> bool {
    matches!(code, "executor_unsupported" | "executor_too_old" | "feature_unsupported")
}

fn key_of(entry: &KernelEntry) -> OpKey {
    let inputs: Vec<_> = entry.inputs.iter().map(|tensor| tensor.dtype).collect();
    let output = entry.outputs.first().map_or(ruvllm_abi::DType::U8, |tensor| tensor.dtype);
    OpKey::new(entry.op.clone(), inputs, output)
}

fn kernel<'a>(
    entry: &KernelEntry,
    module: Option<&'a [u8]>,
    config: &HostConfig,
    decision: &Decision,
) -> Result<GatedKernel<'a>, Vec<Refusal>> {
    let mut found = Vec::new();
    let mut refuse = |code, what: String| found.push(Refusal::new(&entry.id, code, what));
    let key = key_of(entry);
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
    let limits = &entry.resource_limits;
    let most = config.instance_memory.map_or(u32::MAX, |bytes| (bytes / exec::WASM_PAGE) as u32);
    let spec = KernelSpec {
        entry_point: entry.entry_point.clone(),
        backward: entry.backward,
        memory_pages: limits.max_memory_pages.min(most),
        table_elements: limits.max_table_elements,
        ticks: limits.max_epoch_ticks.min(config.call_ticks()),
    };
    let features = entry.platforms.wasmtime.as_ref().map_or(&[][..], |p| &p.features);
    let defaults: Vec<u32> =
        plan.params.iter().map(|p| p.default.map_or(0, |v| v.to_word())).collect();
    match module {
        Some(module) => {
            let declared = Declared {
                entry_point: &entry.entry_point,
                backward: Some(entry.backward),
                memory_pages: entry.resource_limits.max_memory_pages,
                table_elements: entry.resource_limits.max_table_elements,
                features,
            };
            for (code, what) in module::check(module, &declared, &config.limits) {
                refuse(code, what);
            }
        }
        None => refuse("module_missing", "the pack has no module for this kernel".to_owned()),
    }
    match module {
        Some(module) if found.is_empty() => Ok(GatedKernel {
            id: entry.id.clone(),
            hash: entry.hash.to_string(),
            key,
            plan,
            spec,
            defaults,
            features: features.to_vec(),
            author: entry.tolerance,
            decision: decision.clone(),
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
