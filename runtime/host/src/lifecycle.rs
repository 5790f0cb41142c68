//! The steps of a kernel's life as types, each of which only its own step can make:
//! [`VerifiedPack`], [`GatedKernel`], [`AdmittedKernel`], [`PreparedKernel`], [`PublishedKernel`].
//!
//! Nothing here is for use outside of this crate. The types can be named so that their documentation can hold a
//! test for each step: code that skips it does not compile. That it is refused for that alone is told by the same
//! code that does compile, where the fields are seen or with the type of the step. They refuse fields that are open to a part of the crate
//! (`clippy::field_scoped_visibility_modifiers`), so what those tests cannot do, no other module of this
//! crate can do either.
#![doc(hidden)]

pub use crate::admit::AdmittedKernel;
pub use crate::code::PreparedKernel;
pub use crate::exec::Offer;
pub use crate::gate::{Gated, GatedKernel, Skipped, pass as pass_gates};
pub use crate::registry::kernel::PublishedKernel;
pub use ruvllm_manifest::ExecutorGate;
pub use ruvllm_signing::VerifiedPack;
