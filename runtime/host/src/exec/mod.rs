//! What the host needs of a WebAssembly engine, and nothing more.
//!
//! Everything above this module sees memory as bytes, an entry point as a function of one address,
//! and failures as [`crate::trap::Trap`]. Engines are named only below it. An executor isolates: a kernel
//! reaches nothing but its own linear memory and leaves its function at the latest at its
//! deadline. It is no boundary against microarchitectural side channels.

#[cfg(feature = "wasmtime")]
mod aot;
pub(crate) mod cache;
#[cfg(feature = "wasmtime")]
mod child;
#[cfg(feature = "wasmtime")]
mod compile;
mod executor;
pub(crate) mod fence;
#[cfg(feature = "wasmtime")]
mod isolate;
#[cfg(feature = "wasmtime")]
mod place;
#[cfg(feature = "wasmtime")]
mod wasmtime;

#[cfg(feature = "wasmtime")]
pub(crate) use self::wasmtime::VERSION;
#[cfg(feature = "wasmtime")]
pub use child::compiler_process;

/// The version of an executor that is not there: no kernel was made for it.
#[cfg(not(feature = "wasmtime"))]
pub(crate) const VERSION: semver::Version = semver::Version::new(0, 0, 0);

pub(crate) use self::executor::{
    CompiledModule, EngineInstance, Executor, Footprint, KernelSpec, OWN_PAGES, WASM_PAGE,
};
use crate::HostConfig;
use std::sync::Arc;

/// The executor of this build.
///
/// # Errors
/// What the engine says of this machine, or that the build has none.
pub(crate) fn executor(config: &HostConfig) -> Result<Arc<dyn Executor>, String> {
    #[cfg(feature = "wasmtime")]
    return Ok(Arc::new(self::wasmtime::WasmtimeExecutor::new(config)?));
    #[cfg(not(feature = "wasmtime"))]
    {
        let _ = config;
        Err("this program was built without the feature `wasmtime`, so it has no sandbox"
            .to_owned())
    }
}
