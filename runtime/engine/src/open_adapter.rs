//! [`Adapter::open`]: an adapter is read for an engine, whose kernels apply it and whose memory counts it.

use std::path::Path;

use crate::adapter::Adapter;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::memory::Use;

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
        if !scale.is_finite() {
            let reason = "the scale of an adapter must be a finite number";
            return Err(EngineError::InvalidOption {
                option: "scale",
                value: scale.to_string(),
                reason,
            });
        }
        engine.require_lora()?;
        Adapter::load(engine.shared_model(), path, scale, |name, bytes| {
            engine.reserve(Use::Adapter, name, u8::MAX, bytes)
        })
    }
}
