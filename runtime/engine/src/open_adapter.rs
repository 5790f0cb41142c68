//! [`Adapter::open`]: an adapter is read for an engine, whose kernels apply it and whose memory counts it.

use std::path::Path;
use std::sync::Arc;

use crate::adapter::Adapter;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memory::{Exhausted, MemoryPool, PAGE, Use};
use crate::model::Model;

impl Adapter {
    /// Opens a GGUF adapter or a PEFT directory for the engine's model, whichever is there. `scale`
    /// multiplies what the adapter adds; 1 is as it was trained.
    ///
    /// Engines that share the model ([`Engine::with_kv`]) can all compute with the adapter; its
    /// weights count against the memory of the one that opened it.
    ///
    /// # Errors
    /// [`EngineError::NotAnAdapter`], [`EngineError::AdapterUnsupported`],
    /// [`EngineError::AdapterMismatch`] and [`EngineError::AdapterDamaged`]; those of the file
    /// formats; [`EngineError::OpUnavailable`] where no kernel applies adapters;
    /// [`EngineError::MemoryExhausted`]; [`EngineError::InvalidOption`] for a scale that is no number.
    pub fn open(engine: &Engine, path: &Path, scale: f32) -> Result<Adapter, EngineError> {
        check_scale(scale)?;
        engine.require_lora()?;
        Adapter::load(engine.shared_model(), path, scale, |name, bytes| {
            engine.reserve(Use::Adapter, name, u8::MAX, bytes)
        })
    }

    /// Reads an adapter as [`Adapter::open`] does, for a model that no engine computes yet, and drops it.
    ///
    /// # Errors
    /// As [`Adapter::open`], apart from those of an engine's kernels and memory.
    pub fn check(model: &Arc<Model>, path: &Path, scale: f32) -> Result<(), EngineError> {
        check_scale(scale)?;
        let adapter = Adapter::load(model, path, scale, |name, bytes| {
            let memory = MemoryPool::new(bytes.max(PAGE))?;
            let reserved = memory.reserve(Use::Adapter, name, u8::MAX, bytes);
            let (budget, holders) = (bytes.max(PAGE), String::new());
            reserved.map_err(|Exhausted| EngineError::MemoryExhausted {
                needed: bytes,
                budget,
                holders,
            })
        });
        adapter.map(drop)
    }
}

fn check_scale(scale: f32) -> Result<(), EngineError> {
    if scale.is_finite() {
        return Ok(());
    }
    let reason = "the scale of an adapter must be a finite number";
    Err(EngineError::InvalidOption { option: "scale", value: scale.to_string(), reason })
}
