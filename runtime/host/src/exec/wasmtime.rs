//! Wasmtime as the executor.
//!
//! Every instance has a store of its own: an engine gives an instance's memory back only when its
//! store goes, and a kernel that misbehaves, or whose generation has drained, must leave nothing
//! behind. The store lives as long as the worker keeps the instance, so a call pays nothing for
//! it. Functions are looked up once. Bounds checks are page faults where the device class reserves 4 GiB
//! of addresses for a memory and guards what lies behind.

use super::compile::{CodeSettings, compile_alone, settings};
use super::executor::{
    Artifact, CompileError, CompiledModule, EngineInstance, Executor, Footprint, KernelSpec,
    WASM_PAGE,
};
use super::{aot, child, handlers, isolate};
use crate::HostConfig;
use crate::config::Compiler;
use crate::deadline::Deadline;
use crate::features;
use crate::ticker::Ticker;
use crate::trap::Trap;
use instance::LoadedModule;
use ruvllm_abi::export;
use ruvllm_manifest::{ExecutorGate, ExecutorKind};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use threads::Group;
use wasmtime::{Engine, ExternType, MemoryType};

mod instance;
mod member;
#[cfg(feature = "wasi-nn")]
mod nn;
mod threads;
mod trap;

/// The version of the engine, which a manifest's `min_version` is held against.
const VERSION: semver::Version = semver::Version::new(48, 0, 8);

/// Compiles and loads kernels for one host.
pub(crate) struct WasmtimeExecutor {
    engine: Engine,
    ticker: Arc<Ticker>,
    /// How often it ticks.
    clock: Duration,
    code: CodeSettings,
    gate: ExecutorGate,
    /// Threads that a kernel is entered by at once, at most.
    threads: u32,
    /// Bytes of stack that a call may use.
    stack: usize,
    fingerprint: [u8; 32],
}

impl WasmtimeExecutor {
    /// Sets an engine up.
    ///
    /// # Errors
    /// What the engine says, such as a machine that it does not compile for.
    pub(crate) fn new(config: &HostConfig) -> Result<Self, String> {
        let code = CodeSettings::of(config);
        let mut settings = settings(code);
        settings.max_wasm_stack(config.stack);
        let engine = {
            // The first one puts handlers of faults in place.
            let _changing = handlers::changing();
            Engine::new(&settings).map_err(|e| format!("{e:#}"))?
        };
        let mut fingerprint = Fingerprint::default();
        VERSION.hash(&mut fingerprint);
        isolate::REVISION.hash(&mut fingerprint);
        engine.precompile_compatibility_hash().hash(&mut fingerprint);
        Ok(Self {
            engine,
            threads: config.kernel_threads(),
            stack: config.stack,
            clock: config.clock(),
            ticker: Arc::new(Ticker::new("ruvllm-ticker", config.clock())),
            code,
            gate: ExecutorGate {
                kind: ExecutorKind::Wasmtime,
                version: VERSION,
                features: features::kernel_features(config.device_class)
                    .map(str::to_owned)
                    .collect(),
                compiles: true,
            },
            fingerprint: fingerprint.0.finalize().into(),
        })
    }
}

/// A [`Hasher`] that keeps all that it is fed instead of 64 bits.
#[derive(Default)]
struct Fingerprint(blake3::Hasher);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Never asked for: the digest is taken whole.
    fn finish(&self) -> u64 {
        0
    }
}

impl Executor for WasmtimeExecutor {
    fn gate(&self) -> &ExecutorGate {
        &self.gate
    }

    fn slowness(&self) -> f64 {
        1.0
    }

    fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    fn compile(
        &self,
        wasm: &[u8],
        compiler: &Compiler,
        alone: bool,
    ) -> Result<Artifact, CompileError> {
        let failed = |detail| CompileError { code: "kernel_compile", detail };
        let wasm = isolate::isolated(wasm).map_err(failed)?;
        match compiler {
            Compiler::InProcess if alone => {
                compile_alone(&wasm, self.code).map(Artifact).map_err(failed)
            }
            Compiler::InProcess => self
                .engine
                .precompile_module(&wasm)
                .map(Artifact)
                .map_err(|e| failed(format!("{e:#}"))),
            Compiler::Process(process) => child::compile(process, self.code, &wasm),
        }
    }

    fn load(
        &self,
        artifact: &Artifact,
        module: &[u8],
        spec: KernelSpec,
        deadline: Deadline,
    ) -> Result<Arc<dyn CompiledModule>, String> {
        let own = Arc::from(module);
        let engine = self.engine.clone();
        self.ticker
            .start(move || engine.increment_epoch())
            .map_err(|e| format!("cannot start the deadline clock: {e}"))?;
        let module = aot::load(&self.engine, artifact)?;
        let memory = module.get_export(export::MEMORY);
        let memory = memory.as_ref().and_then(ExternType::memory);
        let bytes = |pages: u64| pages.min(u64::from(spec.memory_pages)) as usize * WASM_PAGE;
        let elements = module.resources_required().max_initial_table_size.unwrap_or(0);
        let instances = spec.threads as usize;
        let footprint = Footprint {
            initial: memory.map_or(0, |memory| bytes(memory.minimum())),
            limit: bytes(memory.and_then(MemoryType::maximum).unwrap_or(u64::MAX)),
            table: elements as usize * size_of::<usize>() * instances,
        };
        #[cfg(feature = "wasi-nn")]
        let nn = nn::Imports::of(&self.engine, &module).map_err(|error| format!("{error:#}"))?;
        #[cfg(feature = "wasi-nn")]
        let footprint = match nn {
            Some(_) => Footprint { table: footprint.table + nn::HELD_BYTES, ..footprint },
            None => footprint,
        };
        let ticker = self.ticker.clone();
        let (threads, stack) = (self.threads.min(spec.threads), self.stack);
        Ok(Arc::new(LoadedModule {
            module,
            own,
            spec,
            threads,
            stack,
            footprint,
            deadline: deadline.by_clock(self.clock),
            #[cfg(feature = "wasi-nn")]
            nn,
            ticker,
        }))
    }
}

impl CompiledModule for LoadedModule {
    fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn instantiate(&self) -> Result<Box<dyn EngineInstance>, Trap> {
        match self.spec.threads {
            1 => Ok(Box::new(self.new_instance(None)?)),
            _ => Ok(Box::new(Group::new(self)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_stated_version_is_the_one_that_is_linked() {
        let lock = include_str!("../../../../Cargo.lock");
        let stated = format!("name = \"wasmtime\"\nversion = \"{}\"\n", super::VERSION);
        assert!(lock.contains(&stated));
    }
}
