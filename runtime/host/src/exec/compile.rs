//! How modules are compiled, in this process and in compiler processes alike.

use crate::HostConfig;
use std::num::NonZeroUsize;
use wasmtime::{Config, Engine, OptLevel, WasmBacktraceDetails};

/// The most functions that are looked at where one called the other and the last one trapped.
pub(super) const BACKTRACE_FRAMES: usize = 32;

/// What of a host's configuration changes machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeSettings {
    /// See [`HostConfig::deterministic`], and so on.
    pub(super) deterministic: bool,
    pub(super) memory_reservation: u64,
    pub(super) memory_guard: u64,
    /// Whether kernels may have threads, see [`crate::DeviceClass::Threads`].
    pub(super) threads: bool,
}

impl CodeSettings {
    pub(super) fn of(config: &HostConfig) -> Self {
        let HostConfig { deterministic, memory_reservation, memory_guard, device_class, .. } =
            *config;
        let threads = device_class.kernel_threads() > 1;
        Self { deterministic, memory_reservation, memory_guard, threads }
    }
}

/// The engine's settings. Everything that changes machine code is decided here, for this process
/// and for compiler processes alike.
pub(super) fn settings(code: CodeSettings) -> Config {
    let CodeSettings { deterministic, memory_reservation, memory_guard, threads } = code;
    let mut settings = Config::new();
    settings
        .concurrency_support(false)
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        .memory_reservation(memory_reservation)
        .memory_guard_size(memory_guard)
        .cranelift_nan_canonicalization(deterministic)
        .relaxed_simd_deterministic(deterministic)
        // A trap is told with the function that it happened in.
        .wasm_backtrace_max_frames(NonZeroUsize::new(BACKTRACE_FRAMES))
        // Debug information is data that no host looks at, whatever a variable of the environment says.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_simd(true)
        .wasm_relaxed_simd(true)
        .wasm_bulk_memory(true)
        .wasm_multi_value(true)
        .wasm_threads(threads)
        .shared_memory(threads)
        .wasm_tail_call(false)
        .wasm_multi_memory(false)
        .wasm_memory64(false);
    settings
}

/// Compiles a module on the calling thread alone, as a compiler process does.
pub(super) fn compile_alone(wasm: &[u8], code: CodeSettings) -> Result<Vec<u8>, String> {
    let mut settings = settings(code);
    settings.parallel_compilation(false);
    let engine = Engine::new(&settings).map_err(|e| format!("{e:#}"))?;
    engine.precompile_module(wasm).map_err(|e| format!("{e:#}"))
}
