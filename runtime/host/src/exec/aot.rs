//! Loading machine code: the one step of the sandbox that has to be taken on trust.
#![allow(unsafe_code)]

use super::executor::Artifact;
use wasmtime::{Engine, Module};

/// Makes a module of machine code.
///
/// # Errors
/// What the engine says, such as that the code was made for other settings or another processor.
pub(super) fn load(engine: &Engine, artifact: &Artifact) -> Result<Module, String> {
    // SAFETY: `Module::deserialize` wants bytes that Wasmtime itself serialised and nobody changed,
    // and checks their version, settings and processor features on its own. An `Artifact` holds
    // such bytes: its field is private to this directory, where it is filled by
    // `Engine::precompile_module`, by the answer over a private pipe of a process that runs the
    // same function, and by `AotCache::get` after a MAC under a key that only this user can read
    // was right over the very buffer that is passed here. Nobody else holds the buffer.
    unsafe { Module::deserialize(engine, &artifact.0) }.map_err(|e| format!("{e:#}"))
}
