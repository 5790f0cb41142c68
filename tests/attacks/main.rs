//! Attacks on a pack, one file for each, named after it. Each builds its malicious pack itself and
//! asserts the exact code with which it is refused.
#![forbid(unsafe_code)]

mod case_fold_duplicate;
mod duplicate_json_keys;
#[cfg(unix)]
mod fifo;
mod flipped_kernel;
mod flipped_manifest;
mod flipped_signature;
mod hard_link;
mod kernels;
mod listed_but_missing;
mod oversized;
mod path_escape;
mod reserialised_manifest;
#[cfg(unix)]
mod symlinked_directory;
#[cfg(unix)]
mod symlinked_file;
mod terminal_escapes;
mod truncated_kernel;
mod unknown_field;
mod unknown_key;
mod unlisted_file;
mod unsigned;
mod wrong_abi_version;

use ruvllm_tests::{PackBuilder, TestPack, wat};

/// The path of the one kernel of [`good_pack`].
const KERNEL: &str = "test/rmsnorm_f32.wasm";

/// A kernel that is right.
fn good_kernel() -> Vec<u8> {
    wat::rmsnorm_f32(&wat::Module::default())
}

/// A pack with nothing wrong about it: what an attack starts from.
fn good_pack() -> TestPack {
    PackBuilder::new().kernel("rmsnorm_f32", good_kernel()).build()
}
