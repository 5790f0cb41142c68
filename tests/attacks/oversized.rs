//! Files longer than the caps, too many of them, and too deep.

use crate::{KERNEL, good_pack};
use ruvllm_signing::{MAX_ENVELOPE_BYTES, PackLimits, UnverifiedPack};
use ruvllm_tests::{TestPack, codes};
use std::fs::File;

fn read(pack: &TestPack, limits: PackLimits) -> Vec<&'static str> {
    match UnverifiedPack::read_dir(&pack.path(), &limits) {
        Ok(_) => Vec::new(),
        Err(error) => codes(&error),
    }
}

#[test]
fn a_file_over_the_cap_is_refused_unread() {
    let pack = good_pack();
    // Sparse: a terabyte that nobody could read into memory.
    let file = File::create(pack.path().join(KERNEL)).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(read(&pack, PackLimits::default()), ["file_too_large"]);
}

#[test]
fn manifest_and_signature_have_caps_of_their_own() {
    let pack = good_pack();
    pack.write("kernels.json.sig", &vec![b' '; MAX_ENVELOPE_BYTES + 1]);
    pack.write("kernels.json", &vec![b' '; ruvllm_manifest::MAX_MANIFEST_BYTES + 1]);
    assert_eq!(read(&pack, PackLimits::default()), ["file_too_large"; 2]);
}

#[test]
fn the_whole_pack_has_caps_too() {
    let pack = good_pack();
    let small = PackLimits { max_total_bytes: 100, ..PackLimits::default() };
    assert!(read(&pack, small).contains(&"pack_too_large"));
    for i in 0..20 {
        pack.write(&format!("d{i}/x"), b"");
    }
    let few = PackLimits { max_entries: 10, ..PackLimits::default() };
    assert_eq!(read(&pack, few), ["pack_too_many_files"]);
}

#[test]
fn directories_end_at_some_depth() {
    let pack = good_pack();
    pack.write(&("d/".repeat(30) + "x"), b"");
    assert_eq!(read(&pack, PackLimits::default()), ["path_invalid"]);
}
