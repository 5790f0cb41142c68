//! Attacks on a pack, one file for each, named after it. Each builds its malicious pack itself and
//! asserts the exact code with which it is refused, and that nothing was left behind.
//! `signing/THREAT-MODEL.md` lists them by what they are about; [`threat_model`] holds the two
//! together.
#![forbid(unsafe_code)]

mod absolute_path;
mod archive_duplicate_entries;
mod archive_extension_records;
mod archive_link_entries;
mod archive_oversized_header;
mod archive_path_escape;
mod archive_second_spelling;
mod archive_trailing_bytes;
mod archive_truncated;
mod case_fold_duplicate;
#[cfg(unix)]
mod device;
mod duplicate_json_keys;
mod envelope_trailing_bytes;
mod expired_publisher;
#[cfg(unix)]
mod exposed_key_file;
#[cfg(unix)]
mod fifo;
mod flipped_kernel;
mod flipped_manifest;
mod flipped_signature;
mod floor_damaged;
#[cfg(unix)]
mod floor_open_to_others;
mod graphs_without_grant;
mod hard_link;
mod kernel_clash;
mod kernels;
mod key_out_of_scope;
mod keyring_by_old_roots;
mod keyring_by_strangers;
mod keyring_expired;
mod keyring_rollback;
mod keyrings;
mod listed_but_missing;
mod lock_mismatch;
mod mixed_packs;
mod native_without_grant;
mod no_clock;
mod not_yet_valid;
mod older_version;
mod oversized;
mod path_escape;
mod reserialised_manifest;
mod revoked_key;
mod rollback_to_unknown_version;
mod same_key_twice;
mod secret_keys_in_errors;
mod signature_malleability;
mod swapped_after_verification;
#[cfg(unix)]
mod symlinked_directory;
#[cfg(unix)]
mod symlinked_file;
mod tar;
mod terminal_escapes;
mod threads_without_grant;
mod threat_model;
mod truncated_kernel;
mod truncated_manifest;
mod truncated_signature;
mod unknown_field;
mod unknown_key;
mod unlisted_file;
mod unsigned;
mod weak_keys;
mod wrong_abi_version;
mod wrong_threshold;

use ruvllm_signing::{Clock, TrustPolicy, VersionFloor};
use ruvllm_tests::{PackBuilder, TestPack, codes, wat};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

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

/// Another pack with nothing wrong about it, signed by the same key.
fn good_version(of: &TestPack, version: &str) -> TestPack {
    let key = ruvllm_signing::SecretKey::from_pem(&of.key().to_pem().unwrap()).unwrap();
    PackBuilder::new()
        .key(key)
        .kernel("rmsnorm_f32", good_kernel())
        .manifest(|m| m.version = version.parse().unwrap())
        .build()
}

/// The codes with which a host refuses the pack under its own policy. No file may change.
fn refused(pack: &TestPack) -> Vec<&'static str> {
    refused_by(pack, &pack.policy(), Clock::System)
}

/// The codes with which a host of that policy and clock refuses the pack. No file may change.
fn refused_by(pack: &TestPack, policy: &TrustPolicy, clock: Clock) -> Vec<&'static str> {
    let floors = VersionFloor::open(pack.outside().join("floors")).unwrap();
    let before = tree(pack.outside());
    let result = pack.read().and_then(|read| read.verify_with(policy, Some(&floors), clock));
    let error = result.unwrap_err();
    assert_eq!(tree(pack.outside()), before, "something was left behind");
    codes(&error)
}

/// Every file under a directory with its bytes; what is no regular file by its kind.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            files.extend(tree(&path));
        }
        let bytes = if kind.is_file() { fs::read(&path) } else { Ok(format!("{kind:?}").into()) };
        files.insert(path, bytes.unwrap());
    }
    files
}
