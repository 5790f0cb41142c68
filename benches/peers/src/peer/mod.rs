//! The engines under one interface.

mod candle;
mod llama_cpp;
mod ruvllm;

use crate::Failure;
use crate::protocol::{Engine, Request};
use ::ruvllm::host::Policy;
use ruvllm_native::Isa;

/// An engine with a model loaded. Sequences that are open always have the same tokens.
pub(crate) trait Peer {
    /// Makes `sequences` empty sequences of up to `context` tokens; earlier ones are gone.
    fn open(&mut self, sequences: usize, context: usize) -> Result<(), Failure>;

    /// Appends `tokens` to every sequence and computes the logits of the last; each sequence may be
    /// computed, or one computed and copied.
    fn prefill(&mut self, tokens: &[u32]) -> Result<(), Failure>;

    /// Appends `token` to every sequence and computes its logits, all sequences in one batch.
    fn decode(&mut self, token: u32) -> Result<(), Failure>;

    /// Forgets all but what [`Peer::prefill`] first put into the sequences, `len` tokens.
    fn truncate(&mut self, len: usize) -> Result<(), Failure>;

    /// Seconds that have gone into pack kernels or their twins so far, of all threads together.
    fn in_kernels(&self) -> Option<f64> {
        None
    }
}

/// Loads the model that `request` names into the engine that it names.
pub(crate) fn load(request: &Request) -> Result<Box<dyn Peer>, Failure> {
    let isa = Isa::named(&request.isa).ok_or("no such instructions")?;
    let (policy, twins) = match request.engine {
        Engine::LlamaCpp => return Ok(Box::new(llama_cpp::LlamaCpp::load(request)?)),
        Engine::Candle => return Ok(Box::new(candle::Candle::load(request)?)),
        Engine::Ruvllm => (Policy::SandboxFirst, isa),
        Engine::RuvllmNative => (Policy::NativeOnly, isa),
        Engine::RuvllmNative128 => {
            let narrow = Isa::narrow().ok_or("no instructions on vectors of 128 bits")?;
            (Policy::NativeOnly, narrow)
        }
    };
    Ok(Box::new(ruvllm::Ruvllm::load(request, policy, isa, twins)?))
}
