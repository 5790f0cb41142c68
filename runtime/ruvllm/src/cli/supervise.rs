//! What lets a server's kernels be changed: history, trust and a probe text around the engine's host.

use super::args::KernelOptions;
use super::terminal::LoadBar;
use super::{Failure, setup};
use ruvllm::Runtime;
use ruvllm::engine::{Model, ProbeText};
use ruvllm::host::{Delivery, Probe, Supervisor, Watchdog};
use ruvllm::server::AdminOptions;
use std::sync::Arc;
use std::time::Duration;

/// How often new kernels are looked at.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);

/// How often the directory of packs is looked at.
const DELIVERY_PERIOD: Duration = Duration::from_secs(2);

/// The supervisor that the options ask for, with the packs that were last found healthy active.
pub(crate) fn open(
    options: &AdminOptions,
    kernels: &KernelOptions,
    runtime: &Runtime,
) -> Result<Option<Arc<Supervisor>>, Failure> {
    if !options.supervised() {
        return Ok(None);
    }
    let state = setup::state_dir(kernels)
        .ok_or("there is no home directory to keep the history of kernels in; give --state-dir")?;
    let mut config = runtime.kernels().supervisor_config(state.join("swap"));
    config.reset_history = options.reset_history;
    config.limits = options.health_limits();
    config.probe = probe_text(options, runtime.model())?.map(|text| probe(text, runtime));
    let loading = LoadBar::new();
    let supervisor = Arc::new(Supervisor::open(runtime.host().clone(), config)?);
    drop(loading);
    // Not before the packs of the history are back.
    setup::pins_to_come(supervisor.host()).iter().for_each(|pin| tracing::warn!("{pin}"));
    Ok(Some(supervisor))
}

/// Delivers packs from the directory of `--watch-packs` until it is dropped.
pub(crate) fn deliver(
    options: &AdminOptions,
    supervisor: Option<&Arc<Supervisor>>,
) -> Result<Option<Watchdog>, Failure> {
    let given = supervisor.zip(options.watch_packs.clone());
    let Some((supervisor, directory)) = given else { return Ok(None) };
    let delivery = Delivery::new(supervisor.clone(), directory, options.watch_share);
    Ok(Some(delivery.watch(DELIVERY_PERIOD)?))
}

/// The text of `--probe-text`, in the model's tokens.
pub(crate) fn probe_text(
    options: &AdminOptions,
    model: &Model,
) -> Result<Option<ProbeText>, Failure> {
    let Some(path) = &options.probe_text else { return Ok(None) };
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    Ok(Some(ProbeText::new(model, &text).map_err(|error| named(&error))?))
}

/// Measures the text as it is served: with the adapter that all texts are computed with.
fn probe(text: ProbeText, runtime: &Runtime) -> Probe {
    let (engine, adapter) = (runtime.engine().clone(), runtime.adapter().cloned());
    Arc::new(move || text.loss(&engine, adapter.as_ref()).map_err(|error| error.to_string()))
}
