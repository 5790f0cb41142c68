//! What the host needs of a WebAssembly engine, and nothing more.
//!
//! Everything above this module sees memory as bytes, an entry point as a function of one address,
//! and failures as [`crate::trap::Trap`]. Engines are named only below it. An executor isolates: a kernel
//! reaches nothing but its own linear memory and leaves its function at the latest at its
//! deadline. It is no boundary against microarchitectural side channels.

#[cfg(feature = "wasmtime")]
mod aot;
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
mod bulk;
pub(crate) mod cache;
#[cfg(feature = "wasmtime")]
mod child;
#[cfg(feature = "wasmtime")]
mod compile;
mod executor;
pub(crate) mod fence;
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
mod handlers;
#[cfg(feature = "wasmtime")]
mod isolate;
#[cfg(feature = "wamr")]
mod meter;
#[cfg(feature = "wasmtime")]
mod place;
#[cfg(any(feature = "wasmtime", feature = "wamr"))]
mod rewrite;
#[cfg(feature = "wamr")]
mod wamr;
#[cfg(feature = "wasmtime")]
mod wasmtime;

#[cfg(feature = "wasmtime")]
pub use child::compiler_process;

use self::executor::Absence;
pub use self::executor::Offer;
pub(crate) use self::executor::{
    CompiledModule, EngineInstance, Executor, Footprint, KernelSpec, OWN_PAGES, WASM_PAGE,
};
use crate::HostConfig;
use ruvllm_manifest::ExecutorKind;
use std::sync::Arc;

/// The executors that a host is configured to have, or why it does not.
pub(crate) struct Executors(Vec<(ExecutorKind, Made)>);

/// An executor, or why it is not there.
type Made = Result<Arc<dyn Executor>, Absence>;

impl Executors {
    /// Sets up what the configuration admits, as far as this program and this machine have it.
    ///
    /// # Errors
    /// What the configuration names is not there, or nothing is: a sentence that says what to do.
    pub(crate) fn new(config: &HostConfig) -> Result<Self, String> {
        let mut found = Vec::new();
        for &kind in config.executors() {
            let made = set_up(kind, config);
            // Whoever gives a library wants it, however much runs on it.
            let wanted = config.executor.is_some()
                || (kind == ExecutorKind::Wamr && config.wamr.library.is_some());
            match made {
                Err(absence) if wanted => return Err(absence.told(kind)),
                made => found.push((kind, made)),
            }
        }
        if found.iter().all(|(_, made)| made.is_err()) {
            let why =
                found.iter().filter_map(|(kind, made)| Some(made.as_ref().err()?.told(*kind)));
            return Err(format!("there is no sandbox: {}", why.collect::<Vec<_>>().join("; ")));
        }
        Ok(Self(found))
    }

    /// What they offer to packs.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        let gate = |made: &Made| match made {
            Ok(made) => Ok(made.gate().clone()),
            Err(absence) => Err(absence.why.clone()),
        };
        self.0.iter().map(|(kind, made)| Offer { executor: *kind, gate: gate(made) }).collect()
    }

    /// The executor of that kind, if it is there.
    pub(crate) fn get(&self, kind: ExecutorKind) -> Option<&dyn Executor> {
        self.0.iter().find(|(other, _)| *other == kind)?.1.as_deref().ok()
    }
}

/// Ends the `wamrc` processes that compile kernels for hosts of this process, and lets no more start: for a program
/// that is asked to stop while it loads, which may take [`crate::CompilerProcess::time`] for each module. What needs
/// them fails with `compile_stopped`.
pub fn stop_compilers() {
    #[cfg(feature = "wamr")]
    self::wamr::stop();
}

fn set_up(kind: ExecutorKind, config: &HostConfig) -> Made {
    match kind {
        #[cfg(feature = "wasmtime")]
        ExecutorKind::Wasmtime => match self::wasmtime::WasmtimeExecutor::new(config) {
            Ok(made) => Ok(Arc::new(made)),
            Err(why) => Err(Absence { why: format!("does not run here: {why}"), remedy: "" }),
        },
        #[cfg(not(feature = "wasmtime"))]
        ExecutorKind::Wasmtime => Err(not_built("build with the feature `wasmtime`", config)),
        #[cfg(feature = "wamr")]
        ExecutorKind::Wamr => Ok(Arc::new(self::wamr::WamrExecutor::new(config)?)),
        #[cfg(not(feature = "wamr"))]
        ExecutorKind::Wamr => Err(not_built("build with the feature `wamr`", config)),
    }
}

#[cfg(not(all(feature = "wasmtime", feature = "wamr")))]
fn not_built(remedy: &'static str, _: &HostConfig) -> Absence {
    Absence { why: "is not in this build".to_owned(), remedy }
}
