//! What `ruvllm-pack` does, as a library: begin, build, sign, verify, inspect, compare, test and
//! measure a pack.
//!
//! Each command is a function that gives a [`Report`], which prints as text for people or as one
//! JSON document for programs, and says whether the thing that was looked at passed. A pack that
//! nobody has verified is only ever data here; to run its kernels, `test` and `bench` put them
//! through the host's own admission, in the host's sandbox.
//!
//! What it does not protect against: the author's own toolchain and build scripts, which `build`
//! runs with the author's rights.
#![forbid(unsafe_code)]

pub mod archive;
mod atomic;
pub mod bench;
pub mod build;
pub mod call;
mod compile_c;
mod compile_rust;
pub mod diff;
mod error;
pub mod explain;
mod figures;
pub mod floor;
mod golden;
pub mod graph;
pub mod inspect;
pub mod keyring;
mod lines;
pub mod lock;
mod module;
mod npy;
mod numbers;
pub mod oracle_test;
pub mod reference;
mod report;
pub mod scaffold;
pub mod sign;
mod sources;
mod spec;
mod stress;
mod toolchain;
mod trial;
pub mod trust;

pub use compile_rust::as_compiler;
pub use error::ToolError;
pub use module::{ModuleFacts, normalise};
pub use numbers::{Number, Numbers};
pub use report::{Report, print_error, print_report};
pub use spec::{Lang, PACK_TOML_FIELDS, PackSpec, unknown_op};
pub use toolchain::{ClangId, RustId, StdSource, Toolchain, ToolchainId};
pub use trial::as_graph_process;
