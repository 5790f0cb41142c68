//! From options to a running model: what the commands have in common.

use super::Failure;
use super::args::{Executor, KernelOptions, Kernels, ModelOptions, RopeScaling, SamplingArgs};
use super::terminal::{LoadBar, note};
use clap::Args;
use ruvllm::host::{
    Acceptance, Compiler, CompilerProcess, Host, HostConfig, InstallReport, Policy, WamrConfig,
};
use ruvllm::signing::{PackLock, TrustPolicy, VersionFloor};
use ruvllm::{
    Isa, KernelSet, KernelSetBuilder, KvPolicy, Renderer, RopeExtension, RopeMethod, Runtime,
    RuntimeBuilder, SamplingOptions,
};
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The packs and the policy that the options ask for.
pub(crate) fn kernel_set(options: &KernelOptions) -> Result<KernelSetBuilder, Failure> {
    let policy = match options.kernels {
        Kernels::Sandbox if !options.pin.is_empty() => {
            Policy::Pinned(options.pin.iter().cloned().collect())
        }
        Kernels::Sandbox => Policy::SandboxFirst,
        Kernels::Fastest => Policy::Fastest,
        Kernels::Native => Policy::NativeOnly,
    };
    let cache_dir = match &options.cache_dir {
        Some(dir) => Some(dir.clone()),
        None if options.no_cache => None,
        None => ruvllm::default_cache_dir(),
    };
    // Whoever signed a pack, its modules cost no more of this process than a pipe.
    let config = HostConfig {
        executor: options.executor.map(Executor::kind),
        wamr: WamrConfig { library: options.wamr_lib.clone(), compiler: options.wamrc.clone() },
        policy,
        strict: options.strict,
        deterministic: options.deterministic,
        isa: options.isa.unwrap_or_else(Isa::detect),
        repack: !options.no_repack,
        bf16: options.bf16,
        cache_dir,
        compiler: Compiler::Process(CompilerProcess::default()),
        #[cfg(feature = "graphs")]
        graphs: Some(super::encoders::kernel_graphs()),
        ..options.device_class.class().config()
    };
    let mut builder = KernelSet::builder().config(config);
    let floor = version_floor(options)?;
    let Acceptance { trust, lock } = acceptance(options, floor.as_ref())?;
    builder = builder.trust(trust);
    if let Some(lock) = lock {
        builder = builder.lock(lock);
    }
    if let Some(floor) = floor {
        builder = builder.version_floor(floor);
    }
    for path in &options.pack {
        builder = builder.pack(path);
    }
    if options.later {
        builder = builder.packs_come_later();
    }
    Ok(builder)
}

/// What remembers the newest versions of packs that were active.
fn version_floor(options: &KernelOptions) -> Result<Option<VersionFloor>, Failure> {
    match state_dir(options) {
        // Without packs there is nothing that could be too old, and nothing to remember.
        Some(dir) if options.later || !options.pack.is_empty() => {
            Ok(Some(VersionFloor::open(dir.join("floors"))?))
        }
        _ => Ok(None),
    }
}

/// Whose packs the options take, as the files say that they name. A keyring must not be older than one that was
/// seen.
pub(crate) fn acceptance(
    options: &KernelOptions,
    seen: Option<&VersionFloor>,
) -> Result<Acceptance, Failure> {
    let trust = options.trust.as_ref().map(|path| ruvllm::read_trust_policy(path, seen));
    let trust = trust.transpose()?.unwrap_or_else(TrustPolicy::builtin);
    let lock = options.lock.as_ref().map(|path| PackLock::read(path)).transpose()?;
    Ok(Acceptance { trust, lock })
}

/// As the options are read anew: whose packs they take by now, where things are remembered as before.
pub(crate) fn acceptance_now(
    options: &KernelOptions,
    before: &KernelOptions,
) -> Result<Acceptance, Failure> {
    acceptance(options, version_floor(before)?.as_ref())
}

/// Where the options have things remembered; `None` for a user without a home.
pub(crate) fn state_dir(options: &KernelOptions) -> Option<PathBuf> {
    options.state_dir.clone().or_else(ruvllm::default_state_dir)
}

/// The model and its kernels, loaded.
pub(crate) fn runtime(options: &ModelOptions) -> Result<Runtime, Failure> {
    load(|| builder(options, &options.kv.policy))
}

/// As [`runtime`], with keys and values stored by `kv`.
pub(crate) fn runtime_storing<K: Args>(
    options: &ModelOptions<K>,
    kv: &KvPolicy,
) -> Result<Runtime, Failure> {
    load(|| builder(options, kv))
}

/// The model with its chat template and its kernels, loaded; sessions that are full forget, if `endless` says how much stays.
pub(crate) fn endless(options: &ModelOptions, endless: Option<usize>) -> Result<Runtime, Failure> {
    load(|| {
        let builder = builder(options, &options.kv.policy)?.renderer(Renderer::this_program(1));
        Ok(match endless {
            Some(sinks) => builder.endless(sinks),
            None => builder,
        })
    })
}

fn load(builder: impl FnOnce() -> Result<RuntimeBuilder, Failure>) -> Result<Runtime, Failure> {
    let bar = LoadBar::new();
    let runtime = builder()?.on_progress(move |load| bar.show(load)).build()?;
    warn_of_kernels(runtime.kernels());
    Ok(runtime)
}

fn builder<K: Args>(options: &ModelOptions<K>, kv: &KvPolicy) -> Result<RuntimeBuilder, Failure> {
    let kernels = kernel_set(&options.kernels)?;
    let mut builder = Runtime::builder().kernels(kernels).kv(kv.clone());
    if let Some(isa) = options.kernels.isa {
        builder = builder.isa(isa);
    }
    if let Some(pattern) = options.read_pattern {
        builder = builder.read_pattern(pattern);
    }
    if let Some(path) = &options.model {
        builder = builder.model(path);
    }
    if let Some((path, scale)) = &options.lora {
        builder = builder.adapter(path, *scale);
    }
    if let Some(threads) = options.threads {
        builder = builder.threads(usize::from(threads));
    }
    if let Some(bytes) = options.memory {
        builder = builder.memory(bytes);
    }
    if let Some(dir) = &options.spill_dir {
        builder = builder.spill_dir(dir);
    }
    if let Some(tokens) = options.ctx {
        builder = builder.context(tokens);
    }
    if let Some(extension) = rope_extension(options)? {
        builder = builder.rope_scaling(extension);
    }
    Ok(builder)
}

/// How the options want the model's context stretched.
fn rope_extension<K: Args>(options: &ModelOptions<K>) -> Result<Option<RopeExtension>, Failure> {
    let method = match options.rope_scaling {
        RopeScaling::None if options.rope_factor.is_some() => {
            return Err(
                "--rope-factor needs a method: give --rope-scaling yarn, linear, ntk or llama3"
                    .into(),
            );
        }
        RopeScaling::None => return Ok(None),
        RopeScaling::Linear => RopeMethod::Linear,
        RopeScaling::Ntk => RopeMethod::Ntk,
        RopeScaling::Yarn => RopeMethod::Yarn,
        RopeScaling::Llama3 => RopeMethod::Llama3,
    };
    Ok(Some(RopeExtension { method, factor: options.rope_factor }))
}

/// What there is to say of each kernel that the options pin and that may come with a later pack.
pub(crate) fn pins_to_come(host: &Host) -> Vec<String> {
    let to_come = |error| {
        format!(
            "{error}; a pack that is activated later may bring it, and it is asked first from then on"
        )
    };
    host.snapshot().unknown_pins().map(to_come).collect()
}

/// Says why kernels are compiled anew although a cache was asked for, which packs are not what ran
/// here under their version before, of which no kernel is used, and what those are for that hold graphs alone.
pub(crate) fn warn_of_kernels(set: &KernelSet) {
    if let Some(why) = set.installed().iter().find_map(|report| report.cache.unusable.as_deref()) {
        note!("warning: compiled kernels are not kept: {why}");
    }
    set.changed().iter().for_each(|changed| note!("warning: {changed}"));
    let is_unused = |report: &&InstallReport| report.kernels.is_empty();
    for report in set.installed().iter().filter(is_unused) {
        for (kernel, reasons) in &report.skipped {
            let (pack, version, reasons) = (&report.pack, &report.version, reasons.join("; "));
            note!(
                "warning: {kernel} of {pack} {version} is left out, as all of the pack are: {reasons}"
            );
        }
    }
    let graphs_alone = |report: &&InstallReport| {
        report.kernels.is_empty() && report.skipped.is_empty() && !report.graphs.is_empty()
    };
    for report in set.installed().iter().filter(graphs_alone) {
        let graphs = report.graphs.join(", ");
        note!("{} {} holds no kernels. {}", report.pack, report.version, use_of_graphs(&graphs));
    }
}

/// What graphs of a pack are for that has no kernels.
pub(crate) fn use_of_graphs(graphs: &str) -> String {
    let build =
        if cfg!(feature = "graphs") { "" } else { ", in a build with the feature `graphs`" };
    format!(
        "Its graphs ({graphs}) are loaded where they are used: `ruvllm serve --embedding-model NAME=PACK#GRAPH` \
         serves one that makes vectors of texts{build}; `ruvllm kernels explain GRAPH --pack PACK` describes it"
    )
}

/// The sampling options, with a seed from the clock where none was given: short enough to be typed again.
pub(crate) fn sampling(args: &SamplingArgs) -> SamplingOptions {
    let seed = args.seed.unwrap_or_else(|| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos().into())
    });
    SamplingOptions {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
        seed: Some(seed),
        ..SamplingOptions::default()
    }
}

/// All of a source, as text; `from` names it in errors.
pub(crate) fn read_text(from: &str, mut source: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).map_err(|error| format!("{from}: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        format!("{from} is not UTF-8 from byte {valid} on").into()
    })
}

/// [`read_text`] of a file that an option names; `-` is standard input.
pub(crate) fn read_named_text(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return read_text("standard input", io::stdin().lock());
    }
    read_text_file(path)
}

/// [`read_text`] of a file.
pub(crate) fn read_text_file(path: &Path) -> Result<String, Failure> {
    let from = path.display().to_string();
    let file = File::open(path).map_err(|error| format!("{from}: {error}"))?;
    read_text(&from, file)
}

/// Writes a piece of text at once. A reader who went away ends the generation, not the program.
pub(crate) fn emit(text: &str) -> ControlFlow<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// Prints what went wrong in kernels meanwhile; the text was not affected.
pub(crate) fn report_incidents(runtime: &Runtime) {
    let (incidents, dropped) = runtime.host().take_incidents();
    for incident in incidents {
        note!("warning: {incident}");
    }
    if dropped > 0 {
        note!("warning: {dropped} more incidents were not kept");
    }
}
