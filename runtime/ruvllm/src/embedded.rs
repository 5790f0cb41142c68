//! What the binary carries: the demo model and the signed core pack.
//!
//! Both are plain bytes of the repository. The pack is verified like any other before a kernel of
//! it runs; the model is parsed like any other file.

use ruvllm_signing::{PackError, PackLimits, UnverifiedPack};
use std::borrow::Cow;

/// Gives bytes the alignment that tensors of a mapped file have.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static DEMO_MODEL: &Aligned<[u8]> = &Aligned(*include_bytes!("../demo/tales-q8_0.gguf"));

static CORE_PACK: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/core_pack.rs"));

/// The name by which messages call the built-in model.
pub const DEMO_MODEL_NAME: &str = "tales (built in)";

/// The bytes of the built-in demo model, a GGUF file; see its model card in `runtime/ruvllm/demo`.
pub fn demo_model() -> &'static [u8] {
    &DEMO_MODEL.0
}

/// The core pack as it was signed, not yet verified.
///
/// # Errors
///
/// Those of [`UnverifiedPack::from_files`]; they mean that the binary was built from a damaged tree.
pub fn core_pack(limits: &PackLimits) -> Result<UnverifiedPack, PackError> {
    UnverifiedPack::from_files(
        CORE_PACK.iter().map(|&(name, bytes)| (name.to_owned(), Cow::Borrowed(bytes))),
        limits,
    )
}
