//! `ruvllm serve`: requests over HTTP until somebody asks to stop.

use super::args::{KernelOptions, ModelOptions, ServeArgs};
use super::stop::StopFlag;
use super::terminal::{note, say};
use super::{Ended, Failure, config_file, setup, supervise};
use ruvllm::Renderer;
use ruvllm::embedded;
use ruvllm::engine::{Adapter, EngineError, Model};
use ruvllm::server::{
    ApiKey, Configuration, GrammarCompiler, Reloader, Served, Server, TextEncoder,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time to close what is open, behind the time that requests have to finish.
const MARGIN: Duration = Duration::from_secs(5);

pub(crate) fn main(args: &ServeArgs) -> Result<Ended, Failure> {
    if args.print_config {
        say!("{}", config_file::template(args.model.kernels.device_class).trim_end());
        return Ok(Ended::Done);
    }
    if let Some(name) = &args.new_key {
        let (secret, entry) = ApiKey::generate(name)?;
        note!("for the client (shown this once):");
        say!("{secret}");
        note!("for the server:");
        say!("{entry}");
        return Ok(Ended::Done);
    }
    args.server.check()?;
    let admin = &args.server.admin;
    let mut options = args.model.clone();
    options.kernels.later = admin.supervised();
    if args.check {
        return check(args, &options);
    }
    // Before anything that takes long: whoever asks meanwhile to stop or to read the configuration anew is heard, and
    // what was changed meanwhile is different from what the server was started with.
    let stop = StopFlag::install_reloading()?;
    stop.end_within(args.server.limits.drain_timeout + MARGIN);
    let reloader = Some(reloader(options.kernels.clone())?);
    let encoders = encoders(args)?;
    if stop.is_set() {
        return Ok(Ended::Done);
    }
    let Some(runtime) = stop.loaded(setup::runtime(&options))?.filter(|_| !stop.is_set()) else {
        return Ok(Ended::Done);
    };
    let supervisor = supervise::open(admin, &options.kernels, &runtime)?;
    if let Some(supervisor) = &supervisor {
        // Who asked twice, or would not wait any longer, ended the process, and no kernel did.
        let supervisor = Arc::downgrade(supervisor);
        stop.before_early_end(move || {
            if let Some(supervisor) = supervisor.upgrade() {
                supervisor.stopping();
            }
        });
    }
    let watchdog = supervisor.as_ref().map(|supervisor| supervisor.watch(supervise::PERIOD));
    let watchdog = watchdog.transpose()?;
    let delivery = supervise::deliver(admin, supervisor.as_ref())?;
    let (engine, adapter) = (runtime.engine().clone(), runtime.adapter().cloned());
    let open = |(name, path, scale): &(String, PathBuf, f32)| -> Result<_, Failure> {
        let adapter = Adapter::open(&engine, path, *scale);
        Ok((name.clone(), adapter.map_err(|error| of_lora_model(name, &error))?))
    };
    let adapters = args.lora_model.iter().map(open).collect::<Result<_, _>>()?;
    let grammars = GrammarCompiler::this_program();
    let renderer = renderer();
    let supervised = supervisor.clone();
    let served =
        Served { engine, adapter, adapters, encoders, supervisor, renderer, grammars, reloader };
    let server = Server::start(served, args.server.clone())?;
    let scheme = if args.server.tls_cert.is_some() { "https" } else { "http" };
    let url = |address| format!("{scheme}://{address}");
    let admin = server.admin_address().map(url);
    tracing::info!(url = url(server.address()), admin, model = server.model(), "serving");
    let asked = stop.wait_while(|| {
        if stop.take_reload() {
            // The log says what came of it.
            let _ = server.reload("SIGHUP");
        }
        server.is_alive()
    });
    if asked {
        tracing::info!("finishing what was begun; a second signal ends at once");
    }
    server.stop()?;
    setup::report_incidents(&runtime);
    if !asked {
        // Who supervises the process starts it anew; waiting for a probe to fail would take longer.
        let reason = "a thread of the server panicked, so nothing can be computed any more; start the server again";
        tracing::error!("{reason}");
        return Err(reason.into());
    }
    drop((delivery, watchdog));
    if let Some(supervisor) = supervised {
        supervisor.stopping();
    }
    Ok(Ended::Done)
}

/// Checks what can be checked without serving.
fn check(args: &ServeArgs, options: &ModelOptions) -> Result<Ended, Failure> {
    let encoders = encoders(args)?;
    let kernels = setup::kernel_set(&options.kernels)?.build()?;
    let model = Arc::new(match &args.model.model {
        Some(path) => Model::open(path)?,
        None => Model::from_static(embedded::demo_model(), embedded::DEMO_MODEL_NAME)?,
    });
    if let Some((path, scale)) = &args.model.lora {
        Adapter::check(&model, path, *scale).map_err(|error| format!("--lora: {error}"))?;
    }
    for (name, path, scale) in &args.lora_model {
        Adapter::check(&model, path, *scale).map_err(|error| of_lora_model(name, &error))?;
    }
    let adapters = args.lora_model.iter().map(|(name, ..)| name.as_str());
    let further: Vec<&str> =
        adapters.chain(encoders.iter().map(|(name, _)| name.as_str())).collect();
    args.server.check_names(&model, &further)?;
    args.server.check_template(&model, &renderer())?;
    supervise::probe_text(&args.server.admin, &model)?;
    // The packs of the history, which may have them, are not looked at.
    setup::pins_to_come(kernels.host()).iter().for_each(|pin| note!("warning: {pin}"));
    let packs = kernels.installed().len();
    let model = args.server.model_ids(&model).join(", ");
    say!("in order: {model}, packs of kernels: {packs}");
    Ok(Ended::Done)
}

/// Encoders of texts that are served beside the model, by name.
type Encoders = Vec<(String, Arc<dyn TextEncoder>)>;

/// Opens those that the options ask for.
#[cfg(feature = "graphs")]
fn encoders(args: &ServeArgs) -> Result<Encoders, Failure> {
    super::encoders::open(&args.embedding_model, &args.model.kernels)
}

/// None, for which the program would need the feature `graphs`.
#[cfg(not(feature = "graphs"))]
fn encoders(_: &ServeArgs) -> Result<Encoders, Failure> {
    Ok(Vec::new())
}

fn of_lora_model(name: &str, error: &EngineError) -> String {
    format!("--lora-model {name}: {error}")
}

/// Reads command line and configuration file anew, and the files that they name; `before` is what the server was
/// started with.
fn reloader(before: KernelOptions) -> Result<Reloader, Failure> {
    let source = config_file::Source::new(std::env::args_os().collect())?;
    let read = move || -> Result<Configuration, Failure> {
        let (args, restart) = source.read()?;
        let acceptance = setup::acceptance_now(&args.model.kernels, &before)?;
        Ok(Configuration { options: args.server, acceptance, restart })
    };
    Ok(Arc::new(move || read().map_err(|error| error.to_string())))
}

/// Where the chat template runs: two conversations at a time, so that a long one does not hold up the others.
fn renderer() -> Renderer {
    Renderer::this_program(2)
}
