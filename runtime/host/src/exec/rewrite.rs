//! How modules are read and written anew, whatever is changed in them.

use std::convert::Infallible;
use wasm_encoder::Module;
use wasm_encoder::reencode::{Error, Reencode};
use wasmparser::Parser;

/// The module as a rewriter makes it, which is set up by what `read` finds in it. It must have passed the gate.
///
/// # Errors
/// A sentence: the module cannot be read, which the gate should have said.
pub(super) fn rewritten<R: Reencode<Error = Infallible>>(
    wasm: &[u8],
    read: impl FnOnce(&[u8]) -> wasmparser::Result<R>,
) -> Result<Vec<u8>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("the module cannot be prepared: {e}");
    let mut rewriter = read(wasm).map_err(|e| failed(&e))?;
    let mut module = Module::new();
    rewriter
        .parse_core_module(&mut module, Parser::new(0), wasm)
        .map_err(|e: Error<Infallible>| failed(&e))?;
    Ok(module.finish())
}
