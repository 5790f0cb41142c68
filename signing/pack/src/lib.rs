//! What `ruvllm-pack` does, as a library: build, sign, verify, inspect, test and measure a pack.
//!
//! Each command is a function that gives a [`Report`], which prints as text for people or as one
//! JSON document for programs, and says whether the thing that was looked at passed. A pack that
//! nobody has verified is only ever data here; to run its kernels, `test` and `bench` put them
//! through the host's own admission, in the host's sandbox.
//!
//! What it does not protect against: the author's own toolchain and build scripts, which `build`
//! runs with the author's rights.
#![forbid(unsafe_code)]

pub mod bench;
pub mod build;
mod cases;
mod error;
pub mod inspect;
mod module;
pub mod oracle_test;
mod report;
pub mod sign;
mod spec;
mod toolchain;
mod trial;

pub use error::ToolError;
pub use module::{ModuleFacts, normalise};
pub use report::{Report, print_error, print_report};
pub use spec::PackSpec;
pub use toolchain::{StdSource, Toolchain, ToolchainId};
